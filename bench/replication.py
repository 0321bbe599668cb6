"""The replicated log over real ZeroMQ and real disks: four nodes, a process each, on this machine.

A node here is the log with all its parts and nothing else of the daemon: no HTTP, no worker, and a
mastership that is said from outside. Times of different processes are compared by the system's
monotonic clock.
"""

import asyncio
import contextlib
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import uvloop

from bench.harness import ROOT, Result, percentile, spread
from protocol.commands import AdmitMember, CreateJoinToken, ReportDownload
from protocol.events import SequencedEvent
from protocol.ids import (
    ModelId,
    NodeId,
    cluster_id_of,
    command_id_of,
    node_id_of,
    token_id_of,
)
from protocol.peer_messages import TermPair
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.peer_calls import ControlCalls
from skulkd.cluster.transport import Peer
from skulkd.cluster.zmq_transport import ZmqTransport
from skulkd.eventlog.cluster_gateway import ClusterGateway
from skulkd.eventlog.cluster_log import ClusterLog
from skulkd.eventlog.durable_log import DurableLog
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.disk import Disk, RealDisk
from skulkd.runtime.garbage import look_seldom
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks

N_NODES: Final = 4
N_EVENTS: Final = 20_000
CONCURRENCY: Final = 512
N_ROUNDS: Final = 5
N_COMMANDS: Final = 400
CLUSTER: Final = cluster_id_of(b"a cluster that is measured")
MODEL: Final = ModelId("org/model:Q4_K_M")
_HOST: Final = "127.0.0.1"
_KIND: Final = "token"
_TIMEOUT_S: Final = 60.0

Json = dict[str, Any]


# ---- A node ------------------------------------------------------------------------------------


@final
class _Masters:
    """A mastership that never changes, with everybody alive."""

    def __init__(self, node_id: NodeId, master: NodeId) -> None:
        self.term: TermPair | None = TermPair(1, master)
        self.last_master: NodeId | None = master
        self.is_master = node_id == master

    def is_alive(self, node_id: NodeId) -> bool:
        del node_id
        return True

    def silent_s(self, node_id: NodeId) -> float | None:
        del node_id
        return 0.0

    def is_reachable(self, node_id: NodeId) -> bool:
        del node_id
        return True

    def on_change(self, watcher: Callable[[], None]) -> None:
        del watcher


@final
class _Node:
    """What one process runs."""

    def __init__(self, spec: Json) -> None:
        self.keys = KeyPair(
            public_key=bytes.fromhex(spec["public"]), secret_key=bytes.fromhex(spec["secret"])
        )
        self.node_id = node_id_of(self.keys.public_key)
        self.disk: Disk = SimulatedDisk() if spec["memory"] else RealDisk()
        self.directory = Path(spec["directory"])
        self.clock = SystemClock()
        self.tasks = Tasks("bench", on_death=_die)
        self.rng = random.Random(spec["number"])  # ruff: ignore[suspicious-non-cryptographic-random-usage]  spreads pauses
        self.transport = ZmqTransport(
            self.keys,
            boot_id=f"{spec['number']:016x}",
            build="bench",
            cluster_id=lambda: CLUSTER,
            clock=self.clock,
            rng=self.rng,
            on_death=_die,
        )
        self.n_commands = 0
        self.log: ClusterLog
        self.gateway: ClusterGateway

    async def join(self, master: NodeId, peers: list[Json]) -> None:
        """Meet the others, and become master or member."""
        known = [
            Peer(
                node_id=node_id_of(bytes.fromhex(peer["public"])),
                public_key=bytes.fromhex(peer["public"]),
                addresses=(peer["address"],),
            )
            for peer in peers
        ]
        self.transport.set_peers(
            {peer.node_id: peer for peer in known if peer.node_id != self.node_id}
        )
        while len(self.transport.peers()) < len(known) - 1:
            await asyncio.sleep(0.01)
        durable, appended, _ = await DurableLog.open(
            self.disk, self.directory, cluster_id=CLUSTER, clock=self.clock, tasks=self.tasks
        )
        masters = _Masters(self.node_id, master)
        calls = ControlCalls(self.transport, rng=self.rng, tasks=self.tasks)
        self.log = ClusterLog(
            durable,
            appended,
            transport=self.transport,
            calls=calls,
            readings=Readings,
            clock=self.clock,
            tasks=self.tasks,
        )
        self.log.attach(masters)
        self.gateway = ClusterGateway(
            node_id=self.node_id, log=self.log, masters=masters, calls=calls
        )
        term = TermPair(1, master)
        if masters.is_master:
            self.log.lead(term, is_minority=False)
            await self._admit_all(known)
        else:
            self.log.follow(term)
            while self.node_id not in self.log.appended.members:
                await asyncio.sleep(0.01)
            await self._admit(self.keys.public_key)

    async def _admit_all(self, peers: list[Peer]) -> None:
        await self._admit(self.keys.public_key)
        token_id = token_id_of(bytes(32))
        await self.gateway.submit(
            CreateJoinToken(
                command_id=self.gateway.mint_command_id(),
                token_id=token_id,
                public_key=bytes(32).hex(),
                inviter=self.node_id,
                token_kind=_KIND,
                expires_at_ms=self.clock.wall_ms() + 3_600_000,
                uses=len(peers),
            )
        )
        for peer in peers:
            if peer.node_id != self.node_id:
                await self._admit(peer.public_key, token=True)

    async def _admit(self, public_key: bytes, *, token: bool = False) -> None:
        node_id = node_id_of(public_key)
        await self.gateway.submit(
            AdmitMember(
                command_id=self.gateway.mint_command_id(),
                node_id=node_id,
                name=node_id,
                public_key=public_key.hex(),
                token_id=token_id_of(bytes(32)) if token else None,
            )
        )

    def command(self) -> ReportDownload:
        """Make the report of a download, which gives one event."""
        self.n_commands += 1
        digest = hashlib.sha256(b"%s %d" % (self.node_id.encode(), self.n_commands)).digest()
        return ReportDownload(
            command_id=command_id_of(self.node_id, digest),
            node_id=self.node_id,
            model_id=MODEL,
            size_bytes=self.n_commands,
        )

    async def flood(self, n_events: int, concurrency: int) -> Json:
        """Submit as fast as answers come; the commands are there when the clock begins."""
        left = iter([self.command() for _ in range(n_events)])

        async def client() -> None:
            for command in left:
                await self.gateway.submit(command)

        began_s, cpu_s = time.monotonic(), time.process_time()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        return {"began_s": began_s, "cpu_s": time.process_time() - cpu_s}

    async def reach(self, seq: int) -> Json:
        """Wait until the replica shows `seq`; say when."""
        cpu_s = time.process_time()
        reached: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        def on_event(sequenced: SequencedEvent, state: ClusterState) -> None:
            del state
            if sequenced.seq >= seq and not reached.done():
                reached.set_result(time.monotonic())

        unsubscribe = self.log.replica.subscribe(on_event)
        at_s = await reached
        unsubscribe()
        return {"at_s": at_s, "cpu_s": time.process_time() - cpu_s}

    async def latencies(self, n_commands: int) -> Json:
        """Submit one command after another; each is visible here when it is answered."""
        seen: list[float] = []
        for _ in range(n_commands):
            began_s = time.perf_counter()
            await self.gateway.submit(self.command())
            seen.append((time.perf_counter() - began_s) * 1000)
        return {"ms": seen}


async def _serve() -> None:
    """Do what the other process asks for, a line of JSON each."""
    loop = asyncio.get_running_loop()

    async def next_line() -> Json:
        return json.loads(await loop.run_in_executor(None, sys.stdin.readline) or '{"do": "end"}')

    node = _Node(await next_line())
    _say({"address": f"{_HOST}:{await node.transport.open([_HOST], 0)}"})
    asked = await next_line()
    await node.join(NodeId(asked["master"]), asked["peers"])
    _say({"seq": node.log.appended.seq})
    while (asked := await next_line())["do"] != "end":
        match asked["do"]:
            case "flood":
                _say(await node.flood(asked["n"], asked["concurrency"]))
            case "reach":
                _say(await node.reach(asked["seq"]))
            case "latencies":
                _say(await node.latencies(asked["n"]))
            case _:
                _say({"seq": node.log.replica.state.seq})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            await node.log.close()
    await node.tasks.close(1)
    await node.transport.close()


def _say(answer: Json) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _die(story: str, error: BaseException) -> None:
    raise SystemExit(story) from error


# ---- The four of them --------------------------------------------------------------------------


@final
class _Cluster:
    """Four processes; the first is the master."""

    def __init__(self, root: Path, *, memory: bool) -> None:
        keys = [make_key_pair() for _ in range(N_NODES)]
        self.nodes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.replication"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in keys
        ]
        for number, pair in enumerate(keys):
            self.ask(
                number,
                {
                    "number": number,
                    "public": pair.public_key.hex(),
                    "secret": pair.secret_key.hex(),
                    "directory": str(root / f"node-{number}"),
                    "memory": memory,
                },
            )
        peers = [
            {"public": pair.public_key.hex(), "address": self.answer(number)["address"]}
            for number, pair in enumerate(keys)
        ]
        for number in range(N_NODES):
            self.ask(number, {"master": node_id_of(keys[0].public_key), "peers": peers})
        for number in range(N_NODES):
            self.answer(number)
        time.sleep(0.5)

    def ask(self, number: int, what: Json) -> None:
        """Send a line to a node."""
        pipe = self.nodes[number].stdin
        assert pipe is not None
        pipe.write(json.dumps(what) + "\n")
        pipe.flush()

    def answer(self, number: int) -> Json:
        """Read a node's next line."""
        pipe = self.nodes[number].stdout
        assert pipe is not None
        line = pipe.readline()
        assert line, f"node {number} has died"
        return json.loads(line)

    def close(self) -> None:
        """End them all."""
        for number, node in enumerate(self.nodes):
            if node.poll() is None:
                self.ask(number, {"do": "end"})
        for node in self.nodes:
            try:
                node.wait(timeout=10)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
            for pipe in (node.stdin, node.stdout):
                if pipe is not None:
                    pipe.close()


def _throughput(cluster: _Cluster) -> Result:
    rates: list[float] = []
    master_us: list[float] = []
    member_us: list[float] = []
    all_us: list[float] = []
    followers = range(1, N_NODES)
    for _ in range(N_ROUNDS):
        cluster.ask(0, {"do": "seq"})
        target = cluster.answer(0)["seq"] + N_EVENTS
        for number in followers:
            cluster.ask(number, {"do": "reach", "seq": target})
        time.sleep(0.2)
        cluster.ask(0, {"do": "flood", "n": N_EVENTS, "concurrency": CONCURRENCY})
        flood = cluster.answer(0)
        reached = [cluster.answer(number) for number in followers]
        last_s = max(item["at_s"] for item in reached)
        rates.append(N_EVENTS / (last_s - flood["began_s"]))
        master_us.append(flood["cpu_s"] / N_EVENTS * 1e6)
        members_us = [item["cpu_s"] / N_EVENTS * 1e6 for item in reached]
        member_us += members_us
        all_us.append(master_us[-1] + sum(members_us))
    seen = spread(rates)
    return Result(
        goal="P21",
        metric="events/s from command to 3 followers' replicas, one machine, durable",
        unit="events/s",
        gate=10_000,
        stretch=40_000,
        better="higher",
        seen=seen.median,
        detail=f"{seen}; {N_ROUNDS} rounds of {N_EVENTS:,} commands, {CONCURRENCY} at a time; CPU "
        f"an event: {spread(all_us).median:.0f} µs in all, "
        f"master {spread(master_us).median:.0f} µs, "
        f"follower {spread(member_us).median:.0f} µs",
    )


def _latency(cluster: _Cluster) -> tuple[float, float]:
    cluster.ask(1, {"do": "latencies", "n": N_COMMANDS})
    seen = cluster.answer(1)["ms"]
    return percentile(seen, 50), percentile(seen, 99)


def run() -> list[Result]:
    """Measure P21 and P22, on the file system that holds the repository."""
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-replication-") as name:
        cluster = _Cluster(Path(name) / "disk", memory=False)
        try:
            p50, p99 = _latency(cluster)
            throughput = _throughput(cluster)
        finally:
            cluster.close()
        cluster = _Cluster(Path(name) / "memory", memory=True)
        try:
            memory_p50, _ = _latency(cluster)
        finally:
            cluster.close()
    metric = "command through a follower to visible there, 4 nodes"
    detail = f"{N_COMMANDS} commands, one at a time, durable on two nodes at least"
    return [
        throughput,
        Result(
            goal="P22 cluster p50",
            metric=metric,
            unit="ms",
            gate=10,
            stretch=6,
            seen=p50,
            detail=detail,
        ),
        Result(
            goal="P22 cluster p99",
            metric=metric,
            unit="ms",
            gate=25,
            stretch=15,
            seen=p99,
            detail=detail,
        ),
        Result(
            goal="P22 cluster memory",
            metric="the same without disks, p50",
            unit="ms",
            gate=2,
            stretch=1,
            seen=memory_p50,
            detail="two ways over ZeroMQ and one to a second member",
        ),
    ]


if __name__ == "__main__":
    look_seldom()
    uvloop.run(_serve())
