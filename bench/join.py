"""How long until a node is of use: one that joins, and a whole cluster that is switched on.

A node is of use when it is a member, has the log, and a plan puts a model on it.
"""

import tempfile
import time
from pathlib import Path
from typing import Final

import httpx

from bench.harness import Result, percentile, spread
from bench.sides import PACED, POLL_S, write_cards
from tests.support.cluster import Cluster, agreed_master, cluster_of, describe, invite
from tests.support.daemon import Daemon

N_MEMBERS: Final = 3
N_JOINS: Final = 8
N_COLD: Final = 5
N_COLD_STARTS: Final = 3
_TIMEOUT_S: Final = 60.0


def _is_synced(guest: Daemon, cluster_id: str, seq: int) -> bool:
    """Say whether a node is a member in its own eyes and has the log up to `seq`."""
    document = cluster_of(guest)
    if document["cluster_id"] != cluster_id or document["role"] == "none":
        return False
    own = [one for one in document["members"] if one["node_id"] == document["node_id"]]
    return document["commit_seq"] >= seq and [one["presence"] for one in own] == ["present"]


def _is_planned_onto(member: Daemon, node_id: str) -> bool:
    query = {"model_id": PACED, "node_ids": node_id}
    answer = member.http.get("/instance/previews", params=query)
    return answer.is_success and bool(answer.json()["plans"])


def _is_of_use(guest: Daemon, member: Daemon, cluster_id: str, seq: int) -> bool:
    try:
        is_synced = _is_synced(guest, cluster_id, seq)
    except (httpx.TransportError, AssertionError):
        return False  # it is starting, or starting anew as a member
    return is_synced and _is_planned_onto(member, cluster_of(guest)["node_id"])


def _join_once(root: Path, member: Daemon) -> float:
    """Start a fresh node with an invitation, and wait until it is of use; then remove it."""
    document = cluster_of(member)
    token = root / "token"
    root.mkdir()
    token.write_text(invite(member), encoding="utf-8")
    token.chmod(0o600)
    arguments = ("--cluster", "127.0.0.1:0", "--no-mdns", "--name", root.name)
    guest = Daemon(root / "node", arguments=(*arguments, "--join-file", str(token)))
    try:
        began_s = time.perf_counter()
        guest.spawn()
        while not _is_of_use(guest, member, document["cluster_id"], document["commit_seq"]):
            assert time.perf_counter() - began_s < _TIMEOUT_S, describe([guest, member])
            time.sleep(POLL_S)
        took_s = time.perf_counter() - began_s
        node_id = cluster_of(guest)["node_id"]
        removed = member.http.delete(f"/v1/cluster/members/{node_id}")
        assert removed.is_success, removed.text
    finally:
        guest.destroy()
    return took_s


def _joins(root: Path) -> list[Result]:
    cluster = Cluster(root, N_MEMBERS)
    try:
        for node in cluster:
            write_cards(node.models_dir)
        cluster.start()
        cluster.form()
        took_s = [_join_once(root / f"guest-{n}", cluster[0]) for n in range(N_JOINS)]
    finally:
        cluster.destroy()
    detail = f"{spread(took_s)}; {N_JOINS} nodes, one after another, to {N_MEMBERS} by --join-file"
    return [
        Result(
            goal=f"P13 p{percent}",
            metric="exec to member, synced, planned onto",
            unit="s",
            gate=gate,
            stretch=stretch,
            seen=percentile(took_s, percent),
            detail=detail,
        )
        for percent, gate, stretch in ((50, 1.5, 0.7), (99, 3.0, 1.5))
    ]


def _is_whole(cluster: Cluster) -> bool:
    """Say whether all agree on a master, hear each other, and have the same log."""
    if agreed_master(tuple(cluster)) is None:
        return False
    return len({cluster_of(node)["commit_seq"] for node in cluster}) == 1


def _cold_start(cluster: Cluster) -> float:
    for node in cluster:
        node.kill()
    began_s = time.perf_counter()
    for node in cluster:
        node.spawn()
    while not _is_whole(cluster):
        assert time.perf_counter() - began_s < _TIMEOUT_S, describe(tuple(cluster))
        time.sleep(POLL_S)
    return time.perf_counter() - began_s


def _cold_starts(root: Path) -> Result:
    cluster = Cluster(root, N_COLD)
    try:
        cluster.start()
        cluster.form()
        took_s = [_cold_start(cluster) for _ in range(N_COLD_STARTS)]
    finally:
        cluster.destroy()
    seen = spread(took_s)
    return Result(
        goal=f"P15 {N_COLD} nodes",
        metric="all exec together to one master, all synced",
        unit="s",
        gate=15,
        stretch=6,
        seen=seen.median,
        detail=f"{seen}; {N_COLD_STARTS} times, after a kill -9 of all; the goal is for 20 nodes",
    )


def run() -> list[Result]:
    """Measure P13 and P15."""
    with tempfile.TemporaryDirectory(prefix="skulk-bench-") as name:
        return [*_joins(Path(name) / "joins"), _cold_starts(Path(name) / "cold")]
