"""How the next token is chosen: one sampler and a list of penalties for each request."""

from typing import Any, Final, final

from engines.mlx.library import Array, Sampler, mx, sample_utils
from protocol.tasks import Sampling

DEFAULTS: Final = {"temperature": 0.8, "top_p": 0.95, "top_k": 40.0, "min_p": 0.05}
"""Where neither the request nor the model says anything: as llama-server has them."""
PENALTY_TOKENS: Final = 64
"""How far back penalties look where a request does not say."""


def greedy(logprobs: Array) -> Array:
    """Choose the most likely token: `(batch, vocabulary)` to `(batch,)`."""
    return mx.argmax(logprobs, axis=-1)


@final
class SeededSampler:
    """Chooses by chance, the same from the same seed, whatever else is in the batch.

    Args:
        sampling: What the request wants.
        defaults: What holds where it says nothing.
        seed: Of this request's chance.
    """

    def __init__(self, sampling: Sampling, defaults: dict[str, float], seed: int) -> None:
        said = {**DEFAULTS, **defaults, **sampling.model_dump(exclude_none=True)}
        self._temperature = said["temperature"]
        self._top_p, self._top_k, self._min_p = said["top_p"], int(said["top_k"]), said["min_p"]
        self._key = mx.random.key(seed)

    def __call__(self, logprobs: Array) -> Array:
        """Choose: `(1, vocabulary)` to `(1,)`."""
        if 0 < self._top_k < logprobs.shape[-1]:
            logprobs = sample_utils.apply_top_k(logprobs, self._top_k)
        if self._top_p < 1:
            logprobs = sample_utils.apply_top_p(logprobs, self._top_p)
        if self._min_p > 0:
            logprobs = sample_utils.apply_min_p(logprobs, self._min_p)
        self._key, now = mx.random.split(self._key)
        return mx.random.categorical(logprobs * (1 / self._temperature), key=now)


def sampler_of(sampling: Sampling, defaults: dict[str, float], seed: int) -> Sampler:
    """Make a request's sampler; all that choose greedily share one, for the whole batch."""
    temperature = sampling.temperature
    if temperature is None:
        temperature = {**DEFAULTS, **defaults}["temperature"]
    return greedy if temperature == 0 else SeededSampler(sampling, defaults, seed)


def penalties_of(sampling: Sampling) -> list[Any]:
    """Make what changes the odds of tokens that are there already."""
    size = sampling.repetition_context_size
    if size is None:
        size = PENALTY_TOKENS
    repetition = sampling.repetition_penalty
    made: list[Any] = sample_utils.make_logits_processors(
        repetition_penalty=None if repetition in {None, 1.0} else repetition,
        repetition_context_size=size,
        presence_penalty=sampling.presence_penalty or None,
        presence_context_size=size,
        frequency_penalty=sampling.frequency_penalty or None,
        frequency_context_size=size,
    )
    return made if size else []
