"""Status and form of every error."""

import json

import pytest
from pydantic import ValidationError

from protocol.control_api import ErrorDocument, PlaceInstanceBody, read_answer
from protocol.errors import ERROR_CODES, ErrorCode, RequestError, SkulkError
from skulkd.api.errors import (
    STATUS,
    Attachments,
    DocumentedError,
    envelope,
    error_reply,
    invalid_body,
    status_of,
)
from tests.support.fake_ports import make_card, make_plan


@pytest.mark.parametrize("code", [c for c in ERROR_CODES if not c.startswith("client.")])
def test_every_code_has_a_status_of_its_own_choice(code: ErrorCode) -> None:
    assert code in STATUS, f"{code} has no status in skulkd/api/errors.py"
    assert 400 <= status_of(code) < 600


@pytest.mark.parametrize("code", [c for c in ERROR_CODES if not c.startswith("client.")])
def test_every_error_reads_as_the_document_of_the_protocol(code: ErrorCode) -> None:
    error = SkulkError(code, "m", remediation="r", details={"a": 1}, retry_after_s=3)
    for dialect in ("openai", "control"):
        reply = error_reply(error, dialect=dialect, command_id="c")
        document = read_answer(ErrorDocument, reply.body)
        assert document.error.skulk_code == code
        assert document.error.command_id == "c"
        assert (b"retry-after", b"3") in reply.headers
        raw = json.loads(reply.body)["error"]
        assert {"message", "type", "param", "code"} <= raw.keys()
        assert "loading" not in raw
        if dialect == "control":
            assert raw["code"] == code


def test_the_field_at_fault_is_the_param_and_no_detail() -> None:
    error = RequestError("request.invalid", "m", details={"param": "a.b", "n": 1})
    body = envelope(error, dialect="openai", command_id=None)
    assert body["param"] == "a.b"
    assert body["details"] == {"n": 1}
    assert "command_id" not in body


def test_documents_travel_with_the_error() -> None:
    plan = make_plan(make_card())
    error = DocumentedError(RequestError("request.invalid", "m"), Attachments(plan=plan))
    reply = error_reply(error, dialect="control")
    assert read_answer(ErrorDocument, reply.body).error.plan == plan


def test_refused_fields_are_named_and_the_known_ones_listed() -> None:
    with pytest.raises(ValidationError) as caught:
        PlaceInstanceBody.model_validate({"model_id": "a/b", "context": 5, "slots": 0})
    error = invalid_body(caught.value, PlaceInstanceBody)
    assert "context: is not a field here (known: " in error.message
    assert ", model_id, " in error.message
    assert "slots: " in error.message
    assert error.details["param"] in {"context", "slots"}


def test_a_field_name_as_long_as_a_body_is_not_sent_back() -> None:
    with pytest.raises(ValidationError) as caught:
        PlaceInstanceBody.model_validate({"model_id": "a/b", "x" * 100_000: 5})
    error = invalid_body(caught.value, PlaceInstanceBody)
    assert len(error.message) < 1000
    assert len(str(error.details["param"])) < 1000
