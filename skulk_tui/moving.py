"""What an operator asks of a move, as a query, as a body, and as a `skulk` line; pure."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from protocol.ids import Digest, InstanceId, NodeId
from protocol.move_api import DEFAULT_DRAIN_S, MoveInstanceBody
from skulk_tui.client import Query, path_of
from skulk_tui.wish import PLAN_ID_SHOWN


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWish:
    """Which instance is to go where, and how."""

    instance_id: InstanceId
    nodes: tuple[NodeId, ...] = ()
    """To one of these; without any, to the best other one."""
    stop_first: bool = False
    drain_s: int = DEFAULT_DRAIN_S

    @property
    def path(self) -> str:
        """Where it is looked at and asked for."""
        return path_of("/instance/{}/move", self.instance_id)

    def query(self) -> Query:
        """Write it as the query of a look."""
        query: dict[str, str | tuple[str, ...]] = {"drain_s": str(self.drain_s)}
        if self.nodes:
            query["node_ids"] = self.nodes
        if self.stop_first:
            query["stop_first"] = "true"
        return query

    def body(self, plan_id: Digest) -> MoveInstanceBody:
        """Write it as the body that has it done."""
        return MoveInstanceBody(
            node_ids=self.nodes,
            stop_first=self.stop_first,
            drain_s=self.drain_s,
            plan_id=plan_id,
        )

    def cli(self, name_of: Callable[[NodeId], str], plan_id: Digest | None = None) -> str:
        """Write it as a `skulk` line, safe to paste into a shell.

        Args:
            name_of: Gives a node's name, or its id where the name is of no use in a command.
            plan_id: Of the plan to take exactly.
        """
        words = ["skulk", "move", self.instance_id]
        if self.nodes:
            words += ["--nodes", ",".join(name_of(node_id) for node_id in self.nodes)]
        if self.stop_first:
            words.append("--stop-first")
        if self.drain_s != DEFAULT_DRAIN_S:
            words += ["--deadline", f"{self.drain_s}s"]
        if plan_id is not None:
            words += ["--plan", plan_id[:PLAN_ID_SHOWN]]
        return " ".join(shlex.quote(word) for word in words)
