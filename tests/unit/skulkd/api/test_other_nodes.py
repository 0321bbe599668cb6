"""One node through another: what is handed on, what is refused, and what all answer together."""

import asyncio
import logging

import pytest
from pydantic import ValidationError

from protocol.cluster_api import ClusterStorage
from protocol.control_api import HealthDocument, NodeIdentity, TransferStatus, read_answer
from protocol.errors import ClusterError
from protocol.peer_messages import ApiAnswer, CallApi
from protocol.readings import Readings, TransferReading
from protocol.state import RemovedMember
from protocol.storage_api import StorageDocument
from skulkd.api.app import create_app
from skulkd.runtime.tasks import Tasks
from tests.support.api_harness import Api, request_bytes, with_api
from tests.support.fake_ports import MODEL, NODE, FakeDaemon, make_state
from tests.support.two_nodes import BETA, TwoNodes

UNREACHABLE = ClusterError("cluster.peer_unreachable", "the link is silent", retry_after_s=5)


def call(
    nodes: TwoNodes, method: str, path: str, *, query: str = "", body: bytes = b""
) -> ApiAnswer:
    """Have beta answer what alpha hands on."""
    request = CallApi.model_validate({"method": method, "path": path, "query": query, "body": body})
    return asyncio.run(nodes.beta_app.peers.handle(NODE, request))


# ---- The node that was asked -------------------------------------------------------------------


@pytest.mark.parametrize("word", ["beta", BETA])
def test_a_request_that_names_a_node_is_answered_by_that_node(word: str) -> None:
    async def story(api: Api) -> None:
        identity = await api.client.get("/node/identity", params={"node": word})
        assert read_answer(NodeIdentity, identity.content).node_id == BETA
        health = await api.client.get("/health", params={"node": word})
        assert read_answer(HealthDocument, health.content).name == "beta"
        assert read_answer(HealthDocument, health.content).durable is True
        head = await api.client.head("/health", params={"node": word})
        assert (head.status_code, head.content) == (200, b"")

    with_api(story, TwoNodes().alpha)


def test_a_request_that_names_this_node_is_not_handed_on() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        identity = await api.client.get("/node/identity?node=alpha")
        assert read_answer(NodeIdentity, identity.content).node_id == NODE
        assert nodes.alpha.peers.calls == []

    with_api(story, nodes.alpha)


def test_a_change_is_made_there_and_carries_one_command_id_through_both_nodes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = TwoNodes()
    caplog.set_level(logging.INFO, logger="skulkd.audit")

    async def story(api: Api) -> None:
        path = f"/store/models/{MODEL}/download"
        begun = await api.client.post(path, params={"node": "beta"})
        assert begun.status_code == 202
        assert read_answer(TransferStatus, begun.content).node_id == BETA
        assert MODEL in nodes.beta.models.transfers
        assert nodes.alpha.models.transfers == {}
        command_id = begun.headers["x-skulk-command-id"]
        assert nodes.alpha.peers.calls[0][1].command_id == command_id
        told = [(vars(record)["who"], vars(record)["command_id"]) for record in caplog.records]
        assert told == [(f"node {NODE}", command_id), ("loopback", command_id)]
        cancelled = await api.client.delete(path, params={"node": "beta"})
        assert cancelled.json()["state"] == "cancelled"

    with_api(story, nodes.alpha)


def test_a_body_and_the_other_query_fields_are_handed_on() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        made = await api.client.post(
            "/models/import?node=beta", json={"path": "/m/ü.gguf", "model_id": "my/model"}
        )
        assert made.status_code == 201
        assert nodes.beta.models.imported == [("/m/ü.gguf", "my/model")]
        found = await api.client.get("/models/found?source=hf&node=beta&source=ollama")
        assert [item["source"] for item in found.json()["items"]] == ["hf", "ollama"]

    with_api(story, nodes.alpha)


def test_a_secret_from_another_node_is_kept_by_no_cache() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        made = await api.client.post("/v1/cluster/invite?node=beta")
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        assert nodes.beta.cluster.invited == [("token", 1, None)]

    with_api(story, nodes.alpha)


def test_when_to_ask_again_is_told_as_the_other_node_says() -> None:
    nodes = TwoNodes()
    nodes.beta.cluster.refusal = ClusterError("cluster.no_master", "none", retry_after_s=7)

    async def story(api: Api) -> None:
        refused = await api.client.post("/v1/cluster/invite?node=beta")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "7")

    with_api(story, nodes.alpha)


def test_an_error_of_the_other_node_is_the_answer() -> None:
    async def story(api: Api) -> None:
        missing = await api.client.post("/store/models/no/such/download?node=beta")
        assert missing.status_code == 404
        assert missing.json()["error"]["skulk_code"] == "store.not_found"

    with_api(story, TwoNodes().alpha)


def test_a_node_that_cannot_be_reached_is_named() -> None:
    nodes = TwoNodes()
    nodes.alpha.peers.servers[BETA] = UNREACHABLE

    async def story(api: Api) -> None:
        failed = await api.client.get("/node/identity?node=beta")
        assert failed.status_code == 503
        error = failed.json()["error"]
        assert error["skulk_code"] == "cluster.peer_unreachable"
        assert error["details"]["node_name"] == "beta"
        assert failed.headers["retry-after"] == "5"

    with_api(story, nodes.alpha)


def test_an_unknown_name_and_one_that_two_share_are_refused() -> None:
    nodes = TwoNodes()
    members = nodes.state.members
    twin = members[BETA].model_copy(update={"name": "Alpha"})

    async def story(api: Api) -> None:
        unknown = await api.client.get("/node/identity?node=gamma")
        assert unknown.json()["error"]["skulk_code"] == "request.node_not_found"
        api.daemon.state.state = make_state(members={**members, BETA: twin})
        shared = await api.client.get("/node/identity?node=alpha")
        assert shared.status_code == 400
        assert shared.json()["error"]["skulk_code"] == "request.node_ambiguous"
        assert BETA in shared.json()["error"]["message"]

    with_api(story, nodes.alpha)


def test_what_is_too_large_to_be_handed_on_is_refused_before_it_is_sent() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        body = {"path": "/" + "x" * (1 << 20)}
        refused = await api.client.post("/models/import?node=beta", json=body)
        assert refused.status_code == 413
        long = await api.client.get("/models/found", params={"node": "beta", "x": "y" * 5000})
        assert long.status_code == 413
        assert nodes.alpha.peers.calls == []

    with_api(story, nodes.alpha)


def test_an_open_route_of_another_node_needs_a_key_that_may_read() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        # A request through a proxy does not count as local, and shows no key.
        forwarded = "x-forwarded-for: 192.0.2.9\r\nconnection: close\r\n"
        own = await api.raw(request_bytes("GET", "/health", headers=forwarded))
        assert b" 200 " in own.splitlines()[0]
        other = await api.raw(request_bytes("GET", "/health?node=beta", headers=forwarded))
        assert b" 401 " in other.splitlines()[0]
        assert nodes.alpha.peers.calls == []

    with_api(story, nodes.alpha)


# ---- The node that is named --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/events"),
        ("GET", "/state"),
        ("POST", "/v1/keys"),
        ("POST", "/v1/cluster/join"),
        ("DELETE", "/v1/cluster/members/beta"),
        ("POST", "/place_instance"),
    ],
)
def test_only_a_nodes_own_routes_are_answered_to_another_node(method: str, path: str) -> None:
    nodes = TwoNodes()
    answer = call(nodes, method, path, body=b"{}")
    assert answer.status == 403
    assert b"request.forbidden" in answer.body
    assert nodes.beta.gateway.submitted == []


def test_a_request_is_never_handed_on_twice() -> None:
    nodes = TwoNodes()
    for path in ("/node/identity", "/v1/logs", "/store/storage"):
        answer = call(nodes, "GET", path, query="node=alpha")
        assert answer.status == 400
    assert nodes.beta.peers.calls == []


def test_a_handover_that_reaches_a_node_which_is_master_no_more_goes_no_further() -> None:
    nodes = TwoNodes()
    answer = call(nodes, "POST", "/v1/cluster/handover")
    assert answer.status == 503
    assert nodes.beta.peers.calls == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("PUT", "/health", 405), ("POST", "/models/import", 400)],
)
def test_wrong_requests_of_a_node_are_answered_like_anybodys(
    method: str, path: str, status: int
) -> None:
    assert call(TwoNodes(), method, path, body=b"[").status == status


def test_a_node_that_was_removed_has_nothing_done_for_it_while_it_is_still_connected() -> None:
    nodes = TwoNodes()
    gone = RemovedMember(node_id=NODE, public_key="aa" * 32, name="alpha", at_ms=0)
    nodes.beta.state.state = nodes.state.model_copy(update={"removed": {NODE: gone}})
    answer = call(nodes, "POST", "/v1/cluster/invite", body=b"{}")
    assert answer.status == 403
    assert b"was removed" in answer.body


def test_what_a_node_says_of_its_answer_cannot_break_the_headers_of_ours() -> None:
    for content_type in ("text/plain\r\nset-cookie: a=b", "", " text/plain", "text/\u2603"):
        with pytest.raises(ValidationError):
            ApiAnswer(status=200, content_type=content_type)
    assert ApiAnswer(status=200, content_type="text/plain; charset=utf-8").body == b""


def test_a_log_is_not_followed_for_another_node() -> None:
    answer = call(TwoNodes(), "GET", "/v1/logs", query="follow=1")
    assert answer.content_type == "application/json"
    assert b"of beta" in answer.body


def test_a_bug_there_is_logged_there_and_fails_that_request_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = TwoNodes()
    nodes.beta.listeners.opened = None  # pyright: ignore[reportAttributeAccessIssue] - the bug
    answer = call(nodes, "GET", "/node/identity")
    assert answer.status == 500
    assert b"internal.bug" in answer.body
    assert "TypeError" in caplog.text
    assert call(nodes, "GET", "/health").status == 200


def test_a_stopping_node_answers_that_it_stops() -> None:
    nodes = TwoNodes()
    nodes.beta_app.stop()
    answer = call(nodes, "GET", "/node/identity")
    assert answer.status == 503


def test_a_node_without_http_answers_other_nodes_all_the_same() -> None:
    daemon = FakeDaemon()
    app = create_app(daemon.dependencies(Tasks("quiet", on_death=lambda _, error: None)))
    request = CallApi(method="GET", path="/v1/logs")
    answer = asyncio.run(app.peers.handle(BETA, request))
    assert answer.status == 200


# ---- All of them -------------------------------------------------------------------------------


def test_storage_is_told_of_all_nodes_and_by_model() -> None:
    async def story(api: Api) -> None:
        answer = await api.client.get("/store/storage")
        whole = read_answer(ClusterStorage, answer.content)
        assert whole.node_id == NODE
        assert [one.node_id for one in whole.others] == [BETA]
        (held,) = whole.holders
        assert (held.model_id, held.node_ids) == (MODEL, (NODE, BETA))
        assert whole.unanswered == ()
        one = read_answer(
            StorageDocument, (await api.client.get("/store/storage?node=beta")).content
        )
        assert one.node_id == BETA
        own = await api.client.get("/store/storage?node=alpha")
        assert "others" not in own.json()

    with_api(story, TwoNodes().alpha)


def test_a_node_that_does_not_answer_is_named_and_the_others_are_shown() -> None:
    nodes = TwoNodes()
    nodes.alpha.peers.servers[BETA] = UNREACHABLE

    async def story(api: Api) -> None:
        answer = await api.client.get("/store/storage")
        assert answer.status_code == 200
        whole = read_answer(ClusterStorage, answer.content)
        (silent,) = whole.unanswered
        assert (silent.name, silent.error.code) == ("beta", "cluster.peer_unreachable")
        assert [one.node_ids for one in whole.holders] == [(NODE,)]

    with_api(story, nodes.alpha)


def test_an_answer_that_is_no_document_counts_as_none() -> None:
    nodes = TwoNodes()
    nodes.alpha.peers.answers[BETA] = ApiAnswer(status=200, body=b'{"x": 1}')

    async def story(api: Api) -> None:
        whole = read_answer(ClusterStorage, (await api.client.get("/store/storage")).content)
        assert len(whole.unanswered) == 1

    with_api(story, nodes.alpha)


def test_files_are_in_use_only_where_the_instance_runs() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        whole = read_answer(ClusterStorage, (await api.client.get("/store/storage")).content)
        assert [item.in_use for item in whole.items] == [True]
        assert [item.in_use for item in whole.others[0].items] == [False]
        refused = await api.client.delete(f"/store/models/{MODEL}")
        assert refused.status_code == 409
        removed = await api.client.delete(f"/store/models/{MODEL}?node=beta")
        assert removed.status_code == 200
        assert nodes.beta.models.removed == [MODEL]

    with_api(story, nodes.alpha)


def test_a_pause_through_another_node_says_who_asked_there() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        path = f"/store/models/{MODEL}/download"
        await api.client.post(f"{path}?node=beta")
        paused = (await api.client.post(f"{path}/pause?node=beta")).json()["paused"]
        assert paused["by"] == f"loopback at {nodes.alpha.face.name}"
        assert (await api.client.post(f"{path}/resume?node=beta")).json()["state"] == "running"

    with_api(story, nodes.alpha)


def test_downloads_of_one_node_are_its_own() -> None:
    nodes = TwoNodes()
    transfers = {
        (node_id, MODEL): TransferReading(
            node_id=node_id, model_id=MODEL, at_s=1, phase="download", done_bytes=5,
            total_bytes=None, rate_bytes_s=None, eta_s=None, source="index",
        )
        for node_id in (NODE, BETA)
    }  # fmt: skip
    nodes.alpha.readings.readings = nodes.beta.readings.readings = Readings(transfers=transfers)

    async def story(api: Api) -> None:
        every = (await api.client.get("/store/downloads")).json()["items"]
        assert [item["node_id"] for item in every] == [NODE, BETA]
        there = (await api.client.get("/store/downloads?node=beta")).json()["items"]
        assert [item["node_id"] for item in there] == [BETA]

    with_api(story, nodes.alpha)
