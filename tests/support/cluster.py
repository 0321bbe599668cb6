"""Several real daemons on loopback that form one cluster, as an operator would have them."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

import httpx

from tests.support.daemon import POLL_S, Daemon, wait_until

FORM_TIMEOUT_S: Final = 30.0
NAMES: Final = ("attic", "kitchen", "study", "cellar", "garage")


@final
class Cluster:
    """Daemons in homes of their own; the first one invites the others.

    Args:
        root: An empty folder.
        n_nodes: How many.
        arguments: Further flags for every daemon.
        names: Of the nodes, in their order.
        environment: Further variables for every daemon.
        models_dir: Of the first one; the others have their own.
    """

    def __init__(
        self,
        root: Path,
        n_nodes: int,
        *,
        arguments: Sequence[str] = (),
        names: Sequence[str] = NAMES,
        environment: Mapping[str, str] | None = None,
        models_dir: Path | None = None,
    ) -> None:
        self.root = root
        self.nodes = tuple(
            Daemon(
                root / name,
                arguments=("--cluster", "127.0.0.1:0", "--no-mdns", "--name", name, *arguments),
                environment=environment,
                models_dir=None if number else models_dir,
            )
            for number, name in enumerate(names[:n_nodes])
        )

    def __iter__(self) -> Iterator[Daemon]:
        return iter(self.nodes)

    def __getitem__(self, index: int) -> Daemon:
        return self.nodes[index]

    def start(self) -> None:
        """Start every daemon, each a cluster of one."""
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.wait_healthy()

    def form(self) -> None:
        """Let the first invite the others, and wait until all agree."""
        token = invite(self.nodes[0], uses=max(1, len(self.nodes) - 1))
        for node in self.nodes[1:]:
            join(node, token)
        self.wait_agreed()

    def wait_agreed(
        self, nodes: Sequence[Daemon] | None = None, *, timeout_s: float = FORM_TIMEOUT_S
    ) -> str:
        """Wait until these nodes (all by default) hear each other and follow one master.

        Returns:
            The master's node id.
        """
        chosen = tuple(nodes or self.nodes)
        found: list[str] = []

        def is_agreed() -> bool:
            master = agreed_master(chosen)
            if master is not None:
                found.append(master)
            return master is not None

        try:
            wait_until(is_agreed, timeout_s=timeout_s, what=f"{len(chosen)} nodes agree")
        except AssertionError as error:
            message = f"{error}; they say\n{describe(chosen)}"
            raise AssertionError(message) from None
        return found[0]

    def by_id(self, node_id: str) -> Daemon:
        """Find the daemon with an id."""
        for node in self.nodes:
            with contextlib.suppress(httpx.TransportError):
                if cluster_of(node)["node_id"] == node_id:
                    return node
        message = f"no running daemon is {node_id}"
        raise AssertionError(message)

    def destroy(self) -> None:
        """Kill every daemon and whatever it started; may be called twice."""
        for node in self.nodes:
            node.destroy()


@contextmanager
def running_cluster(
    root: Path,
    n_nodes: int = 3,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    models_dir: Path | None = None,
) -> Generator[Cluster]:
    """Give a formed cluster; gone on exit, with every log shown when the test fails."""
    cluster = Cluster(
        root, n_nodes, arguments=arguments, environment=environment, models_dir=models_dir
    )
    try:
        cluster.start()
        cluster.form()
        yield cluster
    finally:
        cluster.destroy()
        for node in cluster:
            # ruff: ignore[print]  pytest shows it when the test fails
            print(f"---- {node.root.name}\n{node.log_tail()}")


def invite(node: Daemon, *, uses: int = 1, **fields: object) -> str:
    """Have a node make an invitation, and give the token."""
    answer = node.http.post("/v1/cluster/invite", json={"uses": uses, **fields})
    assert answer.is_success, answer.text
    return str(answer.json()["token"])


def join(node: Daemon, token: str, **fields: object) -> None:
    """Have a node join by a token, and wait until it has started anew and answers as a member."""
    before = _boot_of(node)
    answer = node.http.post("/v1/cluster/join", json={"token": token, **fields})
    assert answer.is_success, answer.text
    joined = answer.json()["cluster_id"]
    wait_until(
        lambda: _boot_of(node) not in {before, ""} and _is_member_of(node, joined),
        timeout_s=FORM_TIMEOUT_S,
        what=f"{node.root.name} is a member of {joined}",
    )


def _boot_of(node: Daemon) -> str:
    """Tell one life of a node from the next; empty while it does not answer."""
    with contextlib.suppress(httpx.TransportError):
        return str(node.http.get("/state").json()["bootId"])
    return ""


def _is_member_of(node: Daemon, cluster_id: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        document = cluster_of(node)
        return bool(document["cluster_id"] == cluster_id and document["role"] != "none")
    return False


def cluster_of(node: Daemon) -> dict[str, Any]:
    """Give `GET /v1/cluster` of a node."""
    answer = node.http.get("/v1/cluster")
    assert answer.is_success, answer.text
    document: dict[str, Any] = answer.json()
    return document


def agreed_master(nodes: Sequence[Daemon]) -> str | None:
    """Give the master that all of these follow while each hears all the others; None otherwise."""
    masters: set[str | None] = set()
    ids: set[str] = set()
    alive: list[set[str]] = []
    for node in nodes:
        try:
            document = cluster_of(node)
        except httpx.TransportError:
            return None
        masters.add(document["master"] if document["role"] != "none" else None)
        ids.add(document["node_id"])
        alive.append(
            {
                member["node_id"]
                for member in document["members"]
                if member["liveness"] == "alive" and member["presence"] == "present"
            }
        )
    if len(masters) != 1 or not all(ids <= heard for heard in alive):
        return None
    return masters.pop()


def describe(nodes: Sequence[Daemon]) -> str:
    """Say what each node thinks of the cluster, for a failing test."""
    lines: list[str] = []
    for node in nodes:
        try:
            document = cluster_of(node)
        except (httpx.TransportError, AssertionError) as error:
            lines.append(f"{node.root.name}: {error}")
            continue
        members = [
            f"{member['name']} {member['presence']} {member['liveness']} {member['link']}"
            for member in document["members"]
        ]
        lines.append(
            f"{node.root.name}: {document['role']} term {document['term']} of "
            f"{document['master']}, seq {document['commit_seq']}: {members}"
        )
    return "\n".join(lines)


@contextmanager
def stopped_process(node: Daemon) -> Generator[None]:
    """Stop a daemon's process as a debugger would (SIGSTOP), and let it go on afterwards."""
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


def hold_for(seconds: float, condition: Callable[[], bool], *, what: str) -> None:
    """See that something holds all the while.

    Raises:
        AssertionError: It did not.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition(), what
        time.sleep(POLL_S)
