"""Draining a node over HTTP."""

import pytest

from protocol.cluster_api import NodesDocument
from protocol.commands import DrainNode, UndrainNode
from protocol.control_api import CommandAccepted, ErrorDocument, read_answer
from protocol.drain_api import DrainDocument
from protocol.errors import ErrorBody, PlacementError
from protocol.placements import PlacementOutcome, Refusal
from protocol.readings import InstanceReading, Readings
from tests.support.api_harness import Api, with_api
from tests.support.fake_ports import NODE, make_card, make_instance, make_plan, make_state
from tests.support.two_nodes import BETA, TwoNodes

HERE = make_instance()
PLAN = make_plan(make_card())
_SHARD = PLAN.shards[0].model_copy(update={"node_id": BETA})
ON_BETA = PLAN.model_copy(update={"shards": (_SHARD,)})
THERE = make_instance(number=2).model_copy(update={"plan": ON_BETA})
REFUSED = Refusal(
    node_id=BETA, error=ErrorBody(code="placement.no_fit", message="beta: 1 GiB too little")
)


def nodes_with(outcome: PlacementOutcome) -> TwoNodes:
    nodes = TwoNodes()
    nodes.alpha.placements.outcome = outcome
    return nodes


async def drained(api: Api, node: str = "alpha", **body: object) -> DrainDocument:
    answer = await api.client.post(f"/v1/nodes/{node}/drain", json=body)
    assert answer.status_code == 200, answer.text
    return read_answer(DrainDocument, answer.content)


def test_a_dry_run_says_what_stops_and_where_it_could_run_and_changes_nothing() -> None:
    nodes = nodes_with(PlacementOutcome(plans=(ON_BETA,)))
    reading = InstanceReading(
        instance_id=HERE.instance_id, node_id=NODE, at_s=0.0, in_flight=2, queued=1, slots=2
    )
    nodes.alpha.readings.readings = Readings(instances={HERE.instance_id: reading})

    async def story(api: Api) -> None:
        shown = await drained(api, dry_run=True)
        assert (shown.node_id, shown.name, shown.is_applied) == (NODE, "alpha", False)
        assert (shown.eligibility, shown.deadline_s, shown.command_id) == ("eligible", 60, None)
        (stops,) = shown.stops
        assert (stops.instance_id, stops.requests, stops.copies) == (HERE.instance_id, 3, 0)
        assert (stops.elsewhere, stops.why_not) == ("beta", None)
        (asked,) = nodes.alpha.placements.asked
        assert (asked.excluded_nodes, asked.context_tokens) == ((NODE,), PLAN.context_tokens)
        assert nodes.alpha.gateway.submitted == []

    with_api(story, nodes.alpha)


def test_a_copy_counts_and_its_node_is_no_place_for_another_one() -> None:
    nodes = nodes_with(PlacementOutcome(plans=(ON_BETA,)))
    members = nodes.state.members
    nodes.alpha.state.state = make_state(HERE, THERE, members=members)

    async def story(api: Api) -> None:
        (stops,) = (await drained(api, dry_run=True)).stops
        assert (stops.copies, stops.elsewhere, stops.why_not) == (1, "", None)

    with_api(story, nodes.alpha)


def test_what_can_run_nowhere_else_says_why() -> None:
    nodes = nodes_with(PlacementOutcome(refusals=(REFUSED,)))

    async def story(api: Api) -> None:
        (stops,) = (await drained(api, dry_run=True)).stops
        assert not stops.elsewhere
        assert stops.why_not is not None
        assert (stops.why_not.code, stops.why_not.message) == (
            "placement.no_fit",
            "beta: 1 GiB too little",
        )

    with_api(story, nodes.alpha)


def test_a_drain_is_one_command_with_what_the_operator_has_seen() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        shown = await drained(api, deadline_s=5, instances=[HERE.instance_id])
        assert (shown.is_applied, shown.deadline_s, shown.durable) == (True, 5, "local")
        (command,) = nodes.alpha.gateway.submitted
        assert isinstance(command, DrainNode)
        assert (command.command_id, command.node_id) == (shown.command_id, NODE)
        assert (command.drain_ms, command.instances) == (5000, (HERE.instance_id,))
        # Without a body it has the usual time; the node may be named by its id, and be another.
        plain = await api.client.post(f"/v1/nodes/{BETA}/drain")
        assert read_answer(DrainDocument, plain.content).deadline_s == 60
        again = nodes.alpha.gateway.submitted[1]
        assert isinstance(again, DrainNode)
        assert (again.node_id, again.drain_ms, again.instances) == (BETA, 60_000, None)

    with_api(story, nodes.alpha)


def test_a_conflict_is_the_masters_word() -> None:
    nodes = TwoNodes()
    nodes.alpha.gateway.refusal = PlacementError("placement.plan_changed", "more runs there")

    async def story(api: Api) -> None:
        answer = await api.client.post("/v1/nodes/alpha/drain", json={"instances": []})
        assert answer.status_code == 409
        error = read_answer(ErrorDocument, answer.content).error
        assert error.skulk_code == "placement.plan_changed"

    with_api(story, nodes.alpha)


def test_the_drain_ends_by_a_command_and_nodes_show_how_far_it_is() -> None:
    nodes = TwoNodes()
    members = dict(nodes.state.members)
    members[NODE] = members[NODE].model_copy(update={"drain_since_ms": 5})
    members[BETA] = members[BETA].model_copy(update={"drain_since_ms": 5})
    stopping = HERE.model_copy(update={"desired": "stopped", "drain_ms": 60_000})
    nodes.alpha.state.state = make_state(stopping, members=members)

    async def story(api: Api) -> None:
        shown = read_answer(NodesDocument, (await api.client.get("/v1/nodes")).content)
        assert [(one.member.name, one.member.eligibility) for one in shown.items] == [
            ("alpha", "draining"),
            ("beta", "drained"),
        ]
        assert (await drained(api, dry_run=True)).stops == ()  # they are stopping already
        ended = await api.client.delete("/v1/nodes/beta/drain")
        assert "beta" in read_answer(CommandAccepted, ended.content).message
        (command,) = nodes.alpha.gateway.submitted
        assert isinstance(command, UndrainNode)
        assert command.node_id == BETA

    with_api(story, nodes.alpha)


@pytest.mark.parametrize(
    "body",
    [
        {"deadline_s": -1},
        {"deadline_s": 86_401},
        {"deadline_s": "soon"},
        {"instances": ["x"]},
        {"typo": 1},
        {"instances": [HERE.instance_id] * 513},
    ],
)
def test_a_drain_out_of_bounds_is_refused(body: dict[str, object]) -> None:
    async def story(api: Api) -> None:
        answer = await api.client.post("/v1/nodes/alpha/drain", json=body)
        assert answer.status_code == 400, answer.text
        assert api.daemon.gateway.submitted == []

    with_api(story, TwoNodes().alpha)


def test_the_drain_of_a_node_that_nobody_knows_names_the_nearest() -> None:
    async def story(api: Api) -> None:
        for method in ("POST", "DELETE"):
            answer = await api.client.request(method, "/v1/nodes/alpa/drain")
            assert answer.status_code == 404
            error = read_answer(ErrorDocument, answer.content).error
            assert (error.skulk_code, error.remediation) == (
                "request.node_not_found",
                "Did you mean 'alpha'?",
            )

    with_api(story, TwoNodes().alpha)
