"""Actions of the screen Diag: health, events, logs, the network."""

from typing import Final

from skulk_tui.registry import Action, Argument, Situation

_LEVEL: Final = Argument(
    name="level", kind="choice", word="level", choices=("debug", "info", "warning", "error")
)


def _is_openable(situation: Situation) -> bool:
    return situation.has_one("check", "node", "link")


ACTIONS: Final = (
    Action(id="diag.open", title="open", effect="Say what is wrong and what helps.", topic="diag",
           keys=("enter",), views=("diag.health",), condition=_is_openable,
           cli="skulk doctor", weight=90),
    Action(id="diag.next_tab", title="next tab", effect="Go to the next sub-tab.", topic="diag",
           keys=("right_square_bracket",), views=("diag",), key_hint="[ ]", weight=50),
    Action(id="diag.previous_tab", title="previous tab", effect="Go to the sub-tab before.",
           topic="diag", keys=("left_square_bracket",), views=("diag",)),
    Action(id="diag.follow", title="follow", effect="Show the newest line as it comes.",
           topic="diag", keys=("f",), views=("diag",), weight=40),
    Action(id="diag.level", title="level", effect="Show log lines from this level on.",
           topic="diag", keys=("L",), views=("diag.logs",), weight=60),
    Action(id="diag.node", title="node", effect="Choose whose log is shown.", topic="diag",
           keys=("N",), views=("diag.logs",), cli="skulk logs NODE -f", weight=70),
    Action(id="diag.health", title="health", effect="Show what is not well, and what helps.",
           topic="diag", command="health", cli="skulk doctor"),
    Action(id="diag.doctor", title="doctor", effect="Show what is not well, and what helps.",
           topic="diag", command="doctor", cli="skulk doctor"),
    Action(id="diag.timeline", title="timeline", effect="Show what was decided, or one command's.",
           topic="diag", command="timeline", arguments=(Argument(name="command", kind="command"),),
           cli="skulk timeline {command}"),
    Action(id="diag.events", title="events", effect="Show what the cluster has decided.",
           topic="diag", command="events", cli="skulk events -f"),
    Action(id="diag.events_since", title="recent events",
           effect="Show what was decided within the last 10m, 2h, 1d.", topic="diag",
           command="events since",
           arguments=(Argument(name="duration", kind="text", is_required=True),),
           cli="skulk events --since {duration}"),
    Action(id="diag.traces", title="traces", effect="Show slow and failed requests.", topic="diag",
           command="traces"),
    Action(id="diag.network", title="network", effect="Show the links that nodes tell of.",
           topic="diag", command="network", cli="skulk cluster members"),
    Action(id="diag.logs", title="logs", effect="Follow a node's log.", topic="diag",
           command="logs",
           arguments=(Argument(name="node", kind="node"), _LEVEL,
                      Argument(name="grep", kind="text", word="grep")),
           cli="skulk logs {node} -f"),
    Action(id="diag.bundle", title="bundle", effect="Show what a bundle for a report would hold.",
           topic="diag", keys=("B",), views=("diag",), command="bundle",
           arguments=(Argument(name="nodes", kind="nodes", word="nodes"),
                      Argument(name="since", kind="text", word="since")),
           cli="skulk diag bundle", weight=30),
    Action(id="diag.make_bundle", title="make it", effect="Collect it, redacted, into one file.",
           topic="diag", keys=("enter",), views=("diag.bundle",), needs_link=True,
           cli="skulk diag bundle", weight=100),
    Action(id="diag.stop_bundle", title="stop", effect="Ask for no more; what has come is kept.",
           topic="diag", keys=("x",), views=("diag.bundle",), weight=20),
    Action(id="diag.grep", title="grep", effect="Show the log lines that match an expression.",
           topic="diag", command="grep", arguments=(Argument(name="pattern", kind="text"),)),
)  # fmt: skip
