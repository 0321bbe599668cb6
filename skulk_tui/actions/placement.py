"""Actions of the screen Models: plans, placements, and what runs."""

from typing import Final

from skulk_tui.registry import Action, Argument, Situation

SHAPES: Final = ("one", "pipeline", "tensor", "rpc")
_WISH: Final = (
    Argument(name="model", kind="model"),
    Argument(name="nodes", kind="nodes", word="on"),
    Argument(name="excluded", kind="nodes", word="not"),
    Argument(name="shape", kind="choice", word="shape", choices=SHAPES),
    Argument(name="context", kind="number", word="ctx"),
    Argument(name="slots", kind="number", word="slots"),
    Argument(name="backend", kind="text", word="backend"),
    Argument(name="ttl", kind="text", word="on-demand"),
    Argument(name="priority", kind="text", word="priority"),
)
_INSTANCE: Final = Argument(name="instance", kind="instance")


def _is_plannable(situation: Situation) -> bool:
    return situation.has_one("model", "plan", "node", "refused")


def _is_node(situation: Situation) -> bool:
    return situation.has_one("node")


def _is_refused(situation: Situation) -> bool:
    return situation.has_one("model", "plan", "refused")


def _is_placed(situation: Situation) -> bool:
    return situation.has_one("instance", "model")


def _is_openable(situation: Situation) -> bool:
    return situation.has_one("instance", "model", "node")


ACTIONS: Final = (
    Action(id="placement.place", title="place", effect="Show what placing the plan does, and ask.",
           topic="placement", keys=("enter",), views=("models",), command="place",
           arguments=_WISH, condition=_is_plannable, mutates=True, scope="operate",
           cli="skulk place {selection} --plan ID", weight=100),
    Action(id="placement.plan", title="plan", effect="Plan a placement; nothing is changed.",
           topic="placement", command="plan", arguments=_WISH,
           cli="skulk place {model} --dry-run"),
    Action(id="placement.stop", title="stop", effect="Stop an instance, at any phase.",
           topic="placement", keys=("x",), views=("models", "model", "instance"), command="stop",
           arguments=(_INSTANCE,), condition=_is_placed, mutates=True, scope="operate",
           cli="skulk stop {selection}", weight=46),
    Action(id="placement.pin", title="pin", effect="Keep an instance loaded, and out of drains.",
           topic="placement", command="pin", arguments=(_INSTANCE,), condition=_is_placed,
           mutates=True, scope="operate", cli="skulk pin {selection}"),
    Action(id="placement.unpin", title="unpin", effect="Let an instance be unloaded and drained "
           "again.", topic="placement", command="unpin", arguments=(_INSTANCE,),
           condition=_is_placed, mutates=True, scope="operate", cli="skulk unpin {selection}"),
    Action(id="placement.clear_breaker", title="clear breaker", effect="Count an instance's "
           "crashes from here on; one that failed is tried again.", topic="placement",
           command="clear-breaker", arguments=(_INSTANCE,), condition=_is_placed, mutates=True,
           scope="operate", cli="skulk instance clear-breaker {selection}"),
    Action(id="placement.move", title="move", effect="Move an instance to other nodes, which "
           "serve once they can.", topic="placement", keys=("M",),
           views=("models.runs", "model.runs", "instance"), command="move",
           arguments=(_INSTANCE, Argument(name="nodes", kind="nodes", word="to")),
           condition=_is_placed, mutates=True, scope="operate",
           cli="skulk move {selection} --nodes A,B", weight=44),
    Action(id="placement.retry", title="retry", effect="Try a failed instance again.",
           topic="placement", keys=("r",), views=("models.runs", "model.runs", "instance"),
           command="retry-instance", arguments=(_INSTANCE,), condition=_is_placed, mutates=True,
           scope="operate", cli="skulk retry {selection}", weight=60),
    Action(id="placement.pick", title="pick node", effect="Plan with this node, or leave it open.",
           topic="placement", keys=("space",), views=("models.where",), condition=_is_node,
           cli="skulk place MODEL --nodes {selection} --dry-run", weight=95),
    Action(id="placement.shape", title="shape", effect="Plan with the next shape.",
           topic="placement", keys=("S",), views=("models",), condition=_is_plannable,
           cli="skulk place MODEL --shape SHAPE --dry-run", weight=75),
    Action(id="placement.more_context", title="ctx", effect="Plan with twice the context.",
           topic="placement", keys=("plus", "equals_sign"), views=("models",), key_hint="+/-",
           condition=_is_plannable, cli="skulk place MODEL --context TOKENS --dry-run", weight=74),
    Action(id="placement.less_context", title="less ctx", effect="Plan with half the context.",
           topic="placement", keys=("minus",), views=("models",), condition=_is_plannable,
           cli="skulk place MODEL --context TOKENS --dry-run"),
    Action(id="placement.more_slots", title="slots", effect="Plan with one slot more.",
           topic="placement", keys=("greater_than_sign",), views=("models",), key_hint="< >",
           condition=_is_plannable, cli="skulk place MODEL --slots N --dry-run", weight=50),
    Action(id="placement.fewer_slots", title="fewer slots", effect="Plan with one slot less.",
           topic="placement", keys=("less_than_sign",), views=("models",),
           condition=_is_plannable, cli="skulk place MODEL --slots N --dry-run"),
    Action(id="placement.apply", title="apply change", effect="Ask with the smallest change that "
           "fits.", topic="placement", keys=("F",), views=("models",), condition=_is_refused,
           cli="skulk place MODEL --context TOKENS --dry-run", weight=55),
    Action(id="placement.forget", title="reset plan", effect="Leave nodes, shape, context and "
           "slots to the planner again.", topic="placement", keys=("N",), views=("models",),
           condition=_is_plannable),
    Action(id="placement.dry_run", title="dry run", effect="Show every candidate's arithmetic.",
           topic="placement", keys=("d",), views=("models",), condition=_is_plannable,
           cli="skulk place {selection} --dry-run", weight=72),
    Action(id="placement.copy_line", title="copy command", effect="Copy the `skulk place` line.",
           topic="placement", keys=("Y",), views=("models",), condition=_is_plannable, weight=71),
    Action(id="placement.open", title="open", effect="Open what the cursor is on.",
           topic="placement", keys=("o",), views=("models", "model", "instance"),
           condition=_is_openable, weight=45),
    Action(id="placement.open_run", title="open", effect="Open the instance.", topic="placement",
           keys=("enter",), views=("models.runs", "model", "instance"),
           condition=_is_openable,
           cli="skulk instance show {selection}", weight=90),
)  # fmt: skip
