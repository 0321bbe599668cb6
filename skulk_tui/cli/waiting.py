"""Waiting for what a node is doing, by asking again: ends early on failure, says what goes on."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from protocol.control_api import InstanceView, StateDocument, TransferStatus
from protocol.errors import ClientError, SkulkError, error_of
from protocol.instances import InstanceFailure
from skulk_tui.cli.interruptions import Interrupted
from skulk_tui.cli.progress import (
    ProgressLine,
    instance_line,
    instance_progress,
    transfer_line,
    transfer_progress,
)
from skulk_tui.cli.session import Session, terminal_width
from skulk_tui.client import Query, budget_spent, path_of

POLL_S: Final = 0.2
UNREACHABLE_GRACE_S: Final = 10.0
"""How long a node may be away during a wait: its daemon may be starting again."""
_GONE: Final = frozenset({"request.not_found", "placement.not_live"})


def progress_line(session: Session) -> ProgressLine:
    """Make the progress line that suits the session's stderr."""
    live = session.stderr.isatty() and not session.output.is_for_programs
    return ProgressLine(
        session.stderr,
        clock=session.clock,
        live_width=terminal_width(session.environ) if live else None,
        quiet=session.options.quiet,
        as_json=session.output.is_for_programs,
    )


@contextmanager
def says_that_it_goes_on(session: Session, hint: str) -> Generator[None]:
    """Tell on stderr, when the wait is ended from outside, that the work goes on.

    Args:
        session: Whose stderr.
        hint: How to follow and how to stop the work.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        session.narrate(f"\nNot waiting any more; the work goes on. {hint}")
        raise
    except ClientError as error:
        if error.code != "client.timeout":
            raise
        raise ClientError("client.timeout", error.message, remediation=hint) from error


def instance_hint(instance_id: str) -> str:
    """Say how to follow and how to stop an instance."""
    return f"Follow: `skulk instance show {instance_id}`; stop: `skulk stop {instance_id}`."


def wait_until_ready(session: Session, instance_id: str) -> InstanceView:
    """Wait until an instance serves, showing its phases; one that is asleep does, when asked.

    Raises:
        SkulkError: The instance's failure once no further attempt follows, with exit status, signal
            and phase in its details; or `client.timeout`, `client.unreachable`.
    """
    line = progress_line(session)
    told_attempt = 0
    try:
        with says_that_it_goes_on(session, instance_hint(instance_id)):
            while True:
                view = _patiently(session, line, instance_id)
                failure = view.failure
                if view.phase in {"ready", "asleep"}:
                    return view
                if failure is not None and failure.final:
                    line.clear()
                    raise failed(session, failure)
                if failure is not None and failure.attempt > told_attempt:
                    told_attempt = failure.attempt
                    line.say(f"attempt {failure.attempt} failed: {failure.error.message}")
                if view.desired == "stopped":
                    raise ClientError(
                        "client.usage",
                        f"instance {instance_id} is being stopped by another command",
                        remediation=f"Place it again: `skulk place {view.model_id}`.",
                    )
                line.show(
                    instance_line(view),
                    topic=f"{view.attempt} {view.phase}",
                    record=instance_progress(view),
                )
                pause(session)
    finally:
        line.clear()


def _patiently(session: Session, line: ProgressLine, instance_id: str) -> InstanceView:
    """Ask for the instance; a node that is away for a moment is asked again."""
    away_since_s: float | None = None
    while True:
        try:
            return session.client.get(path_of("/instance/{}", instance_id), InstanceView)
        except ClientError as error:
            now_s = session.clock.monotonic_s()
            if error.code != "client.unreachable":
                raise
            if away_since_s is None:
                away_since_s = now_s
                line.say("the node does not answer; asking again")
            elif now_s - away_since_s > UNREACHABLE_GRACE_S:
                raise
            pause(session)


def failed(session: Session, failure: InstanceFailure) -> SkulkError:
    """Tell the last lines of the engine's log, and give the failure as an error."""
    if failure.log_tail and not session.output.is_for_programs:
        session.narrate(f"last lines of the log of {failure.model_id}:")
        for text in failure.log_tail:
            session.narrate(f"  | {text}")
    body = failure.error
    how = ""
    if failure.signal is not None:
        how = f" (signal {failure.signal})"
    elif failure.exit_code is not None:
        how = f" (exit status {failure.exit_code})"
    details = {
        **body.details,
        "instance_id": failure.instance_id,
        "node_id": failure.node_id,
        "phase": failure.phase,
        "attempt": failure.attempt,
        "exit_code": failure.exit_code,
        "signal": failure.signal,
        "log_tail": "\n".join(failure.log_tail),
    }
    remedy = body.remediation or f"Try again: `skulk retry {failure.instance_id}`."
    return error_of(
        body.model_copy(
            update={"message": body.message + how, "remediation": remedy, "details": details}
        )
    )


def wait_until_gone(session: Session, instance_id: str) -> None:
    """Wait until an instance's processes are gone and the cluster has forgotten it.

    Raises:
        SkulkError: `client.timeout`, `client.unreachable`.
    """
    line = progress_line(session)
    hint = f"Follow: `skulk instance show {instance_id}`."
    try:
        with says_that_it_goes_on(session, hint):
            while True:
                try:
                    view = _patiently(session, line, instance_id)
                except SkulkError as error:
                    if error.code in _GONE:
                        return
                    raise
                if view.phase == "stopped":
                    return
                line.show(instance_line(view), topic=view.phase, record=instance_progress(view))
                pause(session)
    finally:
        line.clear()


def wait_until_downloaded(session: Session, model_id: str, query: Query) -> TransferStatus:
    """Wait until a download has ended well, showing its progress.

    Args:
        session: Asks.
        model_id: Whose files.
        query: Names the node, where it is another one than the one that is asked.

    Raises:
        SkulkError: Why the download failed; `store.cancelled`, `store.paused`, `client.timeout`.
    """
    line = progress_line(session)
    hint = f"Follow: `skulk models pull {model_id}`; stop: `skulk models pull {model_id} --cancel`."
    path = path_of("/store/models/{}/download/status", model_id)
    try:
        with says_that_it_goes_on(session, hint):
            while True:
                status = session.client.get(path, TransferStatus, query=query)
                if status.state == "complete":
                    return status
                if status.state != "running":
                    raise _not_downloaded(status)
                line.show(
                    transfer_line(status), topic=status.phase, record=transfer_progress(status)
                )
                pause(session)
    finally:
        line.clear()


def _not_downloaded(status: TransferStatus) -> SkulkError:
    if status.error is not None:
        return error_of(status.error)
    if status.paused is not None:
        return ClientError(
            "store.paused",
            f"the download of {status.model_id} is paused, by {status.paused.by}; "
            f"{status.done_bytes} bytes have come",
            remediation=f"Go on with it: `skulk store resume {status.model_id}`.",
            details={"model_id": status.model_id, "node_id": status.node_id},
        )
    if status.state == "cancelled":
        return ClientError("store.cancelled", f"the download of {status.model_id} was cancelled")
    return ClientError(
        "store.incomplete",
        f"{status.model_id} is not there and no download of it is under way",
        remediation=f"Begin it again: `skulk models pull {status.model_id}`.",
    )


def pause(session: Session) -> None:
    """Wait before asking again, within the budget.

    Raises:
        ClientError: `client.timeout`.
    """
    left_s = POLL_S
    if session.deadline_s is not None:
        left_s = session.deadline_s - session.clock.monotonic_s()
        if left_s <= 0:
            raise budget_spent()
    session.clock.wait_s(min(POLL_S, left_s))


def state_of(session: Session) -> StateDocument:
    """Ask for the cluster as the node sees it."""
    return session.client.get("/state", StateDocument)
