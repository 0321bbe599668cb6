"""The ways between one rank's process and the other ranks of its model, on other nodes.

To an engine another rank is a port of 127.0.0.1. Behind that port is a stream to the daemon of the
rank's node, and that daemon connects to its own engine's port. So engines listen on this machine
alone, and their bytes travel encrypted. A port is open only while its runner is there, lies below
the range from which systems lend ports, and takes connections of the runner's own engine only.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Final, final

from protocol.errors import ClusterError, RunnerError
from protocol.ids import NodeId
from protocol.placements import Plan
from skulkd.cluster.tunnels import Target, Tunnels, TunnelStream
from skulkd.core.reconcile import RunnerKey
from skulkd.runtime.tasks import Tasks, run_blocking, timeout
from skulkd.worker.launchers import group

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 20_000
LAST_PORT: Final = 29_999
"""Below the range from which Linux (32768) and macOS (49152) lend ports, so that nobody gets one of
these by chance between its choice and its use."""
_N_TRIES: Final = 100
_PIECE_BYTES: Final = 64 << 10
_CONNECT_S: Final = 5.0

_log = logging.getLogger(__name__)

OnLost = Callable[[int, str], None]
"""Told once that a rank is lost to this one's engine, and why."""
OwnsConnection = Callable[[int, int], bool]
"""Whether a process of a group has a connection from a port of this machine; may block."""


@final
class RankWays:
    """What one runner reaches, and how it is reached.

    Args:
        tunnels: Carry the streams.
        tasks: Owner of what is under way.
        key: Of the runner.
        plan: Says which node has which rank.
        rng: Picks ports.
        on_lost: Told of the first rank that is lost.
        owns_connection: Asks the kernel.
    """

    def __init__(
        self,
        tunnels: Tunnels,
        tasks: Tasks,
        key: RunnerKey,
        plan: Plan,
        *,
        rng: random.Random,
        on_lost: OnLost,
        owns_connection: OwnsConnection = group.connects_from,
    ) -> None:
        self._tunnels = tunnels
        self._tasks = tasks
        self._key = key
        self._nodes = {shard.rank: shard.node_id for shard in plan.shards}
        self._rng = rng
        self._on_lost: OnLost | None = on_lost
        self._owns_connection = owns_connection
        self._servers: list[asyncio.Server] = []
        self._carrying: set[asyncio.Task[None]] = set()
        self._own_port = 0
        self._group: int | None = None
        """The process group of the own engine, once it is there."""

    async def open(self, reached: Sequence[int]) -> tuple[int, ...]:
        """Open a port for each rank that the engine is to reach, and choose its own.

        Returns:
            For each rank of the plan its port on this machine; 0 for one that is not reached.

        Raises:
            RunnerError: `runner.spawn_failed` when no port is free.
        """
        ports: list[int] = []
        for rank in sorted(self._nodes):
            if rank == self._key.rank:
                self._own_port = await self._free_port()
                ports.append(self._own_port)
            elif rank in reached:
                ports.append(await self._listen(rank))
            else:
                ports.append(0)
        return tuple(ports)

    def set_process(self, group_id: int) -> None:
        """Name the process group whose connections are taken."""
        self._group = group_id

    def is_reached_by(self, peer: NodeId) -> bool:
        """Say whether a node has a rank of the same instance, and this engine is there."""
        return self._group is not None and peer in self._nodes.values()

    def serve(self, stream: TunnelStream) -> None:
        """Join a stream that has come in to the own engine."""
        self._carry(self._connect(stream), "stream in")

    def close(self) -> None:
        """Close the ports and end what is under way; idempotent."""
        self._on_lost = None
        for server in self._servers:
            server.close()
        self._servers.clear()
        for task in list(self._carrying):
            task.cancel()

    async def _free_port(self) -> int:
        server = await self._bind(_hang_up)
        port: int = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return port

    async def _listen(self, rank: int) -> int:
        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._carry(self._pass_on(rank, reader, writer), f"stream to rank {rank}")

        server = await self._bind(take)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _bind(
        self, take: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
    ) -> asyncio.Server:
        for _ in range(_N_TRIES):
            port = self._rng.randint(FIRST_PORT, LAST_PORT)
            with suppress(OSError):  # somebody has it: try another
                return await asyncio.start_server(take, HOST, port, limit=_PIECE_BYTES)
        raise RunnerError(
            "runner.spawn_failed",
            f"{_N_TRIES} ports from {FIRST_PORT} to {LAST_PORT} were tried and none is free",
            remediation="See who holds them (`ss -ltn`).",
        )

    def _carry(self, carrying: Coroutine[None, None, None], name: str) -> None:
        task = self._tasks.start(carrying, name=name, essential=False)
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _pass_on(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry a connection of the own engine to a rank."""
        port: int = writer.get_extra_info("peername")[1]
        if self._group is None or not await run_blocking(self._owns_connection, self._group, port):
            _log.warning("a process that is not the engine connected to a port of %s", self._key)
            writer.transport.abort()
            return
        target = Target(self._key.instance_id, self._key.attempt, rank)
        try:
            stream = self._tunnels.open(self._nodes[rank], target)
        except ClusterError as error:
            writer.transport.abort()
            self._lose(rank, error.message)
            return
        joint = _Joint(stream, reader, writer)
        await self._join(joint, lambda why: self._lose(rank, why))

    async def _connect(self, stream: TunnelStream) -> None:
        """Join a stream to the own engine."""
        try:
            async with timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    HOST, self._own_port, limit=_PIECE_BYTES
                )
        except OSError:  # a TimeoutError is one
            stream.reset("gone")
            return
        except asyncio.CancelledError:
            stream.reset("gone")
            raise
        await self._join(_Joint(stream, reader, writer), lambda _why: None)

    async def _join(self, joint: "_Joint", on_lost: Callable[[str], None]) -> None:
        """Carry bytes both ways until both sides have ended.

        Args:
            joint: Of stream and connection.
            on_lost: Told why, when the other side ends while this one's engine has not.
        """
        sending = self._tasks.start(joint.send(), name="stream out", essential=False)
        try:
            why = await joint.take()
            if why is not None:
                on_lost(why)
            await sending
        finally:
            sending.cancel()
            joint.close()

    def _lose(self, rank: int, why: str) -> None:
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(rank, why)


@final
class _Joint:
    """A stream, and a connection of the own engine."""

    def __init__(
        self, stream: TunnelStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._stream = stream
        self._reader = reader
        self._writer = writer
        self._has_own_ended = False

    async def send(self) -> None:
        """Carry what the own engine says."""
        try:
            while piece := await self._reader.read(_PIECE_BYTES):
                await self._stream.write(piece)
        except ClusterError:
            return  # `take` hears of it, too
        except OSError:
            self._has_own_ended = True
            self._stream.reset()
            return
        self._has_own_ended = True
        self._stream.end()

    async def take(self) -> str | None:
        """Carry what the other side says.

        Returns:
            Why it ended first, in words; None when the own engine did.
        """
        why = "its engine has closed the connection"
        try:
            while piece := await self._stream.read():
                self._writer.write(piece)
                await self._writer.drain()
            if self._writer.can_write_eof():
                self._writer.write_eof()
        except ClusterError:
            why = self._stream.why_over or why
            self._writer.transport.abort()
        except OSError:
            self._has_own_ended = True
            self._stream.reset()
        return None if self._has_own_ended else why

    def close(self) -> None:
        """End what has not ended."""
        if self._stream.why_over is None and self._has_own_ended:
            self._writer.close()  # what is on its way to the engine still gets there
        else:
            self._writer.transport.abort()
        self._stream.reset()


def _hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
