"""Catalogue, files, state, events, health, keys and listeners."""

import asyncio
import json

import pytest

from protocol.cards import LicenseSection, ReasoningSection, RuntimeSection, card_digest
from protocol.commands import AddCard, CreateApiKey, RemoveCard, RevokeApiKey
from protocol.control_api import (
    EventsDocument,
    HealthDocument,
    ListenersDocument,
    NodeIdentity,
    StateDocument,
    TransferList,
    TransferStatus,
    read_answer,
)
from protocol.events import ApiKeyCreated, MasterElected
from protocol.ids import KeyId, ModelId
from protocol.keys_api import CreatedKey, KeyList
from protocol.models_api import ModelEntry, ModelList, ModelRequirements
from protocol.nodes import HealthReason, NodeHealth
from protocol.readings import NodeReading, Readings, TransferReading
from protocol.state import ApiKey
from protocol.storage_api import FoundModels, StorageDocument
from tests.support.api_harness import Api, request_bytes, until, with_api
from tests.support.fake_models import FakeModels
from tests.support.fake_ports import (
    MODEL,
    NODE,
    FakeDaemon,
    make_card,
    make_instance,
    make_state,
)

KEY = ApiKey(
    key_id=KeyId("key-aaaaaaaa"), name="k", secret_sha256="ab" * 32, scope="read", created_at_ms=1
)


# ---- Models --------------------------------------------------------------------------------


def test_models_show_what_is_placed_and_ready() -> None:
    async def story(api: Api) -> None:
        entry = read_answer(ModelList, (await api.client.get("/v1/models")).content).data[0]
        assert entry.tags == ("installed", "placed", "ready")
        assert entry.context_length == 4096
        assert entry.context_window == 512
        assert entry.capabilities == ("completion", "tools")
        assert (await api.client.get("/models")).json() == (
            await api.client.get("/v1/models")
        ).json()
        api.daemon.state.state = make_state(make_instance("load"))
        entry = read_answer(ModelList, (await api.client.get("/v1/models")).content).data[0]
        assert (entry.placed, entry.ready) == (True, False)

    with_api(story)


def test_models_say_what_clients_can_count_on() -> None:
    daemon = FakeDaemon()
    daemon.state.state = make_state()
    draft, other = make_card("org/draft"), make_card("org/renamed", source_repository="org/sidecar")
    parent = make_card(
        "org/big",
        capabilities=("text", "vision"),
        base_model="Big",
        source_revision="a" * 40,
        reasoning=ReasoningSection(supports_toggle=True),
        runtime=RuntimeSection(
            served_spec_draft_repo=ModelId("org/draft"), mtp_sidecar_repo=ModelId("org/sidecar")
        ),
        license=LicenseSection(name="L", spdx_id="X-1", display_name="The Big Licence"),
    )
    daemon.models = FakeModels(NODE, parent, draft, other)

    async def story(api: Api) -> None:
        data = read_answer(ModelList, (await api.client.get("/v1/models")).content).data
        big, small, renamed = data
        assert big.license == "The Big Licence"
        assert big.source_revision == "a" * 40
        assert big.base_model == "Big"
        assert big.tags == ("installed", "vision", "thinking")
        assert big.capabilities == ("text", "vision", "completion", "tools", "thinking")
        assert big.resolved_capabilities.supports_thinking_toggle
        assert big.runtime.served_spec_draft_repo == "org/draft"
        assert (big.placeable, big.companion_of) == (True, ())
        for one in (small, renamed):
            assert (one.placeable, one.companion_of) == (False, ("org/big",))
            assert "companion" in one.tags
        shown = read_answer(ModelEntry, (await api.client.get("/v1/models/org/draft")).content)
        assert shown == small

    with_api(story, daemon)


def test_a_request_says_nothing_of_thinking_and_is_answered_without() -> None:
    reasoning = ReasoningSection(supports_toggle=True, format="token_delimited")
    daemon = FakeDaemon(make_instance(card=make_card(reasoning=reasoning)))

    async def story(api: Api) -> None:
        await api.chat()
        await api.chat(stream=True, reasoning_effort="high")
        told = [(task.enable_thinking, task.reasoning_effort) for task in daemon.inference.tasks]
        assert told == [(False, None), (True, "high")]

    with_api(story, daemon)


def test_custom_cards_of_the_cluster_come_first() -> None:
    daemon = FakeDaemon()
    daemon.state.state = make_state(cards={MODEL: make_card(context_length=99)})

    async def story(api: Api) -> None:
        entry = read_answer(ModelEntry, (await api.client.get(f"/v1/models/{MODEL}")).content)
        assert entry.context_length == 99
        assert entry.tags == ("custom",)

    with_api(story, daemon)


@pytest.mark.parametrize("path", ["/models/import", "/models/add"])
def test_import_makes_a_card_and_tells_the_cluster(path: str) -> None:
    async def story(api: Api) -> None:
        made = await api.client.post(path, json={"path": "/m/x.gguf", "model_id": "my/model"})
        assert made.status_code == 201
        assert read_answer(ModelEntry, made.content).id == "my/model"
        command = api.daemon.gateway.submitted[0]
        assert isinstance(command, AddCard)
        assert command.card.model_id == "my/model"
        wrong = await api.client.post(path, json={"path": "/m/x.txt"})
        assert wrong.status_code == 400
        relative = await api.client.post(path, json={"path": "x.gguf"})
        assert relative.status_code == 400
        assert len(api.daemon.gateway.submitted) == 1

    with_api(story)


def test_card_can_be_removed_unless_it_is_in_use() -> None:
    async def story(api: Api) -> None:
        assert (await api.client.delete(f"/models/custom/{MODEL}")).status_code == 409
        api.daemon.state.state = make_state()
        assert (await api.client.delete(f"/models/custom/{MODEL}")).status_code == 200
        assert isinstance(api.daemon.gateway.submitted[0], RemoveCard)
        assert (await api.client.delete(f"/models/custom/{MODEL}")).status_code == 404

    with_api(story)


def test_requirements_are_those_of_the_card_with_the_window_that_was_asked_for() -> None:
    async def story(api: Api) -> None:
        query = {"model_id": MODEL, "context_tokens": "2048", "slots": "2"}
        answer = await api.client.get("/models/requirements", params=query)
        needs = read_answer(ModelRequirements, answer.content)
        assert (needs.model_id, needs.context_tokens, needs.slots) == (MODEL, 2048, 2)
        assert needs.card_digest == card_digest(make_card())
        for engine in needs.engines:
            parts = engine.weights_bytes + engine.kv_cache_bytes + engine.overhead_bytes
            assert engine.needed_bytes == parts
        assert needs.engines
        usual = await api.client.get("/models/requirements", params={"model_id": MODEL})
        assert read_answer(ModelRequirements, usual.content).slots == 1
        for wrong, status in ((f"model_id={MODEL}&x=1", 400), ("model_id=no/such", 404)):
            assert (await api.client.get(f"/models/requirements?{wrong}")).status_code == status
        assert api.daemon.gateway.submitted == []

    with_api(story)


def test_found_models_by_source() -> None:
    async def story(api: Api) -> None:
        found = await api.client.get("/models/found", params={"source": ["hf", "ollama"]})
        items = read_answer(FoundModels, found.content).items
        assert [item.source for item in items] == ["hf", "ollama"]
        everything = await api.client.get("/models/found")
        assert len(read_answer(FoundModels, everything.content).items) == 4
        assert (await api.client.get("/models/found?source=nas")).status_code == 400

    with_api(story)


def test_download_is_begun_followed_and_cancelled() -> None:
    async def story(api: Api) -> None:
        path = f"/store/models/{MODEL}/download"
        begun = await api.client.post(path)
        assert begun.status_code == 202
        assert read_answer(TransferStatus, begun.content).state == "running"
        status = await api.client.get(f"{path}/status")
        assert read_answer(TransferStatus, status.content).phase == "download"
        assert (await api.client.delete(path)).json()["state"] == "cancelled"
        assert (await api.client.delete(path)).json()["state"] == "cancelled"
        missing = await api.client.post("/store/models/no/such/download")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "store.not_found"

    with_api(story)


def test_a_download_is_paused_by_name_and_resumed() -> None:
    async def story(api: Api) -> None:
        path = f"/store/models/{MODEL}/download"
        await api.client.post(path)
        # Whom a node asks for is a node's to say.
        paused = await api.client.post(f"{path}/pause", json={"by": "somebody else"})
        status = read_answer(TransferStatus, paused.content)
        assert status.state == "paused"
        assert status.paused is not None
        assert status.paused.by == "loopback"
        assert (await api.client.post(f"{path}/resume")).json()["state"] == "running"

    with_api(story)


def test_downloads_of_all_nodes_are_listed() -> None:
    daemon = FakeDaemon()
    reading = TransferReading(
        node_id=NODE, model_id=MODEL, at_s=1, phase="download", done_bytes=5, total_bytes=None,
        rate_bytes_s=None, eta_s=None, source="index",
    )  # fmt: skip
    daemon.readings.readings = Readings(transfers={(NODE, MODEL): reading})

    async def story(api: Api) -> None:
        listed = read_answer(TransferList, (await api.client.get("/store/downloads")).content)
        assert listed.items[0].done_bytes == 5
        assert listed.items[0].total_bytes is None
        state = read_answer(StateDocument, (await api.client.get("/state")).content)
        assert state.transfers == listed.items

    with_api(story, daemon)


def test_files_in_use_are_kept_and_shown_as_such() -> None:
    async def story(api: Api) -> None:
        storage = read_answer(StorageDocument, (await api.client.get("/store/storage")).content)
        assert storage.items[0].in_use
        refused = await api.client.delete(f"/store/models/{MODEL}")
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "store.in_use"
        assert api.daemon.models.removed == []
        api.daemon.state.state = make_state()
        removed = await api.client.delete(f"/store/models/{MODEL}")
        assert removed.json() == {"model_id": MODEL, "freed_bytes": 1000}

    with_api(story)


@pytest.mark.parametrize("model_id", ["..%2f..%2fetc%2fpasswd", "a%00b", "-x", "a//b", "a/b/c/d"])
def test_what_is_no_model_id_deletes_nothing(model_id: str) -> None:
    async def story(api: Api) -> None:
        for path in (f"/store/models/{model_id}", f"/models/custom/{model_id}"):
            assert (await api.client.delete(path)).status_code == 400
        assert api.daemon.models.removed == []

    with_api(story)


# ---- State, events, health -----------------------------------------------------------------


def test_state_is_camel_case_with_health_and_no_secret() -> None:
    daemon = FakeDaemon()
    daemon.state.state = make_state(make_instance(), api_keys={KEY.key_id: KEY})
    reason = HealthReason(code="disk_low", level="warning", message="m", remediation="r")
    daemon.health.nodes = {NODE: NodeHealth(level="warning", reasons=(reason,))}

    async def story(api: Api) -> None:
        reply = await api.client.get("/state")
        raw = reply.json()
        assert raw["nodeHealth"][NODE]["level"] == "warn"
        assert raw["nodeHealth"][NODE]["reasons"][0] == {
            "code": "disk_low", "level": "warn", "message": "m", "remediation": "r",
        }  # fmt: skip
        assert raw["nodeResources"][NODE]["memoryAvailableBytes"] is None
        assert KEY.secret_sha256 not in reply.text
        assert read_answer(StateDocument, reply.content).api_keys == 1

    with_api(story, daemon)


def test_state_is_served_from_a_cache_until_the_log_or_time_moves() -> None:
    async def story(api: Api) -> None:
        first = (await api.client.get("/state")).json()
        api.daemon.health.nodes = {}
        assert (await api.client.get("/state")).json() == first
        api.daemon.state.state = make_state(seq=6)
        assert (await api.client.get("/state")).json()["nodeHealth"] == {}
        api.daemon.health.nodes = {NODE: NodeHealth(level="ok")}
        await asyncio.sleep(0.3)
        assert NODE in (await api.client.get("/state")).json()["nodeHealth"]

    with_api(story)


def test_events_are_given_after_a_seq_without_key_hashes() -> None:
    async def story(api: Api) -> None:
        api.daemon.state.commit(MasterElected(master=NODE))
        api.daemon.state.commit(ApiKeyCreated(key=KEY))
        api.daemon.state.commit(MasterElected(master=NODE))
        reply = await api.client.get("/events", params={"after_seq": 1, "limit": 1})
        document = read_answer(EventsDocument, reply.content)
        assert [item.kind for item in document.events] == ["api_key_created"]
        assert document.events[0].event["key"]["keyId"] == KEY.key_id
        assert KEY.secret_sha256 not in reply.text
        assert document.next_after_seq == 2
        assert document.last_seq == 5
        for query in ({"after_seq": "-1"}, {"limit": "x"}, {"after_seq": "9" * 30}):
            assert (await api.client.get("/events", params=query)).status_code == 400

    with_api(story)


def test_followers_leave_an_operator_room() -> None:
    async def story(api: Api) -> None:
        data = request_bytes("GET", "/events?follow=1")
        following = [
            asyncio.ensure_future(api.raw(data, until=b"never", wait_s=10)) for _ in range(64)
        ]
        await until(lambda: api.app.n_open == 64)
        refused = await api.client.get("/events?follow=1")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert (await api.client.get("/events")).status_code == 200
        for one in following:
            one.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    with_api(story)


def test_who_follows_is_told_when_the_state_was_replaced() -> None:
    async def story(api: Api) -> None:
        following = asyncio.ensure_future(
            api.raw(request_bytes("GET", "/events?follow=1"), until=b'"seq": 99}')
        )
        await until(lambda: bool(api.daemon.state.resetters))
        api.daemon.state.reset(make_state(seq=99, term=3))
        received = await following
        assert b"id: 99\nevent: state_replaced\n" in received
        await until(lambda: not api.daemon.state.resetters)

    with_api(story)


def test_events_can_be_followed_and_resumed() -> None:
    async def story(api: Api) -> None:
        api.daemon.state.commit(MasterElected(master=NODE))
        api.daemon.state.commit(MasterElected(master=NODE))
        data = request_bytes("GET", "/events?follow=1&after_seq=0", headers="last-event-id: 1\r\n")
        reading = asyncio.ensure_future(api.raw(data, until=b"id: 3"))
        await until(lambda: len(api.daemon.state.subscribers) == 1)
        api.daemon.state.commit(MasterElected(master=NODE))
        lines = (await reading).decode().splitlines()
        assert ": events" in lines
        assert [line for line in lines if line.startswith("id: ")] == ["id: 2", "id: 3"]
        first = next(line for line in lines if line.startswith("data: "))
        assert json.loads(first[6:])["event"]["master"] == NODE
        await until(lambda: api.daemon.state.subscribers == [])

    with_api(story)


def test_health_is_honest_about_the_disk() -> None:
    daemon = FakeDaemon()
    reading = NodeReading(
        node_id=NODE, at_s=1, memory_available_bytes=None, journal_durable=False,
        journal_unwritten=3,
    )  # fmt: skip
    daemon.readings.readings = Readings(nodes={NODE: reading})

    async def story(api: Api) -> None:
        health = read_answer(HealthDocument, (await api.client.get("/health")).content)
        assert health.node_id == NODE
        assert health.boot_id == "boot1"
        assert health.version == "0.1.0"
        assert health.durable is False

    with_api(story, daemon)


def test_identity_and_node_id() -> None:
    async def story(api: Api) -> None:
        assert (await api.client.get("/node_id")).json() == NODE
        identity = read_answer(NodeIdentity, (await api.client.get("/node/identity")).content)
        assert identity.name == "alpha"
        assert identity.master == NODE
        assert identity.urls == ("http://127.0.0.1:1",)
        version = (await api.client.get("/version")).json()
        assert version["version"] == "0.1.0"

    with_api(story)


# ---- Keys and listeners --------------------------------------------------------------------


def test_key_is_shown_once_and_only_its_hash_is_submitted() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(
            "/v1/keys", json={"name": "laptop", "scope": "operate", "expires_in_s": 3600}
        )
        assert reply.status_code == 201
        assert reply.headers["cache-control"] == "no-store"
        created = read_answer(CreatedKey, reply.content)
        command = api.daemon.gateway.submitted[0]
        assert isinstance(command, CreateApiKey)
        assert command.key_id == created.key_id
        assert command.scope == "operate"
        assert command.expires_at_ms == created.expires_at_ms
        assert created.key.rpartition("-")[2] not in command.model_dump_json()
        for body in ({"name": ""}, {"name": "x", "scope": "root"}, {}):
            assert (await api.client.post("/v1/keys", json=body)).status_code == 400

    with_api(story)


def test_keys_are_listed_without_hashes_and_revoked_by_id() -> None:
    daemon = FakeDaemon()
    daemon.state.state = make_state(api_keys={KEY.key_id: KEY})

    async def story(api: Api) -> None:
        listed = await api.client.get("/v1/keys")
        assert read_answer(KeyList, listed.content).items[0].key_id == KEY.key_id
        assert KEY.secret_sha256 not in listed.text
        assert (await api.client.delete(f"/v1/keys/{KEY.key_id}")).status_code == 200
        command = api.daemon.gateway.submitted[0]
        assert isinstance(command, RevokeApiKey)
        assert (await api.client.delete("/v1/keys/key-zzzzzzzz")).status_code == 404

    with_api(story, daemon)


def test_api_is_opened_and_closed() -> None:
    async def story(api: Api) -> None:
        opened = await api.client.post("/v1/api/open", json={"host": "192.0.2.5"})
        served = read_answer(ListenersDocument, opened.content)
        assert "http://192.0.2.5:1" in served.urls
        assert served.base_urls == ("http://alpha.tailnet.example:1",)
        identity = (await api.client.get("/node/identity")).json()
        assert identity["base_urls"] == list(served.base_urls)
        assert api.daemon.listeners.opened == [("192.0.2.5", True)]
        await api.client.post("/v1/api/open")
        assert api.daemon.listeners.opened[-1] == ("0.0.0.0", True)
        closed = (await api.client.post("/v1/api/close")).json()
        assert closed == {"urls": ["http://127.0.0.1:1"], "base_urls": []}

    with_api(story)


def test_a_placed_model_is_listed_on_every_node_also_where_its_card_is_not() -> None:
    daemon = FakeDaemon(make_instance(card=make_card("org/placed-elsewhere")))

    async def story(api: Api) -> None:
        data = read_answer(ModelList, (await api.client.get("/v1/models")).content).data
        assert [(one.id, one.installed, one.ready) for one in data] == [
            ("org/placed-elsewhere", False, True),
            ("test/scripted", True, False),
        ]
        shown = await api.client.get("/v1/models/org/placed-elsewhere")
        assert read_answer(ModelEntry, shown.content) == data[0]

    with_api(story, daemon)
