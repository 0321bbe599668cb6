"""Living through a history of one node, and what must hold of it all the while."""

import asyncio
import contextlib
import errno
from collections.abc import Coroutine
from typing import Any, Final, NoReturn, final

from protocol.errors import SkulkError
from protocol.ids import InstanceId
from protocol.instances import Instance
from skulkd.core.apply import state_hash
from tests.support.builders import a_digest
from tests.support.simulated_clients import SimulatedCall, SimulatedConnection, stream_fault
from tests.support.simulated_engine import word
from tests.support.simulated_node import HOME, SimulatedNode, SimulatedWorld
from tests.support.simulated_store import FAIR
from tests.support.simulated_story import (
    CARDS,
    Act,
    Chat,
    Crash,
    Crowd,
    DiskTrouble,
    Kill,
    Place,
    Pull,
    Restart,
    Retry,
    Step,
    Stop,
    Temper,
    Trouble,
    Turn,
)

OPERATOR_S: Final = 40.0
"""How long an operator's request may take: facts are waited for, and a slow disk."""
CHAT_S: Final = 400.0
"""How long a chat may take, with two silent ones in front of it."""
ENDS_S: Final = 3.0
"""From a cancel, or the loss of the client, to the end of all work for it."""
SETTLED_S: Final = 240.0
UNWANTED_S: Final = 15.0
"""How long a process may outlive the wish for it: SIGTERM, SIGKILL, and a kernel that waits."""
TOLD_S: Final = 3.0
"""From the death of an engine to the word of it in the state; the disk may be slow."""
STOPPED_S: Final = 30.0
QUIET_S: Final = 30.0
"""Longer than any attempt waits before it begins."""
IDLE_S: Final = 60.0


class HistoryError(AssertionError):
    """Something did not hold."""


@final
class History:
    """One history, run by `live`.

    Args:
        seed: Draws ids; the loop has one of its own.
        steps: What happens.
    """

    def __init__(self, seed: int, steps: tuple[Step, ...]) -> None:
        self.world = SimulatedWorld(seed, CARDS)
        self.told: list[str] = []
        """What came of the steps, in order: the same seed tells the same."""
        self.settled: dict[str, str] = {}
        """What became of each model once all was quiet: its phase, or why it failed."""
        self._steps = steps
        self._node: SimulatedNode
        self._people: list[asyncio.Task[object]] = []
        self._connections: list[SimulatedConnection] = []
        self._stopped: set[InstanceId] = set()
        self._since_s: dict[str, float] = {}
        self._is_healed = False
        self._has_trouble = False
        self._loop = asyncio.get_running_loop()

    async def live(self) -> str:
        """Go through the steps, let all get well, and look at what is left.

        Returns:
            A digest of everything that was told and committed.

        Raises:
            HistoryError: Something did not hold.
        """
        await self._start()
        for after_s, act in self._steps:
            await asyncio.sleep(after_s)
            await self._act(act)
            self._check()
        if self.world.role == "management":
            await self._act(Restart(down_s=0.0))
        self._heal()
        await self._settle()
        self._check_settled()
        await self._idle()
        await self._prove()
        await self._stop_all()
        hashed = state_hash(self._node.state)
        await self._node.stop()
        self._check_left()
        await self._start()
        await self._node.stop()
        self._check()
        return a_digest("\n".join([*self.told, hashed]))

    # ---- Acts ----

    async def _act(self, act: Act) -> None:
        match act:
            case Place():
                self._begin(self._ask("POST", "/place_instance", {"model_id": act.model}))
            case Stop():
                self._begin(self._stop(act.which))
            case Retry():
                chosen = self._instance(act.which)
                if chosen is not None:
                    self._begin(self._ask("POST", f"/instance/{chosen.instance_id}/retry"))
            case Pull():
                self._begin(self._pull(act))
            case Chat():
                self._begin_chats(act)
            case _:
                await self._befall(act)

    async def _befall(self, act: Temper | Kill | Turn | Trouble | Crowd | Crash | Restart) -> None:
        world = self.world
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
                self._trouble(act.disk)
            case Crowd():
                world.machine.crowd(act.taken_bytes)
            case Crash():
                await self._crash(act)
            case Restart():
                await self._node.stop()
                await asyncio.sleep(act.down_s)
                self.world.role = act.role
                await self._start()

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Ask as an operator; gives the answer's document where it was accepted."""
        call = SimulatedCall(self._node.app, method, path, body)
        if not await call.wait_over(OPERATOR_S):
            self.world.problems.append(f"{method} {path} took more than {OPERATOR_S:.0f} s")
            return {}
        document = call.document()
        self._tell(f"{method} {path}", call, document)
        return document if (call.connection.status or 500) < 300 else {}

    async def _stop(self, which: int) -> None:
        chosen = self._instance(which)
        if chosen is None:
            return
        done = await self._ask("DELETE", f"/instance/{chosen.instance_id}")
        if done.get("durable") == "local":
            self._stopped.add(chosen.instance_id)

    async def _pull(self, act: Pull) -> None:
        path = f"/store/models/{act.model}"
        match act.what:
            case "begin":
                await self._ask("POST", f"{path}/download")
            case "cancel":
                await self._ask("DELETE", f"{path}/download")
            case "remove":
                await self._ask("DELETE", path)

    def _trouble(self, kind: DiskTrouble) -> None:
        disk = self.world.disk
        self._has_trouble = kind not in {"fine", "slow"}
        disk.sync_error = disk.write_error = None
        disk.sync_delay_s = 0.0
        disk.capacity_bytes = 1 << 40
        match kind:
            case "fine":
                pass
            case "slow":
                disk.sync_delay_s = 0.3
            case "sync fails":
                disk.sync_error = OSError(errno.EIO, "input/output error")
            case "write fails":
                disk.write_error = OSError(errno.EIO, "input/output error")
            case "full":
                disk.capacity_bytes = disk.used_bytes + 100

    async def _crash(self, act: Crash) -> None:
        await self._die(act)
        await asyncio.sleep(act.down_s)
        if act.again_after_s is not None:
            starting = asyncio.create_task(self._start(), name="node 1/start")
            await asyncio.sleep(act.again_after_s)
            await self._die(act)
            with contextlib.suppress(asyncio.CancelledError, OSError, SkulkError):
                await starting
        await self._start()

    async def _die(self, act: Crash) -> None:
        world = self.world
        is_power = act.what == "power"
        kept = act.n_unsynced_bytes_kept if is_power else 1 << 30
        world.disk.crash(n_unsynced_bytes_kept=kept)
        if is_power:
            world.machine.cut_power()
        elif act.what == "daemon":
            world.machine.end_children()
        await self._node.die()

    async def _start(self) -> None:
        self._since_s.clear()
        self._node = SimulatedNode(self.world)
        try:
            await self._node.begin()
        except (OSError, SkulkError) as error:
            if not self._has_trouble:
                raise
            self.told.append(f"the node did not start: {type(error).__name__}")
            await self._node.die()
            self._trouble("fine")
            self._node = SimulatedNode(self.world)
            await self._node.begin()

    def _instance(self, which: int) -> Instance | None:
        known = list(self._node.state.instances.values())
        return known[which % len(known)] if known else None

    # ---- Chats ----

    def _begin_chats(self, act: Chat) -> None:
        for _ in range(act.n_clients):
            self._begin(self._chat(act, len(self._people)))

    def _begin(self, doing: Coroutine[None, None, object]) -> None:
        """Have somebody do something, while the history goes on."""
        task = asyncio.create_task(doing, name=f"person {len(self._people)}")
        self._people.append(task)

    async def _chat(self, act: Chat, number: int) -> None:
        body = {
            "model": act.model,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": act.n_tokens,
            "stream": act.stream,
        }
        call = SimulatedCall(self._node.app, "POST", "/v1/chat/completions", body)
        self._connections.append(call.connection)
        bound_s = CHAT_S
        if act.manner != "read":
            await asyncio.sleep(act.changes_after_s)
            bound_s = await self._change(act, call)
        name = f"chat {number}"
        if not await call.wait_over(bound_s):
            self.world.problems.append(f"{name} was not over after {bound_s:.0f} s: {act}")
            return
        if _command_id(call) in self.world.machine.served:
            await asyncio.sleep(ENDS_S)
        if _command_id(call) in self.world.machine.served:
            self.world.problems.append(f"{name} is over, and an engine works on it: {act}")
        self._judge(name, act, call)

    async def _change(self, act: Chat, call: SimulatedCall) -> float:
        """Have the client do what it came for; gives how long the rest may take."""
        connection = call.connection
        match act.manner:
            case "cancel":
                command_id = _command_id(call)
                if not command_id or call.is_over:
                    return CHAT_S
                cancel = SimulatedCall(call.app, "POST", f"/v1/cancel/{command_id}")
                await cancel.wait_over(ENDS_S)
                return ENDS_S if cancel.connection.status == 200 else CHAT_S
            case "leave":
                connection.lose()
                return ENDS_S
            case _:
                connection.choke(is_choked=not self._is_healed)
                return CHAT_S

    def _judge(self, name: str, act: Chat, call: SimulatedCall) -> None:
        connection = call.connection
        if call.was_cut or connection.is_lost:
            self.told.append(f"{name}: cut {call.was_cut}, left {connection.is_lost}")
            return
        if connection.status == 200 and act.stream:
            outcome, fault = stream_fault(connection.body, n_tokens=act.n_tokens)
            if not connection.is_complete:
                fault = fault or "the response does not end"
            if fault:
                self.world.problems.append(f"{name}: {fault}: {act}")
            self.told.append(f"{name}: {outcome} {connection.body.count(b'data:')}")
            return
        document = call.document()
        self._tell(name, call, document)
        if connection.status == 200:
            text = document["choices"][0]["message"]["content"]
            if text != "".join(word(index) for index in range(act.n_tokens)):
                self.world.problems.append(f"{name}: the answer is {text[:200]!r}")

    def _tell(self, name: str, call: SimulatedCall, document: dict[str, Any]) -> None:
        status = call.connection.status
        code = ""
        if status is not None and status >= 300:
            error: dict[str, Any] = document.get("error", {})
            code = str(error.get("skulk_code") or error.get("code"))
        if code == "internal.bug" or call.fault():
            self.world.problems.append(f"{name}: {call.fault() or document}")
        if status is None and not call.was_cut:
            self.world.problems.append(f"{name} was not answered")
        self.told.append(f"{name}: {status} {code}")

    # ---- What must hold ----

    def _check(self) -> None:
        """Hold what must hold at every moment."""
        problems = [*self.world.problems, *self.world.machine.complaints]
        problems.extend(self._lasting())
        if problems:
            raise HistoryError("\n".join(problems))

    def _fail(self, what: str) -> NoReturn:
        self.world.problems.append(what)
        self._check()
        raise AssertionError(what)

    def _unwanted(self) -> dict[str, float]:
        """Name the processes that nobody wants, and for how long that may be."""
        wanted = {
            (item.instance_id, item.attempt)
            for item in self._node.state.instances.values()
            if item.phase not in {"failed", "stopping"}
        }
        return {
            f"process {item.pid} of {item.owner} is wanted by nobody": UNWANTED_S
            for item in self.world.machine.living()
            if (item.owner.instance_id, item.owner.attempt) not in wanted
        }

    def _unserved(self) -> dict[str, float]:
        """Name the instances that are ready and have no process, and for how long that may be."""
        running = {
            (item.owner.instance_id, item.owner.attempt)
            for item in self.world.machine.living()
            if item.exit_status is None
        }
        return {
            f"{item.instance_id} is ready in attempt {item.attempt}, and nothing runs": TOLD_S
            for item in self._node.state.instances.values()
            if item.phase == "ready" and (item.instance_id, item.attempt) not in running
        }

    def _lasting(self) -> list[str]:
        """Name what may be so for a while, and has been so for longer, in this life."""
        now = self._loop.time()
        seen = self._unwanted() | self._unserved()
        self._since_s = {what: self._since_s.get(what, now) for what in seen}
        return [what for what, bound_s in seen.items() if now - self._since_s[what] > bound_s]

    def _heal(self) -> None:
        """Let everything be well from now on."""
        world = self.world
        self._is_healed = True
        world.moods.clear()
        world.store.weather = FAIR
        world.machine.crowd(0)
        self._trouble("fine")
        for connection in self._connections:
            connection.choke(is_choked=False)

    async def _settle(self) -> None:
        """Wait until every chat has ended and every placement and pull has come to its end."""
        await asyncio.gather(*self._people)
        began_s = self._loop.time()
        n_events, quiet_since_s = -1, began_s
        while True:
            self._check()
            now = self._loop.time()
            if self._node.n_events != n_events or not self._is_settled():
                n_events, quiet_since_s = self._node.n_events, now
            if now - quiet_since_s > QUIET_S:
                return
            if now - began_s > SETTLED_S:
                instances = self._node.state.instances.values()
                left = [f"{item.instance_id} {item.phase} {item.runners}" for item in instances]
                self._fail(f"not settled after {SETTLED_S:.0f} s: {left}")
            await asyncio.sleep(1.0)

    def _is_settled(self) -> bool:
        phases = {item.phase for item in self._node.state.instances.values()}
        return phases <= {"ready", "failed"} and not self._node.worker.transfers.pulled()

    def _check_settled(self) -> None:
        """Hold what must hold once all is quiet."""
        problems = self.world.problems
        state, machine = self._node.state, self.world.machine
        self.settled = {
            item.model_id: item.phase if item.failure is None else item.failure.error.code
            for item in state.instances.values()
        }
        wanted = sorted(
            (item.instance_id, item.attempt)
            for item in state.instances.values()
            if item.phase == "ready"
        )
        running = sorted((item.owner.instance_id, item.owner.attempt) for item in machine.living())
        if wanted != running:
            problems.append(f"ready are {wanted}, and there are processes of {running}")
        problems.extend(
            f"process {item.pid} still serves {item.n_busy} requests"
            for item in machine.living()
            if item.n_busy
        )
        readings = self._node.table.readings.instances
        for instance_id, _ in wanted:
            reading = readings.get(instance_id)
            if reading is None or reading.in_flight or reading.queued:
                problems.append(f"{instance_id} is idle and reads {reading}")
        self._check_readings()
        records = self.world.disk.list(HOME / "launches") if running else ()
        if len(records) != len(running):
            problems.append(f"of {len(running)} processes there are {len(records)} records")
        if self._node.app.n_open:
            problems.append(f"{self._node.app.n_open} requests are open and nobody waits")
        for instance_id in self._stopped & state.instances.keys():
            problems.append(f"{instance_id} was stopped and is there: {state.instances}")
        self._check_failures()
        self._check()

    def _check_readings(self) -> None:
        """See that nothing is still read of what is gone."""
        problems = self.world.problems
        readings, known = self._node.table.readings, self._node.state.instances.keys()
        shown = {instance_id for instance_id, _ in readings.progress} | readings.instances.keys()
        if shown - known:
            problems.append(f"there are readings of {shown - known}, which are gone")
        if readings.transfers:
            problems.append(f"nothing is fetched, and read is {readings.transfers}")

    def _check_failures(self) -> None:
        problems = self.world.problems
        for instance in self._node.state.instances.values():
            failure = instance.failure
            if instance.phase == "failed" and (failure is None or not failure.final):
                problems.append(f"{instance.instance_id} failed for no final reason")
        for failure in self._node.state.failures:
            is_named = failure.error.message and failure.error.code != "internal.bug"
            if not is_named or failure.phase in {"stopping", "stopped", "failed"}:
                problems.append(f"a failure says too little: {failure}")
            if failure.error.code == "runner.exited" and not failure.log_tail:
                problems.append(f"a failure lacks the engine's last words: {failure}")

    async def _idle(self) -> None:
        """See that nothing is written while nothing happens."""
        n_before = self._node.n_events
        await asyncio.sleep(IDLE_S)
        n_written = self._node.n_events - n_before
        if n_written:
            recent = self._node.replica.recent(self._node.state.seq - n_written, 5)
            self._fail(f"{n_written} events in an idle minute, such as {recent}")

    async def _prove(self) -> None:
        """See that what is ready serves."""
        for instance in self._node.state.instances.values():
            if instance.phase == "ready":
                act = Chat(
                    model=instance.model_id,
                    n_tokens=3,
                    stream=True,
                    manner="read",
                    changes_after_s=0.0,
                )
                await self._chat(act, 1000)
                if not self.told[-1].startswith("chat 1000: finished"):
                    self._fail(f"{instance.model_id} is ready, and: {self.told[-1]}")

    async def _stop_all(self) -> None:
        for instance_id in self._node.state.instances:
            await self._ask("DELETE", f"/instance/{instance_id}")
        await asyncio.sleep(STOPPED_S)
        if self._node.state.instances:
            self._fail(f"stopped, and there: {self._node.state.instances}")
        self._check()

    def _check_left(self) -> None:
        """See that a node that has stopped leaves nothing behind."""
        problems = self.world.problems
        if self.world.machine.living():
            problems.append(f"processes are left: {self.world.machine.living()}")
        with contextlib.suppress(FileNotFoundError):
            records = self.world.disk.list(HOME / "launches")
            if records:
                problems.append(f"launch records are left: {records}")
        self._check()


def _command_id(call: SimulatedCall) -> str:
    """Read the id of a stream's command; empty where nothing has arrived."""
    return call.connection.body.partition(b": command_id ")[2].partition(b"\n")[0].decode()
