"""P31: how late the daemon's loop is under load, by how soon it answers what costs it nothing."""

import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from bench.field import Field
from bench.harness import Result, percentile
from bench.side_by_side import OURS, Side
from bench.sides import PACED, QUICK, Ask

PROBE_S: Final = 0.01
_LOADS: Final = (
    (PACED, Ask(concurrency=32, requests=64, stream=True, max_tokens=64)),
    (QUICK, Ask(concurrency=32, requests=3000, stream=False)),
    (QUICK, Ask(concurrency=32, requests=1000, stream=True)),
)


def measure(field: Field) -> list[Result]:
    """Ask `GET /health` every 10 ms while other clients keep the daemon busy; isolated."""
    field.set_up("isolated")
    (ours,) = (side for side in field.sides if side.name == OURS)
    lags_ms = [lag for model_id, ask in _LOADS for lag in _probed(field, ours, model_id, ask)]
    how = (
        f"{len(lags_ms)} times GET /health, {PROBE_S * 1e3:.0f} ms apart, its own way included, "
        "beside 32 streams of 50 tokens a second, then 32 clients as fast as they can"
    )
    return [
        Result(
            goal="P31 p99",
            metric="the loop is late under load",
            unit="ms",
            gate=20,
            stretch=5,
            seen=percentile(lags_ms, 99),
            detail=f"p50 {percentile(lags_ms, 50):.2f} ms; {how}",
        ),
        Result(
            goal="P31 longest",
            metric="the loop is late under load",
            unit="ms",
            gate=100,
            stretch=30,
            seen=max(lags_ms),
            detail=how,
        ),
    ]


def _probed(field: Field, side: Side, model_id: str, ask: Ask) -> list[float]:
    lags_ms: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", field.daemon.port, timeout=30)
    with ThreadPoolExecutor(1) as thread:
        load = thread.submit(side.ask, model_id, ask)
        while not load.done():
            began_s = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            lags_ms.append((time.perf_counter() - began_s) * 1e3)
            time.sleep(PROBE_S)
        load.result()
    connection.close()
    return lags_ms
