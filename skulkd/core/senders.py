"""Which member may send which command to the master: a node speaks for itself only; pure.

The transport proves who sends a payload. What a command says of a node is checked against that
before it is decided, so that a node that misbehaves can harm itself and nobody else.
"""

from typing import assert_never

from protocol.commands import (
    Command,
)
from protocol.errors import RequestError
from protocol.ids import NodeId
from protocol.state import ClusterState
from skulkd.core.member_decisions import member_of


def check_sender(state: ClusterState, sender: NodeId, command: Command) -> None:
    """Refuse a command that its sender may not send.

    Args:
        state: The newest state of the log's end.
        sender: Proven by its key; the master itself for what it decides by itself.
        command: What it sends.

    Raises:
        ClusterError: `cluster.removed`, `cluster.not_member`.
        RequestError: `request.invalid`: it speaks for another node.
    """
    if not state.members:
        return  # the first member of a cluster admits itself
    member_of(state, sender)
    allowed = _speakers(state, command)
    if allowed is not None and sender not in allowed:
        raise RequestError(
            "request.invalid",
            f"{sender} may not send {command.kind} here: {', '.join(sorted(allowed))} may",
            remediation="Run the same build on all nodes; if they do, report this.",
            details={"sender": sender, "command": command.kind},
        )


def _speakers(state: ClusterState, command: Command) -> frozenset[NodeId] | None:
    """Name who may send a command; None when any member may, for its operator."""
    match command.kind:
        case (
            "report_facts" | "report_phase" | "report_failure" | "report_memory" | "report_download"
        ):
            return frozenset({command.node_id})
        case "create_join_token":
            return frozenset({command.inviter})
        case "admit_member":
            token = None if command.token_id is None else state.join_tokens.get(command.token_id)
            if command.token_id is not None and token is None:
                return None  # the decision refuses it, and says why
            return frozenset({command.node_id if token is None else token.inviter})
        case "report_leave":
            return frozenset({command.node_id, *_master(state)})
        case "report_loss" | "settle_term" | "repair_instance":
            return _master(state)
        case (
            "place_instance"
            | "stop_instance"
            | "move_instance"
            | "wake_instance"
            | "sleep_instance"
            | "pin_instance"
            | "unpin_instance"
            | "retry_instance"
            | "clear_breaker"
            | "add_card"
            | "remove_card"
            | "create_api_key"
            | "change_api_key"
            | "rotate_api_key"
            | "revoke_api_key"
            | "change_settings"
            | "remove_member"
            | "drain_node"
            | "undrain_node"
            | "revoke_join_token"
        ):
            return None
        case _:
            assert_never(command)


def _master(state: ClusterState) -> frozenset[NodeId]:
    return frozenset() if state.master is None else frozenset({state.master})
