"""Actions of the screen Cluster: nodes, links, members, the door."""

from typing import Final

from skulk_tui.registry import Action, Argument, Situation

_NODE: Final = Argument(name="node", kind="node")


def _is_node(situation: Situation) -> bool:
    return situation.has_one("node")


def _is_instance(situation: Situation) -> bool:
    return situation.has_one("instance")


def _is_setting(situation: Situation) -> bool:
    # Begins a command that changes something: absent where that would be.
    is_allowed = situation.scope == "admin" and not situation.is_readonly
    return is_allowed and situation.has_one("setting")


def _is_openable(situation: Situation) -> bool:
    return situation.has_one("node", "instance", "stranger")


ACTIONS: Final = (
    Action(
        id="node.log",
        title="log",
        effect="Go to the node's log.",
        topic="cluster",
        keys=("l",),
        views=("node",),
        cli="skulk logs {selection} -f",
        weight=70,
    ),
    Action(
        id="node.open",
        title="open",
        effect="Open the model under the cursor.",
        topic="cluster",
        keys=("enter",),
        views=("node.runs",),
        condition=_is_instance,
        weight=100,
    ),
    Action(id="cluster.open", title="open", effect="Open what the cursor is on.", topic="cluster",
           keys=("enter",), views=("cluster",), condition=_is_openable, weight=100),
    Action(id="cluster.logs", title="logs", effect="Follow the log of the node.", topic="cluster",
           keys=("l",), views=("cluster",), condition=_is_node,
           cli="skulk logs {selection} -f", weight=70),
    Action(id="cluster.timeline", title="timeline", effect="Show what happened.", topic="cluster",
           keys=("t",), views=("cluster",), cli="skulk events -f", weight=50),
    Action(id="cluster.matrix", title="link matrix", effect="Show each link between nodes.",
           topic="cluster", keys=("m",), command="matrix", views=("cluster",),
           cli="skulk cluster links", weight=35),
    Action(id="cluster.probe", title="probe", effect="Measure what the links carry.",
           topic="cluster", command="probe", scope="operate", needs_link=True,
           arguments=(Argument(name="what", kind="choice", choices=("links",), is_required=True),
                      Argument(name="nodes", kind="nodes", word="of")),
           cli="skulk probe links"),
    Action(id="cluster.members", title="members", effect="Show addresses and builds of members.",
           topic="cluster", command="members", cli="skulk cluster members"),
    Action(id="cluster.door", title="door", effect="Show strangers: who, when, and why refused.",
           topic="cluster", command="door", cli="skulk cluster"),
    Action(id="cluster.next_tab", title="next tab", effect="Go to the next sub-tab.",
           topic="cluster", keys=("right_square_bracket",), views=("cluster",)),
    Action(id="cluster.previous_tab", title="previous tab", effect="Go to the sub-tab before.",
           topic="cluster", keys=("left_square_bracket",), views=("cluster",)),
    Action(id="cluster.routes", title="routes", effect="Show which way a token takes.",
           topic="cluster", command="routes", cli="skulk ps"),
    Action(id="cluster.cards", title="cards", effect="Show nodes as cards, or as rows.",
           topic="cluster", command="cards",
           arguments=(Argument(name="switch", kind="choice", choices=("on", "off", "auto")),),
           cli="skulk nodes"),
    Action(id="cluster.keys", title="API keys", effect="List the keys that open the API.",
           topic="cluster", command="keys", cli="skulk keys list"),
    Action(id="cluster.invite", title="invite", effect="Make an invitation for a further node.",
           topic="cluster", command="invite", mutates=True, scope="admin",
           cli="skulk cluster invite"),
    Action(id="cluster.remove", title="remove", effect="Remove a node from the cluster for good.",
           topic="cluster", command="remove", mutates=True, scope="admin", arguments=(_NODE,),
           keys=("x",), views=("cluster.nodes", "node"), condition=_is_node,
           cli="skulk cluster remove {selection}", weight=10),
    Action(id="node.settings", title="settings", effect="Show what a node is set to, and by what.",
           topic="cluster", command="config", arguments=(_NODE,), keys=("S",), views=("node",),
           cli="skulk config get --on {node}", weight=40),
    Action(id="node.edit_setting", title="change", effect="Begin a command that sets this.",
           topic="cluster", keys=("enter",), views=("settings",), condition=_is_setting,
           cli="skulk config set KEY=VALUE", weight=100),
    Action(id="node.set", title="set", effect="Show what a setting would change, and ask.",
           topic="cluster", command="set", mutates=True, scope="admin",
           arguments=(Argument(name="change", kind="setting", is_required=True),
                      Argument(name="node", kind="node", word="on")),
           cli="skulk config set {change}"),
    Action(id="node.unset", title="unset", effect="Take a setting out of the file, and ask.",
           topic="cluster", command="unset", mutates=True, scope="admin",
           arguments=(Argument(name="key", kind="setting", is_required=True),
                      Argument(name="node", kind="node", word="on")),
           cli="skulk config set --unset {key}"),
    Action(id="node.restart", title="restart", effect="Show what a restart interrupts, and ask.",
           topic="cluster", command="restart", mutates=True, scope="admin", arguments=(_NODE,),
           keys=("X",), views=("node", "settings"), cli="skulk node restart {node}", weight=15),
    Action(id="node.drain", title="drain", effect="Show what a drain stops, and ask.",
           topic="cluster", command="drain", mutates=True, scope="operate", arguments=(_NODE,),
           cli="skulk node drain {node}"),
    Action(id="node.undrain", title="undrain", effect="Let a drained node take models again.",
           topic="cluster", command="undrain", mutates=True, scope="operate", arguments=(_NODE,),
           cli="skulk node undrain {node}"),
    Action(id="cluster.handover", title="hand over", effect="Make a node the master.",
           topic="cluster", command="handover", mutates=True, scope="admin", arguments=(_NODE,),
           condition=_is_node, cli="skulk cluster handover {selection}"),
)  # fmt: skip
