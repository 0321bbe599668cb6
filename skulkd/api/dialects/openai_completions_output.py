"""OpenAI completions, the way out: frames to SSE bytes, or to one whole answer. Pure."""

import json
from itertools import accumulate
from typing import Any, Final, final

from protocol.data_frames import Chunk, Finished, Started, TokenLogprob
from skulkd.api.dialects.framing import SSE_KEEP_ALIVE
from skulkd.api.dialects.json_text import escaped, written
from skulkd.api.dialects.openai_chat_output import (
    DONE,
    end_of,
    error_event,
    opening_comment,
    usage_object,
    written_end,
)
from skulkd.api.dialects.openai_choices import AnswerHead, UsageTally

_NO_LOGPROBS: Final = b"null"


@final
class CompletionStream:
    """Turns the frames of one choice into events.

    Args:
        head: Of every event.
        choice: Which one of the request's.
        tally: Of all its choices; the last of them to finish gives the token counts.
        echo: The text that goes before the model's own.
    """

    __slots__ = (
        "_choice", "_command_id", "_echo", "_end", "_head", "_include_usage", "_middle",
        "_offset", "_tally",
    )  # fmt: skip

    def __init__(self, head: AnswerHead, choice: int, tally: UsageTally, *, echo: str) -> None:
        self._command_id = head.command_id
        self._head = head.event("text_completion")
        self._middle = self._head + b'"choices":[{"index":%d,"text":' % choice
        self._end = b',"usage":null}\n\n' if head.include_usage else b"}\n\n"
        self._include_usage = head.include_usage
        self._choice = choice
        self._tally = tally
        self._echo = echo
        self._offset = len(echo)
        """Where the next token begins, in characters."""

    @property
    def opening(self) -> bytes:
        """The comment with the id to cancel it by."""
        return opening_comment(self._command_id)

    @property
    def end_mark(self) -> bytes:
        """What follows the last event of a stream that ended well."""
        return DONE

    def begin(self) -> bytes:
        """Give nothing: a stream begins with its first piece."""
        return b""

    def keep_alive(self) -> bytes:
        """Give a comment."""
        return SSE_KEEP_ALIVE

    def start(self, started: Started) -> bytes:
        """Give the echo, where one was asked for."""
        del started
        return self._event(self._echo) if self._echo else b""

    def chunk(self, chunk: Chunk) -> bytes:
        """Give a piece of output as one event."""
        if not chunk.logprobs:
            return self._event(chunk.text)
        scores = logprobs_object(chunk.logprobs, self._offset)
        self._offset += sum(len(token.token) for token in chunk.logprobs)
        return self._event(chunk.text, json.dumps(scores).encode())

    def finish(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the end of the choice, and behind the last one the usage if it was asked for."""
        del elapsed_s
        self._tally.add(self._choice, finished.usage)
        end = self._event("", reason=written_end(finished))
        if not self._include_usage or not self._tally.is_complete:
            return end
        usage = json.dumps(usage_object(self._tally.total)).encode()
        return end + self._head + b'"choices":[],"usage":' + usage + b"}\n\n"

    def fail(self, error: dict[str, Any]) -> bytes:
        """Give the last event of a stream that failed; no end mark follows."""
        return error_event(error)

    def _event(
        self, text: str, logprobs: bytes = _NO_LOGPROBS, *, reason: bytes = b"null"
    ) -> bytes:
        rest = b',"logprobs":%b,"finish_reason":%b}]' % (logprobs, reason)
        return self._middle + escaped(text) + rest + self._end


@final
class CompletionAnswer:
    """Gathers the frames of all choices into a whole answer.

    Args:
        head: What it says of its request.
        n_each: Choices a prompt.
        echoes: Of each choice, the text that goes before the model's own.
    """

    __slots__ = ("_echoes", "_head", "_logprobs", "_n_each", "_texts")

    def __init__(self, head: AnswerHead, *, n_each: int, echoes: tuple[str, ...]) -> None:
        self._head = head
        self._n_each = n_each
        self._echoes = echoes
        self._texts: tuple[list[str], ...] = tuple([echo] for echo in echoes)
        self._logprobs: tuple[list[TokenLogprob], ...] = tuple([] for _ in echoes)

    def add(self, chunk: Chunk, choice: int = 0) -> None:
        """Take a piece of the output of one choice."""
        self._texts[choice].append(chunk.text)
        if chunk.logprobs:
            self._logprobs[choice].extend(chunk.logprobs)

    def document(
        self, finished: Finished, elapsed_s: float, further: tuple[Finished, ...] = ()
    ) -> bytes:
        """Give the whole answer as JSON."""
        del elapsed_s
        tally = UsageTally(len(self._texts), self._n_each)
        choices: list[dict[str, Any]] = []
        for index, terminal in enumerate((finished, *further)):
            tally.add(index, terminal.usage)
            scores = self._logprobs[index]
            choices.append(
                {
                    "index": index,
                    "text": "".join(self._texts[index]),
                    "logprobs": logprobs_object(scores, len(self._echoes[index]))
                    if scores
                    else None,
                    **end_of(terminal),
                }
            )
        document = {
            **self._head.fields("text_completion"),
            "choices": choices,
            "usage": usage_object(tally.total),
        }
        return written(document)


def logprobs_object(
    tokens: tuple[TokenLogprob, ...] | list[TokenLogprob], offset: int
) -> dict[str, Any]:
    """Give tokens with their alternatives in the form of completions: a list for each aspect.

    Args:
        tokens: In their order.
        offset: Where the first of them begins in the choice's text, in characters.
    """
    ends = accumulate((len(token.token) for token in tokens), initial=offset)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_by_text(token) for token in tokens],
        "text_offset": list(ends)[: len(tokens)],
    }


def _by_text(token: TokenLogprob) -> dict[str, float]:
    """Give the alternatives by their text, and always the chosen one; likelier ones go first."""
    scores: dict[str, float] = {}
    for text, logprob in (*token.alternatives, (token.token, token.logprob)):
        scores.setdefault(text, logprob)
    return scores
