"""What the shapes of a placement have in common with a graph: who sends to whom; pure."""

from collections.abc import Sequence
from itertools import pairwise

from protocol.ids import NodeId
from protocol.placements import Shape

SPREAD_SHAPES: tuple[Shape, ...] = ("rpc", "pipeline", "tensor")
"""Those over several nodes."""


def talking_pairs(shape: Shape, nodes: Sequence[NodeId]) -> list[tuple[NodeId, NodeId]]:
    """List the ranks' nodes that send one another what each token needs."""
    match shape:
        case "single":
            return []
        case "rpc":
            return [(nodes[0], other) for other in nodes[1:]]
        case "pipeline" | "tensor":
            return list(pairwise((*nodes, nodes[0])))
