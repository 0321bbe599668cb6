"""The screen Store: transfers live, who holds what, and changes that name what they do."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.cluster_api import ClusterStorage, UnansweredNode
from protocol.control_api import PauseView
from protocol.errors import ErrorBody
from protocol.ids import ModelId
from protocol.session import row_key
from protocol.storage_api import RemovedModel, StorageDocument, StoredModelView
from protocol.verify_api import VerifyStatus
from tests.support.builders import GIB, a_node_id
from tests.support.den_cluster import LLAMA, QWEN, den_transfer, fill
from tests.support.fake_node import some_settings
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat, check_sizes


def _disk(number: int, *models: tuple[ModelId, int, bool]) -> StorageDocument:
    return StorageDocument(
        node_id=a_node_id(number),
        models_dir="/models",
        disk_free_bytes=(19 if number == 1 else 188) * GIB,
        disk_total_bytes=900 * GIB,
        items=tuple(
            StoredModelView(
                model_id=model_id, size_bytes=gib * GIB, in_use=in_use, path=f"/models/{gib}.gguf"
            )
            for model_id, gib, in_use in models
        ),
    )


def _storage() -> ClusterStorage:
    unused = ModelId("unsloth/phi-4-GGUF")
    own = _disk(1, (LLAMA, 43, True), (unused, 9, False))
    return ClusterStorage(
        **own.model_dump(),
        others=(_disk(2, (LLAMA, 43, True), (unused, 9, False)), _disk(3, (LLAMA, 43, True))),
        unanswered=(
            UnansweredNode(
                node_id=a_node_id(4),
                name="attic-mini",
                error=ErrorBody(code="cluster.peer_unreachable", message="the link is silent"),
            ),
        ),
    )


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        scripted.answer("GET", "/store/storage", _storage())
        yield scripted


async def _go(seat: SeatUnderTest) -> None:
    await seat.until_shows("attic-mini")
    await seat.press("4")
    await seat.until_shows("- On disk 3", "Transfers 1", "did not answer")


def test_the_store_is_as_drawn(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await check_sizes(seat, "store")

    asyncio.run(story())


def test_a_transfer_moves_fails_with_its_cause_and_goes(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            key = row_key("transfer", a_node_id(3), QWEN)
            node.rows("transfers", {key: den_transfer(done_bytes=6 * GIB)})
            await seat.until_shows("75%")
            failed = den_transfer(
                "failed",
                error=ErrorBody(
                    code="store.stalled", message="nothing came for 60 s", remediation="pull again"
                ),
            )
            node.rows("transfers", {key: failed})
            await seat.until_shows("failed", "nothing came for 60 s", "goes on from there")
            n_asked = len(node.asked("GET", "/store/storage"))
            node.rows("transfers", {key: den_transfer()})
            await seat.until_shows("download", "1 active")
            node.rows("transfers", {key: None})
            await seat.until_shows("nothing is being fetched")
            await seat.until(lambda: len(node.asked("GET", "/store/storage")) > n_asked)

    asyncio.run(story())


def test_cancelling_asks_names_the_node_and_can_be_undone(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        path = f"/store/models/{QWEN.replace('/', '%2F')}/download"
        node.answer("DELETE", path, den_transfer("cancelled"))
        node.answer("POST", path, den_transfer())
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await seat.press("x")
            await seat.until_shows("Cancel", "skulk models pull", "--cancel")
            await seat.press("x")
            await seat.until(lambda: node.asked("DELETE", path))
            assert node.asked("DELETE", path)[0].query == f"node={a_node_id(3)}"
            await seat.until_shows("u undo")
            await seat.press("u")
            await seat.until_shows("Pull", "fetch now")
            await seat.press("n")
            await seat.until(lambda: node.asked("POST", path))

    asyncio.run(story())


def test_p_pauses_at_once_and_undo_resumes_for_a_moment(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        path = f"/store/models/{QWEN.replace('/', '%2F')}/download"
        key = row_key("transfer", a_node_id(3), QWEN)
        paused = den_transfer(
            "paused", phase="paused", paused=PauseView(by="loopback", at_ms=1_767_323_045_000)
        )
        node.answer("POST", f"{path}/pause", paused)
        node.answer("POST", f"{path}/resume", den_transfer())
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await seat.until_shows("p pause")
            await seat.press("p")
            await seat.until(lambda: node.asked("POST", f"{path}/pause"))
            assert node.asked("POST", f"{path}/pause")[0].query == f"node={a_node_id(3)}"
            node.rows("transfers", {key: paused})
            await seat.until_shows("0 active   1 paused", "paused by loopback at 2026-01-02 03:04")
            await seat.until_shows("u undo")
            await seat.press("u")
            await seat.until(lambda: node.asked("POST", f"{path}/resume"))
            node.rows("transfers", {key: den_transfer()})
            await seat.until_shows("goes on", "1 active")
            assert "u undo" not in seat.text

    asyncio.run(story())


def test_p_on_a_paused_transfer_resumes_it(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        path = f"/store/models/{QWEN.replace('/', '%2F')}/download"
        key = row_key("transfer", a_node_id(3), QWEN)
        paused = den_transfer("paused", phase="paused", paused=PauseView(by="kabc", at_ms=0))
        node.answer("POST", f"{path}/resume", den_transfer())
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            node.rows("transfers", {key: paused})
            await seat.until_shows("1 paused")
            await seat.press("p")
            await seat.until(lambda: node.asked("POST", f"{path}/resume"))

    asyncio.run(story())


def test_a_limit_is_set_at_once_and_undo_gives_each_node_its_own_again(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.answer("GET", "/config", some_settings())
        node.answer("PUT", "/config", some_settings())
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await seat.press("colon")
            await seat.type("limit 50MB/s on rack-a6k")
            await seat.press("enter")
            await seat.until_shows("transfers are limited: 50MB/s on rack-a6k", "u undo")
            (asked,) = node.asked("PUT", "/config")
            assert asked.query == f"node={a_node_id(3)}"
            await seat.press("u")
            await seat.until_shows("transfers are limited: off on rack-a6k")
            assert len(node.asked("PUT", "/config")) == 2

    asyncio.run(story())


def test_v_verifies_where_files_lie_and_what_is_damaged_gets_an_x(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        path = f"/store/models/{LLAMA.replace('/', '%2F')}/verify"
        status = VerifyStatus(model_id=LLAMA, node_id=a_node_id(1), state="running")
        node.answer("POST", path, status)
        node.answer("DELETE", path, status)
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await seat.press("colon")
            await seat.type(f"verify {LLAMA}")
            await seat.press("enter")
            await seat.until(lambda: len(node.asked("POST", path)) == 3)
            await seat.until_shows("is verified on", "u undo")
            await seat.press("u")
            await seat.until(lambda: len(node.asked("DELETE", path)) == 3)
            storage = _storage()
            items = tuple(
                item.model_copy(update={"damaged": ("43.gguf",)})
                if item.model_id == LLAMA
                else item
                for item in storage.items
            )
            node.answer("GET", "/store/storage", storage.model_copy(update={"items": items}))
            await seat.press("1")
            await seat.press("4")
            await seat.until_shows("x damaged")

    asyncio.run(story())


def test_a_transfer_is_cancelled_by_name_from_any_screen(
    node: ScriptedSession, tmp_path: Path
) -> None:
    second = den_transfer(node_id=a_node_id(2))

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            for typed, told in (
                (f"cancel {QWEN}", "Cancel Qwen/Qwen2.5-7B-Instruct-GGUF on rack-a6k"),
                (f"cancel {LLAMA}", f"nobody fetches {LLAMA}"),
            ):
                await seat.press("colon")
                await seat.type(typed)
                await seat.press("enter")
                await seat.until_shows(told)
                await seat.press("escape")
            node.rows("transfers", {row_key("transfer", a_node_id(2), QWEN): second})
            await seat.until(lambda: len(seat.app.seat.view.transfers) == 2)
            await seat.press("colon")
            await seat.type(f"cancel {QWEN}")
            await seat.press("enter")
            await seat.until_shows("is fetched by den-02, rack-a6k")
            await seat.press("colon")
            await seat.type(f"cancel {QWEN} on den-02")
            await seat.press("enter")
            await seat.until_shows("on den-02", "cancel the transfer")

    asyncio.run(story())


def test_pruning_lists_every_copy_and_wants_the_typed_word(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        path = "/store/models/unsloth%2Fphi-4-GGUF"
        removed = RemovedModel(model_id=ModelId("unsloth/phi-4-GGUF"), freed_bytes=9 * GIB)
        node.answer("DELETE", path, removed)
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await seat.press("tab", "home", "down", "X")
            await seat.until_shows("phi-4-GGUF on den-01: 9.00 GiB", "Frees 18.0 GiB in all")
            await seat.type("prune")
            await seat.press("enter")
            await seat.until_shows("2 copies are gone; 18.0 GiB are free again")
            asked = [one.query for one in node.asked("DELETE", path)]
            assert asked == [f"node={a_node_id(1)}", f"node={a_node_id(2)}"]

    asyncio.run(story())


def test_what_is_in_use_is_not_pruned(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await seat.press("tab", "home", "X")
            await seat.until_shows("is in use")
            assert not [one for one in node.requests if one.method == "DELETE"]

    asyncio.run(story())


def test_pull_works_from_every_screen_and_for_named_nodes(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("colon")
            await seat.type(f"pull {QWEN} on den-02,rack-a6k")
            await seat.press("enter")
            await seat.until_shows("Pull", "den-02, rack-a6k", "--on den-02 --on")
            await seat.press("escape")
            await seat.until_shows("[4 Store]")

    asyncio.run(story())


def test_nodes_that_do_not_fit_are_paged_and_the_free_room_is_theirs(
    node: ScriptedSession, tmp_path: Path
) -> None:
    own = _disk(1, (LLAMA, 43, True))
    others = tuple(_disk(number, (LLAMA, 43, True)) for number in range(2, 9))
    node.answer("GET", "/store/storage", ClusterStorage(**own.model_dump(), others=others))

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("4")
            await seat.until_shows("< > nodes 1-3 of 8", "8/8", "free: den-01 19.0 GiB!")
            await seat.press("less_than_sign")
            await seat.until_shows("there are no further nodes on this side")
            await seat.press("greater_than_sign")
            await seat.until_shows("< > nodes 4-6 of 8", "8/8", "free: attic-mini 188 GiB")
            await seat.press("greater_than_sign")
            await seat.until_shows("< > nodes 6-8 of 8", "8/8")
            await seat.resize(160, 50)
            await seat.until(lambda: "< > nodes" not in seat.text)
            await seat.until_shows("free: den-01 19.0 GiB!")

    asyncio.run(story())
