import pytest

from protocol.commands import (
    ChangeSettings,
    Command,
    RemoveMember,
    RepairInstance,
    ReportDownload,
    ReportLeave,
    ReportLoss,
    RetryInstance,
    SettleTerm,
    StopInstance,
)
from protocol.errors import SkulkError
from protocol.state import ClusterSettings, ClusterState
from skulkd.core.apply import initial_state
from skulkd.core.senders import check_sender
from tests.support.builders import (
    MODEL,
    a_cluster_id,
    a_command_id,
    a_facts_report,
    a_failure_report,
    a_member,
    a_node_id,
    a_phase_report,
    a_state,
    a_token,
    an_added_card,
    an_admission,
    an_instance_id,
    an_invitation,
)

STATE = a_state(members=[a_member(n) for n in (1, 2, 3)], tokens=[a_token(inviter=2)])
LEAVE = ReportLeave(command_id=a_command_id(), node_id=a_node_id(2))
LOSS = ReportLoss(command_id=a_command_id(), node_id=a_node_id(2), silent_ms=6000, is_refused=False)

REPAIR = RepairInstance(command_id=a_command_id(), instance_id=an_instance_id(), after_attempt=1)


def problem(sender: int, command: Command, state: ClusterState = STATE) -> str:
    try:
        check_sender(state, a_node_id(sender), command)
    except SkulkError as refusal:
        return refusal.code
    return "none"


@pytest.mark.parametrize(
    "command",
    [
        a_facts_report(2),
        a_phase_report("ready", node=2),
        a_failure_report(node=2),
        ReportDownload(
            command_id=a_command_id(), node_id=a_node_id(2), model_id=MODEL, size_bytes=1
        ),
        an_admission(2),
        an_admission(4, token=1),
        an_invitation(2, inviter=2),
    ],
)
def test_a_node_speaks_for_itself_and_for_those_it_invited(command: Command) -> None:
    assert problem(2, command) == "none"
    assert problem(1, command) == "request.invalid"
    assert problem(3, command) == "request.invalid"


@pytest.mark.parametrize(
    ("command", "senders"),
    [
        (LEAVE, [1, 2]),
        (LOSS, [1]),
        (REPAIR, [1]),
        (SettleTerm(command_id=a_command_id(), term=1), [1]),
    ],
)
def test_the_master_speaks_of_who_is_gone(command: Command, senders: list[int]) -> None:
    assert [sender for sender in (1, 2, 3) if problem(sender, command) == "none"] == senders


@pytest.mark.parametrize(
    "command",
    [
        an_added_card(),
        ChangeSettings(command_id=a_command_id(), settings=ClusterSettings(loopback="keyed")),
        RemoveMember(command_id=a_command_id(), node_id=a_node_id(3)),
        StopInstance(command_id=a_command_id(), instance_id=an_instance_id()),
        RetryInstance(command_id=a_command_id(), instance_id=an_instance_id(), after_attempt=1),
    ],
)
def test_an_operator_may_ask_at_any_member_and_nowhere_else(command: Command) -> None:
    assert {problem(sender, command) for sender in (1, 2, 3)} == {"none"}
    assert problem(4, command) == "cluster.not_member"


def test_the_first_member_admits_itself() -> None:
    empty = initial_state(a_cluster_id())
    assert problem(1, an_admission(1), empty) == "none"


def test_an_unknown_invitation_is_left_to_the_decision_which_says_why() -> None:
    assert problem(3, an_admission(4, token=9)) == "none"
