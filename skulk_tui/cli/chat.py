"""`skulk chat`: ask a placed model; the answer goes to stdout and nothing else does."""

import contextlib
import importlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from protocol.errors import ClientError, SkulkError
from protocol.ids import ModelId, parse_model_id
from protocol.models_api import ModelEntry
from skulk_tui.cli import exit_codes
from skulk_tui.cli.chat_attachments import (
    Attachment,
    Turn,
    no_sight,
    read_attachments,
    with_attachments,
)
from skulk_tui.cli.completing import complete_placed_model
from skulk_tui.cli.output import Listing
from skulk_tui.cli.records import ChatRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.suggestions import naming_the_nearest_model
from skulk_tui.cli.verb import tell, verb
from skulk_tui.cli.waiting import wait_until_ready
from skulk_tui.client import STREAM_SILENCE_S, WHOLE_ANSWER_S, envelope_of, path_of
from skulk_tui.formatting import format_count, format_duration, format_tokens_per_s, strip_controls

if TYPE_CHECKING:
    from skulk_tui.chat_stream import ChatReader, Piece

QUESTION_MAX_CHARS: Final = 8 << 20
_CHAT_PATH: Final = "/v1/chat/completions"
_LOOP_HELP: Final = "/clear forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How questions are asked: the model and what the options say."""

    model_id: ModelId
    system: str | None
    temperature: float | None
    max_tokens: int | None
    seed: int | None
    stream: bool
    stats: bool
    wait: bool
    raw: bool
    attachments: tuple[Attachment, ...] = ()
    """Go along with the first question."""
    history: Path | None = None
    """Where the conversation is kept."""

    def body(self, turns: list[Turn]) -> str:
        """Write the request for the conversation so far."""
        messages: list[Turn] = []
        if self.system:
            messages = [{"role": "system", "content": self.system}]
        body: dict[str, object] = {
            "model": self.model_id,
            "messages": [*messages, *turns],
            "stream": self.stream,
        }
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        chosen = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }
        body.update({name: value for name, value in chosen.items() if value is not None})
        return json.dumps(body)


def add_chat(app: typer.Typer) -> None:
    """Register the verb."""
    verb(
        app,
        "chat",
        examples=(
            'skulk chat HuggingFaceTB/SmolLM2-135M "What is the capital of France?"',
            'skulk chat my/model -f report.md "What are the three main points?"',
        ),
    )(chat)


def chat(
    session: Session,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A placed model.", autocompletion=complete_placed_model
        ),
    ],
    question: Annotated[
        str | None,
        typer.Argument(metavar="QUESTION", help="Left out or `-`: from standard input."),
    ] = None,
    *,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Text, or an image for a model that sees."
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option("--session", metavar="FILE", help="Go on with the conversation in this file."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Leave control characters in, on a terminal too.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="Instructions before the question.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is repeatable.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the sampling.")] = None,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Show the answer as it comes.")
    ] = True,
    stats: Annotated[bool, typer.Option("--stats", help="Times and tokens, on stderr.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for a model that is loading.")
    ] = True,
) -> int | None:
    """Ask a placed model; the answer streams to standard output.

    Without a question at a terminal, a conversation begins.
    """
    asking = Asking(
        model_id=parse_model_id(model),
        system=system,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        stream=stream,
        stats=stats,
        wait=wait,
        raw=raw,
        attachments=read_attachments(file or []),
        history=None if history is None else Path(history).expanduser(),
    )
    turns = _kept(asking)
    _check_sight(session, asking)
    if question in {None, "-"} and session.stdin.isatty():
        return converse(session, asking, turns)
    text = question if question not in {None, "-"} else _read_question(session)
    turns.append({"role": "user", "content": with_attachments(text or "", asking.attachments)})
    answer = _ask(session, asking, turns)
    _keep(asking, [*turns, {"role": "assistant", "content": answer}])
    return None


def _check_sight(session: Session, asking: Asking) -> None:
    """Refuse images for a model that takes text only, before they travel."""
    image = next((one for one in asking.attachments if one.media_type), None)
    if image is None:
        return
    path = path_of("/v1/models/{}", asking.model_id)
    with naming_the_nearest_model(session, asking.model_id):
        entry = session.client.get(path, ModelEntry)
    if "vision" not in entry.capabilities:
        raise no_sight(asking.model_id, image.name)


def _kept(asking: Asking) -> list[Turn]:
    if asking.history is None:
        return []
    from skulk_tui.cli.chat_history import read_history

    return read_history(asking.history)


def _keep(asking: Asking, turns: list[Turn]) -> None:
    if asking.history is not None:
        from skulk_tui.cli.chat_history import write_history

        write_history(asking.history, asking.model_id, turns)


def _read_question(session: Session) -> str:
    text = session.stdin.read(QUESTION_MAX_CHARS + 1)
    if len(text) > QUESTION_MAX_CHARS:
        raise ClientError(
            "client.usage",
            f"the question on standard input is longer than {QUESTION_MAX_CHARS} characters",
            remediation="Shorten it; no model's window holds that much.",
        )
    if not text.strip():
        raise ClientError(
            "client.usage",
            "there is no question: the argument is missing and standard input is empty",
            remediation='Write `skulk chat MODEL "question"`.',
        )
    return text


def converse(session: Session, asking: Asking, turns: list[Turn]) -> int:
    """Talk until the operator ends it; an error ends an answer, not the conversation."""
    attachments = asking.attachments
    session.narrate(_LOOP_HELP)
    if turns:
        session.narrate(f"Going on after {len(turns)} messages.")
    while True:
        question = _next_question(session)
        if question is None or question == "/exit":
            return exit_codes.OK
        if question == "/clear":
            turns = []
        elif question in {"/help", "/?"}:
            session.narrate(_LOOP_HELP)
        elif question:
            turns.append({"role": "user", "content": with_attachments(question, attachments)})
            answer = _answer_or_tell(session, asking, turns)
            if answer is None:
                turns.pop()
            else:
                attachments = ()
                turns.append({"role": "assistant", "content": answer})
                _keep(asking, turns)


def _next_question(session: Session) -> str | None:
    """Read a line; None at the end of input."""
    if session.stdout.isatty():
        with contextlib.suppress(ImportError):
            # Importing it gives `input` its line editing; not every build of Python has it.
            importlib.import_module("readline")

        try:
            return input("> ").strip()
        except EOFError:
            session.narrate("")
            return None
    # Here `input` would write its prompt into what collects the answers.
    session.stderr.write("> ")
    session.stderr.flush()
    line = session.stdin.readline()
    return line.strip() if line else None


def _answer_or_tell(session: Session, asking: Asking, turns: list[Turn]) -> str | None:
    try:
        return _ask(session, asking, turns)
    except KeyboardInterrupt:
        session.narrate("\n(stopped)")
    except SkulkError as error:
        if error.code in {"client.unreachable", "client.timeout", "client.usage"}:
            raise
        tell(error, session)
    return None


def _ask(session: Session, asking: Asking, turns: list[Turn]) -> str:
    """Ask once; a model that is still loading is waited for, unless told not to."""
    with naming_the_nearest_model(session, asking.model_id):
        try:
            return _ask_now(session, asking, turns)
        except SkulkError as error:
            envelope = envelope_of(error)
            loading = envelope.loading if envelope is not None else None
            if loading is None or not asking.wait:
                raise
            wait_until_ready(session, loading.instance_id)
            return _ask_now(session, asking, turns)


def _ask_now(session: Session, asking: Asking, turns: list[Turn]) -> str:
    # What reads a stream brings the models of its chunks, which no other verb needs.
    from skulk_tui.chat_stream import ChatReader

    reader = ChatReader()
    said: list[Piece] = []
    started_s = session.clock.monotonic_s()
    first_s: float | None = None
    silence_s = STREAM_SILENCE_S if asking.stream else WHOLE_ANSWER_S
    with session.client.stream(_CHAT_PATH, asking.body(turns), silence_s=silence_s) as lines:
        pieces = map(reader.feed, lines) if asking.stream else iter([reader.fold("".join(lines))])
        for piece in pieces:
            if piece is None:
                if reader.is_done:
                    break
                continue
            if first_s is None:
                first_s = session.clock.monotonic_s()
            said.append(piece)
            _show_piece(session, piece, raw=asking.raw)
    ended_s = session.clock.monotonic_s()
    text = "".join(piece.text for piece in said)
    if not session.output.is_for_programs and text and not text.endswith("\n"):
        session.output.write("\n")
    reader.close()
    record = _record(asking, reader, said, times=(started_s, first_s, ended_s))
    _conclude(session, asking, record)
    return text


def _show_piece(session: Session, piece: "Piece", *, raw: bool) -> None:
    if session.form == "jsonl":
        session.output.write_record({"type": "chunk", **asdict(piece)})
    elif not session.output.is_for_programs and piece.text:
        is_safe = raw or not session.output.is_terminal
        session.output.write(piece.text if is_safe else strip_controls(piece.text))


def _record(
    asking: Asking,
    reader: "ChatReader",
    said: "list[Piece]",
    *,
    times: tuple[float, float | None, float],
) -> ChatRecord:
    started_s, first_s, ended_s = times
    usage = reader.usage
    n_tokens = usage.completion_tokens if usage is not None else None
    rate: float | None = None
    # The first token's time is the prompt's; the rate is that of the tokens after it.
    if asking.stream and n_tokens is not None and n_tokens > 1 and first_s is not None:
        rate = (n_tokens - 1) / (ended_s - first_s) if ended_s > first_s else None
    return ChatRecord(
        model_id=asking.model_id,
        command_id=reader.command_id,
        text="".join(piece.text for piece in said),
        reasoning="".join(piece.reasoning for piece in said),
        finish_reason=reader.finish_reason,
        prompt_tokens=usage.prompt_tokens if usage is not None else None,
        completion_tokens=n_tokens,
        first_token_s=first_s - started_s if asking.stream and first_s is not None else None,
        total_s=ended_s - started_s,
        tokens_per_s=rate,
    )


def _conclude(session: Session, asking: Asking, record: ChatRecord) -> None:
    if session.form in {"json", "yaml"}:
        session.output.show(Listing(kind="chat", items=(record,), tables=(), names=()))
    elif session.form == "jsonl":
        session.output.write_record({"type": "finished", **asdict(record)})
    if record.finish_reason == "length" and not session.output.is_for_programs:
        session.narrate("(cut at the token limit; --max-tokens allows more)")
    if asking.stats:
        session.narrate(stats_line(record))


def stats_line(record: ChatRecord) -> str:
    """Write times and tokens of one answer."""
    parts = [
        f"first token {format_duration(record.first_token_s)}",
        format_tokens_per_s(1, None if not record.tokens_per_s else 1 / record.tokens_per_s),
        f"{format_count(record.completion_tokens)} tokens",
        f"prompt {format_count(record.prompt_tokens)}",
        f"total {format_duration(record.total_s)}",
    ]
    return "  ".join(parts)
