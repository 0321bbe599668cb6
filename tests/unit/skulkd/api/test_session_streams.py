"""Chats in a session, and chats that are read on after a break."""

import asyncio

from protocol.data_frames import Chunk, Finished, Started
from skulkd.api.streams import KeepLimits
from tests.support.api_harness import CHAT, Api, chat_body, events_of, until, with_api
from tests.support.builders import a_command_id
from tests.support.fake_ports import USAGE, FakeDaemon, make_card, make_instance, plain_answer
from tests.support.session_client import Frame, SessionClient, session_with


async def opened(client: SessionClient, **fields: object) -> tuple[int, Frame]:
    """Begin a chat, and give its id and first frame."""
    number = client.new_id()
    await client.send(type="open", id=number, body=chat_body(**fields))
    return number, await client.next("stream", "refused")


async def rest_of(client: SessionClient, number: int) -> list[Frame]:
    """Read a stream to its end."""
    frames: list[Frame] = []
    while not (frames and frames[-1]["is_end"]):
        frames.append(await client.next("stream", where=lambda frame: frame["id"] == number))
    return frames


def text_of(frames: list[Frame]) -> str:
    events = [event for frame in frames for event in frame["events"]]
    return "".join(
        event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]
    )


def without_ids(events: list[Frame]) -> list[Frame]:
    return [{**event, "id": "", "created": 0} for event in events]


def test_a_chat_gives_the_chunks_that_http_gives() -> None:
    async def story(api: Api) -> None:
        over_http = await api.chat(stream=True)
        async with session_with(api.port) as client:
            number, first = await opened(client)
            frames = [first] if first["is_end"] else [first, *await rest_of(client, number)]
            events = [event for frame in frames for event in frame["events"]]
            assert without_ids(events) == without_ids(events_of(over_http.text))
            offset = 0
            for frame in frames:
                assert frame["offset"] == offset
                offset += len(frame["events"])
        assert api.app.n_open == 0

    with_api(story)


def test_a_chat_that_cannot_be_is_refused_with_the_error_of_http() -> None:
    async def story(api: Api) -> None:
        over_http = await api.chat(model="no/such")
        async with session_with(api.port) as client:
            _, refused = await opened(client, model="no/such")
            assert refused["type"] == "refused"
            expected = over_http.json()["error"]
            del expected["command_id"]
            assert refused["error"] == expected
            _, refused = await opened(client, temperature="hot")
            assert refused["error"]["skulk_code"] == "request.invalid"
        assert api.app.n_open == 0

    with_api(story)


def test_a_bug_in_opening_a_chat_fails_it_alone_and_its_id_is_free() -> None:
    async def story(api: Api) -> None:
        api.daemon.gateway.mint_command_id = lambda: 1 // 0  # type: ignore[method-assign, assignment]
        async with session_with(api.port) as client:
            for _ in range(2):
                await client.send(type="open", id=7, body=chat_body())
                refused = await client.next("refused")
                assert (refused["id"], refused["error"]["skulk_code"]) == (7, "internal.bug")
        assert api.app.n_open == 0

    with_api(story)


def test_a_chat_takes_one_of_the_places_of_inference() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("a"), asyncio.Event()]
        async with session_with(api.port) as client:
            number, _ = await opened(client)
            assert api.app.n_open == 1
            assert (await api.chat()).status_code == 503
            await client.send(type="cancel", id=number)
            frames = await rest_of(client, number)
            assert frames[-1]["events"][-1]["error"]["code"] == "request.cancelled"
            await until(lambda: api.app.n_open == 0)

    daemon = FakeDaemon()
    daemon.max_concurrent_requests = 1
    with_api(story, daemon)


def test_a_chat_goes_on_where_it_was_after_the_socket_was_cut() -> None:
    async def story(api: Api) -> None:
        gate = asyncio.Event()
        texts = [f"{number} " for number in range(50)]
        api.daemon.inference.script = [
            Started(1),
            *(Chunk(text) for text in texts[:20]),
            gate,
            *(Chunk(text) for text in texts[20:]),
            Finished("stop", USAGE),
        ]
        frames: list[Frame] = []
        async with session_with(api.port) as client:
            _, first = await opened(client)
            frames.append(first)
            while frames[-1]["offset"] + len(frames[-1]["events"]) < 20:
                frames.append(await client.next("stream"))
            client.socket.transport.abort()
        gate.set()
        await until(lambda: api.daemon.inference.running == {})
        assert api.daemon.inference.n_closed_early == 0, "it went on without a reader"
        n_had = sum(len(frame["events"]) for frame in frames)
        async with session_with(api.port) as client:
            await client.send(type="resume", id=7, command_id=first["command_id"], offset=n_had)
            frames += await rest_of(client, 7)
        assert text_of(frames) == "".join(texts)
        over_http = await api.client.get(f"/v1/streams/{first['command_id']}")
        assert over_http.text.endswith("data: [DONE]\n\n")
        assert text_of([{"events": events_of(over_http.text)}]) == "".join(texts)

    with_api(story)


def test_a_stream_over_http_is_read_again_from_any_event() -> None:
    async def story(api: Api) -> None:
        answer = await api.chat(stream=True)
        command_id = answer.headers["x-skulk-command-id"]
        whole = events_of(answer.text)
        for headers, query, skipped in (
            ({}, "", 0),
            ({}, "?offset=2", 2),
            ({"last-event-id": "1"}, "", 2),
        ):
            again = await api.client.get(f"/v1/streams/{command_id}{query}", headers=headers)
            assert again.headers["content-type"].startswith("text/event-stream")
            assert events_of(again.text) == whole[skipped:]
            assert f"id: {len(whole) - 1}\n" in again.text
        beyond = await api.client.get(f"/v1/streams/{command_id}?offset=99")
        assert beyond.status_code == 400
        unknown = await api.client.get(f"/v1/streams/{a_command_id(9)}")
        assert unknown.status_code == 404

    with_api(story)


def test_a_stream_over_http_can_be_followed_by_a_second_reader_while_it_goes_on() -> None:
    async def story(api: Api) -> None:
        gate = asyncio.Event()
        api.daemon.inference.script = [
            Started(1), Chunk("a"), gate, Chunk("b"), Finished("stop", USAGE),
        ]  # fmt: skip
        asking = asyncio.ensure_future(api.chat(stream=True))
        await until(lambda: bool(api.daemon.inference.running))
        (command_id,) = api.daemon.inference.running
        reading = asyncio.ensure_future(api.client.get(f"/v1/streams/{command_id}"))
        await asyncio.sleep(0.05)
        gate.set()
        assert events_of((await reading).text) == events_of((await asking).text)

    with_api(story)


def test_a_stream_over_http_ends_with_its_client_and_says_so_when_read_again() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("a"), asyncio.Event()]
        async with api.client.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
            command_id = answer.headers["x-skulk-command-id"]
            await until(lambda: bool(api.daemon.inference.running))
        await until(lambda: api.daemon.inference.n_closed_early == 1)
        again = await api.client.get(f"/v1/streams/{command_id}")
        assert events_of(again.text)[-1]["error"]["code"] == "request.cancelled"
        assert "[DONE]" not in again.text

    with_api(story)


def test_what_is_no_longer_kept_is_410_and_refused_in_a_session() -> None:
    async def story(api: Api) -> None:
        answer = await api.chat(stream=True)
        command_id = answer.headers["x-skulk-command-id"]
        gone = await api.client.get(f"/v1/streams/{command_id}")
        assert gone.status_code == 410
        async with session_with(api.port) as client:
            await client.send(type="resume", id=1, command_id=command_id)
            refused = await client.next("refused")
            assert refused["error"]["skulk_code"] == "request.stream_gone"
            await client.send(type="resume", id=2, command_id=a_command_id(9))
            refused = await client.next("refused")
            assert refused["error"]["skulk_code"] == "request.not_found"

    daemon = FakeDaemon()
    daemon.inference.script = plain_answer(*(["x" * 100] * 100))
    daemon.keep_limits = KeepLimits(stream_bytes=8192)
    with_api(story, daemon)


def test_a_chat_that_nobody_reads_is_cancelled() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("a"), asyncio.Event()]
        async with session_with(api.port) as client:
            await opened(client)
        await until(lambda: api.app.n_open == 0)
        assert len(api.daemon.inference.cancelled) == 1

    daemon = FakeDaemon()
    daemon.keep_limits = KeepLimits(unread_s=0.1, sweep_s=0.05)
    with_api(story, daemon)


def test_a_stopping_node_ends_the_chats_of_sessions() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("a"), asyncio.Event()]
        async with session_with(api.port) as client:
            await opened(client)
            closing = asyncio.ensure_future(client.closed())
            await api.server.close(grace_s=2)
            assert await closing is not None
        await until(lambda: api.app.n_open == 0)

    with_api(story)


def test_what_the_model_cannot_do_is_refused_before_anything_begins() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            _, refused = await opened(client)
            assert refused["error"]["skulk_code"] == "request.invalid"
        assert api.daemon.inference.tasks == []

    with_api(story, FakeDaemon(make_instance(card=make_card(tasks=("TextEmbedding",)))))
