"""The telemetry plane: one reading a payload, as a tuple with fixed fields, checked by hand.

    (kind, name, rank, fields)    fields is None once the reading has been dropped
    ("echo", number, is_answer)   no reading: how long a word takes there and back

A payload does not say whose reading it is: the connection does, so that nobody can speak for
another. Monotonic times travel as ages, because every node's clock begins at its own zero.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple, cast, get_args

from protocol.codec import encode_values
from protocol.envelope import MAX_PAYLOAD_BYTES
from protocol.ids import (
    COMMAND_ID_PATTERN,
    DIGEST_PATTERN,
    MODEL_ID_MAX_CHARS,
    MODEL_ID_PATTERN,
    NODE_ID_PATTERN,
    Digest,
    InstanceId,
    ModelId,
    NodeId,
)
from protocol.instances import Phase
from protocol.readings import (
    MAX_HOLDINGS,
    MAX_LINKS,
    MAX_WAITING,
    AcceleratorReading,
    Holding,
    HoldingsReading,
    InstanceReading,
    LinkKind,
    LinkReading,
    LinksReading,
    LinkWord,
    NodeReading,
    NoDownloads,
    Paused,
    PhaseProgress,
    Reading,
    ReadingKey,
    ReadingKind,
    TransferReading,
    WaitingTask,
    key_of,
)
from protocol.tasks import KEEP_ALWAYS, MAX_KEEP_S
from protocol.wire_checks import (
    array_of,
    count_of,
    decode_bounded,
    fields_of,
    float_of,
    measure_of,
    number_of,
    refuse,
    text_of,
)

MAX_KEYS: Final = 256
"""Of one node."""
MAX_ACCELERATORS: Final = 64
MAX_RANK: Final = 255
_ECHO: Final = "echo"
_ECHO_START: Final = b"\x93\xa4echo"
"""An array of three, and its first item, as msgpack has them."""
_MAX_AGE_S: Final = 1e9
_MAX_TEXT: Final = 500
_N_TRANSFER_FIELDS: Final = 7
_N_INSTANCE_FIELDS: Final = 8
_MAX_ASKER: Final = 64
_COMMAND_ID: Final = re.compile(COMMAND_ID_PATTERN)
_DIGEST: Final = re.compile(DIGEST_PATTERN)
_MODEL_ID: Final = re.compile(MODEL_ID_PATTERN)
_NODE_ID: Final = re.compile(NODE_ID_PATTERN)
_MAX_INTERFACE: Final = 64
_PHASES: Final = frozenset(get_args(Phase))
_LINK_WORDS: Final = frozenset(get_args(LinkWord))
_LINK_KINDS: Final = frozenset((None, *get_args(LinkKind)))
_NO_DOWNLOADS: Final = frozenset((None, *get_args(NoDownloads)))


class Told(NamedTuple):
    """What a node says about one of its readings."""

    key: ReadingKey
    reading: Reading | None
    """None once it has been dropped."""


def transport_key(key: ReadingKey) -> str:
    """Give the key by which a newer payload of a reading supersedes the queued one."""
    kind, name, rank = key
    return f"{kind} {name} {rank}"


def pack_reading(reading: Reading, *, now: float) -> bytes:
    """Encode a reading of this node; `now` is on the clock of its times."""
    return encode_values((*key_of(reading), _fields_of(reading, now)))


def pack_drop(key: ReadingKey) -> bytes:
    """Encode that a reading of this node has been dropped."""
    return encode_values((*key, None))


class Echo(NamedTuple):
    """A word that is said back at once, to measure how long it takes."""

    number: int
    """The answer repeats it."""
    is_answer: bool


def pack_echo(echo: Echo) -> bytes:
    """Encode it."""
    return encode_values((_ECHO, *echo))


def is_echo(payload: bytes) -> bool:
    """Say whether a payload is no reading but an echo, by its first bytes."""
    return payload.startswith(_ECHO_START)


def unpack_echo(payload: bytes) -> Echo:
    """Decode it.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    values = decode_bounded(payload, MAX_PAYLOAD_BYTES["telemetry"])
    kind, number, is_answer = fields_of(values, 3)
    if kind != _ECHO or type(is_answer) is not bool:
        refuse("an echo is none")
    return Echo(number_of(number), is_answer)


def unpack_reading(payload: bytes, sender: NodeId, *, now: float) -> Told:
    """Decode what a peer says about a reading of its own.

    Args:
        payload: From the telemetry plane.
        sender: Whose reading it is.
        now: On this node's clock, which the times in the result are on.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    values = decode_bounded(payload, MAX_PAYLOAD_BYTES["telemetry"])
    kind, name, rank, fields = fields_of(values, 4)
    if type(kind) is not str or kind not in _BUILDERS:
        refuse("a reading is of an unknown kind")
    key: ReadingKey = (kind, _name(kind, name), number_of(rank, most=MAX_RANK))
    if fields is None:
        return Told(key, None)
    reading = _BUILDERS[kind](_Source(sender, key, now), array_of(fields))
    if key_of(reading) != key:
        refuse("a reading has another key than it says")
    return Told(key, reading)


class _Source(NamedTuple):
    node_id: NodeId
    key: ReadingKey
    now: float


# ---- Readings to fields ----


def _age_of(since_s: float | None, now: float) -> float | None:
    return None if since_s is None else max(0.0, now - since_s)


def _fields_of(reading: Reading, now: float) -> tuple[object, ...]:
    age_s = max(0.0, now - reading.at_s)
    match reading:
        case NodeReading():
            return (
                age_s,
                reading.memory_available_bytes,
                tuple(map(_accelerator_fields, reading.accelerators[:MAX_ACCELERATORS])),
                reading.disk_free_bytes,
                reading.cpu_ratio,
                reading.loop_lag_s,
                reading.journal_durable,
                reading.journal_unwritten,
                reading.no_downloads,
            )
        case PhaseProgress():
            return (
                age_s,
                reading.attempt,
                reading.phase,
                max(0.0, now - reading.since_s),
                reading.done_bytes,
                reading.total_bytes,
                reading.rate_bytes_s,
                reading.eta_s,
                reading.note[:_MAX_TEXT],
            )
        case TransferReading():
            return (
                age_s,
                reading.phase[:_MAX_TEXT],
                reading.done_bytes,
                reading.total_bytes,
                reading.rate_bytes_s,
                reading.eta_s,
                reading.source[:_MAX_TEXT],
                # One more field, and only while there is something to say: readings of transfers
                # that run stay what they were.
                *_paused_fields(reading.paused),
            )
        case InstanceReading():
            idle_s = _age_of(reading.idle_since_s, now)
            # As with a transfer that is paused: one more field, only where it was said.
            kept = () if reading.keep_s is None else (reading.keep_s,)
            return age_s, *_instance_fields(reading), idle_s, *kept
        case HoldingsReading():
            holdings = reading.holdings[:MAX_HOLDINGS]
            return (
                age_s,
                tuple((item.model_id, item.digest, item.size_bytes) for item in holdings),
            )
        case LinksReading():
            return (age_s, tuple(_link_fields(link, now) for link in reading.links[:MAX_LINKS]))


def _link_fields(link: LinkReading, now: float) -> tuple[object, ...]:
    return (
        link.peer,
        link.state,
        None if link.interface is None else link.interface[:_MAX_INTERFACE],
        link.kind,
        link.nominal_bits_s,
        link.rtt_median_ms,
        link.rtt_p99_ms,
        link.rate_bytes_s,
        None if link.rate_at_s is None else max(0.0, now - link.rate_at_s),
    )


def _accelerator_fields(device: AcceleratorReading) -> tuple[object, ...]:
    return (device.free_bytes, device.busy_ratio, device.watts, device.celsius, device.mhz)


def _instance_fields(reading: InstanceReading) -> tuple[object, ...]:
    waiting = tuple(
        (task.asker, task.waited_s, task.expected_s) for task in reading.waiting[:MAX_WAITING]
    )
    rates = reading.tokens_per_s, waiting, reading.answer_tokens_per_s
    return reading.in_flight, reading.queued, reading.slots, *rates


# ---- Fields to readings ----


def _accelerator(value: object) -> AcceleratorReading:
    free, busy, watts, celsius, mhz = fields_of(array_of(value), 5)
    return AcceleratorReading(
        free_bytes=count_of(free),
        busy_ratio=measure_of(busy),
        watts=measure_of(watts),
        celsius=measure_of(celsius),
        mhz=measure_of(mhz),
    )


def _node(source: _Source, fields: tuple[object, ...]) -> NodeReading:
    age_s, memory, devices, disk, cpu, lag, durable, unwritten, no_downloads = fields_of(fields, 9)
    if type(durable) is not bool:
        refuse("a switch is none")
    if no_downloads is not None and type(no_downloads) is not str:
        refuse("a reason is no text")
    if no_downloads not in _NO_DOWNLOADS:
        refuse("a node does not download for an unknown reason")
    return NodeReading(
        node_id=source.node_id,
        at_s=source.now - _age(age_s),
        memory_available_bytes=count_of(memory),
        accelerators=tuple(map(_accelerator, array_of(devices, MAX_ACCELERATORS))),
        disk_free_bytes=count_of(disk),
        cpu_ratio=measure_of(cpu),
        loop_lag_s=measure_of(lag),
        journal_durable=durable,
        journal_unwritten=number_of(unwritten),
        no_downloads=cast("NoDownloads | None", no_downloads),
    )


def _progress(source: _Source, fields: tuple[object, ...]) -> PhaseProgress:
    age_s, attempt, phase, since_age_s, done, total, rate, eta, note = fields_of(fields, 9)
    if type(phase) is not str or phase not in _PHASES:
        refuse("a runner is in an unknown phase")
    return PhaseProgress(
        instance_id=InstanceId(source.key[1]),
        node_id=source.node_id,
        rank=source.key[2],
        attempt=number_of(attempt),
        phase=cast("Phase", phase),
        since_s=source.now - _age(since_age_s),
        at_s=source.now - _age(age_s),
        done_bytes=count_of(done),
        total_bytes=count_of(total),
        rate_bytes_s=measure_of(rate),
        eta_s=measure_of(eta),
        note=text_of(note, _MAX_TEXT),
    )


def _transfer(source: _Source, fields: tuple[object, ...]) -> TransferReading:
    *running, paused = fields if len(fields) == _N_TRANSFER_FIELDS + 1 else (*fields, None)
    age_s, phase, done, total, rate, eta, where = fields_of(tuple(running), _N_TRANSFER_FIELDS)
    return TransferReading(
        node_id=source.node_id,
        model_id=ModelId(source.key[1]),
        at_s=source.now - _age(age_s),
        phase=text_of(phase, _MAX_TEXT),
        done_bytes=number_of(done),
        total_bytes=count_of(total),
        rate_bytes_s=measure_of(rate),
        eta_s=measure_of(eta),
        source=text_of(where, _MAX_TEXT),
        paused=None if paused is None else _paused(paused),
    )


def _paused_fields(paused: Paused | None) -> tuple[object, ...]:
    return () if paused is None else ((paused.by[:_MAX_TEXT], paused.at_ms),)


def _paused(value: object) -> Paused:
    by, at_ms = fields_of(value, 2)
    return Paused(by=text_of(by, _MAX_TEXT), at_ms=number_of(at_ms))


def _instance(source: _Source, fields: tuple[object, ...]) -> InstanceReading:
    *usual, keep_s = fields if len(fields) == _N_INSTANCE_FIELDS + 1 else (*fields, None)
    age_s, in_flight, queued, slots, tokens_per_s, waiting, answer, idle_s = fields_of(
        tuple(usual), _N_INSTANCE_FIELDS
    )
    return InstanceReading(
        instance_id=InstanceId(source.key[1]),
        node_id=source.node_id,
        at_s=source.now - _age(age_s),
        in_flight=number_of(in_flight),
        queued=number_of(queued),
        slots=number_of(slots),
        tokens_per_s=measure_of(tokens_per_s),
        waiting=tuple(map(_waiting, array_of(waiting, MAX_WAITING))),
        idle_since_s=None if idle_s is None else source.now - _age(idle_s),
        answer_tokens_per_s=measure_of(answer),
        keep_s=None if keep_s is None else number_of(keep_s, least=KEEP_ALWAYS, most=MAX_KEEP_S),
    )


def _waiting(value: object) -> WaitingTask:
    asker, waited_s, expected_s = fields_of(value, 3)
    return WaitingTask(
        asker=text_of(asker, _MAX_ASKER), waited_s=_age(waited_s), expected_s=measure_of(expected_s)
    )


def _holdings(source: _Source, fields: tuple[object, ...]) -> HoldingsReading:
    age_s, values = fields_of(fields, 2)
    items = array_of(values, MAX_HOLDINGS)
    return HoldingsReading(
        node_id=source.node_id,
        at_s=source.now - _age(age_s),
        holdings=tuple(map(_holding, items)),
    )


def _holding(value: object) -> Holding:
    model_id, digest, size_bytes = fields_of(value, 3)
    if type(digest) is not str or not _DIGEST.fullmatch(digest):
        refuse("a digest is none")
    return Holding(
        model_id=ModelId(_model_id(model_id)),
        digest=Digest(digest),
        size_bytes=number_of(size_bytes),
    )


def _links(source: _Source, fields: tuple[object, ...]) -> LinksReading:
    age_s, values = fields_of(fields, 2)
    items = array_of(values, MAX_LINKS)
    return LinksReading(
        node_id=source.node_id,
        at_s=source.now - _age(age_s),
        links=tuple(_link(item, source.now) for item in items),
    )


def _link(value: object, now: float) -> LinkReading:
    peer, state, interface, kind, nominal, median, p99, rate, age_s = fields_of(value, 9)
    if type(peer) is not str or not _NODE_ID.fullmatch(peer):
        refuse("a node's id is none")
    if type(state) is not str or state not in _LINK_WORDS:
        refuse("a link is in an unknown state")
    if (kind is not None and type(kind) is not str) or kind not in _LINK_KINDS:
        refuse("a link is of an unknown kind")
    return LinkReading(
        peer=NodeId(peer),
        state=cast("LinkWord", state),
        interface=None if interface is None else text_of(interface, _MAX_INTERFACE),
        kind=cast("LinkKind | None", kind),
        nominal_bits_s=count_of(nominal),
        rtt_median_ms=measure_of(median),
        rtt_p99_ms=measure_of(p99),
        rate_bytes_s=measure_of(rate),
        rate_at_s=None if age_s is None else now - _age(age_s),
    )


_BUILDERS: Final[
    dict[ReadingKind, Callable[[_Source, tuple[object, ...]], Reading]]
] = {
    "node": _node,
    "progress": _progress,
    "transfer": _transfer,
    "instance": _instance,
    "holdings": _holdings,
    "links": _links,
}  # fmt: skip

# ---- Checks ----


def _name(kind: ReadingKind, value: object) -> str:
    if type(value) is not str:
        refuse("a key is no text")
    if kind == "transfer":
        return _model_id(value)
    if kind in {"node", "holdings", "links"}:
        if value:
            refuse("a key has a name, which its kind has not")
    elif not _COMMAND_ID.fullmatch(value):
        refuse("an instance's id is none")
    return value


def _model_id(value: object) -> str:
    if (
        type(value) is not str
        or len(value) > MODEL_ID_MAX_CHARS
        or not _MODEL_ID.fullmatch(value)
    ):  # fmt: skip
        refuse("a model's id is none")
    return value


def _age(value: object) -> float:
    age_s = float_of(value)
    if not 0 <= age_s <= _MAX_AGE_S:
        refuse("an age is out of its range")
    return age_s
