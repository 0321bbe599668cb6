"""Who is master: drives the election machine, and does what it says.

One task handles everything in the order in which it came, so that a change of role reaches the log
before whatever was heard after it. Time is looked at once for each input; who asks `is_master`
looks again.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, assert_never, final

from protocol.commands import ReportLeave
from protocol.errors import ClusterError, ProtocolError, SkulkError
from protocol.ids import NodeId
from protocol.peer_messages import (
    ElectionMessage,
    Farewell,
    Heartbeat,
    TermPair,
    pack_frame,
    unpack_election,
)
from skulkd.cluster.beats import Beats
from skulkd.cluster.mastership_ports import (
    ElectionSeen,
    MastershipPorts,
    MemberSeen,
    VoteKeeper,
)
from skulkd.cluster.member_reports import MemberReports
from skulkd.cluster.roles import ElectedLog
from skulkd.cluster.transport import LinkState
from skulkd.core.election import PULSE_S, ElectionMachine
from skulkd.core.election_effects import (
    Beat,
    Effect,
    Follow,
    HandoverEnded,
    HearCommit,
    Journalled,
    Lead,
    Rest,
    SaveVote,
    Send,
)
from skulkd.core.election_inputs import (
    BeginHandover,
    BeginLeaving,
    ElectionSpec,
    FallAsleep,
    Heard,
    Input,
    LinkSeen,
    VoteSaved,
    WakeUp,
)
from skulkd.core.voting import LogLook, TermVote, look_at
from skulkd.runtime.tasks import Tasks, run_blocking, sleep, timeout

_log = logging.getLogger(__name__)

MAX_WAITING: Final = 4096
"""Messages that wait for one turn of the loop; more are dropped, and will be said again."""
LOOP_GRAIN_S: Final = 0.001
FAREWELL_S: Final = 1.0
HANDOVER_S: Final = 15.0
"""Longer than every step of a handover together."""


_Seen = tuple[TermPair | None, bool, tuple[NodeId, ...]]
"""Term, whether this node may decide, and who is alive."""


@final
class Mastership:
    """Implements `skulkd.cluster.roles.MasterView`; made by `open`.

    Args:
        spec: This node.
        ports: What it is connected to.
        machine: Its elections.
        tasks: Owns its tasks.
    """

    def __init__(
        self,
        spec: ElectionSpec,
        ports: MastershipPorts,
        machine: ElectionMachine,
        tasks: Tasks,
        looks: "_Looks",
    ) -> None:
        self._spec = spec
        self._ports = ports
        self._machine = machine
        self._tasks = tasks
        self._looks = looks
        self._inbox: deque[Input] = deque()
        self._n_dropped = 0
        self._n_undecodable = 0
        self._said: dict[NodeId, tuple[bytes, Heartbeat]] = {}
        """The last heartbeat of each node: most repeat it, and need not be decoded again."""
        self._beats = Beats(self._send_beat)
        self._wake = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []
        self._told: _Seen | None = None
        self._n_looks = 0
        self._n_elections = 0
        self._last_term: TermPair | None = None
        self._actions_s = ports.clock.boot_s()
        self._reports = MemberReports(spec.node_id, ports, machine, tasks)
        self._handover: asyncio.Future[str] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._is_closed = self._is_leaving = self._is_asleep = False
        self.vote_error: OSError | ClusterError | None = None
        """Why the last promise that could not be kept was not kept."""

    @classmethod
    async def open(
        cls, spec: ElectionSpec, ports: MastershipPorts, *, rng: random.Random, tasks: Tasks
    ) -> "Mastership":
        """Read what this node has promised, and make its elections; `start` begins them.

        Args:
            spec: This node.
            ports: What it is connected to.
            rng: Draws delays.
            tasks: Owns its tasks.
        """
        looks = _Looks(ports.log)
        machine = ElectionMachine(
            spec,
            promise=await _read_promise(ports.keeper),
            log=looks.look(),
            rng=rng,
            now=ports.clock.boot_s(),
        )
        return cls(spec, ports, machine, tasks, looks)

    def start(self) -> None:
        """Take part: listen on the election plane, and begin to send heartbeats."""
        self._machine.start(now=self._now())
        self._ports.transport.on_receive("election", self._on_receive)
        self._ports.transport.on_link(self._on_link)
        self._pump = self._tasks.start(self._run(), name="elections")

    # ---- MasterView ----

    @property
    def term(self) -> TermPair | None:
        """The term that this node leads or follows; None while it knows no living master."""
        return None if self._is_closed else self._machine.term(now=self._now())

    @property
    def last_master(self) -> NodeId | None:
        """The last master that was known, for refusals."""
        return self._machine.tenure.last_master

    @property
    def is_master(self) -> bool:
        """Whether this node may decide now: elected, not fenced, and within its lease."""
        return not self._is_closed and self._machine.is_master(now=self._now())

    def is_alive(self, node_id: NodeId) -> bool:
        """Whether a member was heard within the suspicion time; this node always is."""
        return self._machine.sight.is_alive(node_id, now=self._now())

    def silent_s(self, node_id: NodeId) -> float | None:
        """How long a member has not been heard; None for one never heard since the start."""
        if node_id == self._spec.node_id:
            return 0.0
        return self._machine.peers.silent_s(node_id, now=self._now())

    def is_reachable(self, node_id: NodeId) -> bool:
        """Whether requests can be sent there: alive, and its link is up both ways."""
        if node_id == self._spec.node_id:
            return True
        is_near = self._machine.sight.is_near(node_id, now=self._now())
        return is_near and self._ports.transport.link(node_id) == "up"

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Add one who is told whenever the term, the role or somebody's liveness changes."""
        self._watchers.append(watcher)

    # ---- What operators ask ----

    @property
    def successor(self) -> NodeId | None:
        """Who could take over now: the member that is closest behind; None when nobody could."""
        return self._machine.sight.successor(now=self._now())

    async def handover(self, target: NodeId) -> None:
        """Make another member master; the change is refused while nothing comes of it.

        Cancelling the wait does not call it back.

        Raises:
            ClusterError: `cluster.no_master`, this node is not master; `cluster.not_member`;
                `cluster.handover_failed`, with what stood in the way; this node is master then,
                unless another one has been elected.
        """
        self._refuse_handover(target)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._handover = ended
        self._take(BeginHandover(target=target))
        try:
            async with timeout(HANDOVER_S):
                reason = await asyncio.shield(ended)
        except TimeoutError:
            reason = f"nothing was heard for {HANDOVER_S:.0f} s"
        finally:
            if self._handover is ended:
                self._handover = None
        if reason:
            raise _handover_failed(target, reason)

    async def farewell(self) -> None:
        """Say goodbye and take part no more; takes at most a second, and more than once is once.

        The cluster is told that this node has left (if a master can be reached), a master hands
        over (if somebody can take over), and everybody is told that nobody need wait.
        """
        if self._is_closed or (self._is_leaving and not self._is_asleep):
            return
        if not self._is_asleep:
            await self._say_goodbye()
        await self.close()

    async def fall_asleep(self) -> None:
        """Say goodbye, as `farewell`, and be silent until `wake_up`; takes little over a second."""
        if self._is_closed or self._is_leaving:
            return
        await self._say_goodbye()
        self._is_asleep = True
        self._take(FallAsleep())
        while self._inbox and not self._is_closed:
            await sleep(0)  # the log rests before the machine does

    def wake_up(self) -> None:
        """Take part again: listen for the master, and send heartbeats; idempotent."""
        if self._is_asleep:
            self._is_leaving = self._is_asleep = False
            self._take(WakeUp())

    async def close(self) -> None:
        """Take part no more, without a word; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._beats.drop()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
        self._ports.log.rest()
        self._tell()

    def seen(self) -> ElectionSeen:
        """Tell what is known of the election and of every member, for diagnostics."""
        now = self._now()
        machine = self._machine
        return ElectionSeen(
            role=machine.role,
            term=self.term,
            is_minority=machine.tenure.is_minority,
            known_number=machine.known_number,
            promise=machine.promise,
            last_master=machine.tenure.last_master,
            is_lagging=machine.sight.is_lagging(now=now),
            n_elections=self._n_elections,
            n_dropped=self._n_dropped,
            n_undecodable=self._n_undecodable,
            members=tuple(
                self._member_seen(node_id) for node_id in sorted(self._ports.log.appended.members)
            ),
            problems=self.problems(),
        )

    def problems(self) -> tuple[str, ...]:
        """Say in words what an operator must put right: copied identities."""
        return tuple(
            f"node {found.node_id} runs twice, as boot {found.boot_ids[0]} and "
            f"{found.boot_ids[1]}: its home was copied. Stop one of them, give it an empty home, "
            "and let it join as a new node"
            for found in self._machine.peers.duplicates(now=self._now())
        )

    # ---- Input ----

    def _on_receive(self, sender: NodeId, payload: bytes) -> None:
        said = self._said.get(sender)
        if said is not None and said[0] == payload:
            self._take(Heard(sender=sender, message=said[1]))
            return
        try:
            message = unpack_election(payload)
        except ProtocolError as error:
            self._n_undecodable += 1
            _log.log(
                logging.WARNING if self._n_undecodable == 1 else logging.DEBUG,
                "%s sent a frame that does not decode: %s",
                sender,
                error.message,
            )
            return
        if isinstance(message, Heartbeat):
            self._said[sender] = payload, message
        self._take(Heard(sender=sender, message=message))

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        self._take(LinkSeen(peer=peer, is_refused=state == "refused"))
        if state == "up":  # until it is heard it gets no requests, and the next beat may be far
            self._send((peer,), self._heartbeat())

    def _take(self, given: Input) -> None:
        if len(self._inbox) >= MAX_WAITING and isinstance(given, Heard):
            self._n_dropped += 1
            return
        self._inbox.append(given)
        self._wake.set()

    async def _run(self) -> None:
        loop, clock = asyncio.get_running_loop(), self._ports.clock
        while True:
            wait_s = self._machine.deadline - self._now()
            due_s = clock.monotonic_s() + wait_s + LOOP_GRAIN_S
            if wait_s > 0 and not self._inbox:
                # Loops count in milliseconds: without one more it would come in vain, and again.
                timer = loop.call_later(wait_s + LOOP_GRAIN_S, self._wake.set)
                await self._wake.wait()
                timer.cancel()
            else:
                await sleep(0)  # a flood of messages must not keep the loop from everybody else
            self._wake.clear()
            self._turn(late_s=max(0.0, clock.monotonic_s() - due_s))

    def _turn(self, *, late_s: float) -> None:
        for _ in range(len(self._inbox)):
            given = self._inbox.popleft()
            self._do(self._machine.handle(given, log=self._looks.look(), now=self._now()))
        if self._now() >= self._machine.deadline:
            self._do(self._machine.tick(log=self._looks.look(), now=self._now()))
        if self._now() >= self._actions_s:
            self._actions_s = self._now() + PULSE_S
            self._reports.act()
        # Who is alive is compared with each look, not with each of the many heartbeats.
        if self._n_looks != self._machine.n_looks:
            self._n_looks = self._machine.n_looks
            self._tell()
            self._ports.rounds.begin(late_s=late_s)

    def _now(self) -> float:
        return self._ports.clock.boot_s()

    # ---- Effects ----

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect.to, effect.message)
                case Beat():
                    self._beat(effect.to)
                case SaveVote():
                    self._tasks.start(self._save(effect), name="save vote")
                case HandoverEnded():
                    self._handover_ended(effect)
                case _:
                    self._tell_log(effect)

    def _tell_log(self, effect: Lead | Follow | Rest | Journalled | HearCommit) -> None:
        log = self._ports.log
        match effect:
            case Lead():
                _log.info(
                    "master of term %d by %d of %d votes%s",
                    effect.term.number,
                    effect.n_votes,
                    effect.n_voters,
                    ", a minority" if effect.is_minority else "",
                )
                log.lead(effect.term, is_minority=effect.is_minority)
            case Follow():
                _log.info("follow %s in term %d", effect.term.master, effect.term.number)
                log.follow(effect.term)
            case Rest():
                _log.info("no master: %s", effect.reason)
                log.rest()
            case Journalled():
                log.journalled(effect.member, effect.number, effect.seq, effect.chain)
            case HearCommit():
                said = effect.heartbeat
                log.hear_commit(effect.term, said.commit_seq, said.position.seq, said.chain)
                if said.hash_seq:
                    log.hear_hash(effect.term, said.hash_seq, said.state_hash)
            case _:
                assert_never(effect)

    def _send(self, to: tuple[NodeId, ...], message: ElectionMessage) -> None:
        if self._is_asleep:
            return  # a vote that was being saved: whoever said goodbye has none
        self._beats.finish()
        payload = pack_frame(message)
        for peer in to:
            # Refused is as good as lost: whoever does not hear is asked again, or gone.
            self._ports.transport.send(peer, "election", payload, key=type(message).__name__)

    def _beat(self, to: NodeId | None) -> None:
        payload = pack_frame(self._heartbeat())
        if to is None:
            self._beats.begin(payload, self._ports.transport.peers())
        else:
            self._send_beat(to, payload)

    def _send_beat(self, peer: NodeId, payload: bytes) -> None:
        self._ports.transport.send(peer, "election", payload, key=Heartbeat.__name__)

    def _broadcast(self, message: ElectionMessage) -> None:
        self._send(self._ports.transport.peers(), message)

    def _heartbeat(self) -> Heartbeat:
        now, log = self._now(), self._ports.log
        number, master = self._machine.claimed(now=now)
        hash_seq, state_hash = log.state_hash
        return Heartbeat(
            boot_id=self._spec.boot_id,
            number=number,
            master=master,
            is_minority=master is not None and self._machine.tenure.is_minority,
            position=log.durable_position,
            commit_seq=log.commit_seq,
            chain=log.chain,
            unheard=self._machine.sight.unheard(now=now),
            is_lagging=self._machine.sight.is_lagging(now=now),
            hash_seq=hash_seq,
            state_hash=state_hash,
        )

    async def _save(self, effect: SaveVote) -> None:
        keeper = self._ports.keeper
        write = keeper.write_anew if effect.replaces_damaged else keeper.write
        is_durable = True
        try:
            await run_blocking(write, effect.vote)
        except (OSError, ClusterError) as error:
            is_durable = False
            self.vote_error = error
            _log.warning("no vote in term %d: it is not durable: %s", effect.vote.term, error)
        self._take(VoteSaved(vote=effect.vote, is_durable=is_durable))

    # ---- Handover and goodbye ----

    def _refuse_handover(self, target: NodeId) -> None:
        if not self.is_master:
            raise ClusterError(
                "cluster.no_master",
                f"only the master hands over; it is {self.last_master or 'not known'}",
                remediation="Ask again when a master is known.",
                retry_after_s=2,
            )
        if target not in self._ports.log.appended.members:
            raise ClusterError(
                "cluster.not_member",
                f"{target} is not a member of this cluster",
                remediation="`skulk cluster members` lists the members.",
                details={"node_id": target},
            )
        if target == self._spec.node_id:
            raise _handover_failed(target, "it is the master already")
        if self._handover is not None:
            raise _handover_failed(target, "another handover is under way")
        if not self._machine.sight.is_near(target, now=self._now()):
            raise _handover_failed(target, "it is not heard, or does not hear the master")

    def _handover_ended(self, effect: HandoverEnded) -> None:
        _log.info(
            "handover to %s: %s", effect.target, effect.reason if not effect.is_done else "done"
        )
        if self._handover is not None and not self._handover.done():
            self._handover.set_result("" if effect.is_done else effect.reason)

    async def _say_goodbye(self) -> None:
        self._is_leaving = True
        self._take(BeginLeaving())
        with suppress(TimeoutError):
            async with timeout(FAREWELL_S):
                await self._leave()
        self._broadcast(Farewell(self._machine.known_number))

    async def _leave(self) -> None:
        me = self._spec.node_id
        if self.term is not None:
            command = ReportLeave(command_id=self._ports.mint(), node_id=me)
            try:
                async with timeout(FAREWELL_S / 2):
                    await self._ports.submit(command)
            except (SkulkError, TimeoutError) as error:
                _log.info("the cluster could not be told that this node leaves: %s", error)
        target = self.successor
        if self.is_master and target is not None:
            try:
                await self.handover(target)
            except SkulkError as error:
                _log.info("nobody took over: %s", error.message)

    # ---- Views ----

    def _member_seen(self, node_id: NodeId) -> MemberSeen:
        heartbeat = self._machine.peers.heartbeat(node_id)
        is_me = node_id == self._spec.node_id
        if is_me:
            heartbeat = self._heartbeat()
        return MemberSeen(
            node_id=node_id,
            is_alive=self.is_alive(node_id),
            silent_s=self.silent_s(node_id),
            link="up" if is_me else self._ports.transport.link(node_id),
            boot_id=None if heartbeat is None else heartbeat.boot_id,
            commit_seq=None if heartbeat is None else heartbeat.commit_seq,
            number=None if heartbeat is None else heartbeat.number,
            master=None if heartbeat is None else heartbeat.master,
            unheard=() if heartbeat is None else heartbeat.unheard,
            is_lagging=heartbeat is not None and heartbeat.is_lagging,
        )

    def _tell(self) -> None:
        members = self._ports.log.appended.members
        for gone in self._said.keys() - members.keys():
            del self._said[gone]
        now = self._now()
        suspicion_s = self._machine.sight.suspicion_s(now=now)
        alive = self._machine.peers.alive_of(members, suspicion_s=suspicion_s, now=now)
        seen = (self.term, self.is_master, alive)
        if seen != self._told:
            if seen[0] is not None and seen[0] != self._last_term:
                self._last_term = seen[0]
                self._n_elections += 1
            self._told = seen
            for watcher in self._watchers:
                watcher()


@final
class _Looks:
    """What elections see of the log; made anew only when it has changed.

    Args:
        log: The node's.
    """

    def __init__(self, log: ElectedLog) -> None:
        self._log = log
        self._last: LogLook | None = None
        self._of: object = None

    def look(self) -> LogLook:
        """Give it as it is now."""
        state, durable = self._log.appended, self._log.durable_position
        if self._last is None or self._of is not state or self._last.durable != durable:
            self._last, self._of = look_at(state, durable), state
        return self._last


async def _read_promise(keeper: VoteKeeper) -> TermVote | None:
    try:
        return await run_blocking(keeper.read)
    except (ClusterError, OSError) as error:
        _log.error(
            "what this node promised in elections cannot be read (%s): it does not vote until it "
            "has heard every other voter",
            error,
        )
        return None


def _handover_failed(target: NodeId, reason: str) -> ClusterError:
    return ClusterError(
        "cluster.handover_failed",
        f"{target} did not become master: {reason}",
        remediation="Look at that node (`skulk nodes`), then repeat `skulk cluster handover`.",
        details={"node_id": target, "reason": reason},
    )
