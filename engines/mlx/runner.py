"""The MLX engine inside its runner child: continuous batching over one loaded model.

Requests join and leave the batch between two steps. Caches of ended answers are kept, newest
first, for prompts that begin alike.
"""

from dataclasses import replace
from random import Random
from typing import Any, Final, final

from engines.base import EngineStatistics
from engines.in_process import Report, RunnerSettings
from engines.mlx.answer import Answer, Timing
from engines.mlx.library import Response, caches, generate, mx
from engines.mlx.model import LoadedModel, directory_of, load
from engines.mlx.sampling import penalties_of, sampler_of
from engines.output.split_frames import OutputRules, rules_of
from protocol.clock import Clock
from protocol.data_frames import Frame, Started
from protocol.errors import EngineError, RequestError
from protocol.tasks import ChatTask

PREFILL_TOKENS: Final = 512
"""Read of a prompt in one step; a cancel waits no longer than that takes."""
MAX_CACHED_PROMPTS: Final = 16
_MARKED_TAIL_CHARS: Final = 64
"""Of a prompt's end, in which the mark stands that opens the reasoning."""


@final
class MlxRunner:
    """`engines.in_process.InProcessEngine` for MLX.

    Args:
        settings: What to load and how much of it to run.
        clock: For the times that a usage tells.
        random: Seeds requests that bring no seed.
    """

    def __init__(self, settings: RunnerSettings, clock: Clock, random: Random) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random
        self._loaded: LoadedModel | None = None
        self._batch: Any = None
        self._answers: dict[int, Answer] = {}
        """By the batch's own number."""
        self._requests: dict[int, int] = {}
        """From a request to the batch's own number."""
        self._kept: Any = caches.LRUPromptCache(max_size=MAX_CACHED_PROMPTS)
        self._bytes_per_token = 0.0
        """Of the cache, as the last answer's shows it."""
        self._begun: list[tuple[int, Frame]] = []

    @property
    def has_work(self) -> bool:
        """Whether an answer is under way."""
        return bool(self._answers)

    def load(self, report: Report) -> None:
        """Load the weights; see `InProcessEngine.load`."""
        settings = self._settings
        on_cpu = settings.compute == "cpu"
        if on_cpu:
            mx.set_default_device(mx.cpu)
        directory = directory_of(settings.entry_path)
        loaded = load(directory, report, self._clock.wall_ms() / 1000, on_cpu=on_cpu)
        self._loaded = loaded
        self._batch = generate.BatchGenerator(
            loaded.model,
            stop_tokens=[[end_id] for end_id in loaded.end_ids],
            completion_batch_size=settings.slots,
            prefill_batch_size=min(settings.slots, 4),
            prefill_step_size=PREFILL_TOKENS,
        )

    def submit(self, request_id: int, task: ChatTask) -> None:
        """Queue a task; see `InProcessEngine.submit`."""
        loaded = self._model()
        if task.response_format is not None:
            raise EngineError(
                "engine.unsupported", "the engine mlx has no grammar to hold an answer to a form"
            )
        text = self._prompt(task)
        tokens = self._encode(task, text)
        room = self._settings.context_tokens - len(tokens)
        if room < 1:
            raise self._too_long(len(tokens))
        cache, rest = self._kept.fetch_nearest_cache("", tokens)
        if not rest:
            cache, rest = None, tokens  # the last token is always read anew
        n_cached = len(tokens) - len(rest)
        seed = task.sampling.seed
        if seed is None:
            seed = self._random.getrandbits(32)
        max_tokens = min(task.max_tokens or room, room)
        (number,) = self._batch.insert(
            [rest],
            max_tokens=[max_tokens],
            caches=[cache],
            all_tokens=[tokens[:n_cached]],
            samplers=[sampler_of(task.sampling, loaded.defaults, seed)],
            logits_processors=[penalties_of(task.sampling)],
        )
        self._requests[request_id] = number
        self._answers[number] = Answer(
            task,
            prompt_tokens=len(tokens),
            cached_tokens=n_cached,
            tokenizer=loaded.tokenizer,
            rules=self._rules(task, text),
            timing=Timing(taken_ms=self._now_ms()),
            reserved_tokens=len(tokens) + max_tokens,
        )
        self._trim()
        self._begun.append((request_id, Started(len(tokens))))

    def cancel(self, request_id: int) -> None:
        """Take a request out of the batch."""
        number = self._requests.pop(request_id, None)
        if number is not None and self._answers.pop(number, None) is not None:
            self._batch.remove([number])

    def step(self) -> list[tuple[int, Frame]]:
        """Compute one step of the whole batch."""
        frames, self._begun = self._begun, []
        if frames:
            return frames  # who waits is told that it is taken before a long prompt is read
        _, responses = self._batch.next()
        now_ms = self._now_ms()
        names = {number: request_id for request_id, number in self._requests.items()}
        for response in responses:
            answer = self._answers.get(response.uid)
            if answer is None:
                continue
            if answer.timing.first_token_ms is None:
                answer.timing.first_token_ms = now_ms
            answer.timing.now_ms = now_ms
            request_id = names[response.uid]
            said = self._said(answer, request_id, response)
            frames += [(request_id, frame) for frame in said]
        return frames

    def count_tokens(self, task: ChatTask) -> int:
        """Render and count."""
        return len(self._encode(task, self._prompt(task)))

    def count_text(self, text: str) -> int:
        """Count a text."""
        return len(self._model().tokenizer.encode(text).ids)

    def statistics(self) -> EngineStatistics:
        """Count answers under way, as far as there are slots."""
        settings = self._settings
        return EngineStatistics(
            slots=settings.slots,
            slots_busy=min(len(self._answers), settings.slots),
            context_tokens=settings.context_tokens,
        )

    def _said(self, answer: Answer, request_id: int, response: Response) -> list[Frame]:
        is_end = response.token in self._model().end_ids
        frames = answer.take(response.token, response.logprobs, is_end=is_end)
        if response.finish_reason is not None and not answer.is_over:
            frames += answer.end("length")
        if answer.is_over:
            self._end(request_id, response)
        return frames

    def _end(self, request_id: int, response: Response) -> None:
        """Forget a request, and keep what was read for it."""
        number = self._requests.pop(request_id)
        del self._answers[number]
        cache, tokens = response.prompt_cache, response.all_tokens
        if response.finish_reason is None:
            cache, tokens = self._batch.remove([number], return_prompt_caches=True)[number]
        if len(tokens):
            self._bytes_per_token = sum(part.nbytes for part in cache) / len(tokens)
            self._kept.insert_cache("", list(tokens), cache)
            self._trim()

    def _trim(self) -> None:
        """Keep no more than the window has room for beside the answers under way."""
        in_use = sum(answer.reserved_tokens for answer in self._answers.values())
        free_tokens = max(0, self._settings.context_tokens - in_use)
        self._kept.trim_to(n_bytes=int(free_tokens * self._bytes_per_token))

    def _prompt(self, task: ChatTask) -> str:
        if task.prompt is not None:
            return task.prompt
        template = self._model().template
        if template is None:
            raise EngineError(
                "engine.unsupported",
                f"{self._settings.card.model_id} has no chat template",
                remediation="Have it go on with a text instead: `/v1/completions`.",
            )
        return template.render(task)

    def _encode(self, task: ChatTask, text: str) -> list[int]:
        # A template writes its special tokens itself.
        encoded = self._model().tokenizer.encode(text, add_special_tokens=task.prompt is not None)
        return list(encoded.ids)

    def _rules(self, task: ChatTask, text: str) -> OutputRules | None:
        """A text's continuation is handed on as it is, whatever marks it holds."""
        if task.prompt is not None:
            return None
        template = self._model().template
        rules = rules_of(self._settings.card, template.source if template else None)
        return replace(rules, prompt_tail=text[-_MARKED_TAIL_CHARS:], stops_at_turn_ends=True)

    def _too_long(self, n_tokens: int) -> RequestError:
        context_tokens = self._settings.context_tokens
        return RequestError(
            "request.context_length_exceeded",
            f"the prompt has {n_tokens} tokens, the context of this instance {context_tokens}",
            remediation="shorten the conversation, or place the model with a larger --context",
            details={"n_prompt_tokens": n_tokens, "n_ctx": context_tokens},
        )

    def _model(self) -> LoadedModel:
        if self._loaded is None:
            raise AssertionError("the model is loaded before it is asked")
        return self._loaded

    def _now_ms(self) -> float:
        return self._clock.monotonic_s() * 1000
