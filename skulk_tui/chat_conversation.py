"""A conversation: what was asked, what was answered, and how the model is to be asked.

Pure. It knows the body of the request, the file it is kept in, and what is exported.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final, final

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.errors import ClientError
from skulk_tui.chat_answer import Answer, SavedAnswer
from skulk_tui.formatting import one_line, rfc3339

MAX_CHARS: Final = 512 << 10
"""Of all that would be sent to the model: a frame of the session holds it, and no window does."""
TITLE_CHARS: Final = 60
MAX_EXCHANGES: Final = 1000
TEMPERATURE_MAX: Final = 2.0


class SavedExchange(FrozenModel):
    """A question and what came of it, as kept in a file."""

    question: str
    at_ms: int
    answers: tuple[SavedAnswer, ...] = ()


class SavedConversation(FrozenModel):
    """A conversation as it is kept in a file."""

    version: int = 1
    id: str
    title: str = ""
    model_id: str = ""
    system: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    created_ms: int
    changed_ms: int
    exchanges: tuple[SavedExchange, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A question and the answers to it; more than one where it was asked again."""

    question: str
    at_ms: int
    answers: list[Answer] = field(default_factory=list[Answer])

    @property
    def last(self) -> Answer | None:
        """The answer that counts."""
        return self.answers[-1] if self.answers else None


@final
@dataclass(slots=True, kw_only=True, eq=False)
class Conversation:
    """A conversation. Invariant: only the last answer of the last exchange is not over."""

    id: str
    created_ms: int
    changed_ms: int
    model_id: str = ""
    """Empty until one was chosen, or can be."""
    title: str = ""
    """Empty until the first question, or a name, is given."""
    system: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    exchanges: list[Exchange] = field(default_factory=list[Exchange])

    @property
    def shown_title(self) -> str:
        """Its name, or how it begins."""
        if self.title:
            return self.title
        return one_line(self.exchanges[0].question)[:TITLE_CHARS] if self.exchanges else "new"

    @property
    def last_answer(self) -> Answer | None:
        """The latest answer, however far it is."""
        return self.exchanges[-1].last if self.exchanges else None

    @property
    def is_busy(self) -> bool:
        """Whether an answer is coming."""
        answer = self.last_answer
        return answer is not None and not answer.is_over

    # ---- Asking ----

    def ask(self, question: str, *, at_ms: int, now: float) -> Answer:
        """Begin a further exchange."""
        exchange = Exchange(question=question, at_ms=at_ms)
        self.exchanges.append(exchange)
        return self._begin(exchange, at_ms=at_ms, now=now)

    def ask_again(self, *, at_ms: int, now: float) -> Answer:
        """Begin another answer to the last question.

        Raises:
            ClientError: `client.usage`: nothing was asked.
        """
        if not self.exchanges:
            raise ClientError(
                "client.usage", "nothing was asked yet", remediation="Type a question first."
            )
        return self._begin(self.exchanges[-1], at_ms=at_ms, now=now)

    def _begin(self, exchange: Exchange, *, at_ms: int, now: float) -> Answer:
        answer = Answer(self.model_id, at_ms=at_ms, now=now)
        exchange.answers.append(answer)
        self.changed_ms = at_ms
        return answer

    def take_back(self) -> None:
        """Forget an answer that could not even be asked for."""
        exchange = self.exchanges[-1]
        exchange.answers.pop()
        if not exchange.answers:
            self.exchanges.pop()

    def body(self, question: str | None = None) -> dict[str, Any]:
        """Write the request for the last question, or for a further one.

        What was answered before goes along, as far as anything was.

        Raises:
            ClientError: `client.usage`: it is more than any model takes.
        """
        messages = [{"role": "system", "content": self.system}] if self.system else []
        *before, last = [*self.exchanges, None] if question is not None else [*self.exchanges]
        for exchange in before:
            answer = exchange.last if exchange is not None else None
            if exchange is not None and answer is not None and answer.text:
                messages += [
                    {"role": "user", "content": exchange.question},
                    {"role": "assistant", "content": answer.text},
                ]
        asked = question if last is None else last.question
        messages.append({"role": "user", "content": asked or ""})
        n_chars = sum(len(message["content"]) for message in messages)
        if n_chars > MAX_CHARS or len(self.exchanges) > MAX_EXCHANGES:
            raise ClientError(
                "client.usage",
                f"the conversation has {n_chars} characters; {MAX_CHARS} can be sent",
                remediation="Begin another one with `:new`; this one is kept.",
            )
        body: dict[str, Any] = {
            "model": self.model_id,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        return body

    def copied(self, conversation_id: str, model_id: str) -> "Conversation":
        """Give one that has been said the same to, for another model to go on with."""
        return Conversation(
            id=conversation_id,
            created_ms=self.created_ms,
            changed_ms=self.changed_ms,
            model_id=model_id,
            title=self.title,
            system=self.system,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            exchanges=[
                Exchange(question=one.question, at_ms=one.at_ms, answers=list(one.answers))
                for one in self.exchanges
            ],
        )

    # ---- Files ----

    def saved(self, now: float) -> SavedConversation:
        """Give what is kept."""
        return SavedConversation(
            id=self.id,
            title=self.title,
            model_id=self.model_id,
            system=self.system,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            created_ms=self.created_ms,
            changed_ms=self.changed_ms,
            exchanges=tuple(
                SavedExchange(
                    question=one.question,
                    at_ms=one.at_ms,
                    answers=tuple(answer.saved(now) for answer in one.answers),
                )
                for one in self.exchanges
            ),
        )

    @classmethod
    def restored(cls, text: str) -> "Conversation":
        """Read the text of a file.

        Raises:
            ClientError: `client.bad_answer`: it is none.
        """
        try:
            saved = SavedConversation.model_validate_json(text, extra="ignore")
        except ValidationError as wrong:
            raise ClientError(
                "client.bad_answer",
                f"a kept conversation cannot be read: {wrong.error_count()} faults in its file",
                remediation="Move the file away, or begin another conversation with `:new`.",
            ) from wrong
        return cls(
            id=saved.id,
            title=saved.title,
            model_id=saved.model_id,
            system=saved.system,
            temperature=saved.temperature,
            max_tokens=saved.max_tokens,
            created_ms=saved.created_ms,
            changed_ms=saved.changed_ms,
            exchanges=[
                Exchange(
                    question=one.question,
                    at_ms=one.at_ms,
                    answers=[Answer.restored(answer) for answer in one.answers],
                )
                for one in saved.exchanges
            ],
        )

    def as_markdown(self) -> str:
        """Write it for people to read."""
        parts = [f"# {self.shown_title}\n"]
        if self.system:
            parts.append(f"*System:* {self.system}\n")
        for exchange in self.exchanges:
            parts.append(f"## You, {rfc3339(exchange.at_ms)}\n\n{exchange.question}\n")
            for answer in exchange.answers:
                parts.append(f"## {answer.model_id}, {rfc3339(answer.at_ms)}\n\n{answer.text}\n")
                if answer.state in {"failed", "stopped"}:
                    reason = f": {answer.error}" if answer.error else ""
                    parts.append(f"*({answer.state}{reason})*\n")
        return "\n".join(parts)

    def as_json(self, now: float) -> str:
        """Write it for programs to read."""
        return json.dumps(self.saved(now).model_dump(mode="json"), indent=2, ensure_ascii=False)


def read_temperature(text: str) -> float:
    """Read a temperature.

    Raises:
        ClientError: `client.usage`.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= TEMPERATURE_MAX:
        raise ClientError(
            "client.usage",
            f"{text[:20]!r} is no temperature",
            remediation=f"Give a number from 0 to {TEMPERATURE_MAX:g}, such as 0.7.",
        )
    return value
