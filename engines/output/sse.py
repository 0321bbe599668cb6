"""Server-sent events from an engine: bytes in, payloads out. Pure.

Engines put one JSON document on one `data:` line, so a line is an event here; comments, `event:`
and `id:` lines carry nothing that we need.
"""

from typing import Final, final

from protocol.errors import EngineError

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""A line is one token with at most 20 alternatives, or a whole answer from a wordy engine."""

_DATA: Final = b"data:"


@final
class SseReader:
    """Cuts a byte stream into the payloads of its `data:` lines."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._rest = b""
        self._max_line_bytes = max_line_bytes

    @property
    def is_between(self) -> bool:
        """All that was fed so far ended with a line."""
        return not self._rest

    def feed(self, piece: bytes) -> list[bytes]:
        """Take bytes as they come and give the payloads that are now complete, in order.

        Raises:
            EngineError: `engine.request_failed` when a line is larger than the limit.
        """
        lines = (self._rest + piece).split(b"\n") if self._rest else piece.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self._max_line_bytes:
            raise EngineError(
                "engine.request_failed",
                f"a line of the engine's stream is larger than {self._max_line_bytes} bytes",
                details={"max_line_bytes": self._max_line_bytes},
            )
        return [line[5:].strip() for line in lines if line.startswith(_DATA)]
