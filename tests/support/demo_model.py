"""The real demo model for tests, fetched once by the store's own package source and then shared."""

import asyncio
import os
import time
from pathlib import Path
from typing import Final, final

from protocol.cards import ModelCard
from protocol.ids import ModelId
from store.layout import StoreLayout
from store.service import Store

DEMO_MODEL_ID: Final = ModelId("smollm2-135m-instruct")
ENVIRONMENT_VARIABLE: Final = "SKULK_TEST_MODELS"


@final
class _TestClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def demo_models_dir() -> Path:
    """Where tests and `make demo` keep models: outside any daemon's home, kept between runs."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "skulk-tests" / "models"


def demo_card() -> ModelCard:
    """The bundled card of the demo model."""
    entry = Store(StoreLayout(demo_models_dir()), clock=_TestClock()).catalog.get(DEMO_MODEL_ID)
    assert entry is not None
    return entry.card


def demo_model_path() -> Path:
    """Give the path of the real model, fetching it (98 MB) when it is not there yet.

    Safe in parallel: the store holds a lock for each artifact across processes, and the callers
    that come second wait for the first. An artifact that is there costs a few milliseconds and no
    network.
    """
    store = Store(StoreLayout(demo_models_dir()), clock=_TestClock())
    store.recover()
    return asyncio.run(store.ensure(demo_card())).entry
