"""How many tokens a second one engine generates, told from the frames that pass. Pure.

A frame holds about one token, but engines differ: some send several at once, and some send frames
that hold none. How many tokens a frame has is therefore learnt from the answers that have finished,
whose engine gives their exact number; until one has, a frame counts as one token.
"""

from collections import deque
from typing import Final, final

from protocol.data_frames import Chunk, Finished, Frame, TakeChunk

WINDOW_S: Final = 6.0
"""The rate is that of the last seconds."""
PERIOD_S: Final = 2.0
"""How often it is worth telling."""
_TELLING_TOKENS: Final = 16
"""A shorter answer says little about a rate."""
_ANSWERS_KEPT: Final = 16
_FORGET_FRAMES: Final = 100_000
"""Of finished answers; beyond it the earlier ones weigh half."""


@final
class Throughput:
    """What one engine says to all its clients."""

    __slots__ = ("_answer_rates", "_finished_frames", "_finished_tokens", "_samples", "n_frames")

    def __init__(self) -> None:
        self.n_frames = 0
        """All that have passed."""
        self._samples: deque[tuple[float, int]] = deque()
        self._finished_frames = 0.0
        self._finished_tokens = 0.0
        self._answer_rates: deque[float] = deque(maxlen=_ANSWERS_KEPT)

    def begin(self) -> "Answer":
        """An answer begins."""
        return Answer(self)

    @property
    def answer_rate(self) -> float | None:
        """Tokens a second of the fastest of the last answers: as a rule one that was alone."""
        return round(max(self._answer_rates), 1) if self._answer_rates else None

    def finish(self, *, n_frames: int, n_tokens: int, generation_ms: float | None = None) -> None:
        """An answer of so many frames has ended, and its engine has counted its tokens."""
        if generation_ms and n_tokens >= _TELLING_TOKENS:
            # The first token comes out of reading the prompt.
            self._answer_rates.append((n_tokens - 1) * 1000 / generation_ms)
        if self._finished_frames > _FORGET_FRAMES:
            self._finished_frames /= 2
            self._finished_tokens /= 2
        self._finished_frames += n_frames
        self._finished_tokens += max(0, n_tokens)

    def rate(self, now: float) -> float:
        """Give tokens a second of the last `WINDOW_S`, and remember that it was asked for now.

        Asked for the first time, or after a pause longer than the window, it is 0.0: there is
        nothing to compare with yet.
        """
        samples = self._samples
        while samples and now - samples[0][0] > WINDOW_S:
            samples.popleft()
        began_s, n_before = samples[0] if samples else (now, self.n_frames)
        if not samples or now - samples[-1][0] >= PERIOD_S / 2:
            samples.append((now, self.n_frames))
        if now <= began_s:
            return 0.0
        frames_per_s = (self.n_frames - n_before) / (now - began_s)
        return round(frames_per_s * self._tokens_per_frame, 1)

    @property
    def _tokens_per_frame(self) -> float:
        return self._finished_tokens / self._finished_frames if self._finished_frames else 1.0


@final
class Answer:
    """The frames of one answer; they pass through it one by one, in the path of every token."""

    __slots__ = ("_n_frames", "_throughput")

    def __init__(self, throughput: Throughput) -> None:
        self._throughput = throughput
        self._n_frames = 0

    def passed(self, frame: Frame) -> Frame:
        """Count a frame, and give it back."""
        self._n_frames += 1
        self._throughput.n_frames += 1
        if type(frame) is Finished:
            usage = frame.usage
            self._throughput.finish(
                n_frames=self._n_frames,
                n_tokens=usage.completion_tokens,
                generation_ms=usage.generation_ms,
            )
        return frame

    def counting(self, take: TakeChunk) -> TakeChunk:
        """Count the chunks that somebody takes where they arrive."""

        def counted(chunk: Chunk) -> bool:
            is_taken = take(chunk)
            if is_taken:
                self._n_frames += 1
                self._throughput.n_frames += 1
            return is_taken

        return counted
