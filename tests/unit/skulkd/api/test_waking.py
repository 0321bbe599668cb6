"""Requests for a model that sleeps: one load for all, a bounded wait, and what it ends with."""

import asyncio
from dataclasses import replace

import pytest

from protocol.commands import PinInstance, PlaceInstance, SleepInstance, UnpinInstance, WakeInstance
from protocol.data_frames import Failed
from protocol.errors import ErrorBody, PlacementError
from protocol.events import InstanceWoken
from protocol.instances import Instance, InstanceFailure, Phase
from protocol.placements import PlacementOutcome
from protocol.readings import InstanceReading, Readings
from protocol.state import ClusterSettings
from protocol.tasks import KEEP_ALWAYS
from skulkd.api import waking
from skulkd.api.body_budget import BodyBudget
from skulkd.api.http import CONNECTION, AsgiScope, Message, Request
from skulkd.api.peer_api import NoConnection
from skulkd.api.sse import StreamLimits
from skulkd.api.waking import wait_of
from tests.support.api_harness import CHAT, Api, chat_body, events_of, until, with_api
from tests.support.fake_ports import (
    MODEL,
    NODE,
    FakeDaemon,
    make_card,
    make_instance,
    make_plan,
    make_state,
    plain_answer,
)

TTL_MS = 60_000
PREFER_NOW = {"prefer": "wait=0"}


def on_demand(phase: Phase = "ready", number: int = 1) -> Instance:
    """Make one whose runner is in this phase, or that is asleep."""
    made = make_instance("ready" if phase == "asleep" else phase, number=number)
    changes: dict[str, object] = {"ttl_ms": TTL_MS}
    if phase == "asleep":
        changes |= {"desired": "asleep", "runners": ()}
    return made.model_copy(update=changes)


def sleeping() -> FakeDaemon:
    return FakeDaemon(on_demand("asleep"))


def turns(daemon: FakeDaemon, *instances: Instance) -> None:
    """Have the log say something new of the instances."""
    daemon.state.state = make_state(*instances)
    daemon.state.commit(InstanceWoken(instance_id=on_demand().instance_id, attempt=1))


def waiting(daemon: FakeDaemon) -> int:
    """Count those that follow the log: each request that waits does."""
    return len(daemon.state.subscribers)


def wakes(daemon: FakeDaemon) -> int:
    return sum(isinstance(command, WakeInstance) for command in daemon.gateway.submitted)


def test_many_requests_wake_a_model_once_and_are_all_answered() -> None:
    daemon = sleeping()
    held = daemon.gateway.held = asyncio.Event()

    async def story(api: Api) -> None:
        asked = [asyncio.create_task(api.chat()) for _ in range(5)]
        await until(lambda: waiting(daemon) == 5 and wakes(daemon) > 0)
        turns(daemon, on_demand("load"))
        held.set()
        await asyncio.sleep(0.02)
        assert not daemon.inference.served
        turns(daemon, on_demand("ready"))
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 5
        assert (waiting(daemon), wakes(daemon)) == (0, 1)

    with_api(story, daemon)


def test_a_stream_waits_and_is_kept_alive_in_a_form_that_its_client_ignores() -> None:
    daemon = sleeping()

    async def story(api: Api) -> None:
        async with api.client.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
            assert answer.status_code == 200
            parts = answer.aiter_text()
            text = await anext(parts)
            while ": keep-alive" not in text:
                text += await anext(parts)
            turns(daemon, on_demand("ready"))
            text += "".join([part async for part in parts])
        said = [event["choices"][0]["delta"].get("content") for event in events_of(text)]
        assert [piece for piece in said if piece] == ["Hello", " world"]

    daemon.stream_limits = StreamLimits(keep_alive_s=0.05, check_s=0.02)
    with_api(story, daemon)


def test_who_may_not_wait_gets_the_loading_document() -> None:
    daemon = sleeping()

    async def story(api: Api) -> None:
        answer = await api.client.post(CHAT, json=chat_body(), headers=PREFER_NOW)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["loading"]["phase"] == "asleep"
        assert answer.json()["error"]["code"] == "request.instance_loading"

    with_api(story, daemon)


def test_what_the_master_refuses_a_load_with_reaches_who_waits() -> None:
    daemon = sleeping()
    daemon.gateway.refusal = PlacementError(
        "placement.no_fit", "needs 8 GiB, 2 GiB are available", remediation="stop another one"
    )

    async def story(api: Api) -> None:
        answer = await api.chat()
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "placement.no_fit"
        assert "8 GiB" in answer.json()["error"]["message"]
        streamed = events_of((await api.chat(stream=True)).text)
        assert streamed[-1]["error"]["code"] == "placement.no_fit"

    with_api(story, daemon)


def test_who_waits_for_what_is_gone_is_served_by_a_copy_that_was_placed_meanwhile() -> None:
    daemon = sleeping()

    async def story(api: Api) -> None:
        asked = asyncio.create_task(api.chat())
        await until(lambda: wakes(daemon) == 1)
        turns(daemon, on_demand("asleep", number=2))
        await until(lambda: wakes(daemon) == 2)
        turns(daemon, on_demand("ready", number=2))
        assert (await asked).status_code == 200

    with_api(story, daemon)


def test_a_refusal_that_may_pass_is_tried_again() -> None:
    daemon = sleeping()
    daemon.gateway.refusal = PlacementError("placement.facts_missing", "memory comes back")

    async def story(api: Api) -> None:
        asked = asyncio.create_task(api.chat())
        await until(lambda: wakes(daemon) == 2)
        daemon.gateway.refusal = None
        turns(daemon, on_demand("ready"))
        assert (await asked).status_code == 200

    with_api(story, daemon)


def test_a_load_that_fails_while_somebody_waits_is_told_with_its_failure() -> None:
    daemon = sleeping()
    failure = InstanceFailure(
        instance_id=on_demand().instance_id,
        model_id=MODEL,
        node_id=NODE,
        attempt=1,
        phase="stage",
        error=ErrorBody(code="runner.no_memory", message="8 GiB needed", remediation="free some"),
        at_ms=1,
        final=False,
    )

    async def story(api: Api) -> None:
        asked = asyncio.create_task(api.chat())
        await until(lambda: wakes(daemon) == 1)
        turns(daemon, on_demand("asleep").model_copy(update={"failure": failure}))
        answer = await asked
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "placement.failed"
        assert answer.json()["error"]["failure"]["error"]["code"] == "runner.no_memory"
        # What failed for another request before is no reason not to try.
        again = asyncio.create_task(api.chat())
        await until(lambda: wakes(daemon) == 2)
        turns(daemon, on_demand("ready"))
        assert (await again).status_code == 200

    with_api(story, daemon)


def test_a_request_that_meets_an_engine_on_its_way_out_is_served_after_a_reload() -> None:
    daemon = FakeDaemon(on_demand("ready"))
    gone = Failed(ErrorBody(code="engine.gone", message="it is not ready on this node"))
    daemon.inference.script = [gone]

    async def story(api: Api) -> None:
        asked = [asyncio.create_task(api.chat()), asyncio.create_task(api.chat(stream=True))]
        await until(lambda: len(daemon.inference.served) >= 2)
        daemon.inference.script = plain_answer("back")
        turns(daemon, on_demand("asleep"))
        await until(lambda: wakes(daemon) == 1)
        turns(daemon, on_demand("ready"))
        whole, streamed = await asyncio.gather(*asked)
        assert whole.json()["choices"][0]["message"]["content"] == "back"
        assert "back" in streamed.text

    with_api(story, daemon)


def test_vectors_and_counts_wait_for_their_model_too() -> None:
    card = make_card(tasks=("TextGeneration", "TextEmbedding"))
    asleep = on_demand("asleep").model_copy(update={"card": card})
    daemon = FakeDaemon(asleep)

    async def story(api: Api) -> None:
        asked = [
            asyncio.create_task(api.client.post(path, json=body))
            for path, body in (
                ("/v1/embeddings", {"model": MODEL, "input": "a fox"}),
                ("/v1/messages/count_tokens",
                 {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}),
            )
        ]  # fmt: skip
        await until(lambda: waiting(daemon) == 2)
        turns(daemon, on_demand("ready").model_copy(update={"card": card}))
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]

    with_api(story, daemon)


def test_a_client_that_goes_and_a_cancelled_request_wait_no_longer() -> None:
    daemon = sleeping()

    async def story(api: Api) -> None:
        async with api.client.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
            await until(lambda: waiting(daemon) == 1)
            command_id = answer.headers["x-skulk-command-id"]
            assert (await api.client.post(f"/v1/cancel/{command_id}")).status_code == 200
            text = await answer.aread()
        assert events_of(text.decode())[-1]["error"]["code"] == "request.cancelled"
        await until(lambda: waiting(daemon) == 0)
        for fields in ({"stream": True}, {}):
            going = asyncio.create_task(api.chat(**fields))
            await until(lambda: waiting(daemon) == 1)
            going.cancel()
            await until(lambda: waiting(daemon) == 0)
        assert not daemon.inference.served

    with_api(story, daemon)


def test_no_more_wait_than_a_node_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "MAX_WAITING", 1)
    daemon = sleeping()

    async def story(api: Api) -> None:
        first = asyncio.create_task(api.chat())
        await until(lambda: waiting(daemon) == 1)
        refused = await api.chat()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        turns(daemon, on_demand("ready"))
        assert (await first).status_code == 200

    with_api(story, daemon)


def test_a_model_that_is_always_loaded_is_not_waited_for() -> None:
    async def story(api: Api) -> None:
        assert (await api.chat()).status_code == 503
        assert not api.daemon.gateway.submitted

    with_api(story, FakeDaemon(make_instance("load")))


def test_how_long_a_client_waits_is_read_from_its_preference() -> None:
    def waits(*headers: tuple[bytes, bytes]) -> int:
        return round(wait_of(_request(*headers), 60.0))

    assert waits() == 60
    assert waits((b"prefer", b"respond-async, wait=5")) == 5
    assert waits((b"prefer", b"WAIT = 7; x")) == 7
    assert waits((b"prefer", b"wait=9999")) == 600
    assert waits((b"prefer", b"wait=-1, wait=, wait=99999")) == 60


def _request(*headers: tuple[bytes, bytes]) -> Request:
    async def receive() -> Message:
        raise AssertionError("nobody reads a body")

    scope: AsgiScope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {CONNECTION: NoConnection()},
    }
    return Request(scope, receive, BodyBudget(1).share())


def test_ollama_s_words_for_loading_and_unloading_wake_and_unload_what_is_on_demand() -> None:
    daemon = sleeping()

    async def story(api: Api) -> None:
        load = asyncio.create_task(api.client.post("/ollama/api/generate", json={"model": MODEL}))
        await until(lambda: wakes(daemon) == 1)
        assert (await api.client.get("/ollama/api/ps")).json() == {"models": []}
        turns(daemon, on_demand("ready"))
        assert (await load).json()["done_reason"] == "load"
        unload = {"model": MODEL, "keep_alive": 0}
        gone = await api.client.post("/ollama/api/generate", json=unload)
        assert gone.json()["done_reason"] == "unload"
        command = daemon.gateway.submitted[-1]
        assert isinstance(command, SleepInstance)
        assert (command.instance_id, command.attempt) == (on_demand().instance_id, 1)
        pinned = on_demand("ready").model_copy(update={"pinned": True})
        turns(daemon, pinned)
        stays = await api.client.post("/ollama/api/generate", json=unload)
        assert stays.json()["done_reason"] == "load"
        assert daemon.gateway.submitted[-1] is command

    with_api(story, daemon)


def test_ollama_s_words_for_how_long_reach_the_engines_that_are_on_demand() -> None:
    always = on_demand("ready").model_copy(update={"ttl_ms": None})
    daemon = FakeDaemon(on_demand("ready"))

    async def story(api: Api) -> None:
        load = {"model": MODEL, "keep_alive": "10m"}
        for path in ("generate", "chat", "embed"):
            assert (await api.client.post(f"/ollama/api/{path}", json=load)).status_code == 200
        asked = {**load, "prompt": "Hello", "stream": False, "keep_alive": -1}
        assert (await api.client.post("/ollama/api/generate", json=asked)).status_code == 200
        tasks = list(daemon.inference.tasks)
        assert [task.keep_s for task in tasks] == [600, 600, 600, KEEP_ALWAYS]
        assert all(not task.messages and task.prompt is None for task in tasks[:3])
        await api.client.post("/ollama/api/generate", json={"model": MODEL})
        turns(daemon, always)
        assert (await api.client.post("/ollama/api/chat", json=load)).status_code == 200
        assert len(daemon.inference.tasks) == len(tasks), "nothing to say to it"

    with_api(story, daemon)


def test_the_time_that_is_left_is_told_and_with_a_pin_there_is_none() -> None:
    daemon = FakeDaemon(on_demand("ready"))
    reading = InstanceReading(
        instance_id=on_demand().instance_id,
        node_id=NODE,
        at_s=0.0,
        in_flight=0,
        queued=0,
        slots=1,
        idle_since_s=daemon.clock.monotonic_s() - 20.0,
    )
    daemon.readings.readings = Readings(instances={reading.instance_id: reading})

    async def story(api: Api) -> None:
        path = f"/instance/{reading.instance_id}"
        view = (await api.client.get(path)).json()
        assert (view["ttlMs"], view["pinned"]) == (TTL_MS, False)
        assert 35 <= view["sleepsInS"] <= 40
        (shown,) = (await api.client.get("/ollama/api/ps")).json()["models"]
        assert not shown["expires_at"].startswith("2300")
        for keep_s, left in ((100, range(75, 81)), (5, range(1)), (KEEP_ALWAYS, [None])):
            kept = replace(reading, keep_s=keep_s)
            daemon.readings.readings = Readings(instances={reading.instance_id: kept})
            assert (await api.client.get(path)).json()["sleepsInS"] in left
            (shown,) = (await api.client.get("/ollama/api/ps")).json()["models"]
            assert shown["expires_at"].startswith("2300") == (keep_s == KEEP_ALWAYS)
        daemon.readings.readings = Readings(instances={reading.instance_id: reading})
        turns(daemon, on_demand("ready").model_copy(update={"pinned": True}))
        view = (await api.client.get(path)).json()
        assert (view["pinned"], view["sleepsInS"]) == (True, None)

    with_api(story, daemon)


@pytest.mark.parametrize(
    ("fields", "ttl_ms"),
    [({}, None), ({"on_demand": True}, 600_000), ({"on_demand": True, "ttl_s": 60}, 60_000)],
)
def test_a_placement_says_whether_it_is_on_demand(
    fields: dict[str, object], ttl_ms: int | None
) -> None:
    daemon = FakeDaemon()
    daemon.placements.outcome = PlacementOutcome(plans=(make_plan(make_card()),))

    async def story(api: Api) -> None:
        answer = await api.client.post("/place_instance", json={"model_id": MODEL, **fields})
        assert answer.status_code == 202
        (command,) = daemon.gateway.submitted
        assert isinstance(command, PlaceInstance)
        assert command.ttl_ms == ttl_ms

    with_api(story, daemon)


def test_what_does_not_say_its_time_to_live_takes_that_of_the_cluster() -> None:
    daemon = FakeDaemon()
    settings = ClusterSettings(on_demand_ttl_s=90)
    daemon.state.state = daemon.state.state.model_copy(update={"settings": settings})
    daemon.placements.outcome = PlacementOutcome(plans=(make_plan(make_card()),))

    async def story(api: Api) -> None:
        bodies: tuple[dict[str, object], ...] = ({}, {"ttl_s": 60})
        for body in bodies:
            asked = {"model_id": MODEL, "on_demand": True, **body}
            assert (await api.client.post("/place_instance", json=asked)).status_code == 202
        placed = [item for item in daemon.gateway.submitted if isinstance(item, PlaceInstance)]
        assert [item.ttl_ms for item in placed] == [90_000, 60_000]

    with_api(story, daemon)


@pytest.mark.parametrize("fields", [{"ttl_s": 60}, {"on_demand": True, "ttl_s": 0}])
def test_a_time_to_live_without_demand_or_sense_is_refused(fields: dict[str, object]) -> None:
    async def story(api: Api) -> None:
        answer = await api.client.post("/place_instance", json={"model_id": MODEL, **fields})
        assert answer.status_code == 400
        assert "ttl_s" in answer.text
        assert not api.daemon.gateway.submitted

    with_api(story)


def test_an_instance_is_pinned_and_unpinned() -> None:
    daemon = FakeDaemon(on_demand("ready"))

    async def story(api: Api) -> None:
        path = f"/instance/{on_demand().instance_id}/pin"
        assert (await api.client.post(path)).status_code == 202
        assert (await api.client.delete(path)).status_code == 202
        pin, unpin = daemon.gateway.submitted
        assert isinstance(pin, PinInstance)
        assert isinstance(unpin, UnpinInstance)
        assert pin.instance_id == unpin.instance_id == on_demand().instance_id

    with_api(story, daemon)
