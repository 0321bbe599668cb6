"""A request with something in it that does not belong there, at every place of it."""

import copy
import random
from collections.abc import Iterator
from typing import Any, cast

Place = tuple[str | int, ...]

JUNK: list[Any] = [
    None, True, 0, -1, 10**400, 1e308, "", "x" * 5000, "\x00", [], [[]], [{}], {}, {"a": [1]},
    {"type": []}, {"type": {}}, {"function": []}, {"function": {"name": []}},
]  # fmt: skip


def places(value: object, place: Place = ()) -> Iterator[Place]:
    """Give every place inside a JSON value."""
    if place:
        yield place
    if isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            yield from places(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from places(item, (*place, index))


def with_junk(full: dict[str, Any], place: Place) -> Iterator[dict[str, Any]]:
    """Give copies with each kind of junk at one place."""
    for junk in JUNK:
        body = copy.deepcopy(full)
        target: Any = body
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = junk
        yield body


def mutated(full: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Copy a request with something removed, replaced or moved at one to four places."""
    body = copy.deepcopy(full)
    for _ in range(chance.randint(1, 4)):
        all_places = list(places(body))
        place, other = chance.choice(all_places), chance.choice(all_places)
        parent = _at(body, place[:-1])
        match chance.randrange(3):
            case 0:
                del parent[place[-1]]
            case 1:
                parent[place[-1]] = copy.deepcopy(chance.choice(JUNK))
            case _:
                parent[place[-1]] = copy.deepcopy(_at(body, other))
        if not body:
            break
    return body


def _at(body: dict[str, Any], place: tuple[str | int, ...]) -> Any:  # ruff: ignore[any-type]  JSON
    value: Any = body
    for key in place:
        value = value[key]
    return value
