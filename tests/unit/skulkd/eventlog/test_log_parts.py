"""Small parts of the replicated log: recent records, the commit file, snapshots between nodes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from protocol.codec import pack
from protocol.errors import ClusterError, ConfigError, ProtocolError, RequestError
from protocol.events import CardRemoved, SequencedEvent
from protocol.ids import ModelId, NodeId
from protocol.peer_messages import (
    FetchSnapshotChunk,
    OpenSnapshot,
    PeerAnswer,
    PeerRequest,
    SnapshotChunk,
    SnapshotOpened,
)
from protocol.state import STATE_SCHEMA
from skulkd.core.apply import apply, initial_state
from skulkd.eventlog.commit_file import FILE_NAME, CommitMark, read_commit_mark, write_commit_mark
from skulkd.eventlog.durable_log import unpack_state
from skulkd.eventlog.recent_records import RecentRecords
from skulkd.eventlog.records import ZERO_CHAIN, EncodedRecord, chain_after
from skulkd.eventlog.replica import Placed, Replica
from skulkd.eventlog.snapshots import CHUNK_BYTES, KEPT_S, SnapshotShelf, fetch_snapshot
from skulkd.eventlog.state_hashes import PERIOD_MS, StateHashes
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import (
    a_cluster_id,
    a_digest,
    a_node_id,
    a_state,
    an_added_card,
)
from tests.support.simulated_logs import LogNode, LogWorld, with_world

DIRECTORY = Path("/home/journal")
MASTER, MEMBER = a_node_id(1), a_node_id(2)


# ---- Recent records ----------------------------------------------------------------------------


def some_records(first: int, last: int, chain: bytes = ZERO_CHAIN) -> list[EncodedRecord]:
    records: list[EncodedRecord] = []
    for seq in range(first, last + 1):
        body = b"%04d" % seq
        chain = chain_after(chain, body)
        records.append(EncodedRecord(seq, body, chain))
    return records


def test_what_follows_a_position_is_bounded_and_never_empty_while_there_is_more() -> None:
    recent = RecentRecords(0, ZERO_CHAIN)
    records = some_records(1, 50)
    recent.extend(records)
    assert recent.after(0, max_bytes=40, max_records=99) == tuple(records[:10])
    assert recent.after(10, max_bytes=1, max_records=99) == (records[10],)
    assert recent.after(47, max_bytes=999, max_records=2) == tuple(records[47:49])
    assert recent.after(50, max_bytes=999, max_records=9) == ()
    assert recent.after(51, max_bytes=999, max_records=9) is None


def test_the_oldest_records_go_and_their_end_stays_known() -> None:
    recent = RecentRecords(0, ZERO_CHAIN, max_bytes=40)
    records = some_records(1, 50)
    recent.extend(records)
    assert recent.base_seq == 40
    assert recent.chain_at(40) == records[39].chain
    assert recent.chain_at(39) is None
    assert recent.after(39, max_bytes=99, max_records=9) is None
    assert recent.after(40, max_bytes=99, max_records=99) == tuple(records[40:])


def test_after_a_reset_nothing_is_kept() -> None:
    recent = RecentRecords(0, ZERO_CHAIN)
    recent.extend(some_records(1, 9))
    recent.reset(100, b"another history!")
    assert (recent.seq, recent.chain, recent.base_seq) == (100, b"another history!", 100)
    assert recent.chain_at(9) is None
    assert recent.after(100, max_bytes=9, max_records=9) == ()


# ---- The replica, and hashes of it -------------------------------------------------------------


def some_events(n_events: int, *, ms_between: int) -> list[Placed]:
    state, placed = initial_state(a_cluster_id()), list[Placed]()
    for seq in range(1, n_events + 1):
        event = CardRemoved(model_id=ModelId("test/card"))
        sequenced = SequencedEvent(1, seq, seq * ms_between, None, event)
        state = apply(state, sequenced)
        placed.append((sequenced, state))
    return placed


def test_events_committed_together_are_told_one_by_one_and_once_in_all() -> None:
    replica, events = Replica(initial_state(a_cluster_id())), some_events(5, ms_between=1)
    told: list[tuple[str, int, int]] = []
    replica.subscribe(lambda placed, _: told.append(("one", placed.seq, replica.state.seq)))
    replica.subscribe_batches(lambda batch: told.append(("all", len(batch), replica.state.seq)))
    replica.advance(events[:2])
    assert told == [("one", 1, 1), ("one", 2, 2), ("all", 2, 2)]
    assert [placed.seq for placed in replica.recent(0, 9)] == [1, 2]
    with pytest.raises(AssertionError):
        replica.advance(events[3:])


@pytest.mark.parametrize(
    ("n_together", "expected"), [(1, {0, 10, 20, 30, 40}), (7, {0, 10, 20, 30, 40}), (40, {10})]
)
def test_the_same_states_are_hashed_however_the_events_arrive(
    n_together: int, expected: set[int]
) -> None:
    async def story() -> set[int]:
        tasks = Tasks("test", on_death=lambda story, error: None)
        replica = Replica(initial_state(a_cluster_id()))
        hashes = StateHashes(
            replica,
            clock=LoopClock(asyncio.get_running_loop()),
            tasks=tasks,
            is_comparable=lambda seq: seq >= 0,
            on_mismatch=lambda seq, own, masters: None,
        )
        seqs: set[int] = set()
        events = some_events(40, ms_between=PERIOD_MS // 10)
        for start in range(0, len(events), n_together):
            replica.advance(events[start : start + n_together])
            await asyncio.sleep(0.1)
            seqs.add(hashes.newest[0])
        await tasks.close(1)
        return seqs

    assert run_virtual(story) == expected


# ---- The commit file ---------------------------------------------------------------------------


def test_a_mark_comes_back_and_a_damaged_one_says_nothing() -> None:
    disk = SimulatedDisk()
    disk.make_private_directory(DIRECTORY)
    assert read_commit_mark(disk, DIRECTORY) is None
    mark = CommitMark(77, b"c" * 16)
    write_commit_mark(disk, DIRECTORY, mark)
    assert read_commit_mark(disk, DIRECTORY) == mark
    size = disk.size_bytes(DIRECTORY / FILE_NAME)
    for index in range(size):
        disk.flip_bit(DIRECTORY / FILE_NAME, index, index % 8)
        assert read_commit_mark(disk, DIRECTORY) is None
        disk.flip_bit(DIRECTORY / FILE_NAME, index, index % 8)
    assert read_commit_mark(disk, DIRECTORY) == mark


# ---- Snapshots ---------------------------------------------------------------------------------


def test_a_state_of_a_newer_schema_is_refused_by_name() -> None:
    state = a_state().model_copy(update={"state_schema": STATE_SCHEMA + 1})
    with pytest.raises(ConfigError) as refused:
        unpack_state(pack(state))
    assert refused.value.code == "config.downgrade"


Change = Callable[[PeerRequest, PeerAnswer], PeerAnswer]


class FakeMaster:
    """Serves a snapshot from a shelf, and may change what it answers."""

    def __init__(self, shelf: SnapshotShelf, change: Change | None = None) -> None:
        self._shelf = shelf
        self._change = change

    async def ask(self, peer: NodeId, request: PeerRequest, *, timeout_s: float) -> PeerAnswer:
        answer: PeerAnswer
        match request:
            case OpenSnapshot():
                answer = await self._shelf.open(MEMBER, request.number)
            case FetchSnapshotChunk():
                answer = self._shelf.chunk(MEMBER, request)
            case _:
                raise AssertionError(request)
        return answer if self._change is None else self._change(request, answer)

    def serve(self, kind: object, handler: object) -> None:
        raise AssertionError(kind, handler)


def with_shelf(story: Callable[[LogNode, SnapshotShelf], Awaitable[None]]) -> None:
    async def run(world: LogWorld) -> None:
        node = await world.found(1)
        for number in range(1, 4):
            await node.submit(an_added_card(number))
        await story(node, SnapshotShelf(node.log._tail, world.clock))  # pyright: ignore[reportPrivateUsage]  what is served is the log's end

    with_world(run)


def test_a_snapshot_arrives_as_it_was_taken() -> None:
    async def story(node: LogNode, shelf: SnapshotShelf) -> None:
        snapshot, state = await fetch_snapshot(FakeMaster(shelf), MASTER, 4, a_cluster_id())
        assert state == node.log.appended
        assert (snapshot.seq, snapshot.chain) == (state.seq, node.log.chain)
        assert unpack_state(snapshot.state) == state
        assert shelf.n_served == 0

    with_shelf(story)


def cut(request: PeerRequest, answer: PeerAnswer) -> PeerAnswer:
    return SnapshotChunk(data=b"") if isinstance(answer, SnapshotChunk) else answer


def spoil(request: PeerRequest, answer: PeerAnswer) -> PeerAnswer:
    if isinstance(answer, SnapshotChunk):
        return SnapshotChunk(data=bytes([answer.data[0] ^ 1]) + answer.data[1:])
    return answer


def misplace(request: PeerRequest, answer: PeerAnswer) -> PeerAnswer:
    if isinstance(answer, SnapshotOpened):
        return answer.model_copy(update={"seq": answer.seq + 1})
    return answer


def misdate(request: PeerRequest, answer: PeerAnswer) -> PeerAnswer:
    if isinstance(answer, SnapshotOpened):
        return answer.model_copy(update={"number": answer.number + 1})
    return answer


def forge(request: PeerRequest, answer: PeerAnswer) -> PeerAnswer:
    if isinstance(answer, SnapshotOpened):
        return answer.model_copy(update={"digest": a_digest("another")})
    return answer


@pytest.mark.parametrize("change", [cut, spoil, misplace, misdate, forge])
def test_a_snapshot_that_is_not_what_was_announced_is_refused(change: Change) -> None:
    async def story(node: LogNode, shelf: SnapshotShelf) -> None:
        with pytest.raises(ProtocolError) as refused:
            await fetch_snapshot(FakeMaster(shelf, change), MASTER, 4, a_cluster_id())
        assert refused.value.code == "protocol.bad_frame"

    with_shelf(story)


def test_a_snapshot_of_another_cluster_is_refused_by_name() -> None:
    async def story(node: LogNode, shelf: SnapshotShelf) -> None:
        with pytest.raises(ClusterError) as refused:
            await fetch_snapshot(FakeMaster(shelf), MASTER, 4, a_cluster_id(2))
        assert a_cluster_id(2) in refused.value.message

    with_shelf(story)


def test_one_state_is_packed_once_for_members_that_come_together() -> None:
    async def story(node: LogNode, shelf: SnapshotShelf) -> None:
        first, second = await asyncio.gather(shelf.open(MEMBER, 1), shelf.open(MASTER, 1))
        assert first.snapshot_id != second.snapshot_id
        assert (first.seq, first.digest) == (second.seq, second.digest)
        with pytest.raises(RequestError) as refused:
            await shelf.open(a_node_id(3), 1)
        assert refused.value.code == "request.overloaded"
        assert refused.value.retry_after_s

    with_shelf(story)


def test_a_snapshot_is_for_the_member_that_opened_it_and_not_for_ever() -> None:
    async def story(node: LogNode, shelf: SnapshotShelf) -> None:
        opened = await shelf.open(MEMBER, 1)
        ask = FetchSnapshotChunk(snapshot_id=opened.snapshot_id, offset=0)
        with pytest.raises(RequestError):
            shelf.chunk(MASTER, ask)
        assert len(shelf.chunk(MEMBER, ask.model_copy(update={"offset": 10})).data) <= CHUNK_BYTES
        with pytest.raises(RequestError):
            shelf.chunk(MEMBER, ask)
        await shelf.open(MEMBER, 1)
        await shelf.open(MASTER, 1)
        await asyncio.sleep(KEPT_S + 1)
        await shelf.open(a_node_id(3), 1)
        assert shelf.n_served == 1

    with_shelf(story)
