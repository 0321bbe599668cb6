"""What is asked over a session: how answers are read, and the errors that end a question."""

from typing import Final, TypeVar

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.control_api import ErrorDocument, ErrorEnvelope
from protocol.errors import ClientError, ProtocolError, RequestError, SkulkError
from protocol.session import SessionAnswer
from skulk_tui.client import error_answered

AnswerT = TypeVar("AnswerT", bound=FrozenModel)

_BAD_REQUEST: Final = 400
_STATUS_OF_STREAM: Final = 200


def read_body(kind: type[AnswerT], body: object, what: str) -> AnswerT:
    """Read an answer's document, passing over what a newer node added.

    Raises:
        ClientError: `client.bad_answer`.
    """
    try:
        return kind.model_validate(body, extra="ignore")
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        fault = f"{what} answered no {kind.__name__}: {where}: {first['msg']}"
        raise _bad_answer(fault) from wrong


def body_of(answer: SessionAnswer, what: str) -> object:
    """Give what was answered.

    Raises:
        SkulkError: The refusal, as over HTTP; `envelope_of` gives the whole of it.
        ClientError: `client.bad_answer`.
    """
    if answer.status < _BAD_REQUEST:
        return answer.body
    try:
        envelope = ErrorDocument.model_validate(answer.body, extra="ignore").error
    except ValidationError as wrong:
        fault = f"{what} was refused with {answer.status} and no reason"
        raise _bad_answer(fault) from wrong
    raise error_answered(answer.status, envelope)


def _bad_answer(fault: str) -> ClientError:
    return ClientError(
        "client.bad_answer",
        f"the node gives no answer that this program can read: {fault}",
        remediation="Compare `skulk version` with the node's /version.",
    )


def refusal_of(error: object) -> SkulkError:
    """Read the `error` of an error document."""
    try:
        envelope = ErrorEnvelope.model_validate(error, extra="ignore")
    except ValidationError:
        return _bad_answer("a chat was refused without a reason")
    return error_answered(_STATUS_OF_STREAM, envelope)


def bad_frame(fault: str) -> ProtocolError:
    """Say what a node sent that makes no sense."""
    return ProtocolError(
        "protocol.bad_frame",
        fault,
        remediation="Compare `skulk version` with the node's /version.",
    )


def too_many(limit: int, what: str) -> RequestError:
    """Refuse what the node would end the session over."""
    return RequestError(
        "request.overloaded",
        f"{limit} {what} over this session already",
        remediation="Wait for an answer, or close a view.",
        retry_after_s=1,
    )


def no_answer(what: str, deadline_s: float) -> ClientError:
    """Say that a request's deadline has passed without an answer."""
    return ClientError(
        "client.timeout",
        f"{what} was not answered within {deadline_s:g} s",
        remediation="Look whether it was done before you ask again.",
    )
