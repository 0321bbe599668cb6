"""What the nodes of a simulated cluster have shown and promised, and what does not fit together."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from protocol.commands import Command, CommandReply
from protocol.events import Event, SequencedEvent
from protocol.ids import ClusterId, CommandId, NodeId
from protocol.peer_messages import TermPair
from skulkd.core.apply import repeated
from tests.support.durable_words import DurableWords
from tests.support.simulated_cluster_story import ClusterStory
from tests.support.simulated_node import SimulatedNode

REPLACED_S: Final = 3.5
"""In `quorum`, a master knows that it may not decide so long after another was elected: those who
voted for that one miss it by then, and it has not heard otherwise for as long as its lease."""

_Shown = tuple[int, int, CommandId | None, Event]
"""An event as a replica showed it: term, stamp, cause, and what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    """A command that was acknowledged as committed."""

    cluster_id: ClusterId
    command_id: CommandId
    kind: str
    seq: int
    by: int


@final
class Ledger:
    """Implements `Witness` for all the nodes of one history.

    In `quorum`, and in a gentle history under any policy, what one replica has shown at a place of
    the log every other shows there, and what was acknowledged stays. Otherwise a part that was cut
    off may have gone its own way: then it has to begin anew, told as that, until all show the same.

    Args:
        story: Whose rules hold.
        nodes: Gives those that run.
        words: Hears what they say to each other.
        problems: Gets what does not fit.
    """

    def __init__(
        self,
        story: ClusterStory,
        nodes: Callable[[], list[SimulatedNode]],
        words: DurableWords,
        problems: list[str],
    ) -> None:
        self._words = words
        self.problems = problems
        self.n_resets = 0
        self._is_strict = story.policy == "quorum" or story.is_gentle
        self._is_quorum = story.policy == "quorum"
        self._nodes = nodes
        self._agreed: dict[tuple[ClusterId, int], _Shown] = {}
        self._views: dict[int, dict[tuple[ClusterId, int], _Shown]] = {}
        """Of each node, as far as its log is still the one that it showed."""
        self._leads: dict[tuple[ClusterId, int], set[tuple[NodeId, int]]] = {}
        """Who has led each term number, in which life."""
        self._newest: dict[ClusterId, tuple[TermPair, float]] = {}
        """The highest term that was won, and when."""
        self._older: dict[int, int] = {}
        """Of a master: the last event of an earlier term that it has shown, and none since."""
        self._settled: dict[int, TermPair] = {}
        """The last term of a majority that each node obeyed."""
        self._promises: dict[CommandId, _Promise] = {}

    # ---- What nodes tell ----

    def on_begin(self, node: SimulatedNode) -> None:
        """Forget what the node showed of a log that it has no more."""
        cluster_id, seq = node.identity.cluster_id, node.state.seq
        view = self._views.get(node.world.number, {})
        self._views[node.world.number] = {
            place: shown
            for place, shown in view.items()
            if place[0] == cluster_id and place[1] <= seq
        }
        self._settled.pop(node.world.number, None)
        self._words.on_begin(node.world.node_id, cluster_id, node.rooms.log.appended.seq)
        node.rooms.mastership.on_change(lambda: self._on_mastership(node))

    def on_event(self, node: SimulatedNode, sequenced: SequencedEvent) -> None:
        """Hold an event against what others showed in its place."""
        place = (node.identity.cluster_id, sequenced.seq)
        shown = (sequenced.term, sequenced.at_ms, sequenced.command_id, sequenced.event)
        self._views[node.world.number][place] = shown
        self._note_older(node, sequenced)
        before = self._agreed.setdefault(place, shown)
        if before != shown:
            if self._is_strict:
                name = node.world.name
                self.problems.append(f"{place} was shown as {before}, and by {name} as {shown}")
            self._agreed[place] = shown

    def on_reset(self, node: SimulatedNode) -> None:
        """See that a replica goes back only where its log has turned out to be another one."""
        self.n_resets += 1
        view = self._views[node.world.number]
        last_seq = max((seq for _, seq in view), default=0)
        if node.state.seq < last_seq:
            if self._is_quorum:
                self.problems.append(
                    f"{node.world.name} went back from seq {last_seq} to {node.state.seq}"
                )
            elif not node.rooms.log.health().n_divergences:
                self.problems.append(f"{node.world.name} went back without a word")
        view.clear()

    def on_reply(self, node: SimulatedNode, command: Command, reply: CommandReply) -> None:
        """Keep what has to stay: what rests on a majority, or in a gentle history on another."""
        if not (self._is_quorum or reply.durable == "member") or reply.durable == "memory":
            return
        promise = _Promise(
            cluster_id=node.identity.cluster_id,
            command_id=command.command_id,
            kind=command.kind,
            seq=reply.seq,
            by=node.world.number,
        )
        before = self._promises.setdefault(command.command_id, promise)
        if self._is_strict and before.seq != reply.seq and self._leaves_events(before):
            self.problems.append(f"{promise} was acknowledged as {before} before")

    def _leaves_events(self, promise: _Promise) -> bool:
        shown = self._agreed.get((promise.cluster_id, promise.seq))
        return shown is not None and shown[2] == promise.command_id

    def look(self) -> None:
        """Hold what must hold between any two turns of the loop."""
        if not self._is_quorum:
            return
        for number, seq in self._older.items():
            self.problems.append(f"box-{number} leads, and took seq {seq} of an earlier term alone")
        now_s = asyncio.get_running_loop().time()
        for node in self._nodes():
            pair, is_master = node.rooms.mastership.term, node.rooms.mastership.is_master
            newest = self._newest.get(node.identity.cluster_id)
            if not is_master or pair is None or newest is None:
                continue
            if pair < newest[0] and now_s - newest[1] > REPLACED_S:
                self.problems.append(f"{node.world.name} decides in {pair}, after {newest}")

    def _note_older(self, node: SimulatedNode, sequenced: SequencedEvent) -> None:
        """See that a master takes earlier terms as committed together with an event of its own."""
        pair = node.rooms.mastership.term
        leads = pair is not None and pair.master == node.world.node_id
        is_older = pair is not None and sequenced.term < pair.number
        if leads and is_older and len(node.rooms.log.appended.members) > 1:
            self._older[node.world.number] = sequenced.seq
        else:
            self._older.pop(node.world.number, None)

    def _on_mastership(self, node: SimulatedNode) -> None:
        mastership = node.rooms.mastership
        pair = mastership.term
        if pair is None or node.is_dead:
            return
        if mastership.is_master:
            self._note_lead(node, pair)
        self._note_settled(node, pair)

    def _note_lead(self, node: SimulatedNode, pair: TermPair) -> None:
        """See that a number is led once: by one node in `quorum`, and never by two of its lives."""
        leads = self._leads.setdefault((node.identity.cluster_id, pair.number), set())
        leads.add((node.world.node_id, node.world.n_lives))
        newest = self._newest.get(node.identity.cluster_id)
        if newest is None or pair > newest[0]:
            self._newest[node.identity.cluster_id] = pair, asyncio.get_running_loop().time()
        nodes = {node_id for node_id, _ in leads}
        if len(nodes) < len(leads) or (self._is_quorum and len(nodes) > 1):
            self.problems.append(f"term {pair.number} is led by {sorted(leads)}")

    def _note_settled(self, node: SimulatedNode, pair: TermPair) -> None:
        """See that a master whom a majority follows is not displaced by one whom few elected."""
        number = node.world.number
        seen = node.rooms.mastership.seen()
        if not seen.is_minority:
            self._settled[number] = pair
            return
        before = self._settled.pop(number, None)
        if before is None or before.master in {pair.master, node.world.node_id}:
            return
        if not node.rooms.mastership.is_alive(before.master):
            return
        for other in self._nodes():
            leads = other.rooms.mastership.is_master and other.rooms.mastership.term == before
            if other.world.node_id == before.master and leads:
                self.problems.append(
                    f"{node.world.name} left the settled term {before} for {pair}, of a minority"
                )

    # ---- What must hold at the end ----

    def close(self, nodes: list[SimulatedNode]) -> None:
        """Hold everything against the log that all nodes have in the end."""
        final: dict[tuple[ClusterId, int], _Shown] = {}
        for node in nodes:
            for place, shown in self._views[node.world.number].items():
                if final.setdefault(place, shown) != shown:
                    self.problems.append(f"{node.world.name} still shows another seq {place[1]}")
        if not self._is_strict:
            return
        cluster_id, state = nodes[0].identity.cluster_id, nodes[0].state
        for promise in self._promises.values():
            if promise.cluster_id != cluster_id or not self._leaves_events(promise):
                continue
            shown = final.get((cluster_id, promise.seq))
            result = repeated(state, promise.command_id)
            if shown is None and result is None:
                self.problems.append(f"it is not known what became of {promise}")
            elif shown is not None and shown[2] != promise.command_id:
                self.problems.append(f"{promise} is lost: there is {shown}")
