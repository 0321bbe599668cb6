"""What is left of a real engine: its throughput, and how soon it is free of a client that has gone.

Contended: llama-server computes with two threads, and nothing is pinned.
"""

import contextlib
import http.client
import json
import socket
import time
from statistics import median
from typing import Any, Final, final

from bench.field import Field
from bench.harness import Result, percentile
from bench.load import CONTENT, Outcome
from bench.side_by_side import (
    FLOOR,
    N_ROUNDS,
    OURS,
    PEER_FLOOR,
    Side,
    in_turn,
    ratios,
    result,
)
from bench.sides import Ask

PROMPT: Final = "Write a long story about a lighthouse keeper and the sea."
_LOADS: Final = {1: (2, 48), 8: (8, 24), 32: (32, 12)}
"""Requests and tokens of each, by clients: a round takes one or two seconds."""
_MARKS: Final = {1: (0.98, 0.995), 8: (0.97, 0.99), 32: (0.95, 0.98)}
N_CANCELS: Final = 5
"""Of a round and side; one of a peer, whose engine may work on for seconds."""
N_LONG: Final = 150
"""Tokens of an answer that its client leaves: a second or two, if the engine is not told."""
POLL_S: Final = 0.001
FREE_S: Final = 60.0
"""By then the answer is over in any case."""


def throughput(field: Field, model_id: str, concurrency: int) -> Result:
    """P9: tokens a second through each side over tokens a second of the same engine."""
    n_requests, n_tokens = _LOADS[concurrency]
    ask = Ask(
        concurrency=concurrency,
        requests=n_requests,
        stream=True,
        max_tokens=n_tokens,
        prompt=PROMPT,
    )
    cpu_us: dict[str, list[float]] = {}

    def once(side: Side) -> float:
        before_s = side.cpu_s()
        outcome: Outcome = side.ask(model_id, ask)
        used_s = side.cpu_s() - before_s
        cpu_us.setdefault(side.name, []).append(used_s / outcome.completion_tokens * 1e6)
        return outcome.completion_tokens / outcome.wall_s

    turns = in_turn(field.sides, once)
    return result(
        f"P9 c={concurrency}",
        "throughput over direct llama-server, contended",
        "ratio",
        _MARKS[concurrency],
        ratios(field.sides, turns),
        f"direct {median(turns.values(FLOOR)):.0f} tok/s, {median(cpu_us[OURS]):.0f} µs of CPU a "
        f"token; {N_ROUNDS} rounds of {n_requests} requests of {n_tokens} tokens",
        better="higher",
    )


def cancels(field: Field, model_id: str) -> list[Result]:
    """P27: from a client's end in the middle of a stream until the engine's slot is free."""
    addresses = {FLOOR: field.addresses[FLOOR], PEER_FLOOR: field.addresses[PEER_FLOOR]}

    def once(side: Side) -> list[float]:
        engine = addresses[side.floor or side.name][model_id]
        n_cancels = 1 if side.is_peer else N_CANCELS
        return [_cancel_s(side, engine, model_id) * 1e3 for _ in range(n_cancels)]

    turns = in_turn(field.sides, once)
    pooled = {
        name: [value for values in rounds.values() for value in values]
        for name, rounds in turns.by_side.items()
        if rounds
    }
    direct = pooled[FLOOR]
    metric = "a client closes, until its slot is free"
    return [
        result(
            f"P27 p{percent}",
            metric,
            "ms",
            marks,
            {name: [percentile(values, percent)] for name, values in pooled.items()},
            f"direct {percentile(direct, percent):.1f} ms; {len(pooled[OURS])} times, "
            f"llama-server in the middle of {N_LONG} tokens",
        )
        for percent, marks in ((50, (250, 50)), (99, (1000, 200)))
    ]


def _cancel_s(side: Side, engine: str, model_id: str) -> float:
    """Ask, leave at the first token, and look at the engine until it processes nothing."""
    ask = Ask(concurrency=1, requests=1, stream=True, max_tokens=N_LONG, prompt=PROMPT)
    job = side.job(model_id, ask)
    with _connected(job.address) as client:
        client.sendall(job.wire())
        seen = b""
        while not CONTENT.search(seen):
            piece = client.recv(65536)
            if not piece:
                message = f"the stream ended before its first token: {seen[-300:]!r}"
                raise RuntimeError(message)
            seen += piece
    began_s = time.perf_counter()
    with contextlib.closing(_EngineConnection(engine)) as looking:
        while looking.is_busy():
            if time.perf_counter() > began_s + FREE_S:
                message = f"the engine works on for {FREE_S:.0f} s after its client has gone"
                raise RuntimeError(message)
            time.sleep(POLL_S)
    return time.perf_counter() - began_s


def _connected(address: str) -> socket.socket:
    kind, _, where = address.partition(":")
    if kind == "unix":
        client = socket.socket(socket.AF_UNIX)
        client.connect(where)
    else:
        host, _, port = where.rpartition(":")
        client = socket.create_connection((host, int(port)))
    client.settimeout(FREE_S)
    return client


@final
class _EngineConnection(http.client.HTTPConnection):
    """To an engine on any local socket."""

    def __init__(self, address: str) -> None:
        super().__init__("localhost")
        self._address = address

    def connect(self) -> None:
        """Connect, also where the engine has closed after its last answer."""
        self.sock = _connected(self._address)

    def is_busy(self) -> bool:
        """Ask whether any slot is processing."""
        self.request("GET", "/slots")
        slots: list[dict[str, Any]] = json.loads(self.getresponse().read())
        return any(slot["is_processing"] for slot in slots)
