import hashlib
import os
from pathlib import Path

from skulkd.worker.launchers.engine_log import (
    LINE_MAX_CHARS,
    TAIL_LINES,
    last_lines,
    prune_logs,
    read_tail,
    trim_log,
)


def test_the_tail_is_the_last_twenty_lines_oldest_first() -> None:
    data = "".join(f"line {number}\n" for number in range(100)).encode()
    assert last_lines(data) == tuple(f"line {number}" for number in range(80, 100))


def test_empty_lines_do_not_push_out_what_was_said() -> None:
    assert last_lines(b"cause\n" + b"\n" * 50) == ("cause",)


def test_a_progress_bar_shows_its_last_state() -> None:
    assert last_lines(b"10 %\r50 %\r100 %\r\ndone\r\n") == ("100 %", "done")


def test_escape_sequences_and_direction_overrides_are_taken_out() -> None:
    data = b"\x1b[31mred\x1b[0m \x1b]0;title\x07x\x07 \xe2\x80\xaegnp.exe\n"
    assert last_lines(data) == ("red x gnp.exe",)


def test_garbage_of_any_kind_gives_bounded_printable_lines() -> None:
    garbage = hashlib.shake_256(b"7").digest(200_000) + b"x" * 100_000
    lines = last_lines(garbage)
    assert len(lines) <= TAIL_LINES
    assert all(len(line) <= LINE_MAX_CHARS for line in lines)
    assert not any(character < " " and character != "\t" for line in lines for character in line)


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert read_tail(tmp_path / "none.log") == ()


def test_a_log_beyond_its_cap_keeps_its_end(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_text("".join(f"line {number:04}\n" for number in range(1000)))
    assert trim_log(path, cap_bytes=4000)
    assert path.stat().st_size < 1100
    lines = path.read_text().splitlines()
    assert lines[0] == "[earlier lines were cut]"
    assert lines[-1] == "line 0999"
    assert lines[1].startswith("line ")
    assert not trim_log(path, cap_bytes=4000)


def test_a_writer_goes_on_at_the_end_of_a_cut_log(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * 5000 + b"\n")
        trim_log(path, cap_bytes=4000)
        writer.write(b"after\n")
    assert path.read_bytes().endswith(b"\nafter\n")
    assert path.stat().st_size < 1100


def test_only_the_newest_logs_and_those_in_use_are_kept(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / f"{number}.log"
        path.touch()
        os.utime(path, (number, number))
    prune_logs(tmp_path, kept=2, in_use=frozenset({"1.log"}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.log", "4.log", "5.log"]
