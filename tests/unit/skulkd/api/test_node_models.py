import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from protocol.cards import LocalSource, ModelCard, card_digest
from protocol.control_api import CardDocument
from protocol.errors import ErrorBody, StoreError
from protocol.ids import ModelId, NodeId
from protocol.peer_messages import ApiAnswer, CallApi
from protocol.readings import Paused, TransferReading
from protocol.state import ClusterState, DownloadOutcome
from skulkd.api.cards_elsewhere import CardsElsewhere
from skulkd.api.node_models import NodeModels
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.eventlog.replica import Replica
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.tasks import Tasks
from skulkd.worker.verifications import Verifications
from store.layout import StoreLayout
from store.service import Store
from tests.support.builders import a_member, a_node_id, a_scripted_card, a_state
from tests.support.gguf_builder import GgufBuilder

BUNDLED = ModelId("smollm2-135m-instruct")


class FakeDownloads:
    """Transfers that a test begins and ends."""

    def __init__(self) -> None:
        self.running: list[ModelId] = []

    def pull(self, card: ModelCard) -> bool:
        if card.model_id in self.running:
            return False
        self.running.append(card.model_id)
        return True

    async def cancel_pull(self, model_id: ModelId) -> bool:
        if model_id not in self.running:
            return False
        self.running.remove(model_id)
        return True

    async def pause(self, model_id: ModelId, by: str) -> bool:
        del by
        return model_id in self.running

    async def resume(self, card: ModelCard) -> bool:
        return card.model_id in self.running

    def pulled(self) -> tuple[ModelId, ...]:
        return tuple(self.running)


class Fellow:
    """Another node, which has a card of its own, or none."""

    def __init__(self) -> None:
        self.card: ModelCard | None = None

    async def call(self, node_id: NodeId, request: CallApi, *, timeout_s: float) -> ApiAnswer:
        del node_id, request, timeout_s
        if self.card is None:
            return ApiAnswer(status=404, content_type="application/json", body=b"{}")
        document = CardDocument(card=self.card, digest=card_digest(self.card), installed=True)
        body = document.model_dump_json().encode()
        return ApiAnswer(status=200, content_type="application/json", body=body)


def _fail(story: str, _error: BaseException) -> None:
    raise AssertionError(story)


class Setting:
    """A node's models in a folder."""

    def __init__(self, folder: Path, state: ClusterState | None = None) -> None:
        self.downloads = FakeDownloads()
        self.table = ReadingsTable()
        store = Store(StoreLayout(folder / "models"), clock=SystemClock())
        store.recover()
        self.store = store
        self.fellow = Fellow()
        self.tasks = Tasks("test", on_death=_fail)
        self.verifications = Verifications(
            a_node_id(), store.open_check, clock=SystemClock(), tasks=self.tasks
        )
        self.replica = Replica(state or a_state(members=(a_member(1), a_member(2))))
        self.models = NodeModels(
            node_id=a_node_id(),
            store=store,
            models_dir=folder / "models",
            downloads=self.downloads,
            verifications=self.verifications,
            state=self.replica,
            readings=self.table,
            environment={},
            home=folder,
            elsewhere=CardsElsewhere(
                node_id=a_node_id(),
                state=self.replica,
                peers=self.fellow,
                is_linked=lambda _node_id: True,
                clock=SystemClock(),
            ),
        )


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    asyncio.run(main())


def a_weights_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(GgufBuilder().build())
    return path


def test_an_imported_file_is_used_where_it_lies(tmp_path: Path) -> None:
    async def story() -> None:
        setting = Setting(tmp_path)
        path = a_weights_file(tmp_path / "mine" / "tiny.gguf")
        card = await setting.models.import_file(str(path), ModelId("me/tiny"))
        assert isinstance(card.source, LocalSource)
        assert card.source.path == str(path)
        found = {item.card.model_id: item for item in await setting.models.catalog()}
        assert found[ModelId("me/tiny")].installed
        (stored,) = (await setting.models.storage()).items
        assert (stored.model_id, stored.linked) == ("me/tiny", True)
        assert await setting.models.remove_card(ModelId("me/tiny"))
        assert path.exists()

    run(story)


def test_what_cannot_be_paused_or_resumed_says_what_became_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        setting = Setting(tmp_path)
        with pytest.raises(StoreError, match="nothing is fetched here") as refused:
            await setting.models.pause_download(BUNDLED, "ops")
        assert refused.value.code == "store.no_transfer"
        with pytest.raises(StoreError, match="could be resumed"):
            await setting.models.resume_download(BUNDLED)
        path = a_weights_file(tmp_path / "mine" / "tiny.gguf")
        card = await setting.models.import_file(str(path), ModelId("me/tiny"))
        with pytest.raises(StoreError, match="complete here"):
            await setting.models.pause_download(card.model_id, "ops")
        assert (await setting.models.resume_download(card.model_id)).state == "complete"

    run(story)


def test_a_paused_transfer_is_shown_as_such_and_not_pulled_again(tmp_path: Path) -> None:
    async def story() -> None:
        setting = Setting(tmp_path)
        setting.table.put_transfer(
            TransferReading(
                node_id=a_node_id(), model_id=BUNDLED, at_s=1.0, phase="paused", done_bytes=7,
                total_bytes=9, rate_bytes_s=None, eta_s=None, source="hub",
                paused=Paused(by="ops", at_ms=5),
            )
        )  # fmt: skip
        status = await setting.models.start_download(BUNDLED)
        assert (status.state, status.done_bytes, status.phase) == ("paused", 7, "paused")
        assert status.paused is not None
        assert (status.paused.by, status.paused.at_ms) == ("ops", 5)
        assert setting.downloads.running == []

    run(story)


def test_a_pull_runs_until_it_is_cancelled(tmp_path: Path) -> None:
    async def story() -> None:
        setting = Setting(tmp_path)
        assert (await setting.models.download_status(BUNDLED)).state == "absent"
        begun = await setting.models.start_download(BUNDLED)
        again = await setting.models.start_download(BUNDLED)
        assert (begun.state, again.state) == ("running", "running")
        assert setting.downloads.running == [BUNDLED]
        assert (await setting.models.cancel_download(BUNDLED)).state == "absent"

    run(story)


def test_a_placements_transfer_is_shown_with_its_figures(tmp_path: Path) -> None:
    async def story() -> None:
        setting = Setting(tmp_path)
        setting.table.put_transfer(
            TransferReading(
                node_id=a_node_id(),
                model_id=BUNDLED,
                at_s=0.0,
                phase="download",
                done_bytes=7,
                total_bytes=70,
                rate_bytes_s=None,
                eta_s=None,
                source="a test",
            )
        )
        status = await setting.models.download_status(BUNDLED)
        assert (status.state, status.phase) == ("running", "download")
        assert (status.done_bytes, status.total_bytes, status.rate_bytes_s) == (7, 70, None)

    run(story)


def test_how_the_last_download_failed_is_told(tmp_path: Path) -> None:
    error = ErrorBody(code="store.no_space", message="no space")
    outcome = DownloadOutcome(
        node_id=a_node_id(), model_id=BUNDLED, at_ms=1, size_bytes=0, error=error
    )
    state = a_state().model_copy(update={"downloads": {f"{a_node_id()}/{BUNDLED}": outcome}})

    async def story() -> None:
        status = await Setting(tmp_path, state).models.download_status(BUNDLED)
        assert (status.state, status.error) == ("failed", error)

    run(story)


def test_a_model_without_a_card_is_refused_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(StoreError) as refused:
            await Setting(tmp_path).models.start_download(ModelId("no/such"))
        assert refused.value.code == "store.not_found"

    run(story)


def test_files_of_other_programs_are_found_with_what_is_wrong_with_them(tmp_path: Path) -> None:
    async def story() -> None:
        setting = Setting(tmp_path)
        folder = tmp_path / ".cache" / "llama.cpp"
        good = a_weights_file(folder / "good.gguf")
        (folder / "cut.gguf").write_bytes(good.read_bytes()[:40])
        await setting.models.import_file(str(good), None)
        found = {item.name: item for item in await setting.models.found(("llamacpp",))}
        assert found["good.gguf"].imported
        assert not found["good.gguf"].problem
        assert not found["cut.gguf"].imported
        assert found["cut.gguf"].problem

    run(story)


def test_a_model_whose_card_only_another_node_has_is_downloaded(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    card = a_scripted_card(model_id="local/elsewhere")

    async def story() -> None:
        with pytest.raises(StoreError, match="no card names"):
            await setting.models.start_download(ModelId("local/nobodys"))
        setting.fellow.card = card
        status = await setting.models.start_download(card.model_id)
        assert status.model_id == card.model_id
        found = await setting.models.elsewhere(card.model_id)
        assert found is not None
        assert (found.card, found.origin) == (card, "elsewhere")

    run(story)
