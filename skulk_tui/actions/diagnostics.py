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
    Action(id="diag.tab", title="sub-tab", effect="Show health, events, traces, logs or network.",
           topic="diag", command="show",
           arguments=(Argument(name="tab", kind="choice", is_required=True,
                               choices=("health", "timeline", "traces", "logs", "network")),)),
    Action(id="diag.logs", title="logs", effect="Follow a node's log.", topic="diag",
           command="logs",
           arguments=(Argument(name="node", kind="node"), _LEVEL,
                      Argument(name="grep", kind="text", word="grep")),
           cli="skulk logs {node} -f"),
    Action(id="diag.grep", title="grep", effect="Show the log lines that match an expression.",
           topic="diag", command="grep", arguments=(Argument(name="pattern", kind="text"),)),
)  # fmt: skip
