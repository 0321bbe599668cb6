"""The pictures of docs/tui.md: the five screens in front of three real nodes.

Draws them each time, and keeps them in docs/pictures with UPDATE_PICTURES=1.
"""

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from skulk_tui.glyphs import UNICODE
from store.cards import to_toml
from tests.support.cluster import Cluster, cluster_of
from tests.support.daemon import wait_until
from tests.support.package_index import PackageIndex, serving_index
from tests.support.picture import picture_of
from tests.support.scripted_models import add_scripted_model
from tests.support.seat import SeatUnderTest, a_seat
from tests.support.shared_daemon import keep_no_connections
from tests.support.source_tree import ROOT
from tests.support.wheel_builder import MEMBER, card_of, tiny_model, write_wheel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PICTURES: Final = ROOT / "docs" / "pictures"
NAMES: Final = ("den-01", "den-02", "rack-a6k")
SIZE: Final = (110, 30)
MIB: Final = 1 << 20
GIB: Final = 1 << 30
FILES: Final = "tiny/files"
STORY: Final = "scripted/storyteller"
POET: Final = "scripted/poet"
REPLY: Final = """\
Each node owns **one chunk** of the vector. In the first phase:

1. every node sends a chunk to its neighbour
2. it adds what it receives to its own copy

```python
def step(rank, chunks, world):
    return chunks[(rank - 1) % world]
```

After `n - 1` steps each node holds one finished chunk.
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    nodes = Cluster(tmp_path / "cluster", len(NAMES), names=NAMES)
    content = {MEMBER: tiny_model(8 * MIB)}
    for node in nodes:
        keep_no_connections(node)
        add_scripted_model(
            node.models_dir, STORY, reply=REPLY, size_bytes=3 * GIB, token_delay_ms=25
        )
        add_scripted_model(node.models_dir, POET, reply="A short answer.", size_bytes=GIB)
        (node.models_dir / "cards" / "files.toml").write_text(to_toml(card_of(content, FILES)))
    try:
        with serving_index(PackageIndex(wheel=write_wheel(tmp_path, content))) as index:
            nodes[0].environment.update(index.environment)
            nodes.start()
            path = f"/store/models/{FILES}/download"
            assert nodes[0].http.post(path).is_success
            wait_until(
                lambda: nodes[0].http.get(f"{path}/status").json()["state"] == "complete",
                timeout_s=60,
                what="the files are there",
            )
        nodes.form()
        for model_id, index in ((STORY, 1), (POET, 2)):
            body = {"nodes": [str(cluster_of(nodes[index])["node_id"])], "slots": 4}
            nodes[index].wait_phase(nodes[index].place(model_id, **body))
        yield nodes
    finally:
        nodes.destroy()


def test_the_five_screens_are_drawn_from_a_real_cluster(cluster: Cluster, tmp_path: Path) -> None:
    async def story() -> dict[str, str]:
        drawn: dict[str, str] = {}
        async with a_seat(cluster[0].url, tmp_path, size=SIZE, glyphs=UNICODE) as seat:
            await seat.until_shows(*NAMES, "2 ready", "LIVE")
            drawn["cluster"] = await picture(seat, "Cluster")
            await seat.press("2")
            await seat.until_shows("storyteller", "fits")
            drawn["models"] = await picture(seat, "Models")
            await seat.press("4")
            await seat.until_shows("On disk", "files", "1/3")
            drawn["store"] = await picture(seat, "Store")
            await seat.press("5")
            await seat.until_shows("all checks pass")
            await seat.press("right_square_bracket")
            await seat.until_shows("Events", "ready")
            drawn["diag"] = await picture(seat, "Diag")
            await seat.press("3")
            await seat.until_shows("prompt")
            await seat.type("How does a ring all-reduce split the work")
            await seat.press("question_mark", "enter")
            await seat.until_shows("finished chunk", "tokens")
            drawn["chat"] = await picture(seat, "Chat")
        return drawn

    drawn = asyncio.run(story())
    for name, text in drawn.items():
        words = " ".join(re.findall(r">([^<>]+)</text>", text))
        assert "den-01" in words
        assert str(tmp_path) not in words
        if os.environ.get("UPDATE_PICTURES"):
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / f"{name}.svg").write_text(text, encoding="utf-8")
    assert {path.stem for path in PICTURES.glob("*.svg")} == drawn.keys()


async def picture(seat: SeatUnderTest, screen: str) -> str:
    """Draw the screen once it has come to rest."""
    await seat.settled()
    variables = seat.app.theme_variables
    return picture_of(
        seat.strips,
        title=f"skulk tui: {screen}",
        foreground=variables["foreground"].lower(),
        background=variables["background"].lower(),
    )
