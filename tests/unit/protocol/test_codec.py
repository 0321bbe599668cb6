import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from protocol.base import FrozenModel
from protocol.codec import MAX_DEPTH, MAX_VALUES, decode_values, encode_values, pack, unpack
from protocol.errors import ProtocolError
from protocol.wire_checks import decode_bounded


class Inner(FrozenModel):
    name: str
    raw: bytes = b""


class Outer(FrozenModel):
    n_tokens: int
    ratio: float = 0.5
    inner: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = {}
    maybe: int | None = None


OUTER = TypeAdapter(Outer)


def _frame(values: object) -> bytes:
    return encode_values(values)


def _refused(data: bytes, **limits: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        unpack(OUTER, data, **limits)
    return caught.value


def test_a_model_comes_back_equal_with_tuples_and_bytes() -> None:
    model = Outer(
        n_tokens=3,
        inner=(Inner(name="a", raw=b"\x00\xff"), Inner(name="ü")),
        by_name={"x": Inner(name="b")},
    )
    assert unpack(OUTER, pack(model)) == model


def test_fields_travel_by_their_own_names() -> None:
    values = decode_values(pack(Outer(n_tokens=3)))
    assert isinstance(values, dict)
    assert values["n_tokens"] == 3


def test_s16_an_unknown_field_is_named() -> None:
    error = _refused(_frame({"n_tokens": 1, "colour": "red"}))
    assert error.code == "protocol.bad_frame"
    assert "colour" in error.message


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused(ratio: float) -> None:
    error = _refused(_frame({"n_tokens": 1, "ratio": ratio}))
    assert error.code == "protocol.bad_frame"
    assert "finite" in error.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        _frame({"n_tokens": 1}) + b"\x00",
        _frame({1: 2}),
        _frame([1, 2]),
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xa2\xff\xfe",
        b"\xd4\x05x",
    ],
)
def test_a_frame_that_is_none_is_refused(data: bytes) -> None:
    assert _refused(data).code == "protocol.bad_frame"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x81\xc4\x01a\x01", id="a key of bytes"),
        pytest.param(b"\xc7\x00\x05", id="an extension of no bytes"),
        pytest.param(b"\x91\xc7\x00\x05", id="the same, inside"),
    ],
)
def test_plain_values_are_what_json_knows_and_bytes(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_values(data)
    assert caught.value.code == "protocol.bad_frame"


def test_s16_a_frame_over_the_limit_is_refused_unread() -> None:
    error = _refused(b"\xc1" * 11, max_bytes=10)
    assert error.code == "protocol.too_large"
    assert error.details == {"n_bytes": 11, "max_bytes": 10}


def _nested(depth: int, *, is_map: bool) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"a": value} if is_map else [value]
    return value


@pytest.mark.parametrize("is_map", [True, False])
def test_s16_depth_is_bounded(is_map: bool) -> None:
    decode_values(_frame(_nested(MAX_DEPTH, is_map=is_map)))
    with pytest.raises(ProtocolError, match="nested deeper"):
        decode_values(_frame(_nested(MAX_DEPTH + 1, is_map=is_map)))
    bomb = (b"\x81\xa1a" if is_map else b"\x91") * 100_000 + b"\x01"
    with pytest.raises(ProtocolError):
        decode_values(bomb)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_decode_or_are_refused_and_nothing_else(data: bytes) -> None:
    try:
        values = decode_values(data)
    except ProtocolError:
        return
    assert decode_values(encode_values(values)) == values


@settings(deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text()
        | st.binary(),
        lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_values_come_back_as_they_were(values: object) -> None:
    assert decode_values(encode_values(values)) == values


def _array(n_items: int, item: bytes) -> bytes:
    return b"\xdd" + n_items.to_bytes(4, "big") + item * n_items


@pytest.mark.parametrize(
    "data",
    [
        # Room would be made for each of the arrays that are announced: gigabytes.
        (b"\xdd" + (60_000).to_bytes(4, "big")) * 1000 + b"\xc0" * 60_000,
        _array(MAX_VALUES // 16, b"\x91" * 20 + b"\xc0"),
        _array(20, _array(4000, b"\xc0")),
        b"\xdf"
        + (60_000).to_bytes(4, "big")
        + b"".join(b"\xa5%05x\xc0" % n for n in range(60_000)),
    ],
    ids=["announced", "containers", "items", "map"],
)
def test_s16_a_frame_of_too_many_values_is_refused_before_they_are_read(data: bytes) -> None:
    error = _refused(data)
    assert error.code == "protocol.bad_frame"
    assert "exceeds" in error.message or "more than" in error.message
    with pytest.raises(ProtocolError):
        decode_bounded(data, len(data))


def test_what_a_frame_may_hold_at_most_is_taken() -> None:
    widest = [0] * (MAX_VALUES // 16)
    assert decode_values(encode_values([widest] * 15)) == (tuple(widest),) * 15


def test_a_thread_may_decode_what_has_more_values() -> None:
    values = ((0,) * 40_000,) * 2
    assert decode_values(encode_values(values), max_values=None) == values


def test_a_value_made_unchecked_is_the_same_as_one_that_was_checked() -> None:
    checked = Inner(name="a", raw=b"b")
    unchecked = Inner.unchecked({"name": "a", "raw": b"b"})
    assert unchecked == checked
    assert hash(unchecked) == hash(checked)
    assert pack(unchecked) == pack(checked)
    assert unchecked.model_fields_set == checked.model_fields_set
    assert unchecked.model_copy(update={"name": "c"}) == Inner(name="c", raw=b"b")
