"""Why the log takes no command now: said alike by the master and by those who ask it."""

from typing import Final

from protocol.errors import ClusterError
from protocol.ids import NodeId
from protocol.state import ClusterState
from skulkd.cluster.roles import MasterView
from skulkd.core.member_decisions import voters_of

_MAX_SHOWN: Final = 8


def no_master(last_master: NodeId | None, *, why: str = "no master is known") -> ClusterError:
    """Say that nobody decides now."""
    last = "" if last_master is None else f"; the last one was {last_master}"
    return ClusterError(
        "cluster.no_master",
        f"{why}{last}",
        remediation="Try again in a few seconds; see who is there: skulk cluster members",
        details={"last_master": last_master},
        retry_after_s=2,
    )


def no_quorum(state: ClusterState, masters: MasterView) -> ClusterError:
    """Say that too few voters are there for anything to be committed, and who is missing."""
    voters = voters_of(state)
    missing = sorted(_name(state, node_id) for node_id in voters if not masters.is_alive(node_id))
    n_alive = len(voters) - len(missing)
    shown = ", ".join(missing[:_MAX_SHOWN]) + (", ..." if len(missing) > _MAX_SHOWN else "")
    last = masters.last_master
    last_master = "not known" if last is None else _name(state, last)
    return ClusterError(
        "cluster.no_quorum",
        f"the policy is quorum, and {n_alive} of {len(voters)} voters are alive, where "
        f"{len(voters) // 2 + 1} are needed; missing: {shown}; the last master was {last_master}",
        remediation=(
            "Start the missing nodes, or mend the network between them: skulk cluster members"
        ),
        details={
            "policy": "quorum",
            "alive": n_alive,
            "voters": len(voters),
            "last_master": masters.last_master,
        },
        retry_after_s=5,
    )


def _name(state: ClusterState, node_id: NodeId) -> str:
    member = state.members.get(node_id)
    return node_id if member is None else f"{member.name} ({node_id})"


def not_durable(n_waiting: int, what: str) -> ClusterError:
    """Say that decisions do not become durable as fast as they are made."""
    return ClusterError(
        "cluster.not_durable",
        f"{n_waiting} {what}",
        remediation="Look at the disk that holds the home: it does not keep up.",
        retry_after_s=2,
    )


def stopping() -> ClusterError:
    """Say that this node takes no more commands."""
    return ClusterError(
        "cluster.stopping",
        "this node is stopping and takes no more commands",
        remediation="Ask another node, or this one after its restart.",
        retry_after_s=5,
    )


def lacks_majority(state: ClusterState, masters: MasterView) -> bool:
    """Say whether the policy is quorum, and half of the voters or fewer are alive."""
    voters = voters_of(state)
    n_alive = sum(masters.is_alive(node_id) for node_id in voters)
    return state.settings.policy == "quorum" and 2 * n_alive <= len(voters)
