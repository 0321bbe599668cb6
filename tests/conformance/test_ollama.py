"""Acceptance cases A46 to A51, and A17, A24 and A28 as far as Ollama goes, over real sockets."""

import json
from datetime import datetime
from typing import Any

import httpx
import pytest

from protocol.cards import ReasoningSection
from protocol.data_frames import Chunk, Failed, Finished, Started, ToolCallDelta, Usage
from protocol.errors import ErrorBody
from protocol.tasks import FinishReason
from protocol.vectors import numbers_of
from skulkd.api.sse import StreamLimits
from tests.support.api_harness import Api, events_of, with_api
from tests.support.fake_ports import (
    USAGE,
    FakeDaemon,
    Pause,
    make_card,
    make_instance,
    make_state,
    on_engine,
)
from tests.support.text_engines import vector_of

MODEL = "test/scripted"
CHAT, GENERATE = "/ollama/api/chat", "/ollama/api/generate"
GONE = Failed(ErrorBody(code="engine.gone", message="the engine died: signal SIGKILL"))
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat_body(**fields: object) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}


async def chat(api: Api, **fields: object) -> httpx.Response:
    return await api.client.post(CHAT, json=chat_body(**fields))


async def generate(api: Api, **fields: object) -> httpx.Response:
    return await api.client.post(GENERATE, json={"model": MODEL, "prompt": "hi", **fields})


def lines_of(reply: httpx.Response) -> list[dict[str, Any]]:
    """Read lines as the strictest client does: each is an object, and there is nothing else."""
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.content.endswith(b"\n")
    parts = reply.content.decode().splitlines()
    assert all(parts), "no blank line"
    lines = [json.loads(part) for part in parts]
    assert all(isinstance(line, dict) for line in lines)
    return lines


def error_of(reply: httpx.Response, status: int) -> str:
    """Read an error and see that it is in this dialect's form."""
    assert reply.status_code == status
    text = reply.json()["error"]
    assert isinstance(text, str)
    assert "detail" not in reply.json()
    return text


def a_thinking_daemon() -> FakeDaemon:
    card = make_card(
        reasoning=ReasoningSection(supports_toggle=True, format="token_delimited"),
        family="qwen3",
        quantization="Q4_K_M",
        gguf_file="m.gguf",
    )
    return FakeDaemon(make_instance(card=card))


def test_a46_ndjson_is_pure() -> None:
    daemon = FakeDaemon()
    daemon.stream_limits = StreamLimits(keep_alive_s=0.1, check_s=0.05, hold_s=0.02)
    text = "a\n\nb\u2028c\x85d"
    daemon.inference.script = [Pause(0.4), Started(7), Chunk(text), Finished("stop", USAGE)]

    async def story(api: Api) -> None:
        for reply in (await chat(api), await generate(api)):
            assert "x-skulk-command-id" in reply.headers
            assert reply.headers["x-accel-buffering"] == "no"
            lines = lines_of(reply)
            said = [line.get("message", {}).get("content", line.get("response")) for line in lines]
            assert "".join(said) == text
            silent = [line for line, word in zip(lines, said, strict=True) if not word][:-1]
            assert len(silent) >= 2, "the silence was filled"
            assert all(line["done"] is False for line in silent)

    with_api(story, daemon)


def test_a47_stream_is_the_default_and_the_last_line_has_all_figures() -> None:
    daemon = FakeDaemon()
    usage = Usage(7, 3, prompt_ms=1.5, generation_ms=20.25)

    async def story(api: Api) -> None:
        reasons: tuple[tuple[FinishReason, str], ...] = (
            ("stop", "stop"), ("length", "length"), ("tool_calls", "stop"),
        )  # fmt: skip
        for reason, told in reasons:
            daemon.inference.script = [Started(7), Chunk("x"), Chunk("y"), Finished(reason, usage)]
            for ask in (chat, generate):
                *pieces, last = lines_of(await ask(api))
                assert [piece["done"] for piece in pieces] == [False, False]
                assert (last["done"], last["done_reason"]) == (True, told)
                assert (last["prompt_eval_count"], last["eval_count"]) == (7, 3)
                assert (last["prompt_eval_duration"], last["eval_duration"]) == (
                    1_500_000, 20_250_000,
                )  # fmt: skip
                assert last["load_duration"] == 0
                assert isinstance(last["total_duration"], int)
                assert last["total_duration"] > 0
                assert all(line["model"] == MODEL for line in (*pieces, last))
                at = datetime.fromisoformat(last["created_at"])
                assert at.tzinfo is not None
                whole = await ask(api, stream=False)
                assert whole.headers["content-type"] == "application/json"
                document = whole.json()
                assert {**document, "total_duration": 0, "created_at": ""} == {
                    **last,
                    **({"message": {"role": "assistant", "content": "xy"}} if ask is chat else {}),
                    **({"response": "xy"} if ask is generate else {}),
                    "total_duration": 0,
                    "created_at": "",
                }

    with_api(story, daemon)


def test_a47_arguments_are_an_object_and_thinking_stands_by_itself() -> None:
    daemon = a_thinking_daemon()
    card = next(iter(daemon.state.state.instances.values())).card
    assert card.tooling.supports_tool_calling
    daemon.inference.script = [
        Started(7),
        Chunk(reasoning="hm"),
        Chunk("Let me see."),
        Chunk(tool_calls=(ToolCallDelta(0, "a", "f", '{"x":'),)),
        Chunk(tool_calls=(ToolCallDelta(0, None, None, "1}"),)),
        Chunk(tool_calls=(ToolCallDelta(1, None, "f", '{"x":NaN'),)),
        Finished("tool_calls", USAGE),
    ]
    calls = [
        {"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
        {
            "function": {
                "index": 1, "name": "f", "arguments": {"unreadable_arguments": '{"x":NaN'},
            }
        },
    ]  # fmt: skip

    async def story(api: Api) -> None:
        messages = [line["message"] for line in lines_of(await chat(api, tools=[TOOL]))]
        assert messages == [
            {"role": "assistant", "content": "", "thinking": "hm"},
            {"role": "assistant", "content": "Let me see."},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "assistant", "content": ""},
        ]
        whole = (await chat(api, tools=[TOOL], stream=False)).json()["message"]
        assert whole == {
            "role": "assistant", "content": "Let me see.", "thinking": "hm", "tool_calls": calls,
        }  # fmt: skip

    with_api(story, daemon)


def test_a47_earlier_calls_and_their_results_reach_the_model() -> None:
    async def story(api: Api) -> None:
        turns: list[dict[str, Any]] = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q", "images": []},
            {
                "role": "assistant",
                "thinking": "t",
                "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}],
            },
            {"role": "tool", "content": "42", "tool_name": "f"},
        ]
        await chat(api, messages=turns, tools=[TOOL])
        told = api.daemon.inference.tasks[-1]
        assert [turn.role for turn in told.messages] == ["system", "user", "assistant", "tool"]
        assert json.loads(told.messages[2].tool_calls[0].arguments) == {"x": 1}
        assert told.messages[2].reasoning == "t"
        assert (told.messages[3].content, told.messages[3].name) == ("42", "f")
        assert told.tools[0].name == "f"

    with_api(story)


def test_a48_tags_and_ps_have_all_fields() -> None:
    loading = make_instance("load", card=make_card("org/second:Q4"), number=2)
    daemon = FakeDaemon(make_instance(), loading)
    details = {"format", "family", "families", "parameter_size", "quantization_level"}

    async def story(api: Api) -> None:
        tags = await api.client.get("/ollama/api/tags")
        assert tags.headers["content-type"] == "application/json"
        models = tags.json()["models"]
        assert [item["model"] for item in models] == ["org/second:Q4", "test/scripted:latest"]
        for item in models:
            assert item["name"] == item["model"]
            assert datetime.fromisoformat(item["modified_at"]).tzinfo is not None
            assert item["size"] == 1000
            assert len(item["digest"]) == 64
            assert set(item["details"]) >= details
            assert isinstance(item["details"]["families"], list)
        (loaded,) = (await api.client.get("/ollama/api/ps")).json()["models"]
        assert loaded["name"] == "test/scripted:latest"
        assert (loaded["size"], loaded["size_vram"], loaded["context_length"]) == (1230, 0, 512)
        assert datetime.fromisoformat(loaded["expires_at"]).year > 2200
        assert set(loaded["details"]) >= details
        answered = await chat(api, model=loaded["name"], stream=False)
        assert answered.json()["model"] == loaded["name"], "a listed name can be asked for"

    with_api(story, daemon)


def test_a48_nothing_placed_is_an_empty_list() -> None:
    daemon = FakeDaemon()
    daemon.state.state = daemon.state.state.model_copy(update={"instances": {}})

    async def story(api: Api) -> None:
        for name in ("tags", "ps"):
            assert (await api.client.get(f"/ollama/api/{name}")).json() == {"models": []}

    with_api(story, daemon)


@pytest.mark.parametrize("field", ["model", "name"])
@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_a49_show_satisfies_editors(field: str, name: str) -> None:
    async def story(api: Api) -> None:
        shown = (await api.client.post("/ollama/api/show", json={field: name})).json()
        assert shown["model_info"]["general.architecture"] == "qwen3"
        assert shown["model_info"]["qwen3.context_length"] == 512, "what can be used of it"
        assert shown["capabilities"] == ["completion", "tools", "thinking"]
        assert shown["details"]["quantization_level"] == "Q4_K_M"
        assert shown["details"]["format"] == "gguf"
        unknown = await api.client.post("/ollama/api/show", json={field: "no/such"})
        assert "skulk models list" in error_of(unknown, 404)
        nothing = await api.client.post("/ollama/api/show", json={})
        error_of(nothing, 400)

    with_api(story, a_thinking_daemon())


def test_a49_show_of_a_model_that_is_not_placed_tells_what_its_card_says() -> None:
    daemon = FakeDaemon()
    daemon.state.state = daemon.state.state.model_copy(update={"instances": {}})

    async def story(api: Api) -> None:
        shown = (await api.client.post("/ollama/api/show", json={"model": MODEL})).json()
        assert shown["model_info"]["unknown.context_length"] == 4096
        assert "modified_at" not in shown

    with_api(story, daemon)


def test_a49_version_and_the_openai_routes_under_ollama() -> None:
    async def story(api: Api) -> None:
        version = (await api.client.get("/ollama/api/version")).json()["version"]
        assert tuple(map(int, version.split("."))) >= (0, 6, 4)
        body = chat_body(model=f"{MODEL}:latest", stream=True)
        reply = await api.client.post("/ollama/v1/chat/completions", json=body)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert events_of(reply.text)[0]["object"] == "chat.completion.chunk"
        assert (await api.client.get("/ollama/v1/models")).json()["object"] == "list"
        missing = await api.client.post("/ollama/v1/chat/completions", json=chat_body(model="a/b"))
        assert missing.json()["error"]["code"] == "model_not_found"
        refused = await api.client.post("/ollama/v1/messages", json={})
        assert refused.json()["type"] == "error"

    with_api(story)


@pytest.mark.parametrize("think", [True, "low", "medium", "high"])
def test_a50_thinking_is_refused_where_the_model_cannot(think: object) -> None:
    async def story(api: Api) -> None:
        for ask in (chat, generate):
            text = error_of(await ask(api, think=think), 400)
            assert text.startswith('"test/scripted" does not support thinking')
        assert api.daemon.inference.tasks == []

    with_api(story)


def test_a50_think_on_a_model_that_can() -> None:
    daemon = a_thinking_daemon()
    daemon.inference.script = [
        Started(7), Chunk(reasoning="hm"), Chunk("a"), Finished("stop", USAGE),
    ]  # fmt: skip

    async def story(api: Api) -> None:
        wanted: list[tuple[object, bool | None, str | None]] = [
            (True, True, None), ("high", True, "high"), (False, False, None), (None, False, None),
        ]  # fmt: skip
        for think, is_on, effort in wanted:
            for ask, stream in ((chat, True), (chat, False), (generate, True), (generate, False)):
                reply = await ask(api, think=think, stream=stream)
                task = api.daemon.inference.tasks[-1]
                assert (task.enable_thinking, task.reasoning_effort) == (is_on, effort)
                assert ("thinking" in reply.text) == (think is not False)
        assert (await chat(api, think="a lot")).status_code == 400

    with_api(story, daemon)


def test_a50_false_is_fine_on_any_model() -> None:
    async def story(api: Api) -> None:
        assert lines_of(await chat(api, think=False))[-1]["done"] is True

    with_api(story)


@pytest.mark.parametrize("wanted", ["json", {"type": "object"}])
def test_t9_a_format_is_enforced_or_refused(wanted: object) -> None:
    async def story(api: Api) -> None:
        for ask in (chat, generate):
            unable = on_engine(make_instance(), "scripted")
            api.daemon.state.state = make_state(unable)
            assert "no grammar" in error_of(await ask(api, format=wanted), 400)
            api.daemon.state.state = make_state(make_instance())
            assert lines_of(await ask(api, format=wanted))[-1]["done"] is True
            told = api.daemon.inference.tasks[-1].response_format
            assert told is not None
            assert told.json_schema == (None if wanted == "json" else wanted)

    with_api(story)


def test_a51_errors_are_text() -> None:
    async def story(api: Api) -> None:
        for path in (CHAT, GENERATE):
            missing = await api.client.post(path, json=chat_body(model="no/such", prompt="hi"))
            text = error_of(missing, 404)
            assert "skulk place no/such" in text
            assert missing.json()["skulk_code"] == "request.model_not_found"
            error_of(await api.client.post(path, content=b"{bad"), 400)
            error_of(await api.client.post(path, json=[]), 400)
            error_of(await api.client.get(path), 405)
        error_of(await chat(api, messages=[{"role": "user"}, 5]), 400)
        error_of(await api.client.post("/ollama/api/pull", json={}), 404)
        foreign = await api.client.get("/ollama/api/tags", headers={"host": "evil.example"})
        error_of(foreign, 421)

    with_api(story)


def test_a51_a_model_that_is_loading_says_how_far_it_is() -> None:
    async def story(api: Api) -> None:
        reply = await chat(api)
        error_of(reply, 503)
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["loading"]["phase"] == "load"

    with_api(story, FakeDaemon(make_instance("load")))


def test_a51_an_error_in_mid_stream_is_the_last_line() -> None:
    daemon = FakeDaemon()
    daemon.inference.script = [Started(7), Chunk("a"), Chunk("b"), GONE]

    async def story(api: Api) -> None:
        for ask in (chat, generate):
            *pieces, last = lines_of(await ask(api))
            assert len(pieces) == 2
            assert "SIGKILL" in last["error"]
            assert "done" not in last
            error_of(await ask(api, stream=False), 503)

    with_api(story, daemon)


def test_a24_a_prompt_that_is_too_long_is_an_error_in_this_form() -> None:
    daemon = FakeDaemon()
    error = ErrorBody(
        code="request.context_length_exceeded", message="600 tokens, the window is 512"
    )
    daemon.inference.script = [Failed(error)]

    async def story(api: Api) -> None:
        for stream in (True, False):
            refused = error_of(await chat(api, stream=stream), 400)
            assert "600 tokens, the window is 512" in refused
        api.daemon.inference.script = [Pause(0.1), Failed(error)]
        (line,) = lines_of(await chat(api))
        assert "600 tokens, the window is 512" in line["error"], "its status was out by then"

    daemon.stream_limits = StreamLimits(hold_s=0.05)
    with_api(story, daemon)


@pytest.mark.parametrize("path", ["/ollama", "/ollama/", "/ollama/api/version", "/ollama/api/tags"])
def test_a28_probes(path: str) -> None:
    async def story(api: Api) -> None:
        head = await api.client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        got = await api.client.get(path)
        assert got.status_code == 200
        assert got.content != b""

    with_api(story)


@pytest.mark.parametrize("base", ["/ollama/api/api", "/ollama/api/v1"])
def test_aliases_serve_clients_that_join_paths_their_own_way(base: str) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(f"{base}/chat", json=chat_body())
        assert lines_of(reply)[-1]["done"] is True
        assert (await api.client.get(f"{base}/tags")).json()["models"]
        error_of(await api.client.post(f"{base}/chat", json=chat_body(model="a/b")), 404)

    with_api(story)


@pytest.mark.parametrize("kind", ["text/plain; charset=utf-8", "application/x-www-form-urlencoded"])
def test_a17_json_under_any_content_type(kind: str) -> None:
    async def story(api: Api) -> None:
        content = json.dumps(chat_body()).encode()
        reply = await api.client.post(CHAT, content=content, headers={"content-type": kind})
        assert lines_of(reply)[-1]["done"] is True

    with_api(story)


@pytest.mark.parametrize("empty", [{"messages": []}, {"messages": None}, {}])
def test_a_request_without_messages_tells_whether_the_model_is_loaded(
    empty: dict[str, Any],
) -> None:
    async def story(api: Api) -> None:
        for path, field in ((CHAT, "message"), (GENERATE, "response")):
            loaded = await api.client.post(path, json={"model": MODEL, **empty})
            document = loaded.json()
            assert (document["done"], document["done_reason"]) == (True, "load")
            assert field in document
            kept = await api.client.post(path, json={"model": MODEL, "keep_alive": 0, **empty})
            assert kept.json()["done_reason"] == "load", "it is placed, and stays so"
            missing = await api.client.post(path, json={"model": "a/b", **empty})
            assert "skulk place a/b" in error_of(missing, 404)
            unheard = {"model": "a/b", "keep_alive": "0s", **empty}
            error_of(await api.client.post(path, json=unheard), 404)
        assert api.daemon.inference.tasks == []

    with_api(story)


def test_a_model_that_is_not_placed_is_unloaded() -> None:
    daemon = FakeDaemon()
    daemon.state.state = daemon.state.state.model_copy(update={"instances": {}})

    async def story(api: Api) -> None:
        for keep_alive in (0, "0", "0s", -0.0, "0h0m"):
            body = {"model": f"{MODEL}:latest", "keep_alive": keep_alive}
            reply = await api.client.post(GENERATE, json=body)
            assert reply.json()["done_reason"] == "unload"
        error_of(await api.client.post(GENERATE, json={"model": MODEL, "keep_alive": "5m"}), 404)

    with_api(story, daemon)


def an_embedder() -> FakeDaemon:
    return FakeDaemon(make_instance(card=make_card("test/embedder", tasks=("TextEmbedding",))))


def test_embed_gives_a_vector_for_each_text_in_their_order() -> None:
    async def embed(api: Api, **fields: object) -> httpx.Response:
        body = {"model": "test/embedder:latest", **fields}
        return await api.client.post("/ollama/api/embed", json=body)

    async def story(api: Api) -> None:
        wanted = {text: numbers_of(vector_of(text)).tolist() for text in ("a", "b")}
        many = (await embed(api, input=["a", "b", "a"], truncate=True, options={})).json()
        assert many["embeddings"] == [wanted["a"], wanted["b"], wanted["a"]]
        assert many["model"] == "test/embedder:latest"
        assert many["prompt_eval_count"] > 0
        assert (await embed(api, input="b")).json()["embeddings"] == [wanted["b"]]
        older = {"model": "test/embedder", "prompt": "b"}
        reply = await api.client.post("/ollama/api/embeddings", json=older)
        assert reply.json() == {"embedding": wanted["b"]}
        assert "x-skulk-command-id" in reply.headers
        assert len(api.daemon.inference.vector_tasks) == 3
        refusals: list[dict[str, Any]] = [
            {"input": [1, 2]},
            {"input": ["a", ""]},
            {"input": "a", "dimensions": 8},
            {"input": {}},
            {"input": "a", "keep_alive": "soon"},
        ]
        for refused in refusals:
            error_of(await embed(api, **refused), 400)
        assert len(api.daemon.inference.vector_tasks) == 3

    with_api(story, an_embedder())


@pytest.mark.parametrize(
    ("path", "empty", "wanted"),
    [
        ("embed", {"input": []}, {"embeddings": []}),
        ("embed", {}, {"embeddings": []}),
        ("embeddings", {"prompt": ""}, {"embedding": []}),
    ],
)
def test_embed_without_a_text_tells_whether_the_model_is_loaded(
    path: str, empty: dict[str, Any], wanted: dict[str, Any]
) -> None:
    async def story(api: Api) -> None:
        ask = {"model": "test/embedder", **empty}
        assert (await api.client.post(f"/ollama/api/{path}", json=ask)).json() == wanted
        missing = await api.client.post(f"/ollama/api/{path}", json={**ask, "model": "a/b"})
        assert "skulk place a/b" in error_of(missing, 404)

    with_api(story, an_embedder())


def test_embed_on_a_model_that_makes_no_vectors_and_chat_on_one_that_makes_no_text() -> None:
    async def text_model(api: Api) -> None:
        reply = await api.client.post("/ollama/api/embed", json={"model": MODEL, "input": "a"})
        assert "makes no embeddings" in error_of(reply, 400)

    async def embedder(api: Api) -> None:
        assert "does not generate text" in error_of(await chat(api, model="test/embedder"), 400)

    with_api(text_model)
    with_api(embedder, an_embedder())


def test_a_broken_off_stream_can_be_read_again_as_events() -> None:
    async def story(api: Api) -> None:
        reply = await chat(api)
        lines = lines_of(reply)
        command_id = reply.headers["x-skulk-command-id"]
        again = await api.client.get(f"/v1/streams/{command_id}?offset=1")
        assert events_of(again.text) == lines[1:]
        assert "id: 1\n" in again.text

    with_api(story)
