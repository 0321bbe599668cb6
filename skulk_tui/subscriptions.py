"""The topics that a link follows, through all its connections; pure.

The user of a link knows a subscription by one id for ever, while the node is given a new one for
each time that it is asked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final, get_args

from protocol.errors import ErrorBody, SkulkError, error_of
from protocol.session import FeedState, Lines, NodeHello, Rows, RowTopic, Subscribe
from skulk_tui.session_calls import bad_frame

ROW_TOPICS: Final = frozenset(get_args(RowTopic))


@final
@dataclass(slots=True)
class Followed:
    """One topic that is followed."""

    frame: Subscribe
    """As it was asked for first; its id is the one that the link's user knows."""
    wire_id: int
    cursor: str | None = None
    node_id: str = ""
    boot_id: str = ""
    """Who gave the cursor."""
    is_complete: bool = False
    """In this connection, the first frame has come, or the end."""
    has_ended: bool = False
    asked_cursor: str | None = None
    gap: str = ""
    """To be told before the next lines: they are not the continuation of those before."""
    starts_over: bool = False
    """The next lines repeat those that are there."""
    error: ErrorBody | None = None

    @property
    def id(self) -> int:
        """What the link's user knows it by."""
        return self.frame.id

    @property
    def is_rows(self) -> bool:
        """Whether the topic has rows, else lines."""
        return self.frame.topic in ROW_TOPICS

    def begin(self, hello: NodeHello, *, anew: bool = False) -> Subscribe:
        """Make the frame that asks the node for it."""
        self.is_complete = self.has_ended = False
        self.error = None
        self.gap = ""
        self.starts_over = False
        self.asked_cursor = None if anew else self._cursor_at(hello)
        return self.frame.model_copy(update={"id": self.wire_id, "cursor": self.asked_cursor})

    def _cursor_at(self, hello: NodeHello) -> str | None:
        if not self.node_id:
            return None
        frame = self.frame
        if frame.topic == "command":
            self.starts_over = True
            return None
        if frame.topic == "events":
            return self.cursor
        if frame.topic == "logs":
            is_same_log = frame.node is not None or frame.instance_id is not None
            if is_same_log or self.node_id == hello.node_id:
                return self.cursor
            self.gap = f"from here on the log of {hello.name}"
            return None
        return self.cursor if (self.node_id, self.boot_id) == _boot(hello) else None

    def take(self, frame: Rows | Lines, hello: NodeHello, feed: FeedState) -> None:
        """Note where the topic stands; `feed` is how much of it the node sends.

        Raises:
            ProtocolError: `protocol.bad_frame`: it is of the other sort, or changes come before
                what they change.
        """
        if isinstance(frame, Rows) is not self.is_rows:
            fault = f"it sent {frame.type} for the topic {self.frame.topic}"
            raise bad_frame(fault)
        if self._is_part(frame):
            if feed != "summary":
                fault = f"it sent changes of {self.frame.topic} before its rows"
                raise bad_frame(fault)
            return  # the one row that a client gets which is far too slow; the others follow
        self.is_complete = True
        self.cursor = frame.cursor or None
        self.node_id, self.boot_id = _boot(hello)

    def _is_part(self, frame: Rows | Lines) -> bool:
        """Whether rows come that are not all, and nothing is there that they could complete."""
        if not isinstance(frame, Rows) or frame.is_snapshot:
            return False
        return not self.is_complete and self.asked_cursor is None

    def forget(self) -> None:
        """Begin from nothing the next time: what comes then is another cluster's."""
        self.cursor = None
        self.node_id = self.boot_id = ""

    def end(self, error: ErrorBody | None) -> None:
        """Note that the node sends no more of it."""
        self.is_complete = self.has_ended = True
        self.error = error


def _boot(hello: NodeHello) -> tuple[str, str]:
    return (hello.node_id, hello.boot_id)


@final
class Subscriptions:
    """All of them."""

    def __init__(self) -> None:
        self._by_id: dict[int, Followed] = {}
        self._by_wire_id: dict[int, Followed] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Followed]:
        return iter(tuple(self._by_id.values()))

    def add(self, frame: Subscribe) -> Followed:
        """Follow a topic from now on."""
        followed = Followed(frame=frame, wire_id=frame.id)
        self._by_id[frame.id] = self._by_wire_id[frame.id] = followed
        return followed

    def remove(self, subscription_id: int) -> Followed | None:
        """Follow it no more; None where it is not followed."""
        followed = self._by_id.pop(subscription_id, None)
        if followed is not None:
            del self._by_wire_id[followed.wire_id]
        return followed

    def renew(self, followed: Followed, wire_id: int) -> None:
        """Know it by another id on the wire; frames under the old one are nobody's."""
        del self._by_wire_id[followed.wire_id]
        followed.wire_id = wire_id
        self._by_wire_id[wire_id] = followed

    def on_wire(self, wire_id: int) -> Followed | None:
        """Find whose frame has come."""
        return self._by_wire_id.get(wire_id)

    def error_of(self, subscription_id: int) -> SkulkError | None:
        """Give why the node ended one, if it did so with an error."""
        followed = self._by_id.get(subscription_id)
        return error_of(followed.error) if followed is not None and followed.error else None

    @property
    def complete_ratio(self) -> float:
        """How many of the topics with rows are complete in this connection; 1 without any."""
        rows = [followed.is_complete for followed in self if followed.is_rows]
        return sum(rows) / len(rows) if rows else 1.0
