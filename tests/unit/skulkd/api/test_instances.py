"""Placing, and what is told about instances (T15, T18, T20, T21)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from protocol.cards import card_digest
from protocol.commands import ClearBreaker, PlaceInstance, RetryInstance, StopInstance
from protocol.control_api import (
    CommandAccepted,
    ErrorDocument,
    ExactPlacement,
    InstanceView,
    PlaceInstanceBody,
    PreviewsDocument,
    StateDocument,
    read_answer,
)
from protocol.errors import ErrorBody, PlacementError
from protocol.ids import InstanceId
from protocol.placements import PlacementOutcome, PlacementRequest, Refusal
from protocol.readings import InstanceReading, PhaseProgress, Readings, WaitingTask
from protocol.state import PlacementFailure
from skulkd.api.control import placement_request
from tests.support.api_harness import Api, until, with_api
from tests.support.fake_ports import (
    MODEL,
    NODE,
    FakeDaemon,
    make_card,
    make_instance,
    make_plan,
    make_state,
)

PLAN = make_plan(make_card())
OTHER = make_plan(make_card(), plan="2")
REFUSAL = Refusal(
    node_id=NODE,
    error=ErrorBody(code="placement.no_fit", message="1230 bytes are needed, 1000 are free"),
    term="weights",
    memory=PLAN.shards[0].memory,
)


def daemon_with(outcome: PlacementOutcome) -> FakeDaemon:
    daemon = FakeDaemon()
    daemon.placements.outcome = outcome
    return daemon


def test_placing_answers_202_with_the_plan_and_one_id() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(
            "/place_instance", json={"model_id": MODEL, "contextTokens": 512, "slots": 2}
        )
        assert reply.status_code == 202
        accepted = read_answer(CommandAccepted, reply.content)
        assert accepted.command_id == accepted.instance_id
        assert reply.headers["x-skulk-command-id"] == accepted.command_id
        assert accepted.plan == PLAN
        command = api.daemon.gateway.submitted[0]
        assert isinstance(command, PlaceInstance)
        assert command.plan == PLAN
        assert command.request.context_tokens == 512
        assert command.card == make_card()

    with_api(story, daemon_with(PlacementOutcome(plans=(PLAN,))))


def test_of_several_refusals_the_one_that_came_nearest_is_the_answer() -> None:
    other = ErrorBody(code="placement.no_node", message="beta: is not among the nodes asked for")
    drained = ErrorBody(code="placement.node_draining", message="alpha: is drained")
    refusals = tuple(Refusal(node_id=NODE, error=error) for error in (other, drained))

    async def story(api: Api) -> None:
        reply = await api.client.post("/place_instance", json={"model_id": MODEL})
        assert reply.status_code == 409
        error = read_answer(ErrorDocument, reply.content).error
        assert (error.skulk_code, error.message) == ("placement.node_draining", "alpha: is drained")

    with_api(story, daemon_with(PlacementOutcome(refusals=refusals)))


def test_unknown_fields_are_refused_by_name() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post("/place_instance", json={"model_id": MODEL, "nodez": []})
        assert reply.status_code == 400
        assert "nodez" in reply.json()["error"]["message"]
        assert api.daemon.gateway.submitted == []

    with_api(story)


def test_unknown_model_is_404_at_once() -> None:
    async def story(api: Api) -> None:
        for reply in (
            await api.client.post("/place_instance", json={"model_id": "no/such"}),
            await api.client.get("/instance/previews", params={"model_id": "no/such"}),
        ):
            assert reply.status_code == 404
            assert reply.json()["error"]["code"] == "placement.unknown_model"
        assert api.daemon.placements.asked == []

    with_api(story)


def test_refused_placement_shows_the_arithmetic() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post("/place_instance", json={"model_id": MODEL})
        assert reply.status_code == 400
        error = read_answer(ErrorDocument, reply.content).error
        assert error.code == "placement.no_fit"
        assert error.refusals == (REFUSAL,)
        assert error.refusals[0].memory is not None
        assert error.refusals[0].memory.needed_bytes == 1230

    with_api(story, daemon_with(PlacementOutcome(refusals=(REFUSAL,))))


def test_missing_facts_are_503_and_named() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post("/place_instance", json={"model_id": MODEL})
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) > 0
        error = read_answer(ErrorDocument, reply.content).error
        assert error.missing_facts == ("memory of nx",)
        assert "memory of nx" in error.message

    with_api(story, daemon_with(PlacementOutcome(missing_facts=("memory of nx",))))


def test_plan_id_chooses_among_the_plans_or_is_409_with_the_new_one() -> None:
    async def story(api: Api) -> None:
        body = {"model_id": MODEL, "plan_id": OTHER.plan_id}
        chosen = await api.client.post("/place_instance", json=body)
        assert read_answer(CommandAccepted, chosen.content).plan == OTHER
        api.daemon.placements.outcome = PlacementOutcome(plans=(PLAN,))
        changed = await api.client.post("/place_instance", json=body)
        assert changed.status_code == 409
        assert read_answer(ErrorDocument, changed.content).error.plan == PLAN

    with_api(story, daemon_with(PlacementOutcome(plans=(PLAN, OTHER))))


def test_plan_that_the_master_rejects_is_409_with_the_new_one() -> None:
    async def story(api: Api) -> None:
        api.daemon.gateway.refusal = PlacementError("placement.plan_changed", "moved on")
        reply = await api.client.post("/place_instance", json={"model_id": MODEL})
        assert reply.status_code == 409
        error = read_answer(ErrorDocument, reply.content).error
        assert error.code == "placement.plan_changed"
        assert error.plan == PLAN

    with_api(story, daemon_with(PlacementOutcome(plans=(PLAN,))))


def test_two_at_once_one_is_busy() -> None:
    daemon = daemon_with(PlacementOutcome(plans=(PLAN,)))

    async def story(api: Api) -> None:
        daemon.placements.held = asyncio.Event()
        body = {"model_id": MODEL}
        asking = [asyncio.ensure_future(api.client.post("/place_instance", json=body))
                  for _ in range(2)]  # fmt: skip
        await until(lambda: any(task.done() for task in asking))
        daemon.placements.held.set()
        statuses = sorted([(await task).status_code for task in asking])
        assert statuses == [202, 409]
        assert len(daemon.gateway.submitted) == 1
        assert (await api.client.post("/place_instance", json=body)).status_code == 202

    with_api(story, daemon)


def test_preview_round_trips_into_an_exact_placement() -> None:
    async def story(api: Api) -> None:
        query = {"model_id": MODEL, "min_nodes": 1, "context_tokens": 512}
        previews = await api.client.get("/instance/previews", params=query)
        assert "cardDigest" in previews.json()
        document = read_answer(PreviewsDocument, previews.content)
        assert document.card_digest == card_digest(make_card())
        assert document.plans == (PLAN,)
        assert document.request.context_tokens == 512
        exact = await api.client.get("/instance/placement", params=query)
        assert read_answer(ExactPlacement, exact.content).plan == PLAN
        placed = await api.client.post("/instance", json=exact.json())
        assert placed.status_code == 202
        command = api.daemon.gateway.submitted[0]
        assert isinstance(command, PlaceInstance)
        assert command.plan == PLAN
        assert command.request == document.request

    with_api(story, daemon_with(PlacementOutcome(plans=(PLAN,))))


def test_an_exact_placement_is_on_demand_on_the_terms_of_any_other() -> None:
    async def story(api: Api) -> None:
        exact = (await api.client.get("/instance/placement", params={"model_id": MODEL})).json()
        terms = {"on_demand": True, "ttl_s": 90, "priority": 7, "replace": False}
        placed = await api.client.post("/instance", json={**exact, **terms})
        assert "when a request asks for it" in placed.json()["message"]
        command = api.daemon.gateway.submitted[0]
        assert isinstance(command, PlaceInstance)
        assert (command.ttl_ms, command.priority) == (90_000, 7)
        assert not command.disconnect.replace
        refused = await api.client.post("/instance", json={**exact, "ttl_s": 90})
        assert refused.json()["error"]["param"] == "ttl_s"
        assert len(api.daemon.gateway.submitted) == 1

    with_api(story, daemon_with(PlacementOutcome(plans=(PLAN,))))


def test_exact_placement_with_another_card_is_409() -> None:
    async def story(api: Api) -> None:
        stale = make_plan(make_card(n_layers=3))
        body = {
            "request": {"model_id": MODEL},
            "plan": stale.model_dump(mode="json"),
        }
        reply = await api.client.post("/instance", json=body)
        assert reply.status_code == 409
        assert reply.json()["error"]["code"] == "placement.card_changed"
        assert api.daemon.gateway.submitted == []

    with_api(story)


@pytest.mark.parametrize(
    "query",
    [{}, {"model_id": "../etc"}, {"model_id": MODEL, "min_nodes": "x"}, {"modelid": MODEL},
     {"model_id": MODEL, "node_ids": "not-a-node"}, {"model_id": MODEL, "slots": "0"}],
)  # fmt: skip
def test_wrong_queries_are_400(query: dict[str, str]) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.get("/instance/previews", params=query)
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"

    with_api(story)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ({}, None),
        ({"sharding": "Pipeline", "instance_meta": "MlxRing"}, None),
        ({"sharding": "Pipeline", "min_nodes": 2}, "pipeline"),
        ({"sharding": "Tensor"}, "tensor"),
        ({"instance_meta": "LlamaRpc", "sharding": "Pipeline"}, "rpc"),
        ({"shape": "single", "sharding": "Tensor"}, "single"),
    ],
)
def test_words_of_the_original_become_shapes(body: dict[str, Any], shape: str | None) -> None:
    request = placement_request(PlaceInstanceBody.model_validate({"model_id": MODEL, **body}))
    assert request.shape == shape
    assert request == PlacementRequest(
        model_id=MODEL, min_nodes=body.get("min_nodes", 1), shape=request.shape
    )


def test_instance_is_shown_in_camel_case_with_its_progress() -> None:
    instance = make_instance("load")
    daemon = FakeDaemon(instance)
    now = daemon.clock.monotonic_s()
    progress = PhaseProgress(
        instance_id=instance.instance_id, node_id=NODE, rank=0, attempt=1, phase="load",
        since_s=now - 2, at_s=now, done_bytes=5, total_bytes=10, rate_bytes_s=2.5, eta_s=2.0,
    )  # fmt: skip
    key = (instance.instance_id, 0)
    reading = InstanceReading(
        instance_id=instance.instance_id,
        node_id=NODE,
        at_s=now,
        in_flight=3,
        queued=1,
        slots=4,
        waiting=(WaitingTask(asker="loopback", waited_s=2.9, expected_s=3.6),),
    )
    daemon.readings.readings = Readings(
        progress={key: progress}, instances={instance.instance_id: reading}
    )

    async def story(api: Api) -> None:
        reply = await api.client.get(f"/instance/{instance.instance_id}")
        assert reply.json()["modelId"] == MODEL
        view = read_answer(InstanceView, reply.content)
        assert view.phase == "load"
        assert view.progress[0].done_bytes == 5
        assert 2 <= view.progress[0].phase_s < 10
        assert (view.in_flight, view.queued) == (3, 1)
        (waiting,) = view.waiting
        assert (waiting.position, waiting.asker) == (1, "loopback")
        assert (waiting.waited_s, waiting.expected_s) == (2, 4)
        daemon.readings.readings = Readings(progress={key: replace(progress, attempt=0)})
        stale = read_answer(
            InstanceView, (await api.client.get(f"/instance/{instance.instance_id}")).content
        )
        assert stale.progress == ()
        state = read_answer(StateDocument, (await api.client.get("/state")).content)
        assert state.instances[instance.instance_id].phase == "load"

    with_api(story, daemon)


def test_an_instance_out_of_reach_keeps_its_phase_and_says_where_it_is() -> None:
    instance = make_instance("ready")

    async def story(api: Api) -> None:
        path = f"/instance/{instance.instance_id}"
        near = read_answer(InstanceView, (await api.client.get(path)).content)
        assert (near.phase, near.unreachable_nodes) == ("ready", ())
        api.daemon.unreachable.add(NODE)
        far = read_answer(InstanceView, (await api.client.get(path)).content)
        assert (far.phase, far.unreachable_nodes) == ("ready", (NODE,))
        state = read_answer(StateDocument, (await api.client.get("/state")).content)
        assert state.instances[instance.instance_id].unreachable_nodes == (NODE,)

    with_api(story, FakeDaemon(instance))


def test_a_stop_may_give_time_within_bounds_to_what_is_being_answered() -> None:
    instance = make_instance()

    async def story(api: Api) -> None:
        path = f"/instance/{instance.instance_id}"
        stopped = await api.client.delete(f"{path}?drain_s=60")
        assert "in 60 s at the latest" in read_answer(CommandAccepted, stopped.content).message
        for wrong in ("86401", "-1", "1.5", "soon", "9" * 40):
            refused = await api.client.delete(f"{path}?drain_s={wrong}")
            assert refused.status_code == 400, wrong
            error = read_answer(ErrorDocument, refused.content).error
            assert (error.skulk_code, error.param) == ("request.invalid", "drain_s")
        assert (await api.client.delete(f"{path}?drain=60")).status_code == 400
        (stop,) = api.daemon.gateway.submitted
        assert isinstance(stop, StopInstance)
        assert stop.drain_ms == 60_000

    with_api(story, FakeDaemon(instance))


def test_stop_and_retry_are_commands_about_the_instance() -> None:
    instance = make_instance("failed")

    async def story(api: Api) -> None:
        path = f"/instance/{instance.instance_id}"
        retried = await api.client.post(f"{path}/retry")
        assert retried.status_code == 202
        stopped = await api.client.delete(path)
        assert stopped.status_code == 202
        assert read_answer(CommandAccepted, stopped.content).instance_id == instance.instance_id
        retry, stop = api.daemon.gateway.submitted
        assert isinstance(retry, RetryInstance)
        assert retry.after_attempt == 1
        assert isinstance(stop, StopInstance)
        assert stop.drain_ms == 0

    with_api(story, FakeDaemon(instance))


def test_a_ready_instance_is_not_tried_again() -> None:
    instance = make_instance("ready")

    async def story(api: Api) -> None:
        refused = await api.client.post(f"/instance/{instance.instance_id}/retry")
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "placement.already_live"
        assert not api.daemon.gateway.submitted

    with_api(story, FakeDaemon(instance))


def test_an_instance_that_goes_while_it_is_stopped_is_not_found() -> None:
    instance = make_instance("ready")
    daemon = FakeDaemon(instance)

    async def story(api: Api) -> None:
        daemon.gateway.refusal = PlacementError("placement.not_live", "there is no such instance")
        refused = await api.client.delete(f"/instance/{instance.instance_id}")
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "request.not_found"

    with_api(story, daemon)


def test_unknown_and_malformed_instances() -> None:
    async def story(api: Api) -> None:
        unknown = "bbbbbb-bbbbbbbbbbbbbbbbbbbb"
        for method, path in (
            ("GET", f"/instance/{unknown}"),
            ("DELETE", f"/instance/{unknown}"),
            ("POST", f"/instance/{unknown}/retry"),
        ):
            assert (await api.client.request(method, path)).status_code == 404
        assert (await api.client.get("/instance/..%2f..")).status_code in {400, 404}
        assert (await api.client.get("/instance/x")).status_code == 400

    with_api(story)


def test_a_placement_that_failed_later_is_told_under_its_id() -> None:
    failed_id = InstanceId("bbbbbb-bbbbbbbbbbbbbbbbbbbb")
    daemon = FakeDaemon()
    failure = PlacementFailure(
        instance_id=failed_id,
        model_id=MODEL,
        at_ms=1,
        error=ErrorBody(code="placement.busy", message="another change came first"),
    )
    daemon.state.state = make_state(placement_failures=(failure,))

    async def story(api: Api) -> None:
        reply = await api.client.get(f"/instance/{failed_id}")
        assert reply.status_code == 409
        assert reply.json()["error"]["code"] == "placement.busy"

    with_api(story, daemon)


def test_clearing_the_breaker_is_a_command_about_the_instance() -> None:
    instance = make_instance("ready")

    async def story(api: Api) -> None:
        cleared = await api.client.post(f"/instance/{instance.instance_id}/clear-breaker")
        assert cleared.status_code == 202
        (command,) = api.daemon.gateway.submitted
        assert isinstance(command, ClearBreaker)
        assert command.instance_id == instance.instance_id

    with_api(story, FakeDaemon(instance))
