"""The master's sending: events to every member, each at its own pace.

A member is sent what is new as long as it keeps up. What is on its way to it is bounded; one that
takes nothing is not waited for, and fetches what it has missed by itself (`FetchEvents`), which it
notices by the next batch or heartbeat. Batches without records say how far the log is committed.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, final

from protocol.ids import NodeId
from protocol.peer_messages import EventBatch, TermPair, pack_frame
from skulkd.cluster.transport import Transport
from skulkd.eventlog.log_tail import LogTail

MAX_BATCH_BYTES: Final = 1 << 20
"""Half of what the events plane takes, so that one long record behind many short ones fits too."""
MAX_BATCH_RECORDS: Final = 1024
SENT_TOGETHER: Final = 64
"""Of what one turn of the loop decides, so much is sent at once: members work on it meanwhile."""
MAX_OUTSTANDING_BYTES: Final = 4 << 20
"""Sent to one member, and not yet durable there."""


@dataclass(slots=True)
class _Feed:
    next_seq: int
    """Of the next record to send."""
    said_commit_seq: int = -1
    outstanding: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    """Of each batch on its way: its last seq, and its length."""
    n_outstanding_bytes: int = 0


@final
class MemberFeeds:
    """Sends one term's events.

    Args:
        term: Led by this node.
        tail: What is sent.
        transport: Carries it on the plane `events`.
    """

    def __init__(self, term: TermPair, tail: LogTail, transport: Transport) -> None:
        self._term = term
        self._tail = tail
        self._transport = transport
        self._first_seq = tail.seq + 1
        self._sent_seq = tail.seq
        self._feeds: dict[NodeId, _Feed] = {}
        self._is_due = False
        self._has_begun = False
        self._is_closed = False
        self._packed: tuple[tuple[int, int, int], bytes] | None = None

    def soon(self) -> None:
        """Send what is new at the end of this turn of the loop, together; at once if it is much."""
        if self._tail.seq - self._sent_seq >= SENT_TOGETHER:
            self.send_all()
        elif not self._is_due and not self._is_closed:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.send_all)

    def send_all(self) -> None:
        """Send every member whose link is up what it may have now."""
        self._is_due = False
        if self._is_closed:
            return
        self._sent_seq = self._tail.seq
        members = self._members()
        for member in [known for known in self._feeds if known not in members]:
            del self._feeds[member]
        for member in members:
            self._send(member)
        self._has_begun = True

    def on_durable(self, member: NodeId, seq: int) -> None:
        """Take note of what has arrived; there may be room for more."""
        feed = self._feeds.get(member)
        if feed is None:
            return
        outstanding = feed.outstanding
        while outstanding and outstanding[0][0] <= seq:
            feed.n_outstanding_bytes -= outstanding.popleft()[1]
        if feed.next_seq <= self._tail.seq:
            self.soon()

    def on_link(self, member: NodeId) -> None:
        """A link has changed: what was on its way is lost, and the member will fetch it."""
        self._feeds.pop(member, None)
        self.soon()

    def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True

    def _members(self) -> list[NodeId]:
        state = self._tail.appended
        # One that was removed hears so, as long as its link is left to it.
        return [
            peer
            for peer in self._transport.peers()
            if peer in state.members or peer in state.removed
        ]

    def _send(self, member: NodeId) -> None:
        feed = self._feeds.get(member)
        if feed is None:
            # One who is there when the term begins gets all of it; a later one sees what it lacks.
            feed = _Feed(self._tail.seq + 1 if self._has_begun else self._first_seq)
            self._feeds[member] = feed
        tail = self._tail
        while feed.next_seq <= tail.seq and feed.n_outstanding_bytes < MAX_OUTSTANDING_BYTES:
            records = tail.recent.after(
                feed.next_seq - 1, max_bytes=MAX_BATCH_BYTES, max_records=MAX_BATCH_RECORDS
            )
            if records is None:
                feed.next_seq, feed.said_commit_seq = tail.seq + 1, -1
                break
            last_seq = records[-1].seq
            payload = self._pack(feed.next_seq - 1, last_seq, (item.body for item in records))
            if self._transport.send(member, "events", payload) is not None:
                return
            feed.outstanding.append((last_seq, len(payload)))
            feed.n_outstanding_bytes += len(payload)
            feed.next_seq, feed.said_commit_seq = last_seq + 1, tail.commit_seq
        if feed.said_commit_seq < tail.commit_seq:
            seq = feed.next_seq - 1
            if tail.recent.chain_at(seq) is None:
                seq = tail.seq
            if self._transport.send(member, "events", self._pack(seq, seq, ())) is None:
                feed.said_commit_seq = tail.commit_seq

    def _pack(self, prev_seq: int, last_seq: int, bodies: Iterable[bytes]) -> bytes:
        """Pack a batch; members that are equally far get the same bytes."""
        tail = self._tail
        key = (prev_seq, last_seq, tail.commit_seq)
        if self._packed is not None and self._packed[0] == key:
            return self._packed[1]
        chain = tail.recent.chain_at(prev_seq)
        # ruff: ignore[assert]  callers have just looked at the same window
        assert chain is not None, "the position lies in the window"
        payload = pack_frame(
            EventBatch(
                number=self._term.number,
                master=self._term.master,
                prev_seq=prev_seq,
                prev_chain=chain,
                commit_seq=tail.commit_seq,
                records=tuple(bodies),
            )
        )
        self._packed = key, payload
        return payload
