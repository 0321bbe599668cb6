"""One simulated machine, through all the lives of its node."""

import asyncio
import contextlib
import errno
from typing import Final, final

from protocol.errors import SkulkError
from protocol.instances import Instance
from protocol.nodes import Role
from skulkd.api.app import ApiApp
from tests.support.simulated_node import SimulatedNode
from tests.support.simulated_story import Crash, DiskTrouble
from tests.support.simulated_world import SimulatedWorld

UNWANTED_S: Final = 15.0
"""How long a process may outlive the wish for it: SIGTERM, SIGKILL, and a kernel that waits."""
CALLS_S: Final = 2.0
"""Within which a node that is to die at a call to its disk makes it, or dies without."""


@final
class Box:
    """One machine; made off, and started by `start`.

    Args:
        world: What outlives its nodes.
        told_s: From the death of an engine to the word of it in the state; None where that may
            take any time, because others have to be reached for it.
    """

    def __init__(self, world: SimulatedWorld, *, told_s: float | None = None) -> None:
        self._told_s = told_s
        self.world = world
        self.number = world.number
        self.node: SimulatedNode | None = None
        self.lock = asyncio.Lock()
        """Held while a life begins or ends."""
        self._has_trouble = False
        self._since_s: dict[str, float] = {}

    @property
    def running(self) -> SimulatedNode | None:
        """The node, while it serves."""
        return self.node if self.node is not None and self.node.has_begun else None

    @property
    def app(self) -> ApiApp | None:
        """Its application; None while nobody listens."""
        return None if self.running is None else self.running.app

    def instance(self, which: int) -> Instance | None:
        """Give one of the instances that this node knows."""
        known = [] if self.running is None else list(self.running.state.instances.values())
        return known[which % len(known)] if known else None

    # ---- Lives ----

    async def start(self) -> None:
        """Switch it on, unless it is."""
        async with self.lock:
            if self.node is None:
                await self._begin()

    async def restart(
        self, down_s: float, *, role: Role = "full", of: SimulatedNode | None = None
    ) -> None:
        """Stop in good order and start again.

        Args:
            down_s: In between.
            role: Of the next life.
            of: Only while this life goes on.
        """
        async with self.lock:
            node = self.node
            if node is None or (of is not None and node is not of):
                return
            await node.stop()
            self.node = None
            await asyncio.sleep(down_s)
            self.world.role = role
            await self._begin()

    async def crash(self, act: Crash) -> None:
        """Lose the power, or the daemon, and start again."""
        async with self.lock:
            await self._wait_call(act)
            await self._die(act)
            await asyncio.sleep(act.down_s)
            if act.again_after_s is not None:
                starting = asyncio.create_task(self._begin(), name=f"node {self.number}/start")
                await asyncio.sleep(act.again_after_s)
                await self._die(act)
                with contextlib.suppress(asyncio.CancelledError, OSError, SkulkError):
                    await starting
            await self._begin()

    async def stop(self) -> None:
        """Switch it off in good order."""
        async with self.lock:
            if self.node is not None:
                await self.node.stop()
                self.node = None

    async def _begin(self) -> None:
        self._since_s.clear()
        self.node = SimulatedNode(self.world)
        try:
            await self.node.begin()
        except (OSError, SkulkError) as error:
            if not self._has_trouble:
                self.world.problems.append(f"{self.world.name} does not start: {error!r}")
            await self.node.die()
            self.trouble("fine")
            self.node = SimulatedNode(self.world)
            await self.node.begin()

    async def _wait_call(self, act: Crash) -> None:
        """Wait for the call to the disk at which the node dies, if it makes so many."""
        node = self.node
        if node is None or act.after_calls is None:
            return
        reached = asyncio.Event()

        def on_death() -> None:
            node.is_dead = True
            reached.set()

        node.disk.on_death, node.disk.calls_left = on_death, act.after_calls
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALLS_S):
                await reached.wait()

    async def _die(self, act: Crash) -> None:
        world = self.world
        is_power = act.what == "power"
        kept = act.n_unsynced_bytes_kept if is_power else 1 << 30
        world.disk.crash(n_unsynced_bytes_kept=kept)
        if is_power:
            world.machine.cut_power()
        elif act.what == "daemon":
            world.machine.end_children()
        if self.node is not None:
            await self.node.die()
            self.node = None

    def trouble(self, kind: DiskTrouble) -> None:
        """Have the disk behave otherwise from now on."""
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

    # ---- What must hold of it ----

    def lasting(self) -> list[str]:
        """Name what may be so for a while, and has been so for longer, in this life."""
        node = self.running
        if node is None:
            self._since_s.clear()
            return []
        now = asyncio.get_running_loop().time()
        seen = self._unwanted(node) | self._unserved(node)
        self._since_s = {what: self._since_s.get(what, now) for what in seen}
        return [what for what, bound_s in seen.items() if now - self._since_s[what] > bound_s]

    def _unwanted(self, node: SimulatedNode) -> dict[str, float]:
        """Name the processes that nobody wants, and for how long that may be."""
        wanted = {
            (item.instance_id, item.attempt)
            for item in node.state.instances.values()
            if item.phase not in {"failed", "stopping"}
        }
        return {
            f"process {item.pid} of {item.owner} on {self.world.name} is wanted by nobody": (
                UNWANTED_S
            )
            for item in self.world.machine.living()
            if (item.owner.instance_id, item.owner.attempt) not in wanted
        }

    def _unserved(self, node: SimulatedNode) -> dict[str, float]:
        """Name the instances that are ready and have no process, and for how long that may be."""
        if self._told_s is None:
            return {}
        running = {
            (item.owner.instance_id, item.owner.attempt)
            for item in self.world.machine.living()
            if item.exit_status is None
        }
        return {
            f"{item.instance_id} is ready in attempt {item.attempt}, and nothing runs": self._told_s
            for item in node.state.instances.values()
            if item.phase == "ready" and (item.instance_id, item.attempt) not in running
        }
