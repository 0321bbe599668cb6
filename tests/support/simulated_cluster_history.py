"""Living through a history of a cluster, and what must hold of it all the while."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NoReturn, assert_never, final

from protocol.ids import ClusterId, NodeId
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.core.apply import state_hash
from skulkd.core.sight import LEASE_S
from skulkd.runtime.simulated_disk import SimulatedDisk
from tests.support.builders import a_digest, a_node_id
from tests.support.durable_words import DurableWords
from tests.support.simulated_box import Box
from tests.support.simulated_cluster_ledger import Ledger
from tests.support.simulated_cluster_story import (
    MASTER,
    ClusterAct,
    ClusterStory,
    Cut,
    HandOver,
    Join,
    Key,
    Move,
    Noise,
    On,
    Part,
    Pin,
    Remove,
    Sleep,
)
from tests.support.simulated_demand import (
    can_serve,
    is_at_rest,
    needless_wakes,
    watch_unloading,
)
from tests.support.simulated_history import HistoryError
from tests.support.simulated_node import SimulatedNode
from tests.support.simulated_people import People
from tests.support.simulated_store import FAIR
from tests.support.simulated_story import (
    CARDS,
    Act,
    Chat,
    Crash,
    Crowd,
    Kill,
    Place,
    Pull,
    Restart,
    Retry,
    Stop,
    Temper,
    Trouble,
    Turn,
)
from tests.support.simulated_world import HOME, SimulatedWorld

FOUNDED_S: Final = 60.0
SETTLED_S: Final = 240.0
QUIET_S: Final = 8.0
"""So long nothing may happen before all counts as settled."""
ENDS_S: Final = 8.0
"""From the loss of a client, or of its node, to the end of all work for it on another node."""
STOPPED_S: Final = 60.0
IDLE_S: Final = 60.0
SHORT_IDLE_S: Final = 15.0
"""In all histories but one of ten: most of the time that they take would go into idling."""
EXPELLED_S: Final = 10.0
"""From the removal of a node that hears of it to its being a cluster of its own."""
WHOLE_S: Final = 60.0
"""From the return of a node to its having all that the others have."""
_QUIET_NETWORK: Final = NetworkFaults()


@final
class ClusterHistory:
    """One history, run by `live`.

    Args:
        seed: Draws ids and the network's delays; the loop has one of its own.
        story: What happens.
    """

    def __init__(self, seed: int, story: ClusterStory) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  a repeatable history is the aim
        self.network = SimulatedNetwork(random.Random(seed), _QUIET_NETWORK)
        self.told: list[str] = []
        """What came of the steps, in order: the same seed tells the same."""
        self.boxes: dict[int, Box] = {}
        self._seed = seed
        self._story = story
        self._problems: list[str] = []
        disks: dict[NodeId, SimulatedDisk] = {}
        words = DurableWords(disks, HOME, self._problems)
        self.network.watcher = words.on_payload
        self._ledger = Ledger(story, self._running, words, self._problems)
        for number in range(1, story.n_nodes + 1):
            world = SimulatedWorld(seed * 100 + number, CARDS, network=self.network, number=number)
            world.problems = self._problems
            world.machine.complaints = self._problems
            world.witness = self._ledger
            world.on_restart = self._on_restart
            disks[world.node_id] = world.disk
            self.boxes[number] = box = Box(world)
            world.machine.on_term = partial(watch_unloading, box, self._problems)
        self._people = People(self._problems, self.told, is_served=self._is_served, ends_s=ENDS_S)
        self._fates: list[asyncio.Task[object]] = []
        self._n_asked: Counter[str] = Counter()
        """Requests for each model so far."""
        self._is_healed = False
        self._loop = asyncio.get_running_loop()

    async def live(self) -> str:
        """Go through the steps, let all get well, and look at what is left.

        Returns:
            A digest of everything that was told and committed.

        Raises:
            HistoryError: Something did not hold.
        """
        await self._found()
        for after_s, act in self._story.steps:
            await asyncio.sleep(after_s)
            await self._act(act)
            self._check()
        await self._heal()
        await self._settle()
        self._check_settled()
        await self._idle()
        await self._prove()
        await self._stop_all()
        if self._seed % 3 == 0:
            await self._black_out()
        elif self._seed % 3 == 1:
            await self._expel()
        position = self._check_agreement()
        for box in self.boxes.values():
            await box.stop()
        self._check_left()
        return a_digest("\n".join([*self.told, position]))

    # ---- The beginning ----

    async def _found(self) -> None:
        """Start all nodes and let them join the first by its token."""
        await asyncio.gather(*(box.start() for box in self.boxes.values()))
        token = await self._invite(1)
        others = [number for number in self.boxes if number != 1]
        await asyncio.gather(*(self._join(number, token) for number in others))
        await self._wait(self._is_whole, FOUNDED_S, "founded")
        await self._ask(1, "PUT", "/v1/cluster/policy", {"policy": self._story.policy})
        await self._wait(self._is_whole, FOUNDED_S, "of one policy")
        self._check()

    async def _invite(self, via: int) -> str:
        body = {"uses": len(self.boxes)}
        return str((await self._ask(via, "POST", "/v1/cluster/invite", body)).get("token", ""))

    async def _join(self, number: int, token: str) -> bool:
        body = {"token": token, "discard": True}
        return bool(await self._ask(number, "POST", "/v1/cluster/join", body))

    def _on_restart(self, node: SimulatedNode) -> None:
        self._befall(self.boxes[node.world.number].restart(0.0, of=node))

    # ---- Acts ----

    async def _act(self, act: ClusterAct) -> None:
        network = self.network
        match act:
            case On():
                await self._on(self.boxes[self._number(act.node)], act.act)
            case Cut():
                sender, receiver = self._number(act.sender), self._number(act.receiver)
                if sender != receiver:
                    network.cut(a_node_id(sender), a_node_id(receiver))
            case Part():
                side = [self._number(number) for number in act.side]
                rest = self.boxes.keys() - set(side)
                network.partition(_ids(side), _ids(sorted(rest)))
            case Join():
                network.heal_all()
            case Noise():
                network.faults = NetworkFaults(
                    loss_ratio=act.loss_ratio,
                    duplicate_ratio=act.duplicate_ratio,
                    max_delay_s=act.max_delay_s,
                )
            case _:
                await self._do(act)

    async def _do(self, act: Sleep | HandOver | Remove | Key | Move | Pin) -> None:
        match act:
            case Sleep():
                self._sleep(self.boxes[self._number(act.node)], act.slept_s)
                await self._become_whole()
            case HandOver():
                body = {} if act.to is None else {"node": f"box-{self._number(act.to)}"}
                self._people.begin(
                    self._ask(self._number(act.via), "POST", "/v1/cluster/handover", body)
                )
            case Remove():
                self._befall(self._remove(act))
            case Key():
                body = {"name": "somebody's"}
                self._people.begin(self._ask(self._number(act.via), "POST", "/v1/keys", body))
            case Move():
                via = self._number(act.via)
                chosen = self.boxes[via].instance(act.which)
                if chosen is not None:
                    path = f"/instance/{chosen.instance_id}/move"
                    body = {"stop_first": act.stop_first, "drain_s": act.drain_s}
                    self._people.begin(self._ask(via, "POST", path, body))
            case Pin():
                via = self._number(act.via)
                chosen = self.boxes[via].instance(act.which)
                if chosen is not None:
                    path = f"/instance/{chosen.instance_id}/pin"
                    method = "POST" if act.is_pinned else "DELETE"
                    self._people.begin(self._ask(via, method, path))
            case _:
                assert_never(act)

    async def _on(self, box: Box, act: Act) -> None:
        number = box.number
        match act:
            case Place():
                self._people.begin(self._ask(number, "POST", "/place_instance", act.body))
            case Stop() | Retry():
                chosen = box.instance(act.which)
                if chosen is None:
                    return
                path = f"/instance/{chosen.instance_id}"
                asking = (
                    self._ask(number, "DELETE", path)
                    if isinstance(act, Stop)
                    else self._ask(number, "POST", f"{path}/retry")
                )
                self._people.begin(asking)
            case Pull():
                self._people.begin(self._pull(number, act))
            case Chat():
                for _ in range(act.n_clients):
                    self._people.begin(self._chat(number, act))
            case Crash():
                self._befall(box.crash(act))
                await self._become_whole()
            case Restart():
                self._befall(box.restart(act.down_s))
                await self._become_whole()
            case _:
                self._change(box, act)

    def _change(self, box: Box, act: Temper | Kill | Turn | Trouble | Crowd) -> None:
        world = box.world
        match act:
            case Temper():
                world.moods[act.model] = act.mood
            case Kill():
                running = [item for item in world.machine.living() if item.exit_status is None]
                if running:
                    running[act.which % len(running)].die(act.by)
            case Turn():
                world.store.weather = act.weather
            case Trouble():
                box.trouble(act.disk)
            case Crowd():
                world.machine.crowd(act.taken_bytes)
            case _:
                assert_never(act)

    def _sleep(self, box: Box, slept_s: float) -> None:
        """Suspend a machine; whoever was master there knows at once that it may not decide."""
        box.world.clock.sleep(slept_s)
        node = box.running
        if slept_s > LEASE_S and node is not None and node.rooms.mastership.is_master:
            self._problems.append(f"{box.world.name} slept for {slept_s} s, and decides")

    def _befall(self, doing: Coroutine[Any, Any, object]) -> None:
        """Have something happen to a node, while the history goes on."""
        self._fates.append(asyncio.create_task(doing, name=f"fate {len(self._fates)}"))

    async def _become_whole(self) -> None:
        """In a gentle history, wait until whoever was away is back."""
        if self._story.is_gentle:
            await self._wait_fates()
            await self._wait(self._is_whole, WHOLE_S, "whole again")

    async def _wait_fates(self) -> None:
        done = 0
        while done < len(self._fates):
            done = len(self._fates)
            await asyncio.gather(*self._fates)

    async def _ask(self, at: int, method: str, path: str, body: object = None) -> dict[str, Any]:
        app = self.boxes[at].app
        if app is None:
            self.told.append(f"{method} {path} at {at}: nobody listens")
            return {}
        return await self._people.ask(app, method, path, body, number=at)

    async def _pull(self, at: int, act: Pull) -> None:
        path = f"/store/models/{act.model}"
        match act.what:
            case "begin":
                await self._ask(at, "POST", f"{path}/download")
            case "cancel":
                await self._ask(at, "DELETE", f"{path}/download")
            case "remove":
                await self._ask(at, "DELETE", path)

    async def _chat(self, at: int, act: Chat) -> str:
        app = self.boxes[at].app
        if app is None:
            return "nobody listens"
        self._n_asked[act.model] += 1
        return await self._people.chat(act, app, number=at)

    async def _remove(self, act: Remove) -> None:
        """Take a node out, and let it join again when it has become alone."""
        number = self._number(act.node)
        path = f"/v1/cluster/members/box-{number}"
        done = await self._ask(self._number(act.via), "DELETE", path)
        await asyncio.sleep(act.again_after_s)
        if done:
            await self._let_in(number)

    def _number(self, number: int) -> int:
        """Give the number of a node: where the master is meant, that of the newest one."""
        if number != MASTER:
            return number
        masters = [node for node in self._running() if node.rooms.mastership.is_master]
        terms = {node.rooms.mastership.seen().known_number: node for node in masters}
        return terms[max(terms)].world.number if terms else 1

    async def _let_in(self, number: int) -> None:
        """Invite a node that is out, once, by whichever member answers."""
        for via in self.boxes:
            node = self.boxes[via].running
            if node is None or a_node_id(number) not in node.state.removed:
                continue
            token = await self._invite(via)
            if token and await self._join(number, token):
                return

    # ---- What must hold ----

    def _running(self) -> list[SimulatedNode]:
        nodes = [box.running for box in self.boxes.values()]
        return [node for node in nodes if node is not None]

    def _is_served(self, command_id: str) -> bool:
        return any(command_id in box.world.machine.served for box in self.boxes.values())

    def _check(self) -> None:
        """Hold what must hold at every moment."""
        self._ledger.look()
        for box in self.boxes.values():
            self._problems.extend(box.lasting())
        for fate in self._fates:
            if fate.done() and not fate.cancelled() and fate.exception() is not None:
                message = f"{fate.get_name()}: {fate.exception()!r}"
                raise HistoryError(message) from fate.exception()
        if self._problems:
            raise HistoryError("\n".join(self._problems))

    def _fail(self, what: str) -> NoReturn:
        self._problems.append(what)
        raise HistoryError("\n".join([*self._problems, *self._tell_nodes()]))

    def _tell_nodes(self) -> list[str]:
        """Say how each node sees the cluster."""
        lines: list[str] = []
        for box in self.boxes.values():
            node = box.running
            if node is None:
                lines.append(f"{box.world.name} ({box.world.node_id}) does not run")
                continue
            log, seen = node.rooms.log, node.rooms.mastership.seen()
            members = {m.name: m.presence for m in node.state.members.values()}
            lines.append(
                f"{box.world.name} ({box.world.node_id}): {seen.role} of {seen.term}, knows "
                f"{seen.known_number}, at {log.durable_position} committed to {log.commit_seq}, "
                f"{members}, {log.health()}"
            )
        return lines

    async def _wait(self, is_so: Callable[[], bool], within_s: float, what: str) -> None:
        began_s = self._loop.time()
        while not is_so():
            self._check()
            if self._loop.time() - began_s > within_s:
                self._fail(f"not {what} after {within_s:.0f} s")
            await asyncio.sleep(0.1)

    def _is_whole(self) -> bool:
        """Say whether all nodes run, are present, obey one master and have one durable log."""
        nodes = self._running()
        ids = {box.world.node_id for box in self.boxes.values()}
        ends = {
            (
                node.rooms.mastership.term,
                node.rooms.log.appended.seq,
                node.rooms.log.commit_seq,
                node.rooms.log.durable_position,
                node.rooms.log.chain,
            )
            for node in nodes
        }
        if len(nodes) < len(ids) or len(ends) > 1 or nodes[0].rooms.mastership.term is None:
            return False
        members = nodes[0].state.members
        return members.keys() == ids and all(m.presence == "present" for m in members.values())

    async def _heal(self) -> None:
        """Let everything be well from now on, and every node be in the cluster."""
        self._is_healed = True
        self.network.heal_all()
        self.network.faults = _QUIET_NETWORK
        self._people.calm()
        for box in self.boxes.values():
            box.world.moods.clear()
            box.world.store.weather = FAIR
            box.world.machine.crowd(0)
            box.trouble("fine")
        await self._wait_fates()
        await self._people.wait_done()
        self._check()
        began_s = self._loop.time()
        while not self._is_whole():
            self._check()
            if self._loop.time() - began_s > SETTLED_S:
                self._fail("the cluster is not whole")
            for number in self._outsiders():
                await self._let_in(number)
            await asyncio.sleep(1.0)

    def _outsiders(self) -> list[int]:
        """Find nodes that the others have removed."""
        nodes = self._running()
        removed = {node_id for node in nodes for node_id in node.rooms.log.appended.removed}
        return [node.world.number for node in nodes if node.world.node_id in removed]

    async def _settle(self) -> None:
        """Wait until every placement and pull has come to its end."""
        began_s = self._loop.time()
        n_events, quiet_since_s = -1, began_s
        while True:
            self._check()
            now = self._loop.time()
            n_now = sum(node.n_events for node in self._running())
            if n_now != n_events or not self._is_settled():
                n_events, quiet_since_s = n_now, now
            if now - quiet_since_s > QUIET_S:
                return
            if now - began_s > SETTLED_S:
                instances = self._any().state.instances.values()
                left = [f"{item.instance_id} {item.phase} {item.runners}" for item in instances]
                self._fail(f"not settled after {SETTLED_S:.0f} s: {left}")
            await asyncio.sleep(0.5)

    def _is_settled(self) -> bool:
        instances = self._any().state.instances.values()
        is_pulling = any(node.worker.transfers.pulled() for node in self._running())
        return all(map(is_at_rest, instances)) and not is_pulling and self._is_whole()

    def _any(self) -> SimulatedNode:
        return self._running()[0]

    def _check_settled(self) -> None:
        """Hold what must hold once all is quiet."""
        problems, state = self._problems, self._any().state
        problems.extend(needless_wakes(self._any(), self._n_asked))
        wanted = sorted(
            (item.plan.shards[0].node_id, item.instance_id, item.attempt)
            for item in state.instances.values()
            if item.phase == "ready"
        )
        running = sorted(
            (box.world.node_id, item.owner.instance_id, item.owner.attempt)
            for box in self.boxes.values()
            for item in box.world.machine.living()
        )
        if wanted != running:
            problems.append(f"ready are {wanted}, and there are processes of {running}")
        for box in self.boxes.values():
            problems.extend(
                f"process {item.pid} on {box.world.name} still serves {item.n_busy} requests"
                for item in box.world.machine.living()
                if item.n_busy
            )
        for node in self._running():
            if node.app.n_open:
                problems.append(f"{node.world.name} has {node.app.n_open} requests open")
            if node.data.inference.n_remote:
                problems.append(f"{node.world.name} waits for {node.data.inference.n_remote}")
        self._check()

    async def _idle(self) -> None:
        """See that nothing is written while nothing happens."""
        node = self._any()
        seq = node.state.seq
        await asyncio.sleep(SHORT_IDLE_S if self._seed % 10 else IDLE_S)
        n_written = node.state.seq - seq
        if n_written:
            recent = node.replica.recent(seq, 5)
            self._fail(f"{n_written} events though nothing happened, such as {recent}")

    async def _prove(self) -> None:
        """See that what is ready serves, through every node, and what sleeps is woken for it."""
        instances = self._any().state.instances.values()
        for model in sorted({item.model_id for item in instances}):
            for number in self.boxes:
                if not can_serve(self._any().state, model):
                    continue
                act = Chat(model=model, n_tokens=3, stream=True, manner="read", changes_after_s=0.0)
                outcome = await self._chat(number, act)
                if outcome != "finished":
                    self._fail(f"{model} can serve, and through {number}: {outcome}")

    async def _stop_all(self) -> None:
        for number, instance_id in enumerate(self._any().state.instances):
            at = 1 + number % len(self.boxes)
            await self._ask(at, "DELETE", f"/instance/{instance_id}")
        await self._wait(self._is_empty, STOPPED_S, "empty")
        await self._wait(self._is_whole, WHOLE_S, "of one log")
        self._check()

    async def _black_out(self) -> None:
        """Take the power of all machines at once: the cluster forms anew, with what it had."""
        crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=1.0)
        await asyncio.gather(*(box.crash(crash) for box in self.boxes.values()))
        await self._wait(self._is_whole, WHOLE_S, "whole after a black-out")

    async def _expel(self) -> None:
        """Remove a node while all is well: it goes on alone, and can come again as a new one."""
        master = self._number(MASTER)
        others = [number for number in self.boxes if number != master]
        number = others[self._seed % len(others)]
        via = next(one for one in self.boxes if one != number)
        old = self._any().identity.cluster_id
        if not await self._ask(via, "DELETE", f"/v1/cluster/members/box-{number}"):
            self._fail(f"box-{number} cannot be removed")
        await self._wait(lambda: self._is_expelled(number, old), EXPELLED_S, "without the removed")
        await self._let_in(number)
        await self._wait(self._is_whole, WHOLE_S, "whole with the removed one again")

    def _is_expelled(self, number: int, old: ClusterId) -> bool:
        """Say whether a node is a cluster of its own, and no other node knows it any more."""
        node, node_id = self.boxes[number].running, a_node_id(number)
        if node is None or node.identity.cluster_id == old or not node.rooms.mastership.is_master:
            return False
        others = [other for other in self._running() if other is not node]
        named = {peer.node_id for other in others for peer in other.rooms.directory.peers}
        voters = {voter for other in others for voter in other.rooms.log.appended.members}
        return node_id not in named | voters

    def _is_empty(self) -> bool:
        return not any(node.state.instances for node in self._running())

    def _check_agreement(self) -> str:
        """See that all nodes show the same, and that nothing that was promised is missing.

        Returns:
            Where the log ends. Not the hash of its state: the secrets of API keys are the system's.
        """
        nodes = self._running()
        hashes = {state_hash(node.state) for node in nodes}
        if len(hashes) != 1:
            self._problems.append(f"the states of {len(nodes)} nodes have hashes {hashes}")
        self._ledger.close(nodes)
        self._check()
        state = nodes[0].state
        return f"term {state.term}, seq {state.seq}, at {state.at_ms}"

    def _check_left(self) -> None:
        """See that nodes that have stopped leave nothing behind."""
        for box in self.boxes.values():
            if box.world.machine.living():
                self._problems.append(f"processes are left: {box.world.machine.living()}")
            with contextlib.suppress(FileNotFoundError):
                records = box.world.disk.list(HOME / "launches")
                if records:
                    self._problems.append(f"launch records are left: {records}")
        self._check()


def _ids(numbers: tuple[int, ...] | list[int]) -> list[NodeId]:
    return [a_node_id(number) for number in numbers]
