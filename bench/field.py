"""All sides before the same models: a daemon and its engines, and copies of those before peers."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.load import Job
from bench.peers import running_peers
from bench.side_by_side import FLOOR, OURS, PEER_FLOOR, Setup, Side, cores_of, pin
from bench.sides import (
    Ask,
    LoadGenerator,
    chat_job,
    daemon_address,
    engine_address,
    engine_processes,
    place,
)
from bench.tcp_engines import tcp_engine
from tests.support.daemon import Daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What is measured."""

    sides: tuple[Side, ...]
    engine_pids: tuple[int, ...]
    addresses: Mapping[str, Mapping[str, str]]
    """Of the engines, by side that is asked directly, then by model."""
    daemon: Daemon
    missing: tuple[str, ...]
    """Why which peer takes no part."""
    generator: LoadGenerator

    def set_up(self, setup: Setup) -> None:
        """Give engines, gateways and the load generator their cores."""
        engine_cores, others = cores_of(setup)
        for pid in self.engine_pids:
            pin(pid, engine_cores)
        for side in self.sides:
            side.pin(others)
        pin(self.generator.pid, others)

    def warm_up(self, model_id: str, n_requests: int) -> None:
        """Have every side serve a little."""
        for side in self.sides:
            for is_stream in (False, True):
                side.ask(model_id, Ask(concurrency=8, requests=n_requests, stream=is_stream))


@contextmanager
def field_of(
    daemon: Daemon, models: Mapping[str, str], root: Path, *, context_tokens: int
) -> Generator[Field]:
    """Place models on a daemon, and run the peers before engines like those.

    Args:
        daemon: Running.
        models: What the command line of each one's engine contains, by model.
        root: For what the peers write.
        context_tokens: Of each placement.
    """
    with ExitStack() as stack:
        generator = stack.enter_context(LoadGenerator())
        own: dict[str, str] = {}
        ports: dict[str, int] = {}
        pids: list[int] = []
        for model_id, needle in models.items():
            before = engine_processes(daemon, needle)
            place(daemon, model_id, context_tokens=context_tokens)
            after = engine_processes(daemon, needle)
            (started,) = after.keys() - before.keys()
            own[model_id] = engine_address(after[started])
            ports[model_id], copied = stack.enter_context(tcp_engine(started, after[started]))
            pids += [started, copied]
        peers, missing = stack.enter_context(running_peers(ports, root))
        over_tcp = {model_id: f"tcp:127.0.0.1:{port}" for model_id, port in ports.items()}
        through = dict.fromkeys(models, daemon_address(daemon))
        sides: tuple[Side, ...] = (
            Side(name=FLOOR, generator=generator, job=_jobs(own)),
            Side(
                name=OURS,
                generator=generator,
                job=_jobs(through),
                pids=(daemon.pid,),
                floor=FLOOR,
            ),
        )
        if peers:
            sides += (Side(name=PEER_FLOOR, generator=generator, job=_jobs(over_tcp)),)
        sides += tuple(
            Side(
                name=peer.name,
                generator=generator,
                job=peer.job,
                pids=peer.pids,
                floor=PEER_FLOOR,
            )
            for peer in peers
        )
        yield Field(
            sides=sides,
            engine_pids=tuple(pids),
            addresses={FLOOR: own, PEER_FLOOR: over_tcp},
            daemon=daemon,
            missing=missing,
            generator=generator,
        )


def _jobs(addresses: Mapping[str, str]) -> Callable[[str, Ask], Job]:
    return lambda model_id, ask: chat_job(addresses[model_id], model_id, ask)
