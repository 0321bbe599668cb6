"""Placing, inspecting, retrying and stopping instances."""

from dataclasses import dataclass
from typing import Any, TypeVar, final

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.cards import ModelCard, card_digest
from protocol.commands import (
    ClearBreaker,
    Command,
    CommandReply,
    MoveInstance,
    PinInstance,
    PlaceInstance,
    RetryInstance,
    StopInstance,
    UnpinInstance,
)
from protocol.control_api import (
    CommandAccepted,
    ExactPlacement,
    ExactPlacementBody,
    PlaceInstanceBody,
    PlacementTerms,
    PreviewsDocument,
)
from protocol.drain_api import MAX_DRAIN_S
from protocol.errors import PlacementError, RequestError, SkulkError, error_of
from protocol.ids import CommandId, InstanceId, ModelId, parse_command_id, parse_model_id
from protocol.instances import DisconnectPolicy, Instance
from protocol.placements import PlacementOutcome, PlacementRequest, Plan, Shape
from protocol.state import ClusterSettings
from skulkd.api.catalog import find_model
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.errors import Attachments, DocumentedError, invalid_body
from skulkd.api.http import Answer, Reply, Request, json_reply
from skulkd.api.json_body import decode_object
from skulkd.api.query import refuse_unknown, whole_number
from skulkd.api.views import instance_view
from skulkd.core.placement.explain import nearest_refusal

BodyT = TypeVar("BodyT", bound=FrozenModel)


@final
class InstanceRoutes:
    """The routes that place models and tell what became of it.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._placing: dict[ModelId, CommandId] = {}

    # ---- Placing ----

    async def place(self, request: Request) -> Answer:
        """`POST /place_instance`: 202 once the placement is desired state."""
        body = await read_body(request, PlaceInstanceBody)
        wanted, terms = placement_request(body), _terms(body, self._deps.state.state.settings)
        command_id = self._claim(request, wanted.model_id)
        try:
            card = await find_card(self._deps, wanted.model_id)
            outcome = await self._deps.placements.preview(wanted, wait_s=self._deps.facts_wait_s)
            plan = chosen_plan(outcome, body.plan_id)
            return await self._submit(command_id, wanted, plan, card, terms)
        finally:
            del self._placing[wanted.model_id]

    async def place_exactly(self, request: Request) -> Answer:
        """`POST /instance`: place one whole plan."""
        body = await read_body(request, ExactPlacementBody)
        terms = _terms(body, self._deps.state.state.settings)
        if body.plan.model_id != body.request.model_id:
            raise RequestError(
                "request.invalid",
                "the plan and the request name different models",
                remediation="Send what GET /instance/placement answered.",
                details={"param": "plan.model_id"},
            )
        command_id = self._claim(request, body.request.model_id)
        try:
            card = await find_card(self._deps, body.request.model_id)
            self._check_digest(body.plan, card)
            return await self._submit(command_id, body.request, body.plan, card, terms)
        finally:
            del self._placing[body.request.model_id]

    async def placement(self, request: Request) -> Answer:
        """`GET /instance/placement`: one whole plan, to look at or to place."""
        wanted = _query_request(request)
        outcome = await self._preview(wanted)
        plan = chosen_plan(outcome, request.query("plan_id"))
        return json_reply(ExactPlacement(request=wanted, plan=plan), camel=True)

    async def previews(self, request: Request) -> Answer:
        """`GET /instance/previews`: all plans and all refusals; 200 also when nothing fits."""
        wanted = _query_request(request)
        card = await find_card(self._deps, wanted.model_id)
        outcome = await self._preview(wanted)
        document = PreviewsDocument(
            model_id=wanted.model_id,
            card_digest=card_digest(card),
            request=wanted,
            plans=outcome.plans,
            refusals=outcome.refusals,
            missing_facts=outcome.missing_facts,
        )
        return json_reply(document, camel=True)

    # ---- One instance ----

    async def show(self, request: Request) -> Answer:
        """`GET /instance/{instance_id}`."""
        instance = find_instance(self._deps, request)
        now = self._deps.clock.monotonic_s()
        view = instance_view(
            instance,
            self._deps.readings.readings,
            now=now,
            is_reachable=self._deps.is_reachable,
        )
        return json_reply(view, camel=True)

    async def stop(self, request: Request) -> Answer:
        """`DELETE /instance/{instance_id}`: now, or once it has answered (`drain_s`)."""
        refuse_unknown(request, {"drain_s"})
        instance = find_instance(self._deps, request)
        drain_s = whole_number(request, "drain_s", 0)
        if drain_s > MAX_DRAIN_S:
            raise RequestError(
                "request.invalid",
                f"`drain_s` is {drain_s}, the most is {MAX_DRAIN_S}",
                remediation="Give the seconds that running requests may take to end.",
                details={"param": "drain_s"},
            )
        command = StopInstance(
            command_id=mint(self._deps, request),
            instance_id=instance.instance_id,
            drain_ms=drain_s * 1000,
        )
        at_latest = f" once it has answered, in {drain_s} s at the latest" if drain_s else ""
        return await self._about(instance, command, f"Stopping{at_latest}.")

    async def retry(self, request: Request) -> Answer:
        """`POST /instance/{instance_id}/retry`: another attempt, now, of one that is not ready."""
        instance = find_instance(self._deps, request)
        if instance.phase == "ready":
            # It would end every stream of a healthy engine.
            raise PlacementError(
                "placement.already_live",
                f"instance {instance.instance_id} of {instance.model_id} is ready; there is "
                "nothing to try again",
                remediation=f"To start it anew: `skulk stop {instance.instance_id}`, then place "
                "the model.",
                details={"instance_id": instance.instance_id, "phase": instance.phase},
            )
        command = RetryInstance(
            command_id=mint(self._deps, request),
            instance_id=instance.instance_id,
            after_attempt=instance.attempt,
        )
        return await self._about(instance, command, "Trying again.")

    async def clear_breaker(self, request: Request) -> Answer:
        """`POST /instance/{instance_id}/clear-breaker`: its relaunches so far do not count."""
        instance = find_instance(self._deps, request)
        command = ClearBreaker(
            command_id=mint(self._deps, request), instance_id=instance.instance_id
        )
        return await self._about(instance, command, "Its failures so far do not count any more.")

    async def pin(self, request: Request) -> Answer:
        """`POST /instance/{instance_id}/pin`: it stays loaded, and no drain takes it along."""
        instance = find_instance(self._deps, request)
        command = PinInstance(
            command_id=mint(self._deps, request), instance_id=instance.instance_id
        )
        return await self._about(instance, command, "It stays loaded from now on.")

    async def unpin(self, request: Request) -> Answer:
        """`DELETE /instance/{instance_id}/pin`: it is as any other again."""
        instance = find_instance(self._deps, request)
        command = UnpinInstance(
            command_id=mint(self._deps, request), instance_id=instance.instance_id
        )
        return await self._about(instance, command, "It is pinned no more.")

    # ---- Parts ----

    def _claim(self, request: Request, model_id: ModelId) -> CommandId:
        """Claim the single flight of a model's placement; nothing may be awaited before this."""
        running = self._placing.get(model_id)
        if running is not None:
            raise PlacementError(
                "placement.busy",
                f"{model_id} is being placed by {running}",
                remediation="Wait for it: skulk ps",
                details={"command_id": running},
            )
        command_id = mint(self._deps, request)
        self._placing[model_id] = command_id
        return command_id

    async def _preview(self, wanted: PlacementRequest) -> PlacementOutcome:
        return await self._deps.placements.preview(wanted, wait_s=self._deps.facts_wait_s)

    def _check_digest(self, plan: Plan, card: ModelCard) -> None:
        if plan.card_digest != card_digest(card):
            raise PlacementError(
                "placement.card_changed",
                f"the card of {plan.model_id} is not the one the plan was made with",
                remediation="Ask for a new plan: GET /instance/previews.",
                details={"plan_digest": plan.card_digest, "card_digest": card_digest(card)},
            )

    async def _submit(
        self,
        command_id: CommandId,
        wanted: PlacementRequest,
        plan: Plan,
        card: ModelCard,
        terms: "_Terms",
    ) -> Reply:
        command = PlaceInstance(
            command_id=command_id,
            request=wanted,
            plan=plan,
            card=card,
            ttl_ms=terms.ttl_ms,
            priority=terms.priority,
            disconnect=terms.disconnect,
        )
        reply = await submit_plan(self._deps, command)
        accepted = CommandAccepted(
            message=f"Placing {wanted.model_id}."
            if terms.ttl_ms is None
            else f"{wanted.model_id} is loaded when a request asks for it.",
            command_id=command_id,
            instance_id=InstanceId(command_id),
            model_id=wanted.model_id,
            plan=plan,
            durable=reply.durable,
            term=reply.term,
            seq=reply.seq,
        )
        return json_reply(accepted, status=202)

    async def _about(self, instance: Instance, command: Command, message: str) -> Reply:
        try:
            reply = await self._deps.gateway.submit(command)
        except PlacementError as error:
            if error.code != "placement.not_live" or not isinstance(command, StopInstance):
                raise
            # It has gone, and the replica has yet to hear of it; then the answer would be this.
            raise _unknown_instance(instance.instance_id) from error
        accepted = CommandAccepted(
            message=message,
            command_id=command.command_id,
            instance_id=instance.instance_id,
            model_id=instance.model_id,
            durable=reply.durable,
            term=reply.term,
            seq=reply.seq,
        )
        return json_reply(accepted, status=202)


async def find_card(deps: ApiDependencies, model_id: ModelId) -> ModelCard:
    """Find the card that a placement of the model would take.

    Raises:
        PlacementError: `placement.unknown_model`.
    """
    item = await find_model(deps.models, deps.state.state, model_id)
    if item is None:
        raise unknown_model(model_id)
    return item.card


def find_instance(deps: ApiDependencies, request: Request) -> Instance:
    """Find the instance that a route's path names.

    Raises:
        RequestError: `request.not_found`.
        SkulkError: Why it could not be placed, when that is how it ended.
    """
    instance_id = InstanceId(parse_command_id(request.params["instance_id"]))
    state = deps.state.state
    instance = state.instances.get(instance_id)
    if instance is not None:
        return instance
    for failure in state.placement_failures:
        if failure.instance_id == instance_id:
            raise error_of(failure.error)
    raise _unknown_instance(instance_id)


async def submit_plan(deps: ApiDependencies, command: PlaceInstance | MoveInstance) -> CommandReply:
    """Hand a plan to the master; where it holds no more, the error shows the plan of now.

    Raises:
        SkulkError: What the master refuses it with.
    """
    try:
        return await deps.gateway.submit(command)
    except SkulkError as error:
        if error.code != "placement.plan_changed":
            raise
        outcome = await deps.placements.preview(command.request, wait_s=0)
        fresh = outcome.plans[0] if outcome.plans else None
        documents = Attachments(plan=fresh, refusals=outcome.refusals)
        raise DocumentedError(error, documents) from error


def _unknown_instance(instance_id: InstanceId) -> RequestError:
    return RequestError(
        "request.not_found",
        f"there is no instance {instance_id}",
        remediation="See `skulk ps`.",
    )


async def read_body(request: Request, kind: type[BodyT], *, is_optional: bool = False) -> BodyT:
    """Read a control route's body, strictly; an absent one counts as `{}` where it is optional.

    Raises:
        RequestError: `request.content_type`, `request.invalid`, naming each field.
    """
    body = await request.body()
    if is_optional and not body:
        return kind()
    declared = (request.headers.get(b"content-type") or b"").partition(b";")[0].strip().lower()
    if declared != b"application/json":
        # A page can send forms and plain text across origins without asking, but not this.
        raise RequestError(
            "request.content_type",
            "this route takes application/json only",
            remediation="Send the header Content-Type: application/json.",
        )
    fields = await decode_object(body)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error, kind) from error


def mint(deps: ApiDependencies, request: Request) -> CommandId:
    """Mint the id of what a request causes; a node that asks for a client has minted it."""
    if request.command_id is not None:
        return request.command_id
    command_id = deps.gateway.mint_command_id()
    request.command_id = command_id
    return command_id


def unknown_model(model_id: str) -> PlacementError:
    """Give the error for a model that no card names."""
    return PlacementError(
        "placement.unknown_model",
        f"no card names the model {model_id}",
        remediation="See `skulk models list`, or import a file: skulk models import PATH",
        details={"param": "model_id"},
    )


def placement_request(body: PlaceInstanceBody) -> PlacementRequest:
    """Turn the original's words for a placement into ours."""
    shape: Shape | None = body.shape
    if shape is None:
        if body.instance_meta == "LlamaRpc":
            shape = "rpc"
        elif body.sharding == "Tensor":
            shape = "tensor"
        elif body.sharding == "Pipeline" and body.min_nodes > 1:
            shape = "pipeline"
    return PlacementRequest(
        model_id=body.model_id,
        nodes=body.nodes,
        excluded_nodes=body.excluded_nodes,
        min_nodes=body.min_nodes,
        shape=shape,
        backend=body.backend,
        context_tokens=body.context_tokens,
        slots=body.slots,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """How an instance is placed, whatever the plan is."""

    ttl_ms: int | None
    priority: int
    disconnect: DisconnectPolicy


def _terms(body: PlacementTerms, settings: ClusterSettings) -> _Terms:
    """Read whether it is on demand, and what becomes of it when it cannot go on.

    Raises:
        RequestError: `request.invalid`.
    """
    stop_after_s = body.stop_after_s
    return _Terms(
        ttl_ms=_ttl_ms(body, settings),
        priority=body.priority,
        disconnect=DisconnectPolicy(
            lost_after_ms=body.lost_after_s * 1000,
            replace=body.replace,
            stop_after_ms=None if stop_after_s is None else stop_after_s * 1000,
        ),
    )


def _ttl_ms(body: PlacementTerms, settings: ClusterSettings) -> int | None:
    """Read how an instance is placed: on demand, or always loaded.

    Raises:
        RequestError: `request.invalid`.
    """
    if body.on_demand:
        return 1000 * (body.ttl_s or settings.on_demand_ttl_s)
    if body.ttl_s is not None:
        raise RequestError(
            "request.invalid",
            f"`ttl_s` is {body.ttl_s}, and the model is not placed on demand",
            remediation="Set `on_demand` too, or leave `ttl_s` out.",
            details={"param": "ttl_s"},
        )
    return None


_QUERY_LISTS = {"node_ids": "nodes", "excluded_node_ids": "excluded_nodes"}
_QUERY_FIELDS = frozenset({
    "model_id", "sharding", "instance_meta", "min_nodes", "shape", "backend", "context_tokens",
    "slots",
})  # fmt: skip


def _query_request(request: Request) -> PlacementRequest:
    fields: dict[str, Any] = {}
    refuse_unknown(request, _QUERY_FIELDS | set(_QUERY_LISTS) | {"plan_id"})
    for name in request.query_names() - {"plan_id"}:
        if name in _QUERY_LISTS:
            fields[_QUERY_LISTS[name]] = tuple(request.query_all(name))
        else:
            fields[name] = request.query(name)
    if "model_id" in fields:
        parse_model_id(str(fields["model_id"]))
    try:
        return placement_request(PlaceInstanceBody.model_validate(fields))
    except ValidationError as error:
        raise invalid_body(error, PlaceInstanceBody) from error


def chosen_plan(outcome: PlacementOutcome, plan_id: str | None) -> Plan:
    """Take the plan that was asked for, or the best one.

    Raises:
        DocumentedError: `placement.facts_missing`, `placement.plan_changed`, or the nearest
            refusal with the arithmetic of all.
    """
    documents = Attachments(refusals=outcome.refusals, missing_facts=outcome.missing_facts)
    if outcome.plans:
        for plan in outcome.plans:
            if plan_id in {None, plan.plan_id}:
                return plan
        changed = PlacementError(
            "placement.plan_changed",
            "the facts that the plan was made with no longer hold",
            remediation="Look at the new plan and place it by its id.",
            details={"plan_id": outcome.plans[0].plan_id},
        )
        raise DocumentedError(changed, Attachments(plan=outcome.plans[0]))
    if outcome.missing_facts:
        missing = PlacementError(
            "placement.facts_missing",
            f"still unknown: {', '.join(outcome.missing_facts)}",
            remediation="Try again shortly.",
            retry_after_s=5,
        )
        raise DocumentedError(missing, documents)
    if not outcome.refusals:
        raise PlacementError(
            "placement.no_node",
            "no node may hold the model: all are excluded, or none takes models",
            remediation="Exclude fewer nodes; see `skulk status`.",
        )
    raise DocumentedError(error_of(nearest_refusal(outcome.refusals).error), documents)
