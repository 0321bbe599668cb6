import pytest

from protocol.codec import encode_values
from protocol.errors import ConfigError, ProtocolError
from protocol.ids import cluster_id_of
from skulkd.eventlog import records
from skulkd.eventlog.records import (
    MAX_EVENT_BYTES,
    MAX_STATE_BYTES,
    ZERO_CHAIN,
    DamagedError,
    JournalRecord,
    SegmentHeader,
    SegmentScan,
    Snapshot,
    decode_body,
    decode_header,
    decode_snapshot,
    encode_body,
    encode_header,
    encode_record,
    encode_snapshot,
    has_record_behind,
    later_record_proves,
)
from tests.support.builders import a_command_id

CLUSTER = cluster_id_of(b"cluster of records")
HEADER = SegmentHeader(cluster_id=CLUSTER, first_seq=1, chain=ZERO_CHAIN)
SNAPSHOT = Snapshot(
    cluster_id=CLUSTER, term=3, seq=99, at_ms=1_800_000_000_000, chain=b"c" * 16, state=b"state"
)


def _segment(n_records: int, *, durable_lag: int = 1) -> tuple[bytes, list[int]]:
    data, chain, ends = encode_header(HEADER), HEADER.chain, list[int]()
    for seq in range(1, n_records + 1):
        record = JournalRecord(1, seq, 1000 + seq, None, b"event %d" % seq)
        encoded, chain = encode_record(record, chain, max(0, seq - durable_lag))
        data += encoded
        ends.append(len(data))
    return data, ends


def test_the_bytes_of_a_record_are_these_and_stay_so() -> None:
    record = JournalRecord(2, 7, 1_800_000_000_000, "abcdef-cause", b"\x01\x02")
    data, chain = encode_record(record, ZERO_CHAIN, 6)
    assert data.hex() == (
        "35000000445e553f950207cf000001a3185c5000ac6162636465662d6361757365c4020102"
        "0600000000000000" + chain.hex()
    )
    assert chain.hex() == "15edecb2c96e834e24ac87d520326ab9"


def test_the_chain_is_of_the_history_and_not_of_what_was_synced_when() -> None:
    record = JournalRecord(1, 1, 0, None, b"event")
    assert encode_record(record, ZERO_CHAIN, 0)[1] == encode_record(record, ZERO_CHAIN, 5)[1]
    assert (
        encode_record(record, b"other history...", 0)[1] != encode_record(record, ZERO_CHAIN, 0)[1]
    )


def test_a_scan_gives_every_record_and_where_it_ends() -> None:
    data, _ = _segment(20)
    header, start = decode_header(data)
    assert header == HEADER
    scan = SegmentScan(data, start, header)
    assert [record.seq for record in scan] == list(range(1, 21))
    assert (scan.end, scan.next_seq, scan.fault) == (len(data), 21, None)
    _, chain = encode_record(JournalRecord(1, 21, 0, None, b""), scan.chain, 20)
    assert chain != scan.chain


def test_a_scan_stops_at_a_record_out_of_sequence() -> None:
    data = encode_header(HEADER)
    start = len(data)
    encoded, _ = encode_record(JournalRecord(1, 2, 0, None, b""), ZERO_CHAIN, 0)
    scan = SegmentScan(data + encoded, start, HEADER)
    assert list(scan) == []
    assert scan.fault == "seq 2 stands where 1 should"


def test_a_scan_stops_where_the_chain_breaks_though_every_checksum_holds() -> None:
    data = encode_header(HEADER)
    start = len(data)
    for seq in (1, 2):
        data += encode_record(JournalRecord(1, seq, 0, None, b""), b"of another log..", 0)[0]
    scan = SegmentScan(data, start, HEADER)
    assert list(scan) == []
    assert scan.fault == "the chain is broken"


def test_records_behind_damage_are_found_at_whatever_byte() -> None:
    data, ends = _segment(6)
    for damage_at in range(ends[1] + 1, ends[2]):
        assert has_record_behind(data, damage_at)
        assert later_record_proves(data, damage_at, 3)
    assert not has_record_behind(data, ends[-2] + 1)


def test_records_of_the_same_sync_prove_nothing() -> None:
    data, ends = _segment(6, durable_lag=4)
    assert has_record_behind(data, ends[2])
    assert not later_record_proves(data, ends[2], 4)
    assert later_record_proves(data, ends[2], 2)


def test_headers_and_snapshots_come_back_and_are_damaged_by_any_flip_or_cut() -> None:
    assert decode_snapshot(encode_snapshot(SNAPSHOT)) == SNAPSHOT
    for good, decode in (
        (encode_header(HEADER), decode_header),
        (encode_snapshot(SNAPSHOT), decode_snapshot),
    ):
        for position in range(len(good)):
            flipped = bytearray(good)
            flipped[position] ^= 0x20
            for bad in (bytes(flipped), good[:position]):
                with pytest.raises(DamagedError):
                    decode(bad)
    with pytest.raises(DamagedError, match="bytes follow"):
        decode_snapshot(encode_snapshot(SNAPSHOT) + b"x")


def test_a_newer_schema_is_told_apart_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SCHEMA", 9)
    newer = encode_snapshot(SNAPSHOT)
    monkeypatch.undo()
    with pytest.raises(ConfigError) as caught:
        decode_snapshot(newer)
    assert caught.value.code == "config.downgrade"
    assert caught.value.details == {"schema": 9, "known": 1}


def test_what_is_too_long_is_refused_before_it_is_written() -> None:
    with pytest.raises(ProtocolError) as caught:
        encode_record(JournalRecord(1, 1, 0, None, bytes(MAX_EVENT_BYTES + 1)), ZERO_CHAIN, 0)
    assert caught.value.code == "protocol.too_large"


def test_a_state_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_STATE_BYTES", 4)
    with pytest.raises(ProtocolError, match="a state of 5 bytes"):
        encode_snapshot(SNAPSHOT)
    assert MAX_STATE_BYTES > 4


GOOD = JournalRecord(1, 2, 3, a_command_id(), b"event")


def test_a_peers_record_comes_as_it_was_encoded() -> None:
    assert decode_body(encode_body(GOOD)) == GOOD
    assert decode_body(encode_body(GOOD._replace(cause=None))).cause is None


@pytest.mark.parametrize(
    "fields",
    [
        GOOD[:4],
        (*GOOD, 1),
        (1.0, *GOOD[1:]),
        (1, True, *GOOD[2:]),
        (1, 2, -1.5, *GOOD[3:]),
        (1, 2, 3, b"bytes", b"event"),
        (1, 2, 3, "abcdef-cause", b"event"),
        (1, 2, 3, f"{GOOD.cause}\n", b"event"),
        (1, 2, 3, None, "text"),
        (1, 2, 3, None, ((((b"deep",),),),)),
        {"term": 1},
    ],
)
def test_a_peers_record_of_another_form_is_refused(fields: object) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_body(encode_values(fields))
    assert caught.value.code == "protocol.bad_frame"
