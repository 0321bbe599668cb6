"""Actions of the screen Store: transfers, artifacts on disk."""

from typing import Final

from skulk_tui.registry import Action, Argument, Situation


def _is_transfer(situation: Situation) -> bool:
    return situation.has_one("transfer")


def _is_stored(situation: Situation) -> bool:
    return situation.has("stored")


def _is_fetchable(situation: Situation) -> bool:
    return situation.has_one("transfer", "stored", "model")


ACTIONS: Final = (
    Action(
        id="store.open",
        title="open",
        effect="Open the model under the cursor.",
        topic="store",
        keys=("enter",),
        views=("store",),
        condition=_is_fetchable,
        weight=60,
    ),
    Action(
        id="store.cancel",
        title="cancel",
        effect="End the transfer; what has come is kept.",
        topic="store",
        keys=("x",),
        views=("store.transfers",),
        command="cancel",
        arguments=(
            Argument(name="transfer", kind="transfer"),
            Argument(name="node", kind="node", word="on"),
        ),
        condition=_is_transfer,
        mutates=True,
        scope="operate",
        cli="skulk models pull {selection} --cancel",
        weight=90,
    ),
    Action(
        id="store.pause",
        title="pause",
        effect="Stop the transfer until it is resumed, or go on with one that is paused.",
        topic="store",
        keys=("p",),
        views=("store.transfers",),
        command="pause",
        arguments=(
            Argument(name="transfer", kind="transfer"),
            Argument(name="node", kind="node", word="on"),
        ),
        condition=_is_transfer,
        mutates=True,
        scope="operate",
        cli="skulk store pause {selection}",
        weight=95,
    ),
    Action(
        id="store.resume",
        title="resume",
        effect="Go on with a paused transfer.",
        topic="store",
        views=("store.transfers",),
        command="resume",
        arguments=(
            Argument(name="transfer", kind="transfer"),
            Argument(name="node", kind="node", word="on"),
        ),
        condition=_is_transfer,
        mutates=True,
        scope="operate",
        cli="skulk store resume {selection}",
    ),
    Action(
        id="store.pull",
        title="pull",
        effect="Fetch a model's files to nodes.",
        topic="store",
        keys=("n",),
        views=("store",),
        command="pull",
        arguments=(
            Argument(name="model", kind="model"),
            Argument(name="nodes", kind="nodes", word="on"),
        ),
        condition=_is_fetchable,
        mutates=True,
        scope="operate",
        cli="skulk models pull {selection}",
        weight=80,
    ),
    Action(
        id="store.limit",
        title="limit",
        effect="Limit how fast nodes send and fetch files: 50MB/s, or off.",
        topic="store",
        views=("store",),
        command="limit",
        arguments=(
            Argument(name="rate", kind="text", is_required=True),
            Argument(name="nodes", kind="nodes", word="on"),
        ),
        mutates=True,
        scope="admin",
        cli="skulk store limit {rate}",
    ),
    Action(
        id="store.verify",
        title="verify",
        effect="Hash the files of a model again, wherever they lie.",
        topic="store",
        keys=("v",),
        views=("store",),
        command="verify",
        arguments=(Argument(name="model", kind="model"),),
        condition=_is_fetchable,
        mutates=True,
        scope="operate",
        cli="skulk store verify {selection}",
        weight=65,
    ),
    Action(
        id="store.prune",
        title="prune",
        effect="Remove the selected artifacts from all disks.",
        topic="store",
        keys=("X",),
        views=("store.stored",),
        command="prune",
        condition=_is_stored,
        mutates=True,
        scope="operate",
        cli="skulk models rm {selection}",
        weight=70,
    ),
    Action(
        id="store.next_nodes",
        title="next nodes",
        effect="Show the next nodes, where not all fit.",
        topic="store",
        keys=("greater_than_sign",),
        views=("store",),
    ),
    Action(
        id="store.previous_nodes",
        title="previous nodes",
        effect="Show the nodes before, where not all fit.",
        topic="store",
        keys=("less_than_sign",),
        views=("store",),
    ),
)
