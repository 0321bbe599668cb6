"""Frames of raw text, to frames whose calls and reasoning are split out. Pure."""

from dataclasses import dataclass
from typing import final

from engines.output.markup import MARKUPS, Markup, markup_name_of
from engines.output.splitter import OutputSplitter
from protocol.cards import ModelCard
from protocol.data_frames import Chunk, Finished, Frame
from protocol.tasks import ChatTask, ToolDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRules:
    """How the answers of one model are split.

    Args:
        markup: The marks that its text may hold.
        prompt_tail: What its prompts end in.
        stops_at_turn_ends: The engine shows the marks that end a turn and would go on after them.
    """

    markup: Markup
    prompt_tail: str = ""
    stops_at_turn_ends: bool = False

    def stop(self, task: ChatTask) -> ChatTask:
        """Give the task as the engine is to have it."""
        if not self.stops_at_turn_ends:
            return task
        return task.changed({"stop": (*task.stop, *self.markup.ends_turn)})

    def splitter(self, task: ChatTask) -> "FrameSplitter":
        """Make what splits the answer to a task."""
        return FrameSplitter(task, self)


def rules_of(card: ModelCard, template: str | None = None) -> OutputRules:
    """Choose how a model's answers are split; see `markup_name_of`."""
    return OutputRules(markup=MARKUPS[markup_name_of(card, template)])


@final
class FrameSplitter:
    """Splits the frames of one answer, chunk by chunk; what an engine has split itself passes.

    Args:
        task: What is answered.
        rules: Of its model.
    """

    def __init__(self, task: ChatTask, rules: OutputRules) -> None:
        self._splitter = OutputSplitter(
            rules.markup,
            offered_tools(task),
            call_id_prefix=f"call_{task.command_id}_",
            begins_in_reasoning=rules.markup.begins_in_reasoning(rules.prompt_tail),
            answers_in_json=task.response_format is not None,
        )
        self._n_foreign_calls = 0

    def take(self, frames: list[Frame]) -> list[Frame]:
        """Give the frames to send on; the same list where all is plain text."""
        if len(frames) == 1:
            frame = frames[0]
            # Nearly every token ends here.
            if (
                type(frame) is Chunk
                and not frame.tool_calls
                and self._splitter.is_plain(frame.text)
            ):
                return frames
        split: list[Frame] = []
        for frame in frames:
            if isinstance(frame, Chunk):
                split += self._chunks(frame)
            elif isinstance(frame, Finished):
                split += self._splitter.finish()
                split.append(self._finished(frame))
            else:
                split.append(frame)
        return split

    def _chunks(self, chunk: Chunk) -> list[Chunk]:
        chunks = self._splitter.feed(chunk.text) if chunk.text else []
        for delta in chunk.tool_calls:
            self._n_foreign_calls = max(self._n_foreign_calls, delta.call_index + 1)
            self._splitter.n_calls = max(self._splitter.n_calls, self._n_foreign_calls)
        others = chunk._replace(text="")
        if others.reasoning or others.tool_calls:
            return [*chunks, others]
        if chunk.logprobs and chunks:
            return [chunks[0]._replace(logprobs=chunk.logprobs), *chunks[1:]]
        return [*chunks, others] if chunk.logprobs else chunks

    def _finished(self, finished: Finished) -> Finished:
        has_called = self._splitter.n_calls > self._n_foreign_calls
        if has_called and finished.reason == "stop":
            return finished._replace(reason="tool_calls")
        return finished


def offered_tools(task: ChatTask) -> dict[str, ToolDefinition]:
    """Give the tools that a task's answer may call, by name."""
    if task.tool_choice == "none":
        return {}
    is_named = task.tool_choice.startswith("=")
    return {
        tool.name: tool for tool in task.tools if not is_named or tool.name == task.tool_choice[1:]
    }
