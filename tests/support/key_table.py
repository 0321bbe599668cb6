"""Writes the table of keys and commands into docs/tui.md, from the registry.

python -m tests.support.key_table
"""

from collections.abc import Iterator
from typing import Final, get_args

from skulk_tui.actions.all_actions import ALL_ACTIONS
from skulk_tui.registry import Action, Topic, form_of, key_name
from tests.support.source_tree import ROOT

DOCUMENT: Final = ROOT / "docs" / "tui.md"
BEGINS: Final = "<!-- keys: made by python -m tests.support.key_table -->\n"
ENDS: Final = "<!-- keys end -->\n"
_TITLES: Final[dict[Topic, str]] = {
    "views": "Going about",
    "move": "Moving and marking",
    "view": "What is shown",
    "cluster": "Cluster and nodes",
    "placement": "Models and placement",
    "chat": "Chat",
    "store": "Store",
    "diag": "Diag",
}

_PLACES: Final = {"@lost": "while the link is lost"}


def table() -> str:
    """Give all topics, each with its rows in the order of the registry."""
    return "\n".join("\n".join(_topic(topic)) + "\n" for topic in _TITLES)


def documented() -> str:
    """Read what the document holds."""
    _, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGINS)
    return rest.partition(ENDS)[0]


def renew() -> None:
    """Write the table of now into the document."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGINS)
    after = rest.partition(ENDS)[2]
    DOCUMENT.write_text(f"{before}{BEGINS}{table()}{ENDS}{after}", encoding="utf-8")


def _topic(topic: Topic) -> Iterator[str]:
    assert set(_TITLES) == set(get_args(Topic))
    yield f"### {_TITLES[topic]}\n"
    yield "| Keys | Command | Effect | Where | Id |"
    yield "|---|---|---|---|---|"
    for action in ALL_ACTIONS:
        if action.topic == topic:
            yield _row(action)


def _row(action: Action) -> str:
    keys = " ".join(_code(key_name(key)) for key in action.keys)
    command = _code(f":{form_of(action)}") if action.command else ""
    where = ", ".join(_PLACES.get(place, place.replace(".", " ")) for place in action.views)
    star = " \\*" if action.mutates else ""
    return f"| {keys} | {command} | {action.effect}{star} | {where} | `{action.id}` |"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


if __name__ == "__main__":
    renew()
