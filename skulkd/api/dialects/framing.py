"""How the events of a stream are told apart, and where the JSON of each one is. Pure."""

from dataclasses import dataclass
from typing import Final, final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """The form of a dialect's streams."""

    content_type: bytes
    end: bytes
    """What ends an event, and is nowhere inside one."""
    data: bytes
    """What stands before the JSON of an event; b"" where an event is nothing else."""

    def split(self, events: bytes) -> list[bytes]:
        """Part events that come together; each keeps its end."""
        return [event + self.end for event in events.split(self.end) if event]

    def json_of(self, event: bytes) -> bytes:
        """Give the JSON of an event."""
        return event[event.index(self.data) + len(self.data) : -len(self.end)]

    def as_sse(self, event: bytes) -> bytes:
        """Give an event as server-sent events have it."""
        return event if self.data else b"data: %b\n\n" % self.json_of(event)


SSE: Final = Framing(
    content_type=b"text/event-stream; charset=utf-8", end=b"\n\n", data=b"data: "
)  # fmt: skip
"""An event: its name where the dialect has names, `data: JSON` and a blank line."""
NDJSON: Final = Framing(content_type=b"application/x-ndjson", end=b"\n", data=b"")
"""An event: one line, which is one JSON object."""

SSE_KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, which clients pass over."""


def sse_keep_alive() -> bytes:
    """Give the comment that keeps a stream alive."""
    return SSE_KEEP_ALIVE
