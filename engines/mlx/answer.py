"""One answer: tokens in, frames out, with stop strings, calls and reasoning split out."""

from dataclasses import dataclass
from typing import final

from engines.mlx.library import Array, Tokenizer, mx, tokenizers
from engines.output.split_frames import FrameSplitter, OutputRules
from engines.output.stop_filter import StopFilter
from protocol.data_frames import Chunk, Finished, Frame, TokenLogprob, Usage
from protocol.tasks import ChatTask, FinishReason


@dataclass(slots=True, kw_only=True)
class Timing:
    """When the stages of a request began, in milliseconds of one clock."""

    taken_ms: float
    first_token_ms: float | None = None
    now_ms: float = 0.0


@final
class Answer:
    """What has been said so far to one task.

    Args:
        task: What is answered.
        prompt_tokens: How long its prompt is.
        cached_tokens: How much of it had not to be read.
        tokenizer: Of the model.
        rules: How its text is split; None leaves it as it is.
        timing: Kept by the caller.
        reserved_tokens: How much of the window prompt and answer may take.
    """

    def __init__(
        self,
        task: ChatTask,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        tokenizer: Tokenizer,
        rules: OutputRules | None,
        timing: Timing,
        reserved_tokens: int,
    ) -> None:
        self._task = task
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = cached_tokens
        self._tokenizer = tokenizer
        self._decoder = tokenizers.decoders.DecodeStream(skip_special_tokens=False)
        self._stop = StopFilter(task.stop if rules is None else rules.stop(task).stop)
        self._splitter = None if rules is None else rules.splitter(task)
        self._logprobs: list[TokenLogprob] = []
        self._n_tokens = 0
        self.timing = timing
        self.reserved_tokens = reserved_tokens
        self.is_over = False
        """The last frame has been given."""

    def take(self, token: int, logprobs: Array, *, is_end: bool) -> list[Frame]:
        """Take a token; its answer is over once the last frame is `Finished`.

        Args:
            token: Its id.
            logprobs: `(vocabulary,)`, of which it was chosen.
            is_end: It ends the answer and is no text.
        """
        self._n_tokens += 1
        if is_end:
            return self.end("stop")
        text: str = self._decoder.step(self._tokenizer, token) or ""
        if self._task.logprobs is not None:
            self._logprobs.append(self._logprob(token, logprobs, self._task.logprobs))
        said = self._stop.feed(text)
        frames = self._chunks(said)
        if self._stop.has_stopped:
            frames += self.end("stop")
        return frames

    def end(self, reason: FinishReason) -> list[Frame]:
        """End the answer and give what was held back."""
        self.is_over = True
        stopped_by = self._stop.stopped_by
        frames = self._chunks(self._stop.flush())
        first_ms, timing = self.timing.first_token_ms, self.timing
        finished = Finished(
            reason,
            Usage(
                self._prompt_tokens,
                self._n_tokens,
                self._cached_tokens,
                None if first_ms is None else first_ms - timing.taken_ms,
                None if first_ms is None else timing.now_ms - first_ms,
            ),
            stopped_by if stopped_by in self._task.stop else None,
        )
        return frames + self._split([finished])

    def _chunks(self, text: str) -> list[Frame]:
        if not text:
            return []
        logprobs, self._logprobs = tuple(self._logprobs), []
        return self._split([Chunk(text, logprobs=logprobs)])

    def _split(self, frames: list[Frame]) -> list[Frame]:
        splitter: FrameSplitter | None = self._splitter
        return frames if splitter is None else splitter.take(frames)

    def _logprob(self, token: int, logprobs: Array, n_alternatives: int) -> TokenLogprob:
        found: list[int] = []
        if n_alternatives:
            best = mx.argpartition(-logprobs, n_alternatives - 1)[:n_alternatives]
            found = sorted(best.tolist(), key=lambda one: -logprobs[one].item())
        alternatives = tuple((self._text(one), float(logprobs[one].item())) for one in found)
        return TokenLogprob(self._text(token), float(logprobs[token].item()), alternatives)

    def _text(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special_tokens=False)
