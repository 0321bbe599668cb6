import json

from skulk_tui.cli.progress import (
    ProgressLine,
    bytes_text,
    instance_line,
    instance_progress,
    transfer_line,
)
from tests.support.builders import MIB
from tests.support.command_line import Stream
from tests.support.fake_node import a_transfer, a_view


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0


def test_without_a_terminal_a_phase_takes_a_line_and_then_one_every_ten_seconds() -> None:
    stream, clock = Stream(), Clock()
    line = ProgressLine(stream, clock=clock, live_width=None, quiet=False)
    for second in range(25):
        clock.now_s = float(second)
        topic = "load" if second < 24 else "probe"
        line.show(f"{topic} {second}", topic=topic, record={})
    line.clear()
    assert stream.getvalue() == "load 0\nload 10\nload 20\nprobe 24\n"


def test_on_a_terminal_one_line_is_rewritten_and_taken_away() -> None:
    stream, clock = Stream(), Clock()
    line = ProgressLine(stream, clock=clock, live_width=10, quiet=False)
    line.show("a" * 50, topic="load", record={})
    line.show("too soon", topic="load", record={})
    clock.now_s = 0.2
    line.show("b\x1b[2J\nc", topic="load", record={})
    line.clear()
    assert stream.getvalue() == "\r\x1b[Kaaaaaa...\r\x1b[Kb[2J c\r\x1b[K"


def test_a_lasting_line_stands_above_the_changing_one() -> None:
    stream = Stream()
    line = ProgressLine(stream, clock=Clock(), live_width=40, quiet=False)
    line.show("load", topic="load", record={})
    line.say("attempt 1 failed")
    line.show("load", topic="load", record={})
    assert stream.getvalue() == "\r\x1b[Kload\r\x1b[Kattempt 1 failed\n\r\x1b[Kload"


def test_a_program_that_reads_stderr_gets_objects() -> None:
    stream = Stream()
    line = ProgressLine(stream, clock=Clock(), live_width=None, quiet=False, as_json=True)
    view = a_view("load")
    line.show(instance_line(view), topic="load", record=instance_progress(view))
    line.say("attempt 1 failed")
    progress, note = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert progress["progress"]["phase"] == "load"
    assert progress["progress"]["done_bytes"] == 25 * MIB
    assert note == {"note": "attempt 1 failed"}


def test_quiet_shows_nothing() -> None:
    stream = Stream()
    line = ProgressLine(stream, clock=Clock(), live_width=40, quiet=True)
    line.show("load", topic="load", record={})
    line.say("more")
    line.clear()
    assert not stream.getvalue()


def test_an_eta_is_shown_only_once_it_is_known() -> None:
    assert bytes_text(25 * MIB, 100 * MIB, 10.0 * MIB, 7.5) == (
        "25.0 MiB / 100 MiB  25 %  10.0 MiB/s  ETA 7.5 s"
    )
    assert bytes_text(25 * MIB, None, None, None) == "25.0 MiB"
    assert not bytes_text(None, None, None, None)


def test_lines_name_phase_model_and_amount() -> None:
    assert instance_line(a_view("load")) == (
        "load      test/tiny  25.0 MiB / 100 MiB  25 %  10.0 MiB/s  ETA 7.5 s"
    )
    assert instance_line(a_view("pending", progress=())) == "pending   test/tiny"
    assert transfer_line(a_transfer()) == "download  test/tiny  50.0 MiB / 100 MiB  50 %"
