"""What an operator asks a planner for, as a query, as a body, and as a `skulk` line; pure.

The command line and the terminal UI ask alike, so that the line that one shows is what the other
sends.
"""

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, final

from protocol.control_api import PlaceInstanceBody, PreviewsDocument
from protocol.errors import ClientError, PlacementError, SkulkError, error_of
from protocol.ids import Digest, ModelId, NodeId
from protocol.instances import MAX_TTL_S, DisconnectPolicy
from protocol.move_api import MoveDocument
from protocol.placements import Plan, Shape
from skulk_tui.client import Query
from skulk_tui.formatting import joined

BACKEND_FORM: Final = re.compile(
    r"^(scripted|llama_server|llama_cpp|mlx|vllm)(-(cpu|cuda|rocm|vulkan|metal))?$"
)
PLAN_ID_SHOWN: Final = 12
"""Digits of a plan's id; `--plan` takes the start of one."""
CONTEXT_BOUNDS: Final = (256, 1 << 24)
"""Tokens of one request's window."""
SLOTS_BOUNDS: Final = (1, 256)
PRIORITY_BOUNDS: Final = (-100, 100)
"""Of idle on-demand models: the lowest makes room first."""
TTL_BOUNDS: Final = (1, MAX_TTL_S)
"""Seconds that an on-demand instance stays loaded after a request."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the operator asks for; everything left out is the planner's choice."""

    model_id: ModelId
    nodes: tuple[NodeId, ...] = ()
    excluded_nodes: tuple[NodeId, ...] = ()
    min_nodes: int = 1
    shape: Shape | None = None
    backend: str | None = None
    context_tokens: int | None = None
    slots: int | None = None
    on_demand: bool = False
    """Loaded when a request asks for it; else always."""
    ttl_s: int | None = None
    """On demand: its time to live; None leaves it to the cluster's settings."""
    priority: int = 0
    """Of idle on-demand models, the lowest makes room first."""
    disconnect: DisconnectPolicy = field(default_factory=DisconnectPolicy)
    """What becomes of it when it cannot go on where it is."""

    def query(self) -> Query:
        """Write it as the query of `/instance/previews`."""
        query: dict[str, str | tuple[str, ...]] = {"model_id": self.model_id}
        if self.nodes:
            query["node_ids"] = self.nodes
        if self.excluded_nodes:
            query["excluded_node_ids"] = self.excluded_nodes
        chosen = {
            "min_nodes": self.min_nodes if self.min_nodes > 1 else None,
            "shape": self.shape,
            "backend": self.backend,
            "context_tokens": self.context_tokens,
            "slots": self.slots,
        }
        query.update({name: str(value) for name, value in chosen.items() if value is not None})
        return query

    def body(self, plan_id: Digest | None) -> PlaceInstanceBody:
        """Write it as the body of `POST /place_instance`."""
        stop_after_ms = self.disconnect.stop_after_ms
        return PlaceInstanceBody(
            model_id=self.model_id,
            nodes=self.nodes,
            excluded_nodes=self.excluded_nodes,
            min_nodes=self.min_nodes,
            shape=self.shape,
            backend=self.backend,
            context_tokens=self.context_tokens,
            slots=self.slots,
            on_demand=self.on_demand,
            ttl_s=self.ttl_s,
            priority=self.priority,
            lost_after_s=self.disconnect.lost_after_ms // 1000,
            replace=self.disconnect.replace,
            stop_after_s=None if stop_after_ms is None else stop_after_ms // 1000,
            plan_id=plan_id,
        )

    def cli(self, name_of: Callable[[NodeId], str], plan_id: Digest | None = None) -> str:
        """Write it as a `skulk` line, safe to paste into a shell.

        Args:
            name_of: Gives a node's name, or its id where the name is of no use in a command.
            plan_id: Of the plan to take exactly.
        """
        words = ["skulk", "place", self.model_id]
        for option, nodes in (("--nodes", self.nodes), ("--exclude", self.excluded_nodes)):
            if nodes:
                words += [option, ",".join(name_of(node_id) for node_id in nodes)]
        chosen = (
            ("--min-nodes", self.min_nodes if self.min_nodes > 1 else None),
            ("--shape", self.shape),
            ("--backend", self.backend),
            ("--context", self.context_tokens),
            ("--slots", self.slots),
            ("--plan", None if plan_id is None else plan_id[:PLAN_ID_SHOWN]),
        )
        for option, value in chosen:
            if value is not None:
                words += [option, str(value)]
        if self.on_demand:
            words.append("--on-demand")
        if self.ttl_s is not None:
            words += ["--ttl", f"{self.ttl_s}s"]
        if self.priority:
            words += ["--priority", str(self.priority)]
        words += disconnect_words(self.disconnect)
        return " ".join(shlex.quote(word) for word in words)

    def with_context(self, tokens: int | None) -> "Wish":
        """Ask for another window; out of bounds it is the nearest that may be asked for."""
        if tokens is not None:
            tokens = max(CONTEXT_BOUNDS[0], min(tokens, CONTEXT_BOUNDS[1]))
        return replace(self, context_tokens=tokens)

    def with_slots(self, slots: int | None) -> "Wish":
        """Ask for another number of slots; out of bounds it is the nearest."""
        if slots is not None:
            slots = max(SLOTS_BOUNDS[0], min(slots, SLOTS_BOUNDS[1]))
        return replace(self, slots=slots)

    def without(self, nodes: Iterable[NodeId]) -> "Wish":
        """Leave out some nodes, besides those that are left out already."""
        excluded = tuple(dict.fromkeys((*self.excluded_nodes, *nodes)))
        return replace(self, excluded_nodes=excluded)

    def toggled(self, node_id: NodeId) -> "Wish":
        """Pick a node, or take it back; one that was excluded is picked."""
        nodes = tuple(one for one in self.nodes if one != node_id)
        if node_id not in self.nodes:
            nodes = (*nodes, node_id)
        excluded = tuple(one for one in self.excluded_nodes if one != node_id)
        return replace(self, nodes=nodes, excluded_nodes=excluded)


def disconnect_words(policy: DisconnectPolicy) -> list[str]:
    """Write what becomes of an instance that cannot go on as options; none for what is usual."""
    usual, words = DisconnectPolicy(), list[str]()
    if policy.lost_after_ms != usual.lost_after_ms:
        words += ["--lost-after", f"{policy.lost_after_ms // 1000}s"]
    if not policy.replace:
        words.append("--no-replace")
    if policy.stop_after_ms is not None:
        words += ["--stop-after", f"{policy.stop_after_ms // 1000}s"]
    return words


def same_again(plan: Plan) -> Wish:
    """Ask for exactly what a plan has: its nodes, backend, window and slots."""
    return Wish(
        model_id=plan.model_id,
        nodes=tuple(dict.fromkeys(shard.node_id for shard in plan.shards)),
        backend=plan.backend,
        context_tokens=plan.context_tokens,
        slots=plan.slots,
    )


def refused(document: PreviewsDocument | MoveDocument) -> SkulkError:
    """Give the error that stands for a document without a plan."""
    if document.missing_facts:
        return PlacementError(
            "placement.facts_missing",
            f"facts are still arriving: {joined(document.missing_facts)}",
            remediation="Ask again in a few seconds; `skulk status` shows the nodes.",
            retry_after_s=5,
        )
    for refusal in document.refusals:
        error = error_of(refusal.error)
        change = refusal.smallest_change
        if change is not None and change.text:
            error.remediation = change.text
        return error
    return PlacementError(
        "placement.no_node",
        f"no node can hold {document.model_id}",
        remediation="`skulk status` shows the nodes and what they can run.",
    )


def bounded_number(name: str, text: str, bounds: tuple[int, int]) -> int:
    """Read a number that an operator typed.

    Raises:
        ClientError: `client.usage`: it is none, or out of bounds.
    """
    low, high = bounds
    digits = text.removeprefix("-")
    if not digits.isdecimal() or not low <= int(text[:12]) <= high:
        raise ClientError(
            "client.usage",
            f"{name} is a whole number from {low} to {high}, not {text[:40]!r}",
            remediation="Leave it out to have it chosen.",
        )
    return int(text)
