"""How the readings of each node have been over the last minutes, for traces. Pure.

Time is cut into steps of equal length, so that a trace moves on once a step, and not with every
look: over a slow line each move costs as many bytes as the trace is long.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

from protocol.cluster_api import NodeView
from skulk_tui.view_state import ViewState

Measure = Literal["cpu", "mem", "slots", "tok/s"]
MEASURES: Final[tuple[Measure, ...]] = get_args(Measure)
STEP_S: Final = 5.0
STEPS: Final = 60
"""Five minutes in all."""
MAX_NODES: Final = 256


@dataclass(frozen=True, slots=True)
class Sample:
    """What was known at one moment; None where a node did not tell."""

    value: float | None
    most: float | None
    """What the value is of; None where it has no bound of its own."""


NOTHING: Final = Sample(None, None)
_UNTOLD: Final[Mapping[Measure, Sample]] = {}


@final
class NodeHistory:
    """The traces of all nodes."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._step = 0
        self._samples: dict[str, deque[Mapping[Measure, Sample]]] = {}

    def look(self, view: ViewState, now: float) -> None:
        """Take what is known now; of several looks within a step the last one counts."""
        if self._began_s is None:
            self._began_s = now
        step = int((now - self._began_s) / STEP_S)
        n_passed = min(STEPS, step - self._step)
        self._step = step
        nodes = {node.member.node_id: node for node in view.nodes[:MAX_NODES]}
        for gone in self._samples.keys() - nodes.keys():
            del self._samples[gone]
        for node_id, node in nodes.items():
            kept = self._samples.setdefault(node_id, deque(maxlen=STEPS))
            # Steps without a look are unknown: nothing is drawn there.
            kept.extend([_UNTOLD] * (n_passed if kept else 1))
            kept[-1] = _measured(node, view)

    def trace(self, node_id: str, measure: Measure) -> Sequence[Sample]:
        """Give the samples of one measure, oldest first; empty before the first look."""
        return [step.get(measure, NOTHING) for step in self._samples.get(node_id, ())]


def _measured(node: NodeView, view: ViewState) -> Mapping[Measure, Sample]:
    resources = node.resources
    found: dict[Measure, Sample] = {}
    if resources is not None:
        found["cpu"] = Sample(resources.cpu_ratio, 1.0)
        total, free = resources.memory_total_bytes, resources.memory_available_bytes
        if total and free is not None:
            found["mem"] = Sample((total - free) / total, 1.0)
    # An instance is told of by the first of its nodes, and counted there alone.
    own = [
        item
        for item in view.instances
        if item.plan.shards and item.plan.shards[0].node_id == node.member.node_id
    ]
    busy = [item.in_flight for item in own if item.in_flight is not None]
    rates = [item.tokens_per_s for item in own if item.tokens_per_s is not None]
    if busy:
        found["slots"] = Sample(float(sum(busy)), float(sum(item.slots for item in own)))
    if rates:
        found["tok/s"] = Sample(sum(rates), None)
    return found
