"""`POST /bench/chat/completions`: the chat, and what it took."""

from dataclasses import replace

import pytest

from protocol.data_frames import Chunk, Finished, Started, Usage
from protocol.instances import Instance
from protocol.readings import AcceleratorReading, InstanceReading, Readings
from tests.support.api_harness import Api, chat_body, with_api
from tests.support.builders import a_reading
from tests.support.fake_ports import MODEL, NODE, FakeDaemon, make_instance

BENCH = "/bench/chat/completions"


def measured(usage: Usage) -> FakeDaemon:
    daemon = FakeDaemon()
    daemon.inference.script = [Started(), Chunk("a"), Chunk("b"), Finished("stop", usage)]
    return daemon


def busy(instance: Instance, *, in_flight: int, queued: int) -> Readings:
    reading = InstanceReading(
        instance_id=instance.instance_id,
        node_id=NODE,
        at_s=0,
        in_flight=in_flight,
        queued=queued,
        slots=4,
    )
    return Readings(instances={instance.instance_id: reading})


def test_an_answer_is_a_chat_completion_with_what_it_took() -> None:
    usage = Usage(
        prompt_tokens=120, completion_tokens=50, cached_tokens=20, prompt_ms=200, generation_ms=500
    )

    async def story(api: Api) -> None:
        for stream in (True, False, None):
            reply = await api.client.post(BENCH, json=chat_body(stream=stream))
            assert reply.status_code == 200
            document = reply.json()
            assert document["object"] == "chat.completion"
            assert document["model"] == MODEL
            assert document["choices"][0]["message"]["content"] == "ab"
            assert document["id"] == reply.headers["x-skulk-command-id"]
            stats = document["generation_stats"]
            assert (stats["prompt_tps"], stats["generation_tps"]) == (500, 100)
            assert (stats["prompt_tokens"], stats["generation_tokens"]) == (120, 50)
            assert stats["cached_prompt_tokens"] == 20
            assert stats["request_ms"] >= 0
            assert (stats["serving_batches"], stats["in_flight_at_admission"]) == (False, 0)
            assert document["power_usage"] is None
        assert all(not task.stream for task in api.daemon.inference.tasks)

    with_api(story, measured(usage))


def test_what_the_engine_does_not_time_is_unknown() -> None:
    async def story(api: Api) -> None:
        document = (await api.client.post(BENCH, json=chat_body())).json()
        stats = document["generation_stats"]
        assert stats["prompt_ms"] is stats["generation_ms"] is None
        assert stats["prompt_tps"] is stats["generation_tps"] is None

    with_api(story, measured(Usage(prompt_tokens=7, completion_tokens=2)))


def test_the_power_that_accelerators_drew_is_told() -> None:
    daemon = measured(Usage(prompt_tokens=7, completion_tokens=2))
    boards = (AcceleratorReading(watts=200.25), AcceleratorReading(watts=50.0))
    reading = replace(a_reading(), node_id=NODE, accelerators=(*boards, AcceleratorReading()))
    daemon.readings.readings = Readings(nodes={NODE: reading})

    async def story(api: Api) -> None:
        reply = await api.client.post(BENCH, json=chat_body())
        assert reply.json()["power_usage"] == {"total_watts": 250.2, "node_watts": [250.2]}
        assert NODE not in reply.text

    with_api(story, daemon)


def test_requests_that_were_there_already_are_told_and_no_node_is_named() -> None:
    one = make_instance(number=1)
    one = one.model_copy(update={"plan": one.plan.model_copy(update={"slots": 4})})
    daemon = FakeDaemon(one)
    daemon.readings.readings = busy(one, in_flight=3, queued=2)

    async def story(api: Api) -> None:
        reply = await api.client.post(BENCH, json=chat_body())
        stats = reply.json()["generation_stats"]
        assert (stats["serving_batches"], stats["in_flight_at_admission"]) == (True, 5)
        assert "scripted" not in str(stats)
        assert NODE not in reply.text

    with_api(story, daemon)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"n": 2}, 400, "request.unsupported_field"),
        ({"model": "no/such"}, 404, "request.model_not_found"),
        ({"max_tokens": 9999}, 400, "request.context_length_exceeded"),
        ({"messages": []}, 400, "request.invalid"),
    ],
)
def test_it_refuses_what_a_chat_is_refused(
    fields: dict[str, object], status: int, code: str
) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(BENCH, json=chat_body(**fields))
        assert reply.status_code == status
        assert reply.json()["error"]["skulk_code"] == code
        assert api.daemon.inference.tasks == []

    with_api(story)
