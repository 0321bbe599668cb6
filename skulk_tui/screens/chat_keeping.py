"""Keeping conversations and drafts: one writer, off the loop, the newest form of each.

What cannot be written is told once, and the chat goes on without.
"""

from collections.abc import Callable
from typing import final

from protocol.errors import SkulkError
from skulk_tui.chat_conversation import Conversation
from skulk_tui.chat_files import ChatFiles, KeptChat, file_name
from skulk_tui.seat import Seat
from skulk_tui.tasks import run_blocking


@final
class ChatKeeping:
    """The keeper of one screen.

    Args:
        seat: The run.
        start_writer: Has `write_out` run in the background.
    """

    def __init__(self, seat: Seat, start_writer: Callable[[], None]) -> None:
        self._seat = seat
        self._files = ChatFiles(seat.state_dir)
        self._start_writer = start_writer
        self._dirty: dict[str, Conversation] = {}
        self._drafts: dict[str, str] = {}
        self._is_writing = False
        self._is_over = False
        self._has_told = False

    # ---- Writing ----

    def keep(self, conversation: Conversation) -> None:
        """Have a conversation written, as it is by then."""
        if self._files.keeps:
            self._dirty[conversation.id] = conversation
            self._wake()

    def keep_draft(self, conversation_id: str, text: str) -> None:
        """Have a draft written; an empty one is forgotten."""
        if self._files.keeps:
            self._drafts[conversation_id] = text
            self._wake()

    def _wake(self) -> None:
        if not self._is_writing and not self._is_over:
            self._is_writing = True
            self._start_writer()

    async def write_out(self) -> None:
        """Write all there is to write."""
        try:
            while self._dirty or self._drafts:
                await self._write_one()
        except SkulkError as error:
            self._dirty.clear()
            self._drafts.clear()
            if not self._has_told:
                self._has_told = True
                self._seat.tell_error(error)
        finally:
            self._is_writing = False

    async def _write_one(self) -> None:
        if self._drafts:
            await run_blocking(self._save_draft, *self._drafts.popitem())
        else:
            conversation_id, conversation = self._dirty.popitem()
            text = conversation.saved(self._seat.now()).model_dump_json()
            await run_blocking(self._save, conversation_id, text)

    def _save(self, conversation_id: str, text: str) -> None:
        self._files.claims.claim(conversation_id)  # from here on it is there for others to open
        self._files.save(conversation_id, text)

    def _save_draft(self, conversation_id: str, text: str) -> None:
        self._files.claims.claim(conversation_id)
        self._files.save_draft(conversation_id, text)

    def end(self) -> None:
        """Start no writer any more: the screen goes."""
        self._is_over = True

    def write_now(self, conversation: Conversation, draft: str) -> None:
        """Write what is left, because the screen goes.

        Raises:
            SkulkError: It cannot be written.
        """
        self._files.save_draft(conversation.id, draft)
        for one in (*self._dirty.values(), *([conversation] if conversation.exchanges else [])):
            self._files.save(one.id, one.saved(self._seat.now()).model_dump_json())

    def release(self) -> None:
        """Let other programs of this operator have what was open here."""
        self._files.claims.release()

    # ---- Reading ----

    async def latest(self) -> tuple[Conversation, str] | None:
        """Give the conversation of last time with its draft; None where there is none.

        One that is open in another program is left to that one.

        Raises:
            SkulkError: It cannot be read.
        """
        latest_id = await run_blocking(self._files.latest_id)
        if latest_id is None or not await run_blocking(self._files.claims.claim, latest_id):
            return None
        return await self.load(latest_id)

    async def load(self, conversation_id: str) -> tuple[Conversation, str]:
        """Give a conversation and its draft; a draft alone is the beginning of one.

        Of one that is open in another program a copy is given, and that is told.

        Raises:
            SkulkError: It cannot be read.
        """
        if not await run_blocking(self._files.claims.claim, conversation_id):
            return await self._copy(conversation_id), ""
        draft = await run_blocking(self._files.load_draft, conversation_id)
        try:
            return await run_blocking(self._files.load, conversation_id), draft
        except SkulkError:
            if not draft:
                raise
            at_ms = self._seat.clock.wall_ms()
            return Conversation(id=conversation_id, created_ms=at_ms, changed_ms=at_ms), draft

    async def _copy(self, conversation_id: str) -> Conversation:
        found = await run_blocking(self._files.load, conversation_id)
        self._seat.tell("it is open in another terminal: this is a copy of it", level="warn")
        return found.copied(f"{self._seat.clock.wall_ms():012x}", found.model_id)

    async def recent(self) -> list[KeptChat]:
        """List what can be opened, the latest first."""
        return await run_blocking(self._files.recent)

    async def export(self, conversation: Conversation, form: str) -> str:
        """Write a conversation for other programs; gives where it lies.

        Raises:
            SkulkError: The disk does not allow it.
        """
        is_json = form == "json"
        text = conversation.as_json(self._seat.now()) if is_json else conversation.as_markdown()
        name = file_name(f"{conversation.shown_title} {conversation.id}", form)
        return str(await run_blocking(self._files.export, name, text))
