"""What the daemon costs between client and engine, beside the engine itself and other gateways.

One daemon, real engine processes, all sides in turn in one run. The deterministic engine shows what
is added to each request and frame (P1, P3 to P7, P31), llama-server what is left of its throughput
(P9) and how soon it is free again (P27). P2 and P8 are in `hop`, P26 in `idle`.
"""

import tempfile
from pathlib import Path
from typing import Final

from bench import loop_lag, overhead, real_engine
from bench.field import field_of
from bench.harness import Result
from bench.sides import CONTEXT_TOKENS, PACED, QUICK, SCRIPTED_SERVER, write_cards
from tests.support.daemon import Daemon
from tests.support.demo_model import DEMO_MODEL_ID, demo_models_dir

_REAL_CONTEXT_TOKENS: Final = 8192


def _scripted(root: Path) -> list[Result]:
    models = root / "models"
    write_cards(models)
    engines: dict[str, str] = {QUICK: SCRIPTED_SERVER, PACED: SCRIPTED_SERVER}
    with (
        Daemon(root, models_dir=models) as daemon,
        field_of(daemon, engines, root, context_tokens=CONTEXT_TOKENS) as field,
    ):
        for line in field.missing:
            print(line, flush=True)
        field.set_up("isolated")
        field.warm_up(QUICK, 48)
        return [
            *overhead.measure(field, "isolated"),
            *loop_lag.measure(field),
            *overhead.measure(field, "contended"),
        ]


def _real(root: Path) -> list[Result]:
    with (
        Daemon(root, models_dir=demo_models_dir()) as daemon,
        field_of(
            daemon, {DEMO_MODEL_ID: ".gguf"}, root, context_tokens=_REAL_CONTEXT_TOKENS
        ) as field,
    ):
        field.set_up("contended")
        field.warm_up(DEMO_MODEL_ID, 8)
        return [
            *(real_engine.throughput(field, DEMO_MODEL_ID, clients) for clients in (1, 8, 32)),
            *real_engine.cancels(field, DEMO_MODEL_ID),
        ]


def run() -> list[Result]:
    """Measure P1, P3 to P7, P9, P27 and P31."""
    with tempfile.TemporaryDirectory(prefix="skulk-bench-") as name:
        root = Path(name)
        return [*_scripted(root / "scripted"), *_real(root / "real")]
