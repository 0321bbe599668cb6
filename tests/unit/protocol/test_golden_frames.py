"""Every frame that nodes send has the bytes that it had in the build before."""

from collections.abc import Callable, Mapping
from typing import Final, get_args

import pytest

from protocol import data_wire, files_wire, joining, telemetry_wire
from protocol.codec import unpack
from protocol.commands import COMMAND, Command
from protocol.data_frames import Frame
from protocol.envelope import HELLO_MARK
from protocol.events import EVENT, Event
from protocol.hello import read_hello
from protocol.peer_messages import (
    PEER_ANSWER,
    PEER_REQUEST,
    ControlFrame,
    ElectionMessage,
    EventsFrame,
    PeerAnswer,
    PeerRequest,
    unpack_control,
    unpack_election,
    unpack_events,
)
from protocol.readings import Reading
from tests.support.builders import a_node_id
from tests.support.wire_examples import FRAMES, NOW_S, examples, golden

EXAMPLES = examples()
GOLDEN = golden()


READERS: Final[Mapping[str, Callable[[bytes], object]]] = {
    "hello": lambda packed: read_hello(packed[1:]),
    "election": unpack_election,
    "control": unpack_control,
    "events": unpack_events,
    "request": lambda packed: unpack(PEER_REQUEST, packed),
    "answer": lambda packed: unpack(PEER_ANSWER, packed),
    "command": lambda packed: unpack(COMMAND, packed),
    "event": lambda packed: unpack(EVENT, packed),
    "guest": joining.read_guest,
    "host": joining.read_host,
    "data": data_wire.unpack_message,
    "frame": lambda packed: data_wire.unpack_message(
        data_wire.pack_frames(data_wire.frames_head(9), 0, [packed])
    ),
    "files": files_wire.unpack_files,
    "telemetry": lambda packed: (
        telemetry_wire.unpack_echo(packed)
        if telemetry_wire.is_echo(packed)
        else telemetry_wire.unpack_reading(packed, a_node_id(1), now=NOW_S).reading
    ),
}


def kinds(union: object) -> tuple[type, ...]:
    """Give the types of a union, whether or not it is marked by a discriminator."""
    members = get_args(union)
    return get_args(members[0]) or members


def names(room: str, *types: type) -> set[str]:
    return {f"{room}/{kind.__name__}" for kind in types}


def test_every_kind_of_frame_has_an_example() -> None:
    expected = {
        "hello/Hello",
        "data/task",
        *names("election", *kinds(ElectionMessage)),
        *names("control", *kinds(ControlFrame)),
        *names("events", EventsFrame),
        *names("request", *kinds(PeerRequest)),
        *names("answer", *kinds(PeerAnswer)),
        *names("command", *kinds(Command)),
        *names("event", *kinds(Event)),
        *names("guest", *kinds(joining.GuestMessage)),
        *names("host", *kinds(joining.HostMessage)),
        *names("data", *kinds(data_wire.DataMessage)),
        *names("files", *kinds(files_wire.FilesFrame)),
        *names("telemetry", *kinds(Reading), telemetry_wire.Echo),
        *(f"frame/{name}" for name in FRAMES),
    }
    assert set(EXAMPLES) == expected
    assert {type(frame) for frame in FRAMES.values()} == set(get_args(Frame))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_frame_is_packed_as_it_always_was(name: str) -> None:
    assert EXAMPLES[name].packed.hex() == GOLDEN[name].hex(), (
        "a node of the build before would read something else: raise WIRE_VERSION, say so in "
        "docs/wire.md, remove the line from golden_frames.json, and write it anew: "
        "python -m tests.support.wire_examples"
    )


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"data/task"}))
def test_a_golden_frame_is_read_as_what_it_was(name: str) -> None:
    room, _, kind = name.partition("/")
    read = READERS[room](GOLDEN[name])
    if room == "frame":
        assert read == data_wire.Frames(9, 0, (FRAMES[kind],))
    else:
        assert read == EXAMPLES[name].value


def test_a_golden_hello_begins_with_its_mark() -> None:
    assert GOLDEN["hello/Hello"][0] == HELLO_MARK


def test_a_golden_task_is_read_as_what_it_was() -> None:
    assert data_wire.unpack_task(GOLDEN["data/task"]) == EXAMPLES["data/task"].value


def test_no_golden_frame_is_left_without_its_kind() -> None:
    assert set(GOLDEN) == set(EXAMPLES)
