"""All verbs by name, with the module that brings each: one that is not called is not loaded.

`skulk --help` is read from this table alone; a test keeps it in step with what the verbs say.
"""

from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from typing import Any, Final, cast, final

import typer
from typer.core import TyperGroup

from skulk_tui.cli.verb import before_any_verb

VERBS: Final[dict[str, tuple[str, str]]] = {
    "status": (
        "cluster:add_cluster_verbs",
        "Show the cluster: nodes, what is wrong with them, instances, downloads.",
    ),
    "nodes": (
        "cluster:add_cluster_verbs",
        "List the nodes: alive or not, health, memory, disk, backends.",
    ),
    "ps": ("instances:add_instance_verbs", "List the placed models and how far they are."),
    "top": (
        "top:add_top",
        "Show nodes and placed models, the busiest first; on a terminal until Ctrl-C.",
    ),
    "cluster": (
        "cluster:add_cluster_verbs",
        "The cluster: who is in it, inviting, joining, the master; saved clusters.",
    ),
    "probe": ("links:add_probe_verbs", "Measure what cannot be known without."),
    "place": ("place:add_place", "Place a model, showing its phases until it serves."),
    "move": (
        "move:add_move",
        "Move an instance to other nodes, with its window and slots; no request is lost.",
    ),
    "stop": (
        "instances:add_instance_verbs",
        "Stop instances and wait until their processes are gone.",
    ),
    "retry": ("instances:add_instance_verbs", "Try a failed instance again, as it was placed."),
    "pin": (
        "pins:add_pin_verbs",
        "Keep an instance loaded, and out of drains, until it is unpinned.",
    ),
    "unpin": (
        "pins:add_pin_verbs",
        "Take the pin of an instance back: it is unloaded and drained as any other.",
    ),
    "wait": (
        "wait:add_wait",
        "Wait until a model serves, its instances are gone, or its files are there.",
    ),
    "instance": ("instances:add_instance_verbs", "One instance."),
    "chat": ("chat:add_chat", "Ask a placed model; the answer streams to standard output."),
    "bench": (
        "bench:add_bench",
        "Measure how fast a placed model answers: time to the first token, tokens a second.",
    ),
    "tui": (
        "tui:add_tui",
        "Operate the cluster from a full-screen terminal: nodes, models, chat, store, diagnostics.",
    ),
    "store": (
        "store:add_store_verbs",
        "Model files: pause, resume or limit their transfers, verify them.",
    ),
    "models": ("models:add_model_verbs", "The catalogue of models and their files."),
    "logs": (
        "logs:add_log_verbs",
        "Show the last lines of a node's log, or of an instance's engine, wherever it is.",
    ),
    "events": (
        "logs:add_log_verbs",
        "Show what the cluster has decided: the events of its log, oldest first.",
    ),
    "timeline": (
        "timeline:add_timeline",
        "Show what one command led to: the cluster's events and the log lines of all nodes.",
    ),
    "doctor": (
        "doctor:add_doctor",
        "Check the health of all nodes, and say what to do about what is wrong.",
    ),
    "keys": ("keys:add_key_verbs", "API keys; each is valid on all nodes."),
    "connect": (
        "connect:add_connect",
        "Print or write what a tool needs to use the placed models: codex, claude and others.",
    ),
    "api": ("apis:add_api_verbs", "Where the node's HTTP API is served."),
    "config": ("config:add_config_verbs", "Settings of a node, and of the whole cluster."),
    "node": ("node:add_node_verbs", "One node of the cluster."),
    "diag": ("bundle:add_bundle_verbs", "Finding out what is wrong."),
    "bundle": (
        "bundle:add_bundle_verbs",
        "Collect state, events, logs, versions and settings of the nodes in one redacted archive.",
    ),
    "uninstall": (
        "uninstall:add_uninstall",
        "Remove the service; list the folders that are kept, with their bytes.",
    ),
    "service": (
        "service:add_service_verbs",
        "The node as a service: of this user, or as root the machine.",
    ),
    "completion": (
        "completion:add_completion",
        "Print the script for a shell's completion; names of nodes, models and instances are live.",
    ),
    "version": ("program:add_program_verbs", "Show the version of this program; no node is asked."),
    "info": (
        "program:add_program_verbs",
        "Show which node would be asked and by which rule, with which key, and where files lie.",
    ),
    "help": ("topics:add_help", "Explain a topic or a verb; without one, list the topics."),
}
"""The function that registers the verb, among others perhaps, and its line in the help."""
_GAP: Final = 6
_ELLIPSIS: Final = "..."


@final
class LazyCommands(MutableMapping[str, Any]):
    """The commands of the program by name, each made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # ruff: ignore[any-type]  see above
        """Give a verb's command; the others of its module are made with it."""
        if name not in self._made:
            adder, _ = VERBS[name]
            self._made.update(_commands_of(adder))
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:  # ruff: ignore[any-type]  see above
        """Put a command in the place of the one that would be made."""
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        """Forget a command that was made."""
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Give the names, in the order of the help."""
        return iter(VERBS)

    def __len__(self) -> int:
        """Count the verbs."""
        return len(VERBS)


def _commands_of(adder: str) -> dict[str, Any]:
    module, _, function = adder.partition(":")
    add = cast(
        "Callable[[typer.Typer], None]",
        getattr(import_module(f"skulk_tui.cli.{module}"), function),
    )
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(before_any_verb)
    add(app)
    return dict(cast("Any", typer.main.get_command(app)).commands)


class LazyGroup(TyperGroup):
    """The root of the commands."""

    def __init__(self, **settings: Any) -> None:  # ruff: ignore[any-type]  see above
        super().__init__(**settings)
        self.commands = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:  # ruff: ignore[any-type]  see above
        """Give the names alone: the base class makes every command for it."""
        del ctx
        return list(VERBS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # ruff: ignore[any-type]  see above
        """Write the list of the help, a line each, from the table."""
        del ctx
        room = int(formatter.width) - _GAP - max(map(len, VERBS))
        rows = [(name, _line(summary, room)) for name, (_, summary) in VERBS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _line(summary: str, room: int) -> str:
    """Cut a summary to one line, between words."""
    if len(summary) <= room:
        return summary
    return summary[: room - len(_ELLIPSIS) + 1].rpartition(" ")[0].rstrip(",;:") + _ELLIPSIS
