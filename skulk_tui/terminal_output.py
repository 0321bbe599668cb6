"""What goes to the terminal, written by a thread: a slow reader never holds up the event loop.

Frames may be dropped, because the screen can be drawn again; what sets the terminal's modes may
not. The backlog tells whoever draws new values that the last ones are still on their way.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, final

MAX_QUEUED_BYTES: Final = 1 << 20
"""Beyond it all waiting frames are dropped and the screen is drawn anew, once it can be."""
_CHUNK_BYTES: Final = 4096
_LOOK_AGAIN_S: Final = 0.1
# Ends whatever sequence was cut off in its middle: CAN, then the end of a string.
_ABANDON: Final = b"\x18\x1b\\\x1b[0m"


@final
class TerminalOutput:
    """A queue of writes and the thread that empties it.

    Args:
        descriptor: A terminal open for writing, best without blocking; closed by `close`.
        on_drop: Called by the thread when all is written after frames had been dropped.
        on_gone: Called by the thread, once, when the terminal takes nothing any more.
    """

    def __init__(
        self, descriptor: int, *, on_drop: Callable[[], None], on_gone: Callable[[], None]
    ) -> None:
        self._descriptor = descriptor
        self._may_block = os.get_blocking(descriptor)
        self._on_drop = on_drop
        self._on_gone = on_gone
        self._changed = threading.Condition()
        self._queue: deque[tuple[bytes, bool]] = deque()
        self._n_queued_bytes = 0
        self._is_writing = False
        self._writes_frame = False
        self._abandons_frame = False
        self._has_dropped = False
        self._is_closing = False
        self._is_gone = False
        self._thread = threading.Thread(target=self._run, name="terminal-output", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """How many writes the terminal has not taken, the one under way included."""
        with self._changed:
            return len(self._queue) + self._is_writing

    def write(self, text: str, *, is_frame: bool) -> None:
        """Queue text; returns at once. A frame may be dropped, everything else is kept."""
        data = text.encode("utf-8", "replace")
        with self._changed:
            if self._is_gone or self._is_closing:
                return
            if is_frame and self._n_queued_bytes + len(data) > MAX_QUEUED_BYTES:
                self._drop_frames()
                self._has_dropped = True
            else:
                self._queue.append((data, is_frame))
                self._n_queued_bytes += len(data)
            self._changed.notify_all()

    def abandon_frames(self) -> None:
        """Drop all frames, also the rest of the one under way: the screen is about to be left."""
        with self._changed:
            self._drop_frames()
            self._abandons_frame = self._is_writing and self._writes_frame
            self._queue.appendleft((_ABANDON, False))
            self._n_queued_bytes += len(_ABANDON)
            self._changed.notify_all()

    def close(self, *, within_s: float) -> bool:
        """Write what is left and end the thread; False if the terminal did not take it in time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(within_s)
        return not self._thread.is_alive() and not self._is_gone

    def _drop_frames(self) -> None:
        kept = [entry for entry in self._queue if not entry[1]]
        self._queue.clear()
        self._queue.extend(kept)
        self._n_queued_bytes = sum(len(data) for data, _ in kept)

    def _run(self) -> None:
        try:
            while (data := self._next()) is not None:
                self._deliver(data)
        except OSError:  # hung up
            with self._changed:
                self._is_gone = True
                self._is_writing = False
                self._queue.clear()
            self._on_gone()
        finally:
            os.close(self._descriptor)

    def _next(self) -> bytes | None:
        """Wait for a write; None when all are done and no more will come."""
        with self._changed:
            self._is_writing = False
            was_dropped = self._has_dropped and not self._queue
            self._has_dropped = self._has_dropped and not was_dropped
        if was_dropped:
            self._on_drop()
        with self._changed:
            while not self._queue:
                if self._is_closing:
                    return None
                self._changed.wait()
            data, self._writes_frame = self._queue.popleft()
            self._n_queued_bytes -= len(data)
            self._is_writing = True
            self._abandons_frame = False
            return data

    def _deliver(self, data: bytes) -> None:
        """Write all of it, in pieces, for a terminal may block in the middle of one.

        One that does not block is asked whether it takes more only once it takes nothing: after
        each call to the system this thread waits for its turn behind the one that draws.
        """
        rest = memoryview(data)
        asks = self._may_block
        while rest and not self._abandons_frame:
            if asks and not select.select([], [self._descriptor], [], _LOOK_AGAIN_S)[1]:
                continue
            try:
                rest = rest[os.write(self._descriptor, rest[:_CHUNK_BYTES]) :]
                asks = self._may_block
            except BlockingIOError:
                asks = True
