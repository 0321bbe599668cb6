"""One question on its way: it waits for a model that loads, and goes on over a link that broke."""

import asyncio
from typing import Any, Final, final

from protocol.errors import SkulkError
from skulk_tui.chat_answer import Answer, loading_of
from skulk_tui.screens.chat_rows import loading_from
from skulk_tui.seat import Seat
from skulk_tui.session_chats import ChatStream

ASK_AGAIN_S: Final = 5.0
"""How often a model is asked that loads, where nothing tells that it is ready."""
_ASK_WHEN_READY_S: Final = 0.5
_BREATHE_EVERY: Final = 64
_UP: Final = frozenset({"live", "stale", "syncing"})


@final
class ChatRun:
    """The run of one answer.

    Args:
        seat: The operator's.
        answer: Takes what comes.
        body: The request.
        stream: The stream of it, just opened.
    """

    def __init__(
        self, seat: Seat, answer: Answer, body: dict[str, Any], stream: ChatStream
    ) -> None:
        self.answer = answer
        self._seat = seat
        self._body = body
        self._stream: ChatStream | None = stream
        self._asked_at = seat.now()
        self._lost_at: float | None = None
        self._lost_after = 0

    async def read(self) -> None:
        """Read the stream to its end; whatever happens is told by the answer."""
        stream = self._stream
        if stream is None:
            return
        try:
            await self._take_all(stream)
            self.answer.finish()
        except SkulkError as error:
            self.answer.name(stream.command_id)
            self._take_error(error)

    async def _take_all(self, stream: ChatStream) -> None:
        n = 0
        async for event in stream:
            self.answer.name(stream.command_id)
            self.answer.take(event, self._seat.now())
            self._tell_resumed()
            if self.answer.is_too_long:
                self.stop()
            if self.answer.is_over:
                return
            n += 1
            if n % _BREATHE_EVERY == 0:
                await _breathe()

    def stop(self) -> None:
        """Stop it at once: what has come stays, and the node is told."""
        if self._stream is not None:
            self._stream.cancel()
        self.answer.stop(self._seat.now())

    def beat(self) -> bool:
        """Look at the link and at a model that loads; True where there is a new stream to read."""
        if self.answer.is_over:
            return False
        if self.answer.state == "loading":
            return self._look_at_loading()
        self._look_at_link()
        return False

    def _take_error(self, error: SkulkError) -> None:
        loading = loading_of(error)
        if loading is None or self.answer.is_over:
            # One that came to an end meanwhile stays as it ended.
            self.answer.fail(error)
        else:
            self._stream = None
            self.answer.load(loading)

    def _look_at_loading(self) -> bool:
        loading = self.answer.loading
        if loading is None or self._stream is not None:
            return False
        view = self._seat.view
        found = [one for one in view.instances if one.instance_id == loading.instance_id]
        is_ready = bool(found) and found[0].phase == "ready"
        if found and not is_ready and (fresh := loading_from(found[0], view)) != loading:
            self.answer.load(fresh)
        waited_s = self._seat.now() - self._asked_at
        if waited_s < (_ASK_WHEN_READY_S if is_ready else ASK_AGAIN_S):
            return False
        return self._ask_again()

    def _ask_again(self) -> bool:
        self._asked_at = self._seat.now()
        if self._seat.link.view.word not in _UP:
            return False
        try:
            self._stream = self._seat.link.open_chat(self._body)
        except SkulkError as error:
            self.answer.fail(error)
            return False
        return True

    def _look_at_link(self) -> None:
        stream = self._stream
        is_up = self._seat.link.view.word in _UP
        if stream is not None and not is_up and self._lost_at is None:
            self._lost_at = self._seat.now()
            self._lost_after = stream.n_tokens

    def _tell_resumed(self) -> None:
        """Say that a stream went on over a new connection."""
        if self._lost_at is not None and self._seat.link.view.word in _UP:
            lasted_s = self._seat.now() - self._lost_at
            self._lost_at = None
            self._seat.tell(
                f"stream resumed after {lasted_s:.1f}s at token {self._lost_after}; nothing lost",
                level="good",
            )


async def _breathe() -> None:
    """Let the rest of the program have its turn, where a burst of events is read."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn
