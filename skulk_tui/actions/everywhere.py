"""Actions that work on every screen: going about, filtering, copying, help, leaving."""

from typing import Final

from skulk_tui.registry import LOST, Action, Argument, Situation

ROOTS: Final = ("cluster", "models", "chat", "store", "diag")


def _has_selection(situation: Situation) -> bool:
    return bool(situation.selection)


def _has_undo(situation: Situation) -> bool:
    return situation.has_undo


def _is_chattable(situation: Situation) -> bool:
    return situation.has_one("model", "instance")


_VIEWS: Final = (
    Action(id="go.cluster", title="Cluster", effect="Show nodes, links and what runs where.",
           topic="views", keys=("1",), command="cluster", cli="skulk status"),
    Action(id="go.models", title="Models", effect="Show models, and plan where they go.",
           topic="views", keys=("2",), command="models", cli="skulk models"),
    Action(id="go.chat", title="Chat", effect="Talk to a model.", topic="views", keys=("3",),
           command="chat", arguments=(Argument(name="model", kind="model"),),
           cli="skulk chat {model}"),
    Action(id="go.store", title="Store", effect="Show transfers and what is on which disk.",
           topic="views", keys=("4",), command="store", cli="skulk models list"),
    Action(id="go.diag", title="Diag", effect="Show health, timelines, logs and the network.",
           topic="views", keys=("5",), command="diag", cli="skulk doctor"),
    Action(id="open.node", title="node", effect="Open one node.", topic="views", command="node",
           arguments=(Argument(name="node", kind="node", is_required=True),),
           cli="skulk nodes"),
    Action(id="open.model", title="model", effect="Open one model.", topic="views",
           command="model", arguments=(Argument(name="model", kind="model", is_required=True),),
           cli="skulk models show {model}"),
    Action(id="open.instance", title="instance", effect="Open one placed model.", topic="views",
           command="instance",
           arguments=(Argument(name="instance", kind="instance", is_required=True),),
           cli="skulk ps"),
    Action(id="open.command", title="command", effect="Open the timeline of one command.",
           topic="views", command="command",
           arguments=(Argument(name="command", kind="command", is_required=True),),
           cli="skulk timeline {command}"),
    Action(id="view.back", title="back", effect="Close what is open on top, or go back.",
           topic="views", keys=("escape", "backspace"), command="back", key_hint="esc"),
    Action(id="view.last", title="last view", effect="Go to the view before this one.",
           topic="views", keys=("minus",)),
    Action(id="link.attach", title="attach", effect="Go on through another node.", topic="views",
           command="attach", arguments=(Argument(name="node", kind="node"),),
           cli="skulk --node URL tui"),
    Action(id="link.use", title="use cluster", effect="Go over to another saved cluster.",
           topic="views", command="use", arguments=(Argument(name="cluster", kind="profile"),),
           cli="skulk --cluster {cluster} tui"),
)  # fmt: skip

_MOVES: Final = (
    Action(id="move.down", title="down", effect="Move down.", topic="move", keys=("down", "j")),
    Action(id="move.up", title="up", effect="Move up.", topic="move", keys=("up", "k")),
    Action(id="move.page_down", title="page down", effect="Move down by a page.", topic="move",
           keys=("pagedown",)),
    Action(id="move.page_up", title="page up", effect="Move up by a page.", topic="move",
           keys=("pageup",)),
    Action(id="move.first", title="first", effect="Move to the first row.", topic="move",
           keys=("home", "g")),
    Action(id="move.last", title="last", effect="Move to the last row.", topic="move",
           keys=("end", "G")),
    Action(id="move.next_pane", title="next pane", effect="Go to the next pane.", topic="move",
           keys=("tab",)),
    Action(id="move.previous_pane", title="previous pane", effect="Go to the pane before.",
           topic="move", keys=("shift+tab",)),
    Action(id="rows.mark", title="mark", effect="Mark the row, or take its mark away.",
           topic="move", keys=("space",), condition=_has_selection, weight=30),
    Action(id="rows.mark_range", title="range", effect="Mark from the last mark to here.",
           topic="move", keys=("V",)),
    Action(id="rows.mark_all", title="mark all", effect="Mark all rows that match the filter.",
           topic="move", keys=("asterisk",)),
)  # fmt: skip

_TOOLS: Final = (
    Action(id="prompt.command", title="cmd", effect="Type a command.", topic="view",
           keys=("colon", "ctrl+p"), weight=20),
    Action(id="prompt.filter", title="filter", effect="Show the rows that match.", topic="view",
           keys=("slash",), command="filter", arguments=(Argument(name="text", kind="text"),)),
    Action(id="view.help", title="help", effect="Show what can be done in this pane.",
           topic="view", keys=("question_mark", "f1"), command="help",
           arguments=(Argument(name="topic", kind="text"),)),
    Action(id="rows.actions", title="actions", effect="Show what can be done with the selection.",
           topic="view", keys=("a",), weight=80),
    Action(id="rows.copy", title="copy", effect="Copy the name, the row, JSON or the command.",
           topic="view", keys=("y",), condition=_has_selection, weight=25),
    Action(id="rows.sort", title="sort", effect="Sort by the next column, or by one of a name.",
           topic="view", keys=("s",), command="sort",
           arguments=(Argument(name="column", kind="column"),)),
    Action(id="rows.columns", title="columns", effect="Choose which columns this pane shows.",
           topic="view", command="columns", arguments=(Argument(name="names", kind="columns"),)),
    Action(id="rows.reverse", title="reverse", effect="Turn the order round.", topic="view",
           keys=("r",)),
    Action(id="view.zoom", title="zoom", effect="Give this pane the whole body, or take it back.",
           topic="view", keys=("z",)),
    Action(id="view.density", title="density", effect="Leave strips and details out, or show them.",
           topic="view", keys=("w",)),
    Action(id="view.pause", title="pause", effect="Freeze what is shown; data still comes in.",
           topic="view", keys=("p",)),
    Action(id="view.messages", title="messages", effect="Show all that was told.", topic="view",
           keys=("semicolon",)),
    Action(id="view.alert", title="next alert", effect="Go to what the next alert is about.",
           topic="view", keys=("exclamation_mark",)),
    Action(id="view.undo", title="undo", effect="Take the last change back.", topic="view",
           keys=("u",), mutates=True, scope="operate", condition=_has_undo, weight=90),
    Action(id="chat.with", title="chat", effect="Talk to the selected model.", topic="chat",
           keys=("c",), condition=_is_chattable, cli="skulk chat {selection}", weight=40),
    Action(id="view.resync", title="resync", effect="Ask the node for everything anew.",
           topic="view", keys=("R",)),
    Action(id="view.redraw", title="redraw", effect="Draw the whole screen anew.", topic="view",
           keys=("ctrl+l",)),
    Action(id="link.retry", title="retry now", effect="Try to reach the node now.", topic="view",
           keys=("r",), command="retry", views=(LOST,), weight=95),
    Action(id="view.utc", title="UTC", effect="Show times in UTC, or in local time again.",
           topic="view", keys=("T",)),
    Action(id="view.theme", title="theme", effect="Choose the colours.", topic="view",
           command="theme",
           arguments=(Argument(name="theme", kind="choice", is_required=True,
                               choices=("dark", "light", "ansi", "mono")),)),
    Action(id="view.glyphs", title="glyphs", effect="Choose the characters drawn with.",
           topic="view", command="glyphs",
           arguments=(Argument(name="set", kind="choice", is_required=True,
                               choices=("unicode", "ascii")),)),
    Action(id="view.rate", title="rate", effect="Choose how often data is shown.", topic="view",
           command="rate",
           arguments=(Argument(name="hz", kind="choice", is_required=True,
                               choices=("1", "2", "4", "10")),)),
    Action(id="view.readonly", title="readonly", effect="Offer changes, or leave them away.",
           topic="view", command="readonly",
           arguments=(Argument(name="switch", kind="choice", is_required=True,
                               choices=("on", "off")),)),
    Action(id="view.mouse", title="mouse", effect="Take the mouse, or leave it to the terminal.",
           topic="view", command="mouse",
           arguments=(Argument(name="switch", kind="choice", is_required=True,
                               choices=("on", "off")),)),
    Action(id="view.keymap", title="keymap", effect="List all keys, or show them as they arrive.",
           topic="view", command="keymap",
           arguments=(Argument(name="what", kind="choice", choices=("probe",)),)),
    Action(id="view.screenshot", title="picture", effect="Write what is on the screen to a file.",
           topic="view", command="screenshot"),
    Action(id="view.debug", title="debug", effect="Show what this program itself is doing.",
           topic="view", command="debug"),
    Action(id="app.stop", title="stop or copy", effect="Stop the running stream, else copy "
           "what is selected, else say how to leave.", topic="view", keys=("ctrl+c",)),
    Action(id="app.suspend", title="suspend", effect="Go to the shell; `fg` comes back.",
           topic="view", keys=("ctrl+z",)),
    Action(id="app.quit", title="quit", effect="Leave; what was started goes on.", topic="view",
           keys=("ctrl+q",), command="quit"),
    Action(id="app.leave", title="leave", effect="Go back, or leave from a root screen.",
           topic="view", keys=("q",)),
)  # fmt: skip

ACTIONS: Final = (*_VIEWS, *_MOVES, *_TOOLS)
