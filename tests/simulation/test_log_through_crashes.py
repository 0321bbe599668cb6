"""One node's log through 200 seeded histories: crashes, torn tails, full and failing disks.

After each crash the log is opened again on the disk as it was. What was acknowledged as durable
must be there, and the state that comes back must hold its invariants.
"""

import asyncio
import contextlib
import errno
import random
from pathlib import Path

import pytest

from protocol.commands import AddCard, ChangeSettings, Command, RemoveCard
from protocol.errors import SkulkError
from protocol.ids import CommandId, ModelId
from protocol.state import ClusterSettings, ClusterState
from skulkd.core.apply import repeated, state_hash
from skulkd.core.invariants import violations
from skulkd.eventlog.cluster_log import ClusterLog
from skulkd.eventlog.durable_log import DurableLog
from skulkd.eventlog.journal import JournalLimits
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import VirtualLoop, run_virtual
from tests.support.builders import (
    a_card,
    a_cluster_id,
    a_command_id,
    a_node_id,
    an_admission,
)
from tests.support.lone_log import LoneLog

N_SEEDS = 200
N_LIVES = 4
DIRECTORY = Path("/home/journal")


def some_command(chance: random.Random, number: int) -> Command:
    command_id = a_command_id(number)
    model = ModelId(f"model-{chance.randrange(5)}")
    match chance.randrange(4):
        case 0:
            return an_admission(
                1, command=number, addresses=(f"10.0.0.{chance.randrange(1, 8)}:12416",)
            )
        case 1:
            return AddCard(command_id=command_id, card=a_card(model_id=model))
        case 2:
            return RemoveCard(command_id=command_id, model_id=model)
        case _:
            loopback = "keyed" if chance.random() < 0.5 else "open"
            return ChangeSettings(
                command_id=command_id, settings=ClusterSettings(loopback=loopback)
            )


class History:
    """One seed's story: lives of a node on one disk."""

    def __init__(self, seed: int) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  a repeatable history is the aim
        self.chance = random.Random(seed)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.disk = SimulatedDisk(stall=loop.stall_job)
        self.disk.make_private_directory(DIRECTORY.parent)
        self.n_commands = 0
        self.durable: dict[CommandId, int] = {}

    async def live(self, term: int) -> None:
        """Start, check what came back, take commands, and lose the power at some moment."""
        deaths: list[str] = []
        tasks = Tasks("life", on_death=lambda story, _error: deaths.append(story))
        clock = LoopClock(asyncio.get_running_loop(), epoch_ms=1_000_000)
        lone = await LoneLog.open(
            self.disk,
            DIRECTORY,
            node_id=a_node_id(),
            cluster_id=a_cluster_id(),
            number=term,
            clock=clock,
            tasks=tasks,
            limits=JournalLimits(max_segment_bytes=4096, retry_s=0.5),
        )
        log, replica = lone.log, lone.log.replica
        self.check(log.appended)
        callers = [tasks.start(self.call(log), name=f"caller {n}") for n in range(3)]
        trouble = tasks.start(self.trouble(), name="trouble")
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        assert deaths == []
        assert violations(replica.state) == ()
        self.disk.crash(n_unsynced_bytes_kept=self.chance.choice((0, 0, 3, 17, 200, 5000)))
        for task in (*callers, trouble):
            task.cancel()
        # The dead life's file handles raise from here on; nothing it does reaches the disk.
        await tasks.close(5)
        self.disk.sync_error = self.disk.write_error = None
        self.disk.capacity_bytes = 1 << 30
        self.disk.sync_delay_s = 0.0

    async def call(self, log: ClusterLog) -> None:
        """Submit commands one after another, and note what was acknowledged as durable."""
        while True:
            self.n_commands += 1
            command = some_command(self.chance, self.n_commands)
            with contextlib.suppress(SkulkError):
                reply = await log.submit(command)
                changed = repeated(log.replica.state, command.command_id) is not None
                if reply.durable == "local" and changed:
                    self.durable[command.command_id] = reply.seq
            await asyncio.sleep(self.chance.uniform(0.0, 0.05))

    async def trouble(self) -> None:
        """Let the disk be slow, full or broken for a while, now and then."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.05, 0.6))
            match self.chance.randrange(4):
                case 0:
                    self.disk.sync_delay_s = self.chance.uniform(0.0, 0.1)
                case 1:
                    self.disk.sync_error = OSError(errno.EIO, "input/output error")
                case 2:
                    self.disk.write_error = OSError(errno.ENOSPC, "no space left on device")
                case _:
                    self.disk.sync_error = self.disk.write_error = None

    def check(self, state: ClusterState) -> None:
        """Hold the state that came back against what was promised."""
        assert violations(state) == ()
        for command_id, seq in self.durable.items():
            result = repeated(state, command_id)
            assert result is not None, f"{command_id} was acknowledged at seq {seq} and is lost"
            assert result.seq == seq


def _no_death(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error


async def _live_and_die(seed: int) -> tuple[int, str]:
    history = History(seed)
    for term in range(1, N_LIVES + 1):
        await history.live(term)
    tasks = Tasks("end", on_death=_no_death)
    clock = LoopClock(asyncio.get_running_loop(), epoch_ms=1_000_000)
    log, state, _ = await DurableLog.open(
        history.disk, DIRECTORY, cluster_id=a_cluster_id(), clock=clock, tasks=tasks
    )
    history.check(state)
    await log.close()
    await tasks.close(5)
    return state.seq, state_hash(state)


@pytest.mark.parametrize("first_seed", range(0, N_SEEDS, 20))
def test_what_was_acknowledged_survives_every_crash(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        try:
            run_virtual(lambda seed=seed: _live_and_die(seed), seed=seed, limit_s=600)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_seed_tells_the_same_story_twice() -> None:
    first, second = (run_virtual(lambda: _live_and_die(7), seed=7, limit_s=600) for _ in range(2))
    assert first == second
