"""A stream between two nodes beside a bare socket: round trips, and how fast bytes go.

The other end is a process of its own. A bare connection over loopback and a stream inside the
encrypted transport carry the same bytes in the same run: what a pooled model pays for its privacy.
"""

import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import uvloop

from bench.harness import Result
from bench.transport import HOST, open_transport
from protocol.ids import InstanceId, NodeId
from skulkd.cluster.file_client import FileClient
from skulkd.cluster.file_plane import FilePlane
from skulkd.cluster.file_server import FileServer
from skulkd.cluster.transport import Transport
from skulkd.cluster.tunnels import Serve, Target, Tunnels, TunnelStream
from skulkd.runtime.tasks import run_blocking
from store.offers import Offer, UnhashedOffer

_N_TRIPS: Final = 2_000
_TRIP_BYTES: Final = 4 << 10
"""As the numbers between two layers of a small model, for one token."""
_N_BYTES: Final = 256 << 20
_PIECE: Final = bytes(256 << 10)
_TARGET: Final = Target(InstanceId("bench2-" + "a" * 20), 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """One connection, of whatever kind."""

    read: Callable[[], Awaitable[bytes | memoryview]]
    write: Callable[[bytes], Awaitable[None]]

    async def take(self, n_bytes: int) -> None:
        while n_bytes > 0:
            piece = await self.read()
            if not piece:
                raise ConnectionError
            n_bytes -= len(piece)


class _NoFiles:
    def open(self, key: object) -> Offer | UnhashedOffer | None:
        del key
        return None


def _tunnels(transport: Transport) -> Tunnels:
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  numbers of streams
    rng = random.Random(1)
    tunnels = Tunnels(transport, rng=rng)
    server = FileServer(transport, _NoFiles(), on_death=_die)
    FilePlane(transport, server=server, client=FileClient(transport, rng=rng), tunnels=tunnels)
    return tunnels


def _die(story: str, error: BaseException) -> None:
    raise SystemExit(story) from error


def _socket_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Ends:
    async def write(content: bytes) -> None:
        writer.write(content)
        await writer.drain()

    return _Ends(read=lambda: reader.read(64 << 10), write=write)


def _stream_ends(stream: TunnelStream) -> _Ends:
    return _Ends(read=stream.read, write=stream.write)


async def _answer(ends: _Ends) -> None:
    """Send back what comes, so often; then take much, and say so."""
    for _ in range(_N_TRIPS):
        await ends.take(_TRIP_BYTES)
        await ends.write(bytes(_TRIP_BYTES))
    await ends.take(_N_BYTES)
    await ends.write(b"!")


async def _ask(ends: _Ends) -> tuple[float, float]:
    """Give the middle round trip in µs, and MB/s."""
    trips: list[float] = []
    for _ in range(_N_TRIPS):
        began_s = time.perf_counter()
        await ends.write(bytes(_TRIP_BYTES))
        await ends.take(_TRIP_BYTES)
        trips.append(time.perf_counter() - began_s)
    began_s = time.perf_counter()
    for _ in range(_N_BYTES // len(_PIECE)):
        await ends.write(_PIECE)
    await ends.take(1)
    taken_s = time.perf_counter() - began_s
    return statistics.median(trips) * 1e6, _N_BYTES / taken_s / 1e6


async def _other_side(parent: "Connection[Any, Any]") -> None:
    """Answer over a socket, then over a stream."""
    transport, _ = await open_transport(parent)
    streams: asyncio.Queue[TunnelStream] = asyncio.Queue()

    def admit(_peer: NodeId, _target: Target) -> Serve:
        return streams.put_nowait

    _tunnels(transport).serve(admit)
    connected: asyncio.Queue[_Ends] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda reader, writer: connected.put_nowait(_socket_ends(reader, writer)), HOST, 0
    )
    parent.send(server.sockets[0].getsockname()[1])
    await _answer(await connected.get())
    await _answer(_stream_ends(await streams.get()))
    await run_blocking(parent.recv)
    server.close()
    await transport.close()


async def _this_side(child: "Connection[Any, Any]") -> tuple[tuple[float, float], ...]:
    transport, peer = await open_transport(child)
    port: int = await run_blocking(child.recv)
    reader, writer = await asyncio.open_connection(HOST, port)
    bare = await _ask(_socket_ends(reader, writer))
    stream = _tunnels(transport).open(peer.node_id, _TARGET)
    carried = await _ask(_stream_ends(stream))
    child.send("enough")
    writer.close()
    await transport.close()
    return bare, carried


def _run_other_side(parent: "Connection[Any, Any]") -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_other_side(parent))


def run() -> list[Result]:
    """Measure both ways in one run."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    child = spawn.Process(target=_run_other_side, args=(there,))
    child.start()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            bare, carried = runner.run(_this_side(here))
    finally:
        child.join(10)
        child.kill()
    return [
        Result(
            goal="tunnel trip",
            metric=f"{_TRIP_BYTES >> 10} KiB to a rank on another node and back",
            unit="µs",
            gate=1_000,
            stretch=300,
            seen=carried[0],
            detail=f"median of {_N_TRIPS:,}; loopback, encrypted; bare socket beside it",
            sides={"bare socket": bare[0]},
        ),
        Result(
            goal="tunnel rate",
            metric="bytes through one stream between ranks",
            unit="MB/s",
            gate=100,
            stretch=300,
            better="higher",
            seen=carried[1],
            detail=f"{_N_BYTES >> 20} MiB one way; a wire of 1 Gbit/s carries 118",
            sides={"bare socket": bare[1]},
        ),
    ]
