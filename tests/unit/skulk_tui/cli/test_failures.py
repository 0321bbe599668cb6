import json

from protocol.control_api import ErrorEnvelope, LoadingDocument
from protocol.errors import ClientError, PlacementError
from skulk_tui.cli.failures import as_json, as_text, failure_of
from skulk_tui.client import error_answered
from tests.support.builders import MODEL, a_command_id, an_instance_id


def test_an_error_is_told_in_three_lines() -> None:
    error = PlacementError(
        "placement.no_fit", "it lacks 2 GiB", remediation="free it", details={"phase": "load"}
    )
    text = as_text(failure_of(error, node="http://studio:52415"))
    assert text == "error: it lacks 2 GiB\n  at: http://studio:52415, load\n  remedy: free it\n"


def test_foreign_text_cannot_add_lines_or_escape_sequences() -> None:
    error = PlacementError("placement.failed", "a\nb\x1b[2J", remediation="c\r\nd")
    assert as_text(failure_of(error)) == "error: a b[2J\n  remedy: c d\n"


def test_a_mistyped_command_is_at_no_node() -> None:
    failure = failure_of(ClientError("client.usage", "no"), node="http://studio:52415")
    assert failure.node is None


def test_machines_get_one_object_with_everything() -> None:
    envelope = ErrorEnvelope(
        message="the model is loading",
        type="server_error",
        code="request.instance_loading",
        skulk_code="request.instance_loading",
        remediation="wait",
        details={"n": 1},
        command_id=a_command_id(),
        retry_after_s=2,
        loading=LoadingDocument(
            instance_id=an_instance_id(), model_id=MODEL, phase="load", attempt=1
        ),
    )
    failure = failure_of(error_answered(503, envelope), node="http://studio:52415")
    assert failure.phase == "load"
    assert json.loads(as_json(failure)) == {
        "error": {
            "code": "request.instance_loading",
            "message": "the model is loading",
            "remediation": "wait",
            "details": {"n": 1},
            "retryable": True,
            "node": "http://studio:52415",
            "command_id": a_command_id(),
            "exit": 8,
        }
    }
