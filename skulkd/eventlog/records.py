"""The bytes of the journal: records, segment headers, snapshots. Knows no file and no event.

    segment   = header record*
    header    = "SKULKSEG" u32:length u32:crc32 msgpack[schema, cluster, first_seq, chain]
    record    = u32:length u32:crc32 payload
    payload   = msgpack[term, seq, at_ms, cause, event] u64:durable_seq 16:chain
    snapshot  = "SKULKSNP" u32:length u32:crc32
                msgpack[schema, cluster, term, seq, at_ms, chain, state]

Integers are little-endian; length and checksum are those of what follows. `chain` is BLAKE2b of the
chain before it and the record's msgpack part, so it is the same on every node that holds the same
history. `durable_seq` is local: what was already synced when the record was made. It tells a
torn tail, whose loss breaks no promise, from rot in what had been acknowledged.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast, final

from protocol.codec import decode_trusted_values, encode_values
from protocol.errors import ConfigError, ProtocolError
from protocol.ids import ClusterId, is_command_id
from protocol.wire_checks import decode_bounded

SCHEMA: Final = 1
"""Raised when an older daemon could no longer read what this one writes."""

MAX_EVENT_BYTES: Final = 1 << 20
MAX_PAYLOAD_BYTES: Final = MAX_EVENT_BYTES + 512
"""An event and what surrounds it: cause and integers are far below 512 bytes."""
MAX_STATE_BYTES: Final = 256 << 20
_CHAIN_BYTES: Final = 16
ZERO_CHAIN: Final = bytes(_CHAIN_BYTES)
"""The chain before the first record."""

_SEGMENT_MAGIC: Final = b"SKULKSEG"
_SNAPSHOT_MAGIC: Final = b"SKULKSNP"
_FRAME: Final = struct.Struct("<II")
_TRAILER: Final = struct.Struct("<Q16s")
_FRAME_BYTES: Final = _FRAME.size
_TRAILER_BYTES: Final = _TRAILER.size
_read_frame = _FRAME.unpack_from
_crc32 = zlib.crc32
_blake2b = hashlib.blake2b
_BODY_FIRST_BYTE: Final = b"\x95"
"""How msgpack begins an array of five: every record has it eight bytes after its start."""


class JournalRecord(NamedTuple):
    """One event as the journal keeps it.

    A tuple, not a dataclass: recovery makes one a record, and this is five times cheaper.
    """

    term: int
    seq: int
    at_ms: int
    cause: str | None
    """The command that led to it."""
    event: bytes


class EncodedRecord(NamedTuple):
    """A record as it travels and is written: the same bytes on every node."""

    seq: int
    body: bytes
    """The record's msgpack part."""
    chain: bytes
    """After it."""


class DamagedError(Exception):
    """Bytes that are not what was written; says why. Wrapped by recovery, which knows the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """What a segment continues."""

    cluster_id: ClusterId
    first_seq: int
    chain: bytes
    """Of the record before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state after `seq`, in place of all records up to it."""

    cluster_id: ClusterId
    term: int
    seq: int
    at_ms: int
    chain: bytes
    state: bytes


def encode_record(record: JournalRecord, chain: bytes, durable_seq: int) -> tuple[bytes, bytes]:
    """Give a record's bytes and its chain.

    Args:
        record: What to write.
        chain: Of the record before.
        durable_seq: The newest seq known to be synced.

    Raises:
        ProtocolError: `protocol.too_large`; the event is longer than `MAX_EVENT_BYTES`.
    """
    body = encode_body(record)
    encoded = EncodedRecord(record.seq, body, chain_after(chain, body))
    return frame_record(encoded, durable_seq), encoded.chain


def encode_body(record: JournalRecord) -> bytes:
    """Give the part of a record that is the same on every node.

    Raises:
        ProtocolError: `protocol.too_large`; the event is longer than `MAX_EVENT_BYTES`.
    """
    if len(record.event) > MAX_EVENT_BYTES:
        raise ProtocolError(
            "protocol.too_large",
            f"an event of {len(record.event)} bytes exceeds the limit of {MAX_EVENT_BYTES}",
            remediation="This is a bug: report the command that led to it.",
        )
    return encode_values(record)


def chain_after(chain: bytes, body: bytes) -> bytes:
    """Give the chain after a record, from the one before it."""
    return _blake2b(chain + body, digest_size=_CHAIN_BYTES).digest()


def frame_record(record: EncodedRecord, durable_seq: int) -> bytes:
    """Give the bytes of a record in a segment.

    Args:
        record: Encoded.
        durable_seq: The newest seq known to be synced.
    """
    payload = record.body + _TRAILER.pack(durable_seq, record.chain)
    return _FRAME.pack(len(payload), _crc32(payload)) + payload


def decode_body(body: bytes) -> JournalRecord:
    """Read a record that a peer has sent.

    Raises:
        ProtocolError: `protocol.bad_frame`, `protocol.too_large`.
    """
    values = decode_bounded(body, MAX_PAYLOAD_BYTES)
    if type(values) is tuple and len(fields := cast("tuple[Any, ...]", values)) == _N_FIELDS:
        record = JournalRecord._make(fields)
        if (
            type(record.term) is type(record.seq) is type(record.at_ms) is int
            and (
                record.cause is None or (type(record.cause) is str and is_command_id(record.cause))
            )
            and type(record.event) is bytes
        ):
            return record
    raise ProtocolError(
        "protocol.bad_frame",
        "a record from a peer does not decode",
        remediation="Run the same build on both sides; if they are, report this.",
    )


_N_FIELDS: Final = len(JournalRecord._fields)


@final
class SegmentScan:
    """Reads a segment's records in order, and stops at the first that is not as it was written.

    Iterate once; then `end`, `chain`, `next_seq` and `fault` tell where and why it stopped. `chain`
    is also that of each record while it is looked at.

    Args:
        data: The whole segment.
        start: Where its records begin.
        header: What the segment continues.
    """

    def __init__(self, data: bytes, start: int, header: SegmentHeader) -> None:
        self._data = data
        self.end = start
        """The offset after the last good record."""
        self.chain: bytes = header.chain
        """Of the last good record."""
        self.next_seq = header.first_seq
        """The seq that the record at `end` should have."""
        self.fault: str | None = None
        """Why there is no good record at `end`; None when the segment just ends."""

    def __iter__(self) -> Iterator[JournalRecord]:
        # One loop without a call of ours, because it bounds how long a start takes: 1.8 µs a
        # record, most of it hash and msgpack. What was wrong with a bad one is found afterwards.
        data, offset, chain, seq = self._data, self.end, self.chain, self.next_seq
        while offset + _FRAME_BYTES <= len(data):
            length, checksum = _read_frame(data, offset)
            start = offset + _FRAME_BYTES
            payload = data[start : start + length]
            body = payload[:-_TRAILER_BYTES]
            digest = _blake2b(chain + body, digest_size=_CHAIN_BYTES).digest()
            # A length that is too long must not pass because the data end where the record does.
            if len(payload) != length or _crc32(payload) != checksum:
                break
            if payload[-_CHAIN_BYTES:] != digest:
                break
            try:
                record = JournalRecord._make(cast("tuple[Any, ...]", decode_trusted_values(body)))
            except (ValueError, TypeError):
                break
            if record.seq != seq:
                break
            offset, chain, seq = start + length, digest, seq + 1
            self.chain = digest
            yield record
        self.end, self.chain, self.next_seq = offset, chain, seq
        self.fault = _fault_at(data, offset, seq)


def _fault_at(data: bytes, offset: int, seq: int) -> str | None:
    """Say why the record `seq` at `offset` is not good; None at the end of the data."""
    if offset == len(data):
        return None
    start = offset + _FRAME_BYTES
    if start > len(data):
        return "the record is cut"
    length, checksum = _read_frame(data, offset)
    if not _TRAILER_BYTES < length <= MAX_PAYLOAD_BYTES:
        return "the length is impossible"
    if start + length > len(data):
        return "the record is cut"
    payload = data[start : start + length]
    if _crc32(payload) != checksum:
        return "the checksum differs"
    # From here on the bytes were written like this: a bug, a forgery, or another history.
    try:
        record = JournalRecord._make(
            cast("tuple[Any, ...]", decode_trusted_values(payload[:-_TRAILER_BYTES]))
        )
    except (ValueError, TypeError):
        return "the record does not decode"
    if record.seq != seq:
        return f"seq {record.seq} stands where {seq} should"
    return "the chain is broken"


def later_record_proves(data: bytes, start: int, lost_seq: int) -> bool:
    """Look behind a damaged record for a good one made when `lost_seq` was already durable.

    Args:
        data: The whole segment.
        start: Where the damage begins.
        lost_seq: The seq of the record that should be there.
    """
    return any(durable_seq >= lost_seq for _, durable_seq in _records_behind(data, start))


def has_record_behind(data: bytes, start: int) -> bool:
    """Say whether any good record lies at or behind `start`, at whatever byte."""
    return next(_records_behind(data, start), None) is not None


def _records_behind(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    body_at = data.find(_BODY_FIRST_BYTE, start + _FRAME.size)
    while body_at >= 0:
        length, checksum = _FRAME.unpack_from(data, body_at - _FRAME.size)
        if _TRAILER.size < length <= min(MAX_PAYLOAD_BYTES, len(data) - body_at):
            payload = data[body_at : body_at + length]
            if zlib.crc32(payload) == checksum:
                durable_seq, _ = _TRAILER.unpack_from(payload, length - _TRAILER.size)
                yield body_at - _FRAME.size, durable_seq
        body_at = data.find(_BODY_FIRST_BYTE, body_at + 1)


def encode_header(header: SegmentHeader) -> bytes:
    """Give the bytes that a segment begins with."""
    return _seal(_SEGMENT_MAGIC, (SCHEMA, header.cluster_id, header.first_seq, header.chain))


def decode_header(data: bytes) -> tuple[SegmentHeader, int]:
    """Read a segment's header; also say where the records begin.

    Raises:
        DamagedError: It is not as it was written.
        ConfigError: `config.downgrade`; a newer daemon wrote it.
    """
    fields, end = _unseal(_SEGMENT_MAGIC, data)
    try:
        _, cluster_id, first_seq, chain = cast("tuple[int, ClusterId, int, bytes]", fields)
    except ValueError as error:
        raise DamagedError("the header does not decode") from error
    return SegmentHeader(cluster_id=cluster_id, first_seq=first_seq, chain=chain), end


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Give a snapshot file's bytes.

    Raises:
        ProtocolError: `protocol.too_large`; the state is longer than `MAX_STATE_BYTES`.
    """
    if len(snapshot.state) > MAX_STATE_BYTES:
        raise ProtocolError(
            "protocol.too_large",
            f"a state of {len(snapshot.state)} bytes exceeds the limit of {MAX_STATE_BYTES}",
            remediation="This is a bug: report what the state holds.",
        )
    fields = (
        SCHEMA,
        snapshot.cluster_id,
        snapshot.term,
        snapshot.seq,
        snapshot.at_ms,
        snapshot.chain,
        snapshot.state,
    )
    return _seal(_SNAPSHOT_MAGIC, fields)


def decode_snapshot(data: bytes) -> Snapshot:
    """Read a snapshot file.

    Raises:
        DamagedError: It is not as it was written.
        ConfigError: `config.downgrade`; a newer daemon wrote it.
    """
    fields, end = _unseal(_SNAPSHOT_MAGIC, data)
    try:
        _, cluster_id, term, seq, at_ms, chain, state = cast(
            "tuple[int, ClusterId, int, int, int, bytes, bytes]", fields
        )
    except ValueError as error:
        raise DamagedError("the snapshot does not decode") from error
    if end != len(data):
        raise DamagedError("bytes follow the snapshot")
    return Snapshot(
        cluster_id=cluster_id, term=term, seq=seq, at_ms=at_ms, chain=chain, state=state
    )


def _seal(magic: bytes, fields: tuple[object, ...]) -> bytes:
    body = encode_values(fields)
    return magic + _FRAME.pack(len(body), zlib.crc32(body)) + body


def _unseal(magic: bytes, data: bytes) -> tuple[tuple[object, ...], int]:
    """Read magic, length, checksum and an array whose first item is the schema.

    This much never changes, so that every daemon can tell a newer file from a damaged one.
    """
    start = len(magic) + _FRAME.size
    if len(data) < start:
        raise DamagedError("the header is cut")
    if data[: len(magic)] != magic:
        raise DamagedError("the magic differs")
    length, checksum = _FRAME.unpack_from(data, len(magic))
    end = start + length
    if end > len(data):
        raise DamagedError("the header is cut")
    body = data[start:end]
    if zlib.crc32(body) != checksum:
        raise DamagedError("the header's checksum differs")
    try:
        fields = decode_trusted_values(body)
    except ValueError as error:
        raise DamagedError("the header does not decode") from error
    if not isinstance(fields, tuple) or not fields:
        raise DamagedError("the header does not decode")
    schema = cast("tuple[object, ...]", fields)[0]
    if not isinstance(schema, int):
        raise DamagedError("the schema is no number")
    if schema > SCHEMA:
        raise ConfigError(
            "config.downgrade",
            f"the journal has schema {schema}, and this daemon knows schemas up to {SCHEMA}",
            remediation="Start the newer skulkd again, or move the journal away to start afresh.",
            details={"schema": schema, "known": SCHEMA},
        )
    return cast("tuple[object, ...]", fields), end
