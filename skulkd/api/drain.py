"""Draining a node, and ending that."""

from typing import final

from protocol.commands import DrainNode, UndrainNode
from protocol.control_api import CommandAccepted
from protocol.drain_api import DrainBody, DrainDocument, DrainedInstance
from protocol.errors import ErrorBody, SkulkError
from protocol.ids import NodeId
from protocol.instances import Instance
from protocol.placements import PlacementRequest
from skulkd.api.control import mint, read_body
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Request, json_reply
from skulkd.api.node_names import find_node, name_of
from skulkd.core.drain_decisions import eligibility_of, live_on
from skulkd.core.move_decisions import nodes_of
from skulkd.core.placement.explain import outcome_error


@final
class DrainRoutes:
    """The routes that take a node out of placing, and let it in again.

    Any node answers for any other: the word is the master's, and a node that is away can be drained
    as well, which then stops what it has when it is back.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def drain(self, request: Request) -> Answer:
        """`POST /v1/nodes/{node}/drain`: place nothing there, stop what runs there in order."""
        body, deps = await read_body(request, DrainBody, is_optional=True), self._deps
        state = deps.state.state
        node_id = find_node(state, request.params["node"])
        stops = [
            await self._stopped(instance, node_id)
            for instance in tuple(live_on(state, node_id))
            if instance.desired != "stopped"
        ]
        document = DrainDocument(
            node_id=node_id,
            name=name_of(state, node_id),
            eligibility=eligibility_of(state, node_id),
            deadline_s=body.deadline_s,
            is_applied=not body.dry_run,
            stops=tuple(stops),
            term=state.term,
            seq=state.seq,
        )
        if body.dry_run:
            return json_reply(document)
        command = DrainNode(
            command_id=mint(deps, request),
            node_id=node_id,
            drain_ms=body.deadline_s * 1000,
            instances=body.instances,
        )
        reply = await deps.gateway.submit(command)
        applied = {
            "command_id": command.command_id,
            "durable": reply.durable,
            "term": reply.term,
            "seq": reply.seq,
        }
        return json_reply(document.model_copy(update=applied))

    async def undrain(self, request: Request) -> Answer:
        """`DELETE /v1/nodes/{node}/drain`: models may be placed there again."""
        deps, state = self._deps, self._deps.state.state
        node_id = find_node(state, request.params["node"])
        command = UndrainNode(command_id=mint(deps, request), node_id=node_id)
        reply = await deps.gateway.submit(command)
        return json_reply(
            CommandAccepted(
                message=f"Models may be placed on {name_of(state, node_id)} again.",
                command_id=command.command_id,
                durable=reply.durable,
                term=reply.term,
                seq=reply.seq,
            )
        )

    async def _stopped(self, instance: Instance, node_id: NodeId) -> DrainedInstance:
        deps = self._deps
        reading = deps.readings.readings.instances.get(instance.instance_id)
        others = [
            other
            for other in deps.state.state.instances.values()
            if other.model_id == instance.model_id and node_id not in nodes_of(other)
        ]
        elsewhere, why_not = await self._elsewhere(instance, node_id, others)
        return DrainedInstance(
            instance_id=instance.instance_id,
            model_id=instance.model_id,
            phase=instance.phase,
            pinned=instance.pinned,
            requests=None if reading is None else reading.in_flight + reading.queued,
            copies=sum(other.phase == "ready" for other in others),
            elsewhere=elsewhere,
            why_not=why_not,
        )

    async def _elsewhere(
        self, instance: Instance, node_id: NodeId, others: list[Instance]
    ) -> tuple[str, ErrorBody | None]:
        """Name the node that could take an instance as it is, or say why none could."""
        taken = {shard for other in others for shard in nodes_of(other)}
        wanted = PlacementRequest(
            model_id=instance.model_id,
            excluded_nodes=(node_id,),
            context_tokens=instance.plan.context_tokens,
            slots=instance.plan.slots,
        )
        try:
            outcome = await self._deps.placements.preview(wanted, wait_s=0)
        except SkulkError as error:
            return "", error.body()
        for made in outcome.plans:
            nodes = [shard.node_id for shard in made.shards]
            if taken.isdisjoint(nodes):
                return name_of(self._deps.state.state, nodes[0]), None
        if outcome.plans:
            return "", None  # every node that could take it has a copy already
        return "", outcome_error(outcome, instance.model_id).body()
