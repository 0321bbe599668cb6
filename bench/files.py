"""How fast a model goes between two nodes on one machine: encrypted, hashed, written, synced.

The giver is a process of its own, with the real transport and store; so is this one. Beside it the
same bytes are read, hashed and written by one thread without any network: the floor.
"""

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.harness import ROOT, Result, cpu_seconds, spread
from protocol.cards import ArtifactFile, ModelCard, PackageSource, StorageSize
from protocol.ids import Digest, ModelId, NodeId, cluster_id_of, node_id_of
from skulkd.cluster.curve_keys import key_pair_of
from skulkd.cluster.file_client import FileClient
from skulkd.cluster.file_plane import FilePlane
from skulkd.cluster.file_server import FileServer
from skulkd.cluster.transport import Peer
from skulkd.cluster.zmq_transport import ZmqTransport
from skulkd.runtime.clock import SystemClock
from store.layout import ARTIFACTS, FILES, StoreLayout
from store.peer_pull import PeerSources
from store.service import Store, artifact_key
from store.sources.peer import PeerTransfer
from store.transfer import complete, verified_file

SIZE_BYTES: Final = 512 << 20
N_ROUNDS: Final = 5
GATE_MB_S: Final = 200.0
STRETCH_MB_S: Final = 300.0
"""Of the 434 that ZeroMQ with CURVE carries in one stream of 256 KiB frames, without a disk or a
digest. On two cores, both nodes' encryption and the digest share them."""

_HOST: Final = "127.0.0.1"
_FILE: Final = "model.gguf"
_CHUNK_BYTES: Final = 1 << 20
_UP_S: Final = 10.0


class _OneHolder:
    """Knows that the giver has everything."""

    def __init__(self, holder: NodeId) -> None:
        self._holder = holder

    def has_peers(self) -> bool:
        return True

    def holders(self, key: Digest) -> tuple[NodeId, ...]:
        del key
        return (self._holder,)

    def fetchers(self, model_id: ModelId) -> tuple[PeerTransfer, ...]:
        del model_id
        return ()

    def name_of(self, node_id: NodeId) -> str:
        return node_id


@asynccontextmanager
async def _node(
    secret: bytes, other_secret: bytes, other_port: int, models: Path
) -> AsyncGenerator[tuple[ZmqTransport, Store, int]]:
    """Have a node that knows one other; a port of 0 is told later."""
    other = _peer(other_secret, other_port)
    failures: list[str] = []
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  ports and pauses
    rng = random.Random()
    transport = ZmqTransport(
        key_pair_of(secret),
        boot_id=secret.hex()[:16],
        build="bench",
        cluster_id=lambda: cluster_id_of(b"bench" * 4),
        clock=SystemClock(),
        rng=rng,
        on_death=lambda story, _error: failures.append(story),
    )
    client = FileClient(transport, rng=rng)
    peers = PeerSources(node_id=transport.node_id, files=client, holdings=_OneHolder(other.node_id))
    store = Store(StoreLayout(models), clock=SystemClock(), offline=True, peers=peers)
    server = FileServer(
        transport, store.offers, on_death=lambda story, _error: failures.append(story)
    )
    FilePlane(transport, server=server, client=client)
    port = await transport.open([_HOST], 0)
    if other_port:
        transport.set_peers({other.node_id: other})
    try:
        yield transport, store, port
    finally:
        await server.close()
        await transport.close()
    if failures:
        raise RuntimeError("\n".join(failures))


def _peer(secret: bytes, port: int) -> Peer:
    public_key = key_pair_of(secret).public_key
    return Peer(
        node_id=node_id_of(public_key), public_key=public_key, addresses=(f"{_HOST}:{port}",)
    )


async def _give(folder: Path, own: bytes, other: bytes, other_port: int) -> None:
    """Serve until standard input ends."""
    async with _node(own, other, other_port, folder / "given") as (_, _, port):
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


async def _take(folder: Path, card: ModelCard) -> list[tuple[float, float, float]]:
    """Fetch the model some times; give MB/s, and seconds of CPU on each side."""
    own, other = os.urandom(32), os.urandom(32)
    async with _node(own, other, 0, folder / "taken") as (transport, store, port):
        arguments = ["give", str(folder), other.hex(), own.hex(), str(port)]
        with subprocess.Popen(
            [sys.executable, "-m", "bench.files", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as giver:
            assert giver.stdout is not None
            assert giver.stdin is not None
            peer = _peer(other, int(await asyncio.to_thread(giver.stdout.readline)))
            transport.set_peers({peer.node_id: peer})
            async with asyncio.timeout(_UP_S):
                while transport.link(peer.node_id) != "up":
                    await asyncio.sleep(0.05)
            rounds = [await _once(store, card, giver.pid) for _ in range(N_ROUNDS + 1)]
            giver.stdin.close()
    # The first one warms up.
    return rounds[1:]


def _install(folder: Path) -> ModelCard:
    """Put a model into the giver's store, as if it had been pulled; give its card."""
    chunk = os.urandom(_CHUNK_BYTES)
    digest = hashlib.sha256(chunk * (SIZE_BYTES // _CHUNK_BYTES)).hexdigest()
    card = ModelCard(
        model_id=ModelId("bench/model"),
        n_layers=1,
        hidden_size=1,
        supports_tensor=False,
        tasks=("TextGeneration",),
        storage_size=StorageSize(in_bytes=SIZE_BYTES),
        source=PackageSource(
            package="none",
            version="1",
            files=(ArtifactFile(path=_FILE, size_bytes=SIZE_BYTES, sha256=Digest(digest)),),
        ),
    )
    layout = StoreLayout(folder / "given")
    layout.prepare()
    files = layout.artifact_path(artifact_key(card)) / FILES
    files.mkdir(parents=True)
    with (files / _FILE).open("wb") as file:
        for _ in range(SIZE_BYTES // _CHUNK_BYTES):
            file.write(chunk)
    with layout.opened(ARTIFACTS, artifact_key(card)) as artifact:
        described = verified_file(artifact, _FILE, SIZE_BYTES, Digest(digest))
        complete(artifact, card, "a benchmark", (described,), now_ms=0)
    return card


async def _once(store: Store, card: ModelCard, giver: int) -> tuple[float, float, float]:
    before = (cpu_seconds(os.getpid(), descendants=False), cpu_seconds(giver))
    began_s = time.perf_counter()
    await store.ensure(card)
    took_s = time.perf_counter() - began_s
    after = (cpu_seconds(os.getpid(), descendants=False), cpu_seconds(giver))
    await store.remove(card.model_id)
    return SIZE_BYTES / took_s / 1e6, after[0] - before[0], after[1] - before[1]


def _floor(folder: Path, card: ModelCard) -> float:
    """Read, hash, write and sync the same bytes in one thread; give MB/s."""
    path = StoreLayout(folder / "given").file_path(artifact_key(card), _FILE)
    began_s = time.perf_counter()
    digest = hashlib.sha256()
    with path.open("rb") as source, (folder / "copy").open("wb") as copy:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    took_s = time.perf_counter() - began_s
    (folder / "copy").unlink()
    return SIZE_BYTES / took_s / 1e6


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="skulk-bench-") as name:
        folder = Path(name)
        card = _install(folder)
        floor = spread([_floor(folder, card) for _ in range(N_ROUNDS)])
        rounds = asyncio.run(_take(folder, card))
    rate = spread([item[0] for item in rounds])
    taker_s, giver_s = (spread([item[side] for item in rounds]).median for side in (1, 2))
    return [
        Result(
            goal="peer files",
            metric=f"a model of {SIZE_BYTES >> 20} MiB from one node to another",
            unit="MB/s",
            gate=GATE_MB_S,
            stretch=STRETCH_MB_S,
            seen=rate.median,
            better="higher",
            detail=f"{rate}; copied and hashed without a network {floor}; "
            f"CPU {taker_s:.2f} s here, {giver_s:.2f} s there",
        )
    ]


if __name__ == "__main__":
    asyncio.run(
        _give(
            Path(sys.argv[2]),
            bytes.fromhex(sys.argv[3]),
            bytes.fromhex(sys.argv[4]),
            int(sys.argv[5]),
        )
    )
