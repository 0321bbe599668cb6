"""Living through a history of one node, and what must hold of it all the while."""

import asyncio
import contextlib
from typing import Any, Final, NoReturn, final

from protocol.ids import InstanceId
from skulkd.core.apply import state_hash
from tests.support.builders import a_digest
from tests.support.simulated_box import Box
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
    Step,
    Stop,
    Temper,
    Trouble,
    Turn,
)
from tests.support.simulated_world import HOME, SimulatedWorld

ENDS_S: Final = 3.0
"""From a cancel, or the loss of the client, to the end of all work for it."""
SETTLED_S: Final = 240.0
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
        self._box = Box(self.world, told_s=TOLD_S)
        self._people = People(
            self.world.problems,
            self.told,
            is_served=lambda command_id: command_id in self.world.machine.served,
            ends_s=ENDS_S,
        )
        self._stopped: set[InstanceId] = set()
        self._loop = asyncio.get_running_loop()

    async def live(self) -> str:
        """Go through the steps, let all get well, and look at what is left.

        Returns:
            A digest of everything that was told and committed.

        Raises:
            HistoryError: Something did not hold.
        """
        await self._box.start()
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
        await self._box.stop()
        self._check_left()
        await self._box.start()
        await self._box.stop()
        self._check()
        return a_digest("\n".join([*self.told, hashed]))

    # ---- Acts ----

    async def _act(self, act: Act) -> None:
        match act:
            case Place():
                self._people.begin(self._ask("POST", "/place_instance", {"model_id": act.model}))
            case Stop():
                self._people.begin(self._stop(act.which))
            case Retry():
                chosen = self._box.instance(act.which)
                if chosen is not None:
                    self._people.begin(self._ask("POST", f"/instance/{chosen.instance_id}/retry"))
            case Pull():
                self._people.begin(self._pull(act))
            case Chat():
                for _ in range(act.n_clients):
                    self._people.begin(self._people.chat(act, self._node.app))
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
                self._box.trouble(act.disk)
            case Crowd():
                world.machine.crowd(act.taken_bytes)
            case Crash():
                await self._box.crash(act)
            case Restart():
                await self._box.restart(act.down_s, role=act.role)

    @property
    def _node(self) -> SimulatedNode:
        assert self._box.node is not None
        return self._box.node

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Ask as an operator; gives the answer's document where it was accepted."""
        return await self._people.ask(self._node.app, method, path, body)

    async def _stop(self, which: int) -> None:
        chosen = self._box.instance(which)
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

    # ---- What must hold ----

    def _check(self) -> None:
        """Hold what must hold at every moment."""
        problems = [*self.world.problems, *self.world.machine.complaints]
        problems.extend(self._box.lasting())
        if problems:
            raise HistoryError("\n".join(problems))

    def _fail(self, what: str) -> NoReturn:
        self.world.problems.append(what)
        self._check()
        raise AssertionError(what)

    def _heal(self) -> None:
        """Let everything be well from now on."""
        world = self.world
        world.moods.clear()
        world.store.weather = FAIR
        world.machine.crowd(0)
        self._box.trouble("fine")
        self._people.calm()

    async def _settle(self) -> None:
        """Wait until every chat has ended and every placement and pull has come to its end."""
        await self._people.wait_done()
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
                outcome = await self._people.chat(act, self._node.app)
                if outcome != "finished":
                    self._fail(f"{instance.model_id} is ready, and: {outcome}")

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
