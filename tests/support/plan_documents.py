"""What the planner and the placements tell of the small model in the home cluster of four."""

from collections.abc import Sequence

from textual.events import Paste

from protocol.control_api import CommandAccepted, InstanceView, PreviewsDocument
from protocol.errors import ErrorBody
from protocol.instances import Phase
from protocol.placements import (
    MemoryArithmetic,
    PlacementRequest,
    Plan,
    Refusal,
    ShardAssignment,
    SmallestChange,
)
from tests.support.builders import GIB, MIB, a_command_id, a_digest, a_node_id, an_instance_id
from tests.support.den_cluster import SMALL, den_instance
from tests.support.seat import SeatUnderTest


def plan_memory(number: int, *, free_gib: float, claimed_gib: float = 0.0) -> MemoryArithmetic:
    """Make the arithmetic of a shard."""
    return MemoryArithmetic(
        weights_bytes=100 * MIB,
        kv_cache_bytes=512 * MIB,
        overhead_bytes=400 * MIB,
        reserved_bytes=int(claimed_gib * GIB),
        available_bytes=int(free_gib * GIB),
        pool="ram" if number == 4 else "vram",
        kv_bytes_per_token=32768,
        context_tokens=16384,
    )


def small_plan(number: int, *, context_tokens: int = 16384, free_gib: float = 20.0) -> Plan:
    """Make a plan of the small model for one of the four machines."""
    return Plan(
        plan_id=a_digest(f"plan {number} {context_tokens}"),
        model_id=SMALL,
        card_digest=a_digest("card"),
        shape="single",
        engine="llama_server",
        backend="llama_server-cpu" if number == 4 else "llama_server-cuda",
        context_tokens=context_tokens,
        slots=4,
        shards=(
            ShardAssignment(
                rank=0,
                node_id=a_node_id(number),
                layer_start=0,
                layer_end=30,
                memory=plan_memory(number, free_gib=free_gib),
            ),
        ),
        download_bytes=145 * MIB,
    )


def no_fit(number: int = 3, name: str = "rack-a6k") -> Refusal:
    """Make a refusal of a machine that has too little memory."""
    return Refusal(
        node_id=a_node_id(number),
        error=ErrorBody(
            code="placement.no_fit",
            message=f"{name}: 0.99 GiB are needed of 0.50 GiB; 0.49 GiB too little",
            remediation="Ask for --context 4096 or less.",
        ),
        term="kv_cache",
        memory=plan_memory(number, free_gib=0.5),
        smallest_change=SmallestChange(
            kind="context_tokens", context_tokens=4096, text="Ask for --context 4096 or less."
        ),
    )


def previews(plans: Sequence[Plan], *refusals: Refusal) -> PreviewsDocument:
    """Make an answer of the planner."""
    return PreviewsDocument(
        model_id=SMALL,
        request=PlacementRequest(model_id=SMALL),
        plans=tuple(plans),
        refusals=refusals,
    )


def usual_previews() -> PreviewsDocument:
    """Make what the planner usually answers: three plans and a refusal."""
    return previews(
        [small_plan(2), small_plan(1, free_gib=13.0), small_plan(4, free_gib=18.0)], no_fit()
    )


def accepted(plan: Plan | None = None) -> CommandAccepted:
    """Make the answer to a placement."""
    return CommandAccepted(
        message="accepted",
        command_id=a_command_id(7),
        instance_id=an_instance_id(7),
        model_id=SMALL,
        plan=plan,
        durable="member",
        term=7,
        seq=8818,
    )


def small_instance(phase: Phase, **changes: object) -> InstanceView:
    """Make the small model placed."""
    fields: dict[str, object] = {"instance_id": an_instance_id(7)}
    return den_instance(7, phase, plan=small_plan(2), **(fields | changes))


async def type_command(seat: SeatUnderTest, text: str, *, key: str = "colon") -> None:
    """Type a `:` command, or a filter, at once."""
    await seat.press(key)
    prompt = seat.app.screen.focused
    assert prompt is not None
    prompt.post_message(Paste(text))
    await seat.press("enter")
