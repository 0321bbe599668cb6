"""Lines of server-sent events to events; pure, so that the terminal UI reads the same way."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvent:
    """One event of a stream."""

    event: str
    """Its kind; `message` where the node names none."""
    data: str
    id: str | None = None
    """Where to go on from, once it has been taken."""


def events_in(lines: Iterable[str]) -> Iterator[ServerEvent | None]:
    """Read events as their last line comes; None stands for a line that completes none.

    Comments are such lines: whoever reads learns that time has passed.
    """
    kind, data, position = "", list[str](), None
    for line in lines:
        if not line:
            if data:
                yield ServerEvent(event=kind or "message", data="\n".join(data), id=position)
            kind, data, position = "", [], None
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id":
            position = value
        yield None
