"""Readings on the telemetry plane: what is told arrives on the hearer's clock, or not at all."""

from dataclasses import replace
from typing import cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import encode_values
from protocol.errors import ProtocolError
from protocol.ids import Digest, ModelId, NodeId
from protocol.instances import Phase
from protocol.readings import (
    AcceleratorReading,
    Holding,
    HoldingsReading,
    InstanceReading,
    LinkKind,
    LinkReading,
    LinksReading,
    LinkWord,
    NodeReading,
    Paused,
    PhaseProgress,
    Reading,
    ReadingKey,
    TransferReading,
    WaitingTask,
    key_of,
)
from protocol.tasks import KEEP_ALWAYS, MAX_KEEP_S
from protocol.telemetry_wire import pack_drop, pack_reading, transport_key, unpack_reading
from tests.support.builders import a_node_id, an_instance_id

NODE = a_node_id()
COUNTS = st.integers(min_value=0, max_value=1 << 50)
MAYBE = st.none() | COUNTS
MEASURES = st.none() | st.floats(min_value=0, max_value=1e9)
ACCELERATORS = st.builds(
    AcceleratorReading,
    free_bytes=MAYBE,
    busy_ratio=MEASURES,
    watts=MEASURES,
    celsius=MEASURES,
    mhz=MEASURES,
)
TEXTS = st.text(max_size=30)
MODELS = st.sampled_from([ModelId("org/name"), ModelId("org/name:q4"), ModelId("local")])
NAMES = st.integers(1, 3).map(an_instance_id)
TIMES = st.integers(min_value=900, max_value=1000).map(float)
READINGS: st.SearchStrategy[Reading] = st.one_of(
    st.builds(
        NodeReading,
        node_id=st.just(NODE),
        at_s=TIMES,
        memory_available_bytes=MAYBE,
        accelerators=st.lists(ACCELERATORS, max_size=4).map(tuple),
        disk_free_bytes=MAYBE,
        cpu_ratio=MEASURES,
        loop_lag_s=MEASURES,
        journal_durable=st.booleans(),
        journal_unwritten=COUNTS,
        no_downloads=st.sampled_from([None, "offline", "disabled"]),
    ),
    st.builds(
        PhaseProgress,
        instance_id=NAMES,
        node_id=st.just(NODE),
        rank=st.integers(0, 255),
        attempt=COUNTS,
        phase=st.sampled_from(get_args(Phase)),
        since_s=TIMES,
        at_s=TIMES,
        done_bytes=MAYBE,
        total_bytes=MAYBE,
        rate_bytes_s=MEASURES,
        eta_s=MEASURES,
        note=TEXTS,
    ),
    st.builds(
        TransferReading,
        node_id=st.just(NODE),
        model_id=MODELS,
        at_s=TIMES,
        phase=TEXTS,
        done_bytes=COUNTS,
        total_bytes=MAYBE,
        rate_bytes_s=MEASURES,
        eta_s=MEASURES,
        source=TEXTS,
        paused=st.none() | st.builds(Paused, by=TEXTS, at_ms=COUNTS),
    ),
    st.builds(
        InstanceReading,
        instance_id=NAMES,
        node_id=st.just(NODE),
        at_s=TIMES,
        in_flight=COUNTS,
        queued=COUNTS,
        slots=COUNTS,
        waiting=st.lists(
            st.builds(
                WaitingTask,
                asker=st.text(max_size=64),
                waited_s=st.floats(0, 1e6),
                expected_s=st.none() | st.floats(0, 1e6),
            ),
            max_size=3,
        ).map(tuple),
        keep_s=st.none() | st.integers(KEEP_ALWAYS, MAX_KEEP_S),
    ),
    st.builds(
        HoldingsReading,
        node_id=st.just(NODE),
        at_s=TIMES,
        holdings=st.lists(
            st.builds(
                Holding, model_id=MODELS, digest=st.just(Digest("a" * 64)), size_bytes=COUNTS
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(
        LinksReading,
        node_id=st.just(NODE),
        at_s=TIMES,
        links=st.lists(
            st.builds(
                LinkReading,
                peer=st.integers(1, 3).map(a_node_id),
                state=st.sampled_from(get_args(LinkWord)),
                interface=st.none() | TEXTS,
                kind=st.sampled_from([None, *get_args(LinkKind)]),
                nominal_bits_s=MAYBE,
                rtt_median_ms=MEASURES,
                rtt_p99_ms=MEASURES,
                rate_bytes_s=MEASURES,
                rate_at_s=st.none() | TIMES,
            ),
            max_size=3,
        ).map(tuple),
    ),
)


@given(READINGS, st.integers(0, 10_000))
def test_a_reading_arrives_on_the_clock_of_whoever_hears_it(reading: Reading, now: int) -> None:
    got = unpack_reading(pack_reading(reading, now=1000.0), NODE, now=float(now))
    assert got.key == key_of(reading)
    shift_s = now - 1000.0
    expected = replace(reading, at_s=reading.at_s + shift_s)
    if isinstance(expected, PhaseProgress):
        expected = replace(expected, since_s=expected.since_s + shift_s)
    if isinstance(expected, LinksReading):
        expected = replace(
            expected,
            links=tuple(
                link
                if link.rate_at_s is None
                else replace(link, rate_at_s=link.rate_at_s + shift_s)
                for link in expected.links
            ),
        )
    assert got.reading == expected


@given(READINGS)
def test_a_reading_is_its_senders_whatever_it_says(reading: Reading) -> None:
    other = a_node_id(2)
    got = unpack_reading(pack_reading(reading, now=1000.0), other, now=0.0).reading
    assert got is not None
    assert got.node_id == other


@given(READINGS)
def test_a_drop_names_its_key(reading: Reading) -> None:
    got = unpack_reading(pack_drop(key_of(reading)), NODE, now=0.0)
    assert got == (key_of(reading), None)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=9),
    max_leaves=20,
)
KINDS = st.sampled_from(["node", "progress", "transfer", "instance", "holdings", "weather"])


@given(st.tuples(KINDS, JUNK | NAMES, JUNK | st.just(0), JUNK) | JUNK)
def test_whatever_arrives_is_a_sound_reading_or_refused(values: object) -> None:
    try:
        told = unpack_reading(encode_values(values), NODE, now=5.0)
    except ProtocolError:
        return
    if told.reading is not None:
        assert unpack_reading(pack_reading(told.reading, now=5.0), NODE, now=5.0) == told


@given(READINGS, st.data())
def test_a_flipped_byte_is_refused_or_still_a_sound_reading(
    reading: Reading, data: st.DataObject
) -> None:
    packed = bytearray(pack_reading(reading, now=1000.0))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        told = unpack_reading(bytes(packed), NODE, now=5.0)
    except ProtocolError:
        return
    assert told.reading is None or told.reading.node_id == NODE


NODE_FIELDS = (0.0, None, (), None, None, None, True, 0, None)


@pytest.mark.parametrize(
    "values",
    [
        ("node", "x", 0, NODE_FIELDS),
        ("node", "", 1, NODE_FIELDS),
        ("node", "", 256, None),
        ("node", "", 0, (-1.0, *NODE_FIELDS[1:])),
        ("node", "", 0, (*NODE_FIELDS[:2], (None,) * 65, *NODE_FIELDS[3:])),
        ("node", "", 0, (*NODE_FIELDS[:8], "bored")),
        ("instance", "no id", 0, (0.0, 1, 1, 1)),
        ("instance", an_instance_id(), 1, (0.0, 1, 1, 1)),
        ("transfer", "../x", 0, None),
        ("progress", an_instance_id(), 0, (0.0, 1, "dancing", 0.0, 1, 1, 1.0, 1.0, "")),
        ("progress", an_instance_id(), 0, (0.0, 1, "load", 0.0, 1, 1, 1.0, 1.0, "x" * 501)),
        ("holdings", "", 0, (0.0, (("org/name", "A" * 64, 1),))),
        ("holdings", "", 0, (0.0, (("org/name", "a" * 64, 1),) * 513)),
    ],
    ids=lambda values: str(values)[:60],
)
def test_a_reading_out_of_bounds_is_refused(values: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError, match="does not decode"):
        unpack_reading(encode_values(values), NODE, now=0.0)


def test_every_reading_of_a_node_has_its_own_place_in_the_queue() -> None:
    keys = [
        ("node", "", 0),
        ("holdings", "", 0),
        ("progress", an_instance_id(1), 0),
        ("progress", an_instance_id(1), 1),
        ("instance", an_instance_id(1), 0),
    ]
    names = {transport_key(cast("ReadingKey", key)) for key in keys}
    assert len(names) == len(keys)


def test_a_full_set_of_holdings_fits_into_one_payload() -> None:
    long = ModelId("o" * 90 + "/" + "n" * 90 + ":" + "q" * 18)
    held = Holding(model_id=long, digest=Digest("f" * 64), size_bytes=1 << 62)
    reading = HoldingsReading(node_id=NodeId(NODE), at_s=0.0, holdings=(held,) * 512)
    assert len(pack_reading(reading, now=0.0)) < 256 << 10
