"""What the prompt proposes: commands, and arguments from what is alive in the cluster.

Pure.
"""

from collections.abc import Callable, Sequence
from typing import Final

from protocol.errors import ClientError
from skulk_tui.registry import (
    Action,
    Argument,
    Registry,
    Situation,
    form_of,
    parse_command,
)
from skulk_tui.view_state import ViewState

MOST: Final = 50


def _no_columns(command: str) -> Sequence[str]:
    del command
    return ()


def preview(text: str, registry: Registry, situation: Situation) -> tuple[str, bool]:
    """Say what Enter would do with a text, and whether that changes something."""
    if not text.strip():
        return "type a command; tab completes", False
    try:
        call = parse_command(text, registry)
    except ClientError as wrong:
        if " " not in text.strip():
            found = [item for item in registry.commands(situation) if item.command.startswith(text)]
            if found:
                return "   ".join(item.command for item in found[:6]), False
        return wrong.remediation, False
    return call.action.effect, call.action.mutates


def complete(
    before: str,
    registry: Registry,
    situation: Situation,
    view: ViewState,
    *,
    clusters: Sequence[str] = (),
    columns: Callable[[str], Sequence[str]] = _no_columns,
) -> Sequence[str]:
    """Give what the word before the cursor could become.

    Args:
        before: The line up to the cursor.
        registry: The commands.
        situation: Where the operator is.
        view: What is alive in the cluster.
        clusters: Those that are saved.
        columns: Gives what the columns of the pane are called behind a command.
    """
    words = before.split(" ")
    typed = words[-1]
    if len(words) == 1:
        names = [item.command for item in registry.commands(situation)]
        return [name for name in names if name.startswith(typed)][:MOST]
    action = registry.by_command(words[0])
    if action is None:
        return ()
    if action.arguments and action.arguments[0].kind in {"column", "columns"}:
        # Of a list with commas the name behind the last one is completed.
        listed, comma, name = typed.rpartition(",")
        found = [item for item in columns(action.command) if item.startswith(name.lower())]
        return [f"{listed}{comma}{item}" for item in found][:MOST]
    proposals = _proposals(action, words[1:-1], view, clusters)
    return [item for item in proposals if item.lower().startswith(typed.lower())][:MOST]


def _proposals(
    action: Action, given: Sequence[str], view: ViewState, clusters: Sequence[str]
) -> Sequence[str]:
    introduced = {item.word: item for item in action.arguments if item.word}
    if given and given[-1] in introduced:
        return values_of(introduced[given[-1]], view, clusters)
    n_positional = 0
    skip = False
    for word in given:
        if skip:
            skip = False
        elif word in introduced:
            skip = True
        else:
            n_positional += 1
    positional = [item for item in action.arguments if not item.word]
    own: Sequence[str] = ()
    if n_positional < len(positional):
        own = values_of(positional[n_positional], view, clusters)
    return (*own, *(word for word in introduced if word not in given))


def values_of(argument: Argument, view: ViewState, clusters: Sequence[str] = ()) -> Sequence[str]:
    """Give the live values of an argument."""
    if argument.choices:
        return argument.choices
    match argument.kind:
        case "node" | "nodes":
            return [node.member.name for node in view.nodes]
        case "model":
            return [model.id for model in view.models]
        case "instance":
            return [instance.instance_id for instance in view.instances]
        case "profile":
            return clusters
        case "transfer":
            return sorted({transfer.model_id for transfer in view.transfers})
        case _:
            return ()


def form(text: str, registry: Registry) -> str:
    """Give the form of the command that a text begins with; empty where it begins with none."""
    action = registry.by_command(text.split(" ", maxsplit=1)[0])
    return form_of(action) if action else ""
