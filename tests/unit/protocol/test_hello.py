import pytest

from protocol.codec import encode_values
from protocol.envelope import WIRE_VERSION
from protocol.errors import ProtocolError
from protocol.hello import MAX_HELLO_BYTES, Hello, OtherWire, hello_frame, read_hello
from protocol.ids import cluster_id_of, node_id_of

HELLO = Hello(
    wire=WIRE_VERSION,
    build="0.1.0",
    node_id=node_id_of(b"n" * 32),
    boot_id="b1",
    cluster_id=cluster_id_of(b"c" * 16),
    base_port=12416,
)


def test_a_hello_is_read_as_it_was_written_behind_a_zero_byte() -> None:
    frame = hello_frame(HELLO)
    assert frame[0] == 0
    assert read_hello(frame[1:]) == HELLO


def test_of_another_wire_version_only_the_number_and_the_build_are_read() -> None:
    data = encode_values({"wire": 7, "build": "9.9", "colour": "red"})
    assert read_hello(data) == OtherWire(7, "9.9")
    for unfit in (5, "9.9\x1b[2J\nskulkd: all is well"):
        assert read_hello(encode_values({"wire": 7, "build": unfit})) == OtherWire(7, "?")


@pytest.mark.parametrize(
    "change",
    [
        {"wire": "1"},
        {"build": ""},
        {"build": "x" * 65},
        {"build": "a\x1b[2J"},
        {"boot_id": "\n"},
        {"node_id": "n1"},
        {"cluster_id": "k"},
        {"base_port": 0},
        {"base_port": 65534},
        {"more": 1},
    ],
)
def test_a_hello_that_is_not_in_form_is_refused(change: dict[str, object]) -> None:
    data = encode_values({**HELLO.model_dump(), **change})
    with pytest.raises(ProtocolError) as caught:
        read_hello(data)
    assert caught.value.code == "protocol.bad_frame"


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xc1", b"\x93\x01\x02\x03", b"\x81\x01\x02"])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_hello(data)


def test_a_long_hello_is_refused_unread() -> None:
    with pytest.raises(ProtocolError) as caught:
        read_hello(bytes(MAX_HELLO_BYTES + 1))
    assert caught.value.code == "protocol.too_large"
