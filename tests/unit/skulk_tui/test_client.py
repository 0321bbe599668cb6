import socket
from collections.abc import Iterator

import pytest

from protocol.control_api import HealthDocument, StateDocument
from protocol.errors import ClientError, PlacementError, SkulkError
from protocol.models_api import ModelEntry
from skulk_tui.client import NodeClient, envelope_of, path_of
from skulk_tui.target import Target
from tests.support.builders import MODEL, a_plan
from tests.support.fake_node import Answer, FakeNode, a_state_document, document, refusal


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


def client_of(
    url: str, *, deadline_s: float | None = None, api_key: str | None = None
) -> NodeClient:
    target = Target(url=url, url_rule="--node", api_key=api_key)
    return NodeClient(target, clock=Clock(), deadline_s=deadline_s)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as running:
        yield running


@pytest.fixture
def client(node: FakeNode) -> Iterator[NodeClient]:
    made = client_of(node.url)
    yield made
    made.close()


def test_answers_are_read_in_either_spelling_and_newer_fields_are_ignored(
    node: FakeNode, client: NodeClient
) -> None:
    state = a_state_document()
    newer = state.model_dump_json(by_alias=True).replace("{", '{"fromTheFuture": 1, ', 1)
    node.on("GET", "/state", state, Answer(body=newer.encode()))
    assert client.get("/state", StateDocument) == state
    assert client.get("/state", StateDocument) == state


def test_ids_travel_percent_encoded_whole(node: FakeNode, client: NodeClient) -> None:
    assert path_of("/v1/models/{}", "a/b c?d") == "/v1/models/a%2Fb%20c%3Fd"
    assert client.get(path_of("/v1/models/{}", MODEL), ModelEntry).id == MODEL
    assert node.seen[-1].path == f"/v1/models/{MODEL}"


def test_a_refusal_becomes_the_error_it_came_from_with_its_documents(
    node: FakeNode, client: NodeClient
) -> None:
    plan = a_plan()
    node.on("GET", "/state", refusal("placement.plan_changed", status=409, plan=plan))
    with pytest.raises(PlacementError) as caught:
        client.get("/state", StateDocument)
    assert caught.value.code == "placement.plan_changed"
    assert caught.value.remediation == "do it otherwise"
    envelope = envelope_of(caught.value)
    assert envelope is not None
    assert envelope.plan == plan


def test_a_key_is_sent_as_a_bearer_token(node: FakeNode) -> None:
    client = client_of(node.url, api_key="secret")
    client.get("/health", HealthDocument)
    client.use_key("other", "prompt")
    client.get("/health", HealthDocument)
    client.close()
    sent = [seen.headers["authorization"] for seen in node.seen]
    assert sent == ["Bearer secret", "Bearer other"]


def test_a_key_is_never_sent_in_the_clear_to_another_machine() -> None:
    client = client_of("http://192.0.2.1:52415", api_key="secret")
    with pytest.raises(ClientError) as caught:
        client.get("/health", HealthDocument)
    assert caught.value.code == "client.insecure_key"
    assert "ssh -L 52415:127.0.0.1:52415 192.0.2.1" in caught.value.remediation
    assert "secret" not in caught.value.message


def test_a_closed_port_is_unreachable_and_says_how_to_start_a_daemon() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    client = client_of(url)
    with pytest.raises(ClientError) as caught:
        client.get("/health", HealthDocument)
    client.close()
    assert caught.value.code == "client.unreachable"
    assert url in caught.value.message
    assert "systemctl --user status skulkd" in caught.value.remediation


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(body=b"<html>"), "answered no StateDocument"),
        (Answer(body=b'{"seq": 1}'), "answered no StateDocument"),
        (Answer(status=502, body=b"Bad Gateway"), "HTTP 502: Bad Gateway"),
        (Answer(status=400, body=b'{"error": {"message": "x"}}'), "HTTP 400"),
    ],
)
def test_what_is_no_answer_of_a_node_is_named(
    node: FakeNode, client: NodeClient, answer: Answer, said: str
) -> None:
    node.on("GET", "/state", answer)
    with pytest.raises(ClientError) as caught:
        client.get("/state", StateDocument)
    assert caught.value.code == "client.bad_answer"
    assert said in caught.value.message


def test_an_answer_without_end_is_cut(
    node: FakeNode, client: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skulk_tui.client.ANSWER_MAX_BYTES", 1000)
    node.on("GET", "/state", Answer(pieces=(b"x" * 600, b"x" * 600)))
    with pytest.raises(ClientError, match="larger than 1000 bytes"):
        client.get("/state", StateDocument)


def test_a_spent_budget_asks_nobody(node: FakeNode) -> None:
    client = client_of(node.url, deadline_s=99.0)
    with pytest.raises(ClientError) as caught:
        client.get("/health", HealthDocument)
    assert caught.value.code == "client.timeout"
    client.close()
    assert node.seen == []


def test_a_node_that_says_nothing_within_the_budget_is_a_timeout(node: FakeNode) -> None:
    clock = Clock()
    target = Target(url=node.url, url_rule="--node")
    client = NodeClient(target, clock=clock, deadline_s=clock.now_s + 0.05)
    node.on("GET", "/state", Answer(body=b"{}", pause_s=0.15))

    with pytest.raises(SkulkError) as caught:
        client.get("/state", StateDocument)
    assert caught.value.code == "client.unreachable"  # the test's clock stands still
    clock.now_s += 1
    with pytest.raises(SkulkError) as caught:
        client.get("/state", StateDocument)
    assert caught.value.code == "client.timeout"
    client.close()


def test_streamed_lines_come_whole_however_they_were_cut(
    node: FakeNode, client: NodeClient
) -> None:
    pieces = ("data: á".encode()[:-1], "data: á".encode()[-1:] + b"\r\n\nda", b"ta: 2\nrest")
    node.on("POST", "/x", Answer(pieces=pieces))
    with client.stream("/x", "{}") as lines:
        assert list(lines) == ["data: á", "", "data: 2", "rest"]


def test_a_line_without_end_is_cut(
    node: FakeNode, client: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skulk_tui.client.LINE_MAX_CHARS", 100)
    node.on("POST", "/x", Answer(body=b"y" * 500))
    with pytest.raises(ClientError, match="longer than 100"), client.stream("/x", "{}") as lines:
        list(lines)


def test_a_refused_stream_raises_before_its_first_line(node: FakeNode, client: NodeClient) -> None:
    node.on("POST", "/x", refusal("request.overloaded", status=503))
    with pytest.raises(SkulkError) as caught, client.stream("/x", "{}"):
        pytest.fail("the block must not be entered")
    assert caught.value.code == "request.overloaded"


def test_the_environments_proxy_is_not_used(
    node: FakeNode, client: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://192.0.2.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://192.0.2.1:9")
    node.on("GET", "/state", document(a_state_document()))
    assert client.get("/state", StateDocument).seq == 42


def test_the_next_address_is_asked_when_nobody_listens_at_the_first(node: FakeNode) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"
    target = Target(url=closed, url_rule="--cluster home", seeds=(closed, node.url))
    client = NodeClient(target, clock=Clock())
    assert client.get("/state", StateDocument).seq == 42
    assert client.target.addresses == (node.url,)
    client.get("/state", StateDocument)
    client.close()
    assert len(node.seen) == 2


def test_a_key_that_may_not_travel_to_one_address_is_not_hidden_by_the_next(node: FakeNode) -> None:
    target = Target(
        url="http://192.0.2.1:1", url_rule="--cluster home", api_key="secret", seeds=(node.url,)
    )
    client = NodeClient(target, clock=Clock())
    with pytest.raises(ClientError) as caught:
        client.get("/health", HealthDocument)
    assert caught.value.code == "client.insecure_key"
    assert node.seen == []
