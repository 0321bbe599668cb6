"""Against a pipe: whoever reads it is the terminal, slow or gone as the test wants."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from skulk_tui.terminal_output import MAX_QUEUED_BYTES, TerminalOutput

CLOSES_WITHIN_S = 10.0
FRAME = "f" * 100_000


@dataclass
class Line:
    output: TerminalOutput
    reader: int
    dropped: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)

    def read(self, n_bytes: int) -> bytes:
        data = b""
        while len(data) < n_bytes:
            data += os.read(self.reader, n_bytes - len(data))
        return data

    def read_to_the_end(self) -> bytes:
        data = b""
        while piece := os.read(self.reader, 1 << 20):
            data += piece
        return data


@pytest.fixture
def line() -> Iterator[Line]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    dropped, gone = threading.Event(), threading.Event()
    output = TerminalOutput(writer, on_drop=dropped.set, on_gone=gone.set)
    yield Line(output, reader, dropped, gone)
    output.abandon_frames()
    os.close(reader)
    output.close(within_s=CLOSES_WITHIN_S)


def test_what_is_written_arrives_in_order(line: Line) -> None:
    line.output.write("one ", is_frame=True)
    line.output.write("tw\ud83d", is_frame=False)
    assert line.read(7) == b"one tw?"
    assert line.output.close(within_s=CLOSES_WITHIN_S)
    assert line.output.backlog == 0


def test_a_writer_never_waits_and_sees_how_much_does(line: Line) -> None:
    for _ in range(5):
        line.output.write(FRAME, is_frame=True)
    assert line.output.backlog >= 4  # a pipe takes part of the first
    line.read(5 * len(FRAME))
    line.output.write("end", is_frame=True)
    assert line.read(3) == b"end"


def test_too_many_frames_are_dropped_and_drawn_anew(line: Line) -> None:
    n_frames = MAX_QUEUED_BYTES // len(FRAME) + 3
    line.output.write(FRAME, is_frame=True)
    line.output.write("\x1b[?2004h", is_frame=False)
    for _ in range(n_frames):
        line.output.write(FRAME, is_frame=True)
    assert line.output.backlog < n_frames
    assert not line.dropped.is_set()
    reading = threading.Thread(target=line.read_to_the_end)
    reading.start()
    assert line.dropped.wait(CLOSES_WITHIN_S)
    assert line.output.close(within_s=CLOSES_WITHIN_S)
    reading.join()


def test_leaving_drops_frames_and_keeps_what_sets_the_terminal_right(line: Line) -> None:
    for _ in range(3):
        line.output.write(FRAME, is_frame=True)
    line.output.write("[mode]", is_frame=False)
    line.output.abandon_frames()
    line.output.write("[restore]", is_frame=False)
    closing = threading.Thread(target=line.output.close, kwargs={"within_s": CLOSES_WITHIN_S})
    closing.start()
    data = line.read_to_the_end()
    closing.join()
    assert len(data) < len(FRAME)
    assert data.endswith(b"\x18\x1b\\\x1b[0m[mode][restore]")


def test_a_terminal_that_takes_nothing_is_not_waited_for_for_ever(line: Line) -> None:
    line.output.write("m" * 1_000_000, is_frame=False)
    assert not line.output.close(within_s=0.2)
    line.read(1_000_000)


def test_a_terminal_that_is_gone_is_told_once_and_writes_go_nowhere() -> None:
    reader, writer = os.pipe()
    gone: list[int] = []
    told = threading.Event()

    def on_gone() -> None:
        gone.append(1)
        told.set()

    output = TerminalOutput(writer, on_drop=lambda: None, on_gone=on_gone)
    os.close(reader)
    output.write("x", is_frame=True)
    assert told.wait(CLOSES_WITHIN_S)
    output.write("y", is_frame=False)
    assert output.backlog == 0
    assert not output.close(within_s=CLOSES_WITHIN_S)
    assert gone == [1]
