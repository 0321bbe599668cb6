"""Moving an instance to other nodes: what it would mean, and doing it."""

from typing import Any, Final, final

from pydantic import ValidationError

from protocol.commands import MoveInstance
from protocol.control_api import CommandAccepted
from protocol.ids import InstanceId
from protocol.instances import Instance
from protocol.move_api import MoveDocument, MoveInstanceBody
from protocol.placements import PlacementOutcome, PlacementRequest, Plan
from protocol.state import ClusterState
from skulkd.api.control import chosen_plan, find_card, find_instance, mint, read_body, submit_plan
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.errors import invalid_body
from skulkd.api.http import Answer, Request, json_reply
from skulkd.api.query import refuse_unknown
from skulkd.core.move_decisions import check_movable, nodes_of, refuse_own_nodes
from skulkd.core.placement.explain import size_text

_QUERY: Final = frozenset({"node_ids", "stop_first", "drain_s"})


@final
class MoveRoutes:
    """The routes that move an instance.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def preview(self, request: Request) -> Answer:
        """`GET /instance/{instance_id}/move`: 200 also when it fits nowhere else."""
        body = _query_body(request)
        old, wanted = self._wanted(request, body)
        outcome = await self._plan(wanted)
        document = move_document(
            self._deps.state.state, old, body, wanted, outcome, in_flight=self._in_flight(old)
        )
        return json_reply(document, camel=True)

    async def move(self, request: Request) -> Answer:
        """`POST /instance/{instance_id}/move`: 202 once the new instance is desired state."""
        body = await read_body(request, MoveInstanceBody, is_optional=True)
        old, wanted = self._wanted(request, body)
        card = await find_card(self._deps, old.model_id)
        plan = chosen_plan(await self._plan(wanted), body.plan_id)
        command = MoveInstance(
            command_id=mint(self._deps, request),
            instance_id=old.instance_id,
            request=wanted,
            plan=plan,
            card=card,
            stop_first=body.stop_first,
            drain_ms=body.drain_s * 1000,
        )
        reply = await submit_plan(self._deps, command)
        accepted = CommandAccepted(
            message=f"Moving {old.model_id}.",
            command_id=command.command_id,
            instance_id=InstanceId(command.command_id),
            model_id=old.model_id,
            plan=plan,
            durable=reply.durable,
            term=reply.term,
            seq=reply.seq,
        )
        return json_reply(accepted, status=202)

    def _wanted(
        self, request: Request, body: MoveInstanceBody
    ) -> tuple[Instance, PlacementRequest]:
        """Ask for the same window and as many slots, on any of the named nodes."""
        state = self._deps.state.state
        old = check_movable(state, find_instance(self._deps, request).instance_id)
        own = nodes_of(old)
        elsewhere = tuple(node_id for node_id in body.node_ids if node_id not in own)
        if body.node_ids and not elsewhere:
            refuse_own_nodes(state, old, body.node_ids)
        wanted = PlacementRequest(
            model_id=old.model_id,
            nodes=elsewhere,
            excluded_nodes=own,
            context_tokens=old.plan.context_tokens,
            slots=old.plan.slots,
        )
        return old, wanted

    async def _plan(self, wanted: PlacementRequest) -> PlacementOutcome:
        """Plan; where nodes were named, only what is said of those is of interest."""
        deps = self._deps
        outcome = await deps.placements.preview(wanted, wait_s=deps.facts_wait_s)
        about = {None, *wanted.nodes}
        refusals = tuple(
            refusal
            for refusal in outcome.refusals
            if refusal.node_id not in wanted.excluded_nodes
            and (not wanted.nodes or refusal.node_id in about)
        )
        return outcome.model_copy(update={"refusals": refusals})

    def _in_flight(self, old: Instance) -> int | None:
        reading = self._deps.readings.readings.instances.get(old.instance_id)
        return None if reading is None else reading.in_flight + reading.queued


def move_document(
    state: ClusterState,
    old: Instance,
    body: MoveInstanceBody,
    wanted: PlacementRequest,
    outcome: PlacementOutcome,
    *,
    in_flight: int | None,
) -> MoveDocument:
    """Say where an instance could go, and what moving it to the best place means. Pure."""
    launch = state.launches.get(old.model_id)
    load_ms = None if launch is None else launch.load_ms
    return MoveDocument(
        instance_id=old.instance_id,
        model_id=old.model_id,
        from_nodes=nodes_of(old),
        in_flight=in_flight,
        stop_first=body.stop_first,
        drain_s=body.drain_s,
        last_load_ms=load_ms,
        request=wanted,
        plans=outcome.plans,
        refusals=outcome.refusals,
        missing_facts=outcome.missing_facts,
        consequences=tuple(_consequences(state, old, body, outcome.plans[0], load_ms))
        if outcome.plans
        else (),
    )


def _consequences(
    state: ClusterState, old: Instance, body: MoveInstanceBody, plan: Plan, load_ms: int | None
) -> list[str]:
    there, here = _names(state, old.plan), _names(state, plan)
    late = f"may take up to {body.drain_s} s" if body.drain_s else "are ended with an error"
    if old.phase == "failed":
        return [f"It failed on {there}, and is forgotten there once {here} is ready."]
    if not body.stop_first:
        return [
            f"{there} goes on serving until {here} is ready; then requests go to {here}.",
            f"Requests that {there} is answering then {late}.",
        ]
    gap = _gap(state, old, plan, load_ms)
    back = f"--nodes {there} --context {plan.context_tokens} --slots {plan.slots}"
    return [
        f"{there} is stopped first: it takes no more requests, and those under way {late}.",
        f"Then {gap} until {here} is ready.",
        f"Should it not load on {here}: skulk place {old.model_id} {back}",
    ]


def _gap(state: ClusterState, old: Instance, plan: Plan, load_ms: int | None) -> str:
    """Say who serves while neither of the two does, and for how long that is."""
    copies = [
        other.instance_id
        for other in state.instances.values()
        if other.model_id == old.model_id and other.phase == "ready" and other is not old
    ]
    if copies:
        return f"only other copies ({len(copies)}) serve {old.model_id}"
    took = "how long that takes has not been measured"
    if load_ms is not None:
        took = f"loading took {max(1, round(load_ms / 1000))} s the last time"
    if plan.download_bytes:
        took = f"{size_text(plan.download_bytes)} have to be fetched, and {took}"
    return f"nobody serves {old.model_id} ({took})"


def _names(state: ClusterState, plan: Plan) -> str:
    members = state.members
    return ",".join(
        members[shard.node_id].name if shard.node_id in members else shard.node_id
        for shard in plan.shards
    )


def _query_body(request: Request) -> MoveInstanceBody:
    refuse_unknown(request, _QUERY)
    fields: dict[str, Any] = {"node_ids": tuple(request.query_all("node_ids"))}
    for name in ("stop_first", "drain_s"):
        text = request.query(name)
        if text is not None:
            fields[name] = text
    try:
        return MoveInstanceBody.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error, MoveInstanceBody) from error
