"""What a node may send, and what of it is no frame."""

import pytest

from protocol.errors import ProtocolError
from protocol.session import NODE_FRAME_MAX_BYTES
from skulk_tui import session_connection


@pytest.mark.parametrize(
    "message",
    [
        "",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"type":"ping","n":' + "9" * 5000 + "}",
        '{"type":"nothing of the kind"}',
        "x" * (NODE_FRAME_MAX_BYTES + 1),
    ],
    ids=["nothing", "half", "lists", "objects", "number", "type", "size"],
)
def test_what_is_no_frame_is_the_nodes_fault_and_said_so(message: str) -> None:
    with pytest.raises(ProtocolError) as found:
        session_connection._read(message.encode())  # pyright: ignore[reportPrivateUsage]
    assert found.value.code == "protocol.bad_frame"
    assert found.value.message.startswith("it sent ")
