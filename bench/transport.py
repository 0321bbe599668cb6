"""The pipes between nodes by themselves: two processes on loopback, encrypted, without daemons.

What is measured is the way from `send` of one transport to the receiver's call in the other. CPU
time is that of the whole process, ZeroMQ's threads included, and beside it that of the loop's
thread alone, which is what a daemon's other work has to share.
"""

import asyncio
import multiprocessing
import random
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import uvloop

from bench.harness import Result
from protocol.envelope import Plane
from protocol.ids import cluster_id_of, node_id_of
from skulkd.cluster.addresses import join_address
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.transport import Peer
from skulkd.cluster.zmq_transport import ZmqTransport
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.tasks import run_blocking, sleep, timeout

HOST: Final = "127.0.0.1"
UP_WITHIN_S: Final = 20.0
PER_TURN: Final = 64
"""Frames that the sender sends before it lets its loop turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    plane: Plane
    n_bytes: int
    n_frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What a side spent on a load, in seconds."""

    loop_s: float
    process_s: float
    wall_s: float


_TOKENS: Final = _Load(plane="data", n_bytes=140, n_frames=100_000)
_FILES: Final = _Load(plane="files", n_bytes=256 << 10, n_frames=2_000)


class _Watch:
    """Measures from the moment that it is made."""

    def __init__(self) -> None:
        self._loop_s = time.thread_time()
        self._process_s = time.process_time()
        self._wall_s = time.perf_counter()

    def cost(self) -> _Cost:
        return _Cost(
            loop_s=time.thread_time() - self._loop_s,
            process_s=time.process_time() - self._process_s,
            wall_s=time.perf_counter() - self._wall_s,
        )


async def open_transport(parent: "Connection[Any, Any]") -> tuple[ZmqTransport, Peer]:
    """Open a transport and exchange names with the other process."""
    keys = make_key_pair()
    transport = ZmqTransport(
        keys,
        boot_id="bench",
        build="bench",
        cluster_id=lambda: cluster_id_of(b"a cluster that is measured"),
        clock=SystemClock(),
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  spreads pauses
        rng=random.Random(keys.public_key),
        on_death=_die,
    )
    base_port = await transport.open([HOST], 0)
    parent.send((keys.public_key, join_address(HOST, base_port)))
    public_key, address = await run_blocking(parent.recv)
    peer = Peer(node_id=node_id_of(public_key), public_key=public_key, addresses=(address,))
    transport.set_peers({peer.node_id: peer})
    async with timeout(UP_WITHIN_S):
        while transport.peers() != (peer.node_id,):
            await sleep(0.01)
    return transport, peer


async def _sink(parent: "Connection[Any, Any]", load: _Load) -> None:
    """Take all frames, and say what that cost from the first one on."""
    transport, _ = await open_transport(parent)
    done: asyncio.Future[_Cost] = asyncio.get_running_loop().create_future()
    watch: list[_Watch] = []
    n_left = load.n_frames

    def take(sender: str, payload: bytes) -> None:
        del sender, payload
        nonlocal n_left
        if not watch:
            watch.append(_Watch())
        n_left -= 1
        if not n_left:
            done.set_result(watch[0].cost())

    transport.on_receive(load.plane, take)
    parent.send("ready")
    parent.send(await done)
    await run_blocking(parent.recv)
    await transport.close()


async def _source(child: "Connection[Any, Any]", load: _Load) -> tuple[_Cost, _Cost]:
    """Send all frames; gives both sides' costs."""
    transport, peer = await open_transport(child)
    await run_blocking(child.recv)
    payload = bytes(load.n_bytes)
    watch = _Watch()
    n_sent = 0
    while n_sent < load.n_frames:
        refusal = transport.send(peer.node_id, load.plane, payload)
        if refusal is None:
            n_sent += 1
            if not n_sent % PER_TURN:
                await sleep(0)
        elif refusal == "queue_full":
            await transport.wait_room(peer.node_id, load.plane)
        else:
            raise AssertionError(refusal)
    received = await run_blocking(child.recv)
    sent = watch.cost()
    child.send("enough")
    await transport.close()
    return sent, received


def _run_sink(parent: "Connection[Any, Any]", load: _Load) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_sink(parent, load))


def _measure(load: _Load) -> tuple[_Cost, _Cost]:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    child = spawn.Process(target=_run_sink, args=(there, load))
    child.start()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_source(here, load))
    finally:
        child.join(10)
        child.kill()


def _die(story: str, error: BaseException) -> None:
    raise SystemExit(story) from error


def _cpu_row(case: str, cost: _Cost) -> Result:
    each_us = cost.loop_s / _TOKENS.n_frames * 1e6
    whole_us = cost.process_s / _TOKENS.n_frames * 1e6
    return Result(
        goal=f"P20 {case}",
        metric=f"CPU of the loop to {case} a frame of {_TOKENS.n_bytes} B",
        unit="µs",
        gate=6,
        stretch=3,
        seen=each_us,
        detail=f"{whole_us:.2f} µs with ZeroMQ's threads; one peer, {_TOKENS.n_frames:,} frames",
    )


def run() -> list[Result]:
    """Measure one pipe: small frames, then files."""
    sent, received = _measure(_TOKENS)
    _, files = _measure(_FILES)
    return [
        Result(
            goal="P8 pipe",
            metric=f"frames of {_TOKENS.n_bytes} B over one pipe, none lost",
            unit="1/s",
            gate=40_000,
            stretch=80_000,
            better="higher",
            seen=_TOKENS.n_frames / received.wall_s,
            detail=f"{_TOKENS.n_frames:,} frames, encrypted, from one process to another",
        ),
        _cpu_row("send", sent),
        _cpu_row("receive", received),
        Result(
            goal="P32 pipe",
            metric="bytes over the files plane",
            unit="MB/s",
            gate=200,
            stretch=400,
            better="higher",
            seen=_FILES.n_frames * _FILES.n_bytes / files.wall_s / 1e6,
            detail=f"{_FILES.n_frames:,} frames of {_FILES.n_bytes >> 10} KiB, encrypted; the "
            f"receiver's loop was busy for {files.loop_s / files.wall_s:.0%} of the time",
        ),
    ]
