"""What outlives a simulated node, and who remembers what its lives have shown and promised."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, final

from protocol.cards import ModelCard
from protocol.commands import Command, CommandReply
from protocol.events import SequencedEvent
from protocol.ids import CommandId, command_id_of
from protocol.nodes import Role
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.core.apply import repeated
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.virtual_time import VirtualLoop
from tests.support.builders import a_node_id, a_public_key
from tests.support.simulated_machine import HEALTHY, Mood, SimulatedMachine
from tests.support.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from tests.support.simulated_node import SimulatedNode

HOME: Final = Path("/home/skulk")
EPOCH_MS: Final = 1_700_000_000_000


@final
class SimulatedWorld:
    """What outlives a node, and what was promised by its lives.

    Args:
        seed: Draws ids; the schedule has a seed of its own.
        cards: The models there are.
        network: What it shares with the worlds of other nodes; one of its own by default.
        number: Which node of the network it is, from 1.
    """

    def __init__(
        self,
        seed: int,
        cards: tuple[ModelCard, ...],
        *,
        network: SimulatedNetwork | None = None,
        number: int = 1,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  a repeatable history is the aim
        self.chance = random.Random(seed)
        self.network = network or SimulatedNetwork(self.chance)
        self.number = number
        self.name = f"box-{number}"
        self.keys = KeyPair(public_key=bytes.fromhex(a_public_key(number)), secret_key=bytes(32))
        self.clock = LoopClock(loop, epoch_ms=EPOCH_MS)
        self.disk = SimulatedDisk(stall=loop.stall_job)
        self.disk.make_private_directory(HOME)
        self.machine = SimulatedMachine()
        self.store = SimulatedStore(cards)
        self.moods: dict[str, Mood] = {}
        """How the next processes of a model behave; healthy where nothing is said."""
        self.problems: list[str] = []
        """What does not hold."""
        self.n_lives = 0
        self.role: Role = "full"
        """Of the next life; what is placed on a `management` node waits."""
        self.node_id = a_node_id(number)
        # An address is a node's for good, from the first moment on.
        self.network.attach(self.node_id)
        self.network.detach(self.node_id)
        self.witness: Witness = Promises(self)
        """Sees what this world's nodes show and promise; one for all the nodes of a cluster."""
        self.on_restart: Callable[[SimulatedNode], None] | None = None
        """Told of a node that ends in order to begin anew, in another cluster."""

    def mood_of(self, model_id: str) -> Mood:
        """Say how the next process of a model behaves."""
        return self.moods.get(model_id, HEALTHY)

    def mint(self) -> CommandId:
        """Make a command id."""
        return command_id_of(self.node_id, self.chance.randbytes(20))


class Witness(Protocol):
    """Remembers what nodes show and promise, and notes what does not fit."""

    def on_begin(self, node: "SimulatedNode") -> None:
        """A life has read what the one before it left."""
        ...

    def on_event(self, node: "SimulatedNode", sequenced: SequencedEvent) -> None:
        """A node shows an event as committed."""
        ...

    def on_reset(self, node: "SimulatedNode") -> None:
        """A node shows a state that it did not reach event by event."""
        ...

    def on_reply(self, node: "SimulatedNode", command: Command, reply: CommandReply) -> None:
        """A command is acknowledged."""
        ...


@final
class Promises:
    """Implements `Witness` for a node that is alone: what was durable comes back.

    Args:
        world: Of the node.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._durable: dict[CommandId, int] = {}
        """Commands acknowledged as durable, with the seq that was named."""
        self._committed: set[CommandId] = set()
        """Commands that led to events."""

    def on_begin(self, node: "SimulatedNode") -> None:
        """Look for everything that was durable."""
        for command_id, seq in self._durable.items():
            result = repeated(node.rooms.log.appended, command_id)
            if result is None or result.seq != seq:
                self._world.problems.append(
                    f"{command_id}, durable at seq {seq}, came back as {result}"
                )

    def on_event(self, node: "SimulatedNode", sequenced: SequencedEvent) -> None:
        """Keep which command led to it."""
        del node
        if sequenced.command_id is not None:
            self._committed.add(sequenced.command_id)

    def on_reset(self, node: "SimulatedNode") -> None:
        """Complain: nobody is there to reset a node that is alone."""
        self._world.problems.append(f"reset to seq {node.state.seq}")

    def on_reply(self, node: "SimulatedNode", command: Command, reply: CommandReply) -> None:
        """Keep what was promised."""
        del node
        if reply.durable == "local" and command.command_id in self._committed:
            self._durable[command.command_id] = reply.seq
