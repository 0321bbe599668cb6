"""Which instance serves, what clients are told while none does, and how streams are bounded."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from protocol.control_api import ErrorDocument, read_answer
from protocol.data_frames import Chunk, Failed, Finished, Frame, Started
from protocol.errors import ErrorBody
from protocol.ids import CommandId, InstanceId
from protocol.readings import InstanceReading, PhaseProgress, Readings
from skulkd.api.cancels import CancelHere
from skulkd.api.selection import Sight, choose
from skulkd.api.sse import StreamLimits
from tests.support.api_harness import (
    CHAT,
    Api,
    chat_body,
    events_of,
    request_bytes,
    until,
    with_api,
)
from tests.support.builders import a_command_id
from tests.support.fake_ports import (
    MODEL,
    NODE,
    USAGE,
    FakeDaemon,
    make_card,
    make_instance,
    make_state,
    plain_answer,
)

BUSY = Failed(ErrorBody(code="engine.busy", message="all slots are taken"))
GONE = Failed(ErrorBody(code="engine.gone", message="the engine died"))
ONE, TWO = make_instance(number=1), make_instance(number=2)


# ---- Choosing ------------------------------------------------------------------------------


def chosen(in_flight: dict[InstanceId, int], readings: Readings, seed: int) -> InstanceId:
    three = make_instance(number=3)
    state = make_state(ONE, TWO, three, make_instance("load", number=4))
    # ruff: ignore[suspicious-non-cryptographic-random-usage] - seeded, so that a failure repeats
    chance = random.Random(seed)
    sight = Sight(
        node_id=NODE,
        is_reachable=lambda _node_id: True,
        in_flight=in_flight,
        readings=readings,
        now_s=0,
    )
    order = choose(state, MODEL, sight, chance)
    assert sorted(item.instance_id for item in order) == sorted(
        item.instance_id for item in (ONE, TWO, three)
    )
    return order[0].instance_id


def test_the_most_loaded_of_three_is_never_first() -> None:
    for seed in range(50):
        assert chosen({ONE.instance_id: 9}, Readings(), seed) != ONE.instance_id
    reading = InstanceReading(
        instance_id=TWO.instance_id, node_id=NODE, at_s=0, in_flight=1, queued=8, slots=1
    )
    for seed in range(50):
        first = chosen({}, Readings(instances={TWO.instance_id: reading}), seed)
        assert first != TWO.instance_id


def test_equal_load_is_spread() -> None:
    counts = Counter(chosen({}, Readings(), seed) for seed in range(300))
    assert len(counts) == 3
    assert min(counts.values()) > 50


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_stays_with_the_copy_that_has_read_it(stream: bool) -> None:
    async def story(api: Api) -> None:
        served = api.daemon.inference.served
        first: list[InstanceId] = []
        for talk in range(12):
            served.clear()
            long = [{"role": "user", "content": f"{talk}" * 2000}]
            await api.chat(messages=long, stream=stream)
            for _ in range(4):
                long += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "?"}]
                await api.chat(messages=long, stream=stream)
            assert len(set(served)) == 1
            first.append(served[0])
        assert len(set(first)) == 3, "each of the copies gets some of the conversations"

    with_api(story, FakeDaemon(ONE, TWO, make_instance(number=3)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", [BUSY, GONE])
def test_refusal_before_started_is_tried_elsewhere_once_each(stream: bool, refusal: Failed) -> None:
    async def story(api: Api) -> None:
        inference = api.daemon.inference
        for refusing in (ONE, TWO):
            inference.served.clear()
            inference.scripts = {refusing.instance_id: [refusal]}
            for _ in range(4):
                reply = await api.chat(stream=stream)
                assert reply.status_code == 200
                assert "Hello" in reply.text
                assert "error" not in reply.text
            assert len(inference.served) <= 8
        inference.scripts = {ONE.instance_id: [refusal], TWO.instance_id: [refusal]}
        inference.served.clear()
        reply = await api.chat(stream=stream)
        assert refusal.error.code in reply.text
        assert sorted(inference.served) == sorted([ONE.instance_id, TWO.instance_id])
        if not stream:
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "1"

    with_api(story, FakeDaemon(ONE, TWO))


@pytest.mark.parametrize("first", [Started(1), Chunk("a")])
def test_nothing_is_retried_once_anything_has_come(first: Frame) -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [first, GONE]
        assert (await api.chat()).status_code == 503
        assert len(api.daemon.inference.served) == 1

    with_api(story, FakeDaemon(ONE, TWO))


def test_a_stream_without_a_terminal_is_an_error() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("a")]
        assert (await api.chat()).status_code == 503
        streamed = await api.chat(stream=True)
        assert events_of(streamed.text)[-1]["error"]["code"] == "engine.gone"
        assert "[DONE]" not in streamed.text

    with_api(story)


def test_nothing_after_the_terminal_reaches_the_client() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [*plain_answer("a"), Chunk("late"), Finished("stop", USAGE)]
        streamed = await api.chat(stream=True)
        assert "late" not in streamed.text
        assert streamed.text.count("[DONE]") == 1

    with_api(story)


# ---- Not ready -----------------------------------------------------------------------------


def test_loading_is_503_with_the_loading_document() -> None:
    instance = make_instance("load")
    daemon = FakeDaemon(instance)
    now = daemon.clock.monotonic_s()
    progress = PhaseProgress(
        instance_id=instance.instance_id, node_id=NODE, rank=0, attempt=1, phase="load",
        since_s=now - 1, at_s=now, done_bytes=50, total_bytes=100, rate_bytes_s=10.0, eta_s=5.0,
    )  # fmt: skip
    daemon.readings.readings = Readings(progress={(instance.instance_id, 0): progress})

    async def story(api: Api) -> None:
        for stream in (False, True):
            reply = await api.chat(stream=stream)
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "5"
            error = read_answer(ErrorDocument, reply.content).error
            assert error.skulk_code == "request.instance_loading"
            assert error.loading is not None
            assert error.loading.phase == "load"
            assert error.loading.node_name == "alpha"
            assert error.loading.done_bytes == 50
            assert error.loading.rate_bytes_s == pytest.approx(10)
            assert error.loading.eta_s == pytest.approx(5)

    with_api(story, daemon)


def test_loading_without_a_measured_rate_says_unknown() -> None:
    async def story(api: Api) -> None:
        reply = await api.chat()
        assert reply.headers["retry-after"] == "1"
        loading = read_answer(ErrorDocument, reply.content).error.loading
        assert loading is not None
        assert loading.phase == "download"
        assert (loading.eta_s, loading.rate_bytes_s, loading.done_bytes) == (None, None, None)

    with_api(story, FakeDaemon(make_instance("download")))


def test_failed_instance_answers_with_its_reason() -> None:
    async def story(api: Api) -> None:
        reply = await api.chat()
        assert reply.status_code == 503
        error = read_answer(ErrorDocument, reply.content).error
        assert error.skulk_code == "placement.failed"
        assert "exit status 3" in error.message
        assert error.failure is not None
        assert error.failure.log_tail == ("boom",)

    with_api(story, FakeDaemon(make_instance("failed")))


def test_a_ready_copy_serves_while_another_loads() -> None:
    async def story(api: Api) -> None:
        assert (await api.chat()).status_code == 200
        assert api.daemon.inference.served == [ONE.instance_id]

    with_api(story, FakeDaemon(make_instance("load", number=4), ONE))


def test_budget_only_the_larger_window_can_hold_goes_there() -> None:
    small = make_instance(number=1, context_tokens=512)
    large = make_instance(number=2, context_tokens=4096)

    async def story(api: Api) -> None:
        for _ in range(6):
            assert (await api.chat(max_tokens=1000)).status_code == 200
        assert set(api.daemon.inference.served) == {large.instance_id}

    with_api(story, FakeDaemon(small, large))


# ---- Cancel --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_ends_the_request_and_is_404_afterwards(stream: bool) -> None:
    never = asyncio.Event()

    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("a"), never]
        asking = asyncio.ensure_future(api.chat(stream=stream))
        await until(lambda: len(api.daemon.inference.running) == 1)
        command_id = next(iter(api.daemon.inference.running))
        path = f"/v1/cancel/{command_id}"
        cancelled = await api.client.post(path)
        assert cancelled.json() == {"message": "Command cancelled.", "command_id": command_id}
        reply = await asking
        if stream:
            assert events_of(reply.text)[-1]["error"]["code"] == "request.cancelled"
        else:
            assert reply.status_code == 499
        gone = await api.client.post(path)
        assert gone.status_code == 404
        assert gone.json()["error"]["message"] == "Command not found or already completed"
        assert (await api.client.post("/v1/cancel/what")).status_code == 400

    with_api(story)


class OneOther:
    """Another node that serves one task."""

    def __init__(self, serves: CommandId) -> None:
        self.serves = serves
        self.here: list[CancelHere] = []

    def add_here(self, cancel_here: CancelHere) -> None:
        self.here.append(cancel_here)

    def cancel_here(self, command_id: CommandId) -> bool:
        return any(cancel_here(command_id) for cancel_here in self.here)

    async def cancel_elsewhere(self, command_id: CommandId) -> bool:
        return command_id == self.serves


def test_a_task_that_another_node_has_is_cancelled_there() -> None:
    other = OneOther(a_command_id(5))
    daemon = FakeDaemon()
    daemon.cancels = other

    async def story(api: Api) -> None:
        elsewhere = await api.client.post(f"/v1/cancel/{a_command_id(5)}")
        assert elsewhere.status_code == 200
        assert (await api.client.post(f"/v1/cancel/{a_command_id(6)}")).status_code == 404

    with_api(story, daemon)


def test_another_nodes_cancel_ends_a_request_of_this_one() -> None:
    other = OneOther(a_command_id(5))
    daemon = FakeDaemon()
    daemon.cancels = other

    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("a"), asyncio.Event()]
        asking = asyncio.ensure_future(api.chat(stream=True))
        await until(lambda: len(api.daemon.inference.running) == 1)
        assert not other.cancel_here(a_command_id(6))
        assert other.cancel_here(next(iter(api.daemon.inference.running)))
        assert events_of((await asking).text)[-1]["error"]["code"] == "request.cancelled"

    with_api(story, daemon)


@pytest.mark.parametrize("stream", [False, True])
def test_b31_an_answer_that_breaks_off_between_nodes_never_looks_complete(stream: bool) -> None:
    async def story(api: Api) -> None:
        lost = ErrorBody(code="cluster.link_lost", message="the answer broke off")
        api.daemon.inference.script = [Started(1), Chunk("a"), Failed(lost)]
        reply = await api.chat(stream=stream)
        if stream:
            events = events_of(reply.text)
            assert events[-1]["error"]["code"] == "cluster.link_lost"
            assert "[DONE]" not in reply.text
        else:
            assert reply.status_code == 502
            assert "choices" not in reply.json()

    with_api(story)


# ---- Bounds --------------------------------------------------------------------------------


@contextmanager
def reader_that_stops(api: Api) -> Generator[None]:
    """Begin a stream and read nothing of it."""
    with socket.create_connection(("127.0.0.1", api.port)) as client:
        client.sendall(request_bytes("POST", CHAT, chat_body(stream=True)))
        yield


def test_slow_reader_is_cut_when_too_much_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    daemon = FakeDaemon()
    daemon.stream_limits = StreamLimits(buffer_bytes=100_000)

    async def story(api: Api) -> None:
        never = asyncio.Event()
        flood = [Chunk("x" * 50_000) for _ in range(400)]
        api.daemon.inference.script = [Started(1), *flood, never]
        with reader_that_stops(api):
            await until(lambda: "too slow" in caplog.text)
            await until(lambda: api.app.n_open == 0)
        await until(lambda: api.daemon.inference.n_closed_early == 1)

    with_api(story, daemon)
    assert "bytes wait for it" in caplog.text


def test_slow_reader_is_cut_when_it_takes_nothing_for_too_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    daemon = FakeDaemon()
    daemon.stream_limits = StreamLimits(stall_s=0.1, check_s=0.02, buffer_bytes=64 << 20)

    async def story(api: Api) -> None:
        never = asyncio.Event()
        flood = [Chunk("x" * 50_000) for _ in range(400)]
        api.daemon.inference.script = [Started(1), *flood, never]
        with reader_that_stops(api):
            await until(lambda: len(api.daemon.inference.running) == 1)
            api.daemon.inference.script = plain_answer("others are served")
            assert (await api.chat()).status_code == 200
            await until(lambda: "it took nothing for" in caplog.text)
            await until(lambda: api.app.n_open == 0)

    with_api(story, daemon)


def test_a_burst_is_coalesced() -> None:
    async def story(api: Api) -> None:
        n = 500
        api.daemon.inference.script = plain_answer(*(["x"] * n))
        async with api.client.stream("POST", CHAT, json=chat_body(stream=True)) as reply:
            raw = [part async for part in reply.aiter_raw()]
        assert b"".join(raw).count(b'"content":"x"') == n
        assert len(raw) < n / 10

    with_api(story)


def test_many_streams_at_once_are_told_apart() -> None:
    async def story(api: Api) -> None:
        replies = await asyncio.gather(*(api.chat(stream=True) for _ in range(30)))
        ids = {events_of(reply.text)[0]["id"] for reply in replies}
        assert len(ids) == 30
        for reply in replies:
            assert {event["id"] for event in events_of(reply.text)} == {
                reply.headers["x-skulk-command-id"]
            }

    with_api(story)


def test_chat_of_a_model_with_an_unusual_id() -> None:
    card = make_card("org/name-GGUF:Q4_K_M")

    async def story(api: Api) -> None:
        reply = await api.chat(model="org/name-GGUF:Q4_K_M")
        assert reply.json()["model"] == "org/name-GGUF:Q4_K_M"
        for model in ("../../etc/passwd", "x" * 5000, "a b", "\u0000"):
            assert (await api.chat(model=model)).status_code == 404

    with_api(story, FakeDaemon(make_instance(card=card)))
