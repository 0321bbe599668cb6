"""Moving instances over the API."""

import pytest

from protocol.commands import MoveInstance
from protocol.control_api import CommandAccepted, ErrorDocument, InstanceView, read_answer
from protocol.errors import ErrorBody, PlacementError
from protocol.ids import NodeId, node_id_of
from protocol.instances import Instance, LaunchRecord, Replacement
from protocol.move_api import MoveDocument
from protocol.nodes import Member
from protocol.placements import PlacementOutcome, Plan, Refusal
from protocol.readings import InstanceReading, Readings
from protocol.state import ClusterState
from tests.support.api_harness import Api, with_api
from tests.support.builders import a_digest
from tests.support.fake_ports import MODEL, NODE, FakeDaemon, make_card, make_instance, make_plan

OTHER = node_id_of(b"another")
THIRD = node_id_of(b"a third")
OLD = make_instance()
PATH = f"/instance/{OLD.instance_id}/move"


def a_plan_on(node_id: NodeId, *, plan: str = "2") -> Plan:
    made = make_plan(make_card(), plan=plan)
    shard = made.shards[0].model_copy(update={"node_id": node_id})
    return made.model_copy(update={"shards": (shard,)})


PLAN = a_plan_on(OTHER)
STOPPED_FIRST = (
    "alpha is stopped first: it takes no more requests, and those under way may take up to 60 s."
)
BACK = "--nodes alpha --context 512 --slots 1"
TOO_SMALL = Refusal(node_id=THIRD, error=ErrorBody(code="placement.no_fit", message="too small"))
OWN = Refusal(node_id=NODE, error=ErrorBody(code="placement.no_node", message="was excluded"))


def a_cluster(*instances: Instance) -> ClusterState:
    state = FakeDaemon(*(instances or (OLD,))).state.state
    members = dict(state.members)
    for node_id, name in ((OTHER, "beta"), (THIRD, "gamma")):
        members[node_id] = Member(node_id=node_id, name=name, public_key=a_digest(name))
    return state.model_copy(update={"members": members})


def a_daemon(state: ClusterState | None = None, *plans: Plan) -> FakeDaemon:
    daemon = FakeDaemon()
    daemon.state.state = state or a_cluster()
    daemon.placements.outcome = PlacementOutcome(plans=plans or (PLAN,), refusals=(TOO_SMALL, OWN))
    return daemon


def loaded_once(state: ClusterState) -> ClusterState:
    launch = LaunchRecord(
        context_tokens=512, slots=1, argv_digest=a_digest("argv"), ready_at_ms=1, load_ms=11_800
    )
    return state.model_copy(update={"launches": {MODEL: launch}})


def test_a_look_says_where_to_and_what_it_means_and_changes_nothing() -> None:
    daemon = a_daemon()
    daemon.readings.readings = Readings(
        instances={
            OLD.instance_id: InstanceReading(
                instance_id=OLD.instance_id, node_id=NODE, in_flight=2, queued=1, slots=1, at_s=0.0
            )
        }
    )

    async def story(api: Api) -> None:
        reply = await api.client.get(PATH, params={"node_ids": [OTHER, THIRD], "drain_s": 30})
        assert reply.status_code == 200
        assert "fromNodes" in reply.json()
        look = read_answer(MoveDocument, reply.content)
        assert (look.plans, look.refusals) == ((PLAN,), (TOO_SMALL,))
        assert (look.from_nodes, look.in_flight, look.drain_s) == ((NODE,), 3, 30)
        assert look.consequences == (
            "alpha goes on serving until beta is ready; then requests go to beta.",
            "Requests that alpha is answering then may take up to 30 s.",
        )
        asked = daemon.placements.asked[-1]
        assert (asked.nodes, asked.excluded_nodes) == ((OTHER, THIRD), (NODE,))
        assert (asked.context_tokens, asked.slots) == (512, 1)
        assert not daemon.gateway.submitted

    with_api(story, daemon)


def test_a_look_at_stop_first_names_the_gap_and_the_way_back() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.get(PATH, params={"stop_first": "true"})
        look = read_answer(MoveDocument, reply.content)
        assert look.last_load_ms == 11_800
        assert look.consequences == (
            STOPPED_FIRST,
            f"Then nobody serves {MODEL} (loading took 12 s the last time) until beta is ready.",
            f"Should it not load on beta: skulk place {MODEL} {BACK}",
        )

    with_api(story, a_daemon(loaded_once(a_cluster())))


def test_a_look_at_stop_first_counts_the_copies_that_go_on() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.get(PATH, params={"stop_first": "true"})
        look = read_answer(MoveDocument, reply.content)
        assert f"only other copies (1) serve {MODEL}" in look.consequences[1]

    with_api(story, a_daemon(a_cluster(OLD, make_instance(number=2))))


def test_what_fits_nowhere_is_shown_with_its_reasons_and_refused_when_done() -> None:
    daemon = a_daemon()
    daemon.placements.outcome = PlacementOutcome(refusals=(OWN, TOO_SMALL))

    async def story(api: Api) -> None:
        look = await api.client.get(PATH, params={"node_ids": THIRD})
        assert read_answer(MoveDocument, look.content).refusals == (TOO_SMALL,)
        refused = await api.client.post(PATH, json={"node_ids": [THIRD]})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "placement.no_fit"

    with_api(story, daemon)


def test_moving_submits_the_plan_that_was_looked_at() -> None:
    daemon = a_daemon(None, a_plan_on(THIRD, plan="3"), PLAN)

    async def story(api: Api) -> None:
        body = {"node_ids": [OTHER], "plan_id": PLAN.plan_id, "stop_first": True, "drain_s": 5}
        reply = await api.client.post(PATH, json=body)
        assert reply.status_code == 202
        accepted = read_answer(CommandAccepted, reply.content)
        assert accepted.instance_id == accepted.command_id
        assert accepted.plan == PLAN
        (command,) = daemon.gateway.submitted
        assert isinstance(command, MoveInstance)
        assert (command.instance_id, command.plan) == (OLD.instance_id, PLAN)
        assert (command.stop_first, command.drain_ms) == (True, 5000)

    with_api(story, daemon)


def test_a_plan_that_holds_no_more_is_409_with_the_plan_of_now() -> None:
    daemon = a_daemon()

    async def story(api: Api) -> None:
        old = await api.client.post(PATH, json={"plan_id": "9" * 64})
        daemon.gateway.refusal = PlacementError("placement.plan_changed", "moved on")
        late = await api.client.post(PATH, json={"plan_id": PLAN.plan_id})
        for reply in (old, late):
            assert reply.status_code == 409
            assert read_answer(ErrorDocument, reply.content).error.plan == PLAN

    with_api(story, daemon)


def test_where_it_is_already_is_refused_and_named_with_others_it_is_left_out() -> None:
    daemon = a_daemon()

    async def story(api: Api) -> None:
        refused = await api.client.get(PATH, params={"node_ids": NODE})
        assert refused.status_code == 409
        assert "is on alpha already" in refused.json()["error"]["message"]
        both = await api.client.get(PATH, params={"node_ids": [NODE, OTHER]})
        assert both.status_code == 200
        assert daemon.placements.asked[-1].nodes == (OTHER,)

    with_api(story, daemon)


def test_one_that_is_being_moved_says_so_and_shows_what_it_replaces() -> None:
    new = make_instance("load", number=2)
    replaces = Replacement(instance_id=OLD.instance_id, drain_ms=60_000)
    new = new.model_copy(update={"replaces": replaces, "moved_from": (NODE,), "plan": PLAN})

    async def story(api: Api) -> None:
        refused = await api.client.post(PATH)
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "placement.busy"
        shown = await api.client.get(f"/instance/{new.instance_id}")
        view = read_answer(InstanceView, shown.content)
        assert (view.replaces, view.moved_from) == (replaces, (NODE,))

    with_api(story, a_daemon(a_cluster(OLD, new)))


@pytest.mark.parametrize(
    "query",
    [{"drain_s": "-1"}, {"drain_s": "86401"}, {"stop_first": "maybe"}, {"node_ids": "x"}, {"a": 1}],
)
def test_a_query_that_cannot_be_meant_is_refused(query: dict[str, str | int]) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.get(PATH, params=query)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "request.invalid"

    with_api(story, a_daemon())


def test_an_instance_that_nobody_knows_is_404() -> None:
    async def story(api: Api) -> None:
        for method in ("GET", "POST"):
            reply = await api.client.request(method, "/instance/bbbbbb-bbbbbbbbbbbbbbbbbbbb/move")
            assert reply.status_code == 404

    with_api(story, a_daemon())
