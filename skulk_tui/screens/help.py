"""Help of a pane: every key and command that is there, from the registry. Pure."""

from collections.abc import Sequence

from protocol.errors import ClientError
from skulk_tui.lines import EMPTY, Line, Span, line, span
from skulk_tui.registry import Action, Registry, Situation, form_of, is_allowed, key_name

_KEY_CELLS = 14


def help_lines(
    registry: Registry, situation: Situation
) -> tuple[Sequence[Line], Sequence[str | None]]:
    """Give the lines, and beside each the id of the action that Enter on it runs."""
    own = [item for item in registry.actions if item.views and item.is_here(situation)]
    common = [item for item in registry.actions if not item.views]
    lines: list[Line] = []
    ids: list[str | None] = []
    for title, actions in ((f"In {situation.view} {situation.pane}".rstrip(), own),
                           ("Everywhere", common)):  # fmt: skip
        shown = [item for item in actions if is_allowed(item, situation)]
        if not shown:
            continue
        lines.append(line(Span(title, "title")))
        ids.append(None)
        for item in shown:
            lines.append(_line_of(item, registry))
            ids.append(item.id)
        lines.append(EMPTY)
        ids.append(None)
    return lines, ids


def topic_lines(
    registry: Registry, situation: Situation, topic: str
) -> tuple[Sequence[Line], Sequence[str | None]]:
    """Give all that a word is about, wherever it can be done: a topic, a command, a key, a title.

    Raises:
        ClientError: `client.usage`: nothing is about it.
    """
    wanted = topic.lower()
    found = [
        item
        for item in registry.actions
        if is_allowed(item, situation)
        and (
            wanted in {item.topic, item.command, item.id}
            or wanted in f"{item.title} {item.effect}".lower()
            or topic in {key_name(key) for key in registry.keys_of(item)}
        )
    ]
    if not found:
        topics = ", ".join(sorted({item.topic for item in registry.actions}))
        raise ClientError(
            "client.usage",
            f"nothing is about {topic[:40]!r}",
            remediation=f"Topics are {topics}; a command or a word does too.",
        )
    return [_line_of(item, registry) for item in found], [item.id for item in found]


def _line_of(action: Action, registry: Registry) -> Line:
    keys = " ".join(key_name(key) for key in registry.keys_of(action))
    shown = keys or f":{action.command}"
    effect = action.effect
    if action.command and keys:
        effect = f"{effect}  :{form_of(action)}"
    return line(span(f"{shown:<{_KEY_CELLS}}", "accent"), span(effect))
