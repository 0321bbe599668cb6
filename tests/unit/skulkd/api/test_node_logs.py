"""Logs as they lie on the disk: pages, positions, rotation, capping."""

import asyncio
import json
import logging
import os
from pathlib import Path

import pytest

from protocol.cluster_api import LogsDocument
from protocol.errors import RequestError
from protocol.ids import InstanceId, NodeId
from skulkd.api.node_logs import MAX_LINES, PAGE_BYTES, NodeLogFiles
from skulkd.api.ports import LogMark, LogQuery
from skulkd.runtime.logs import LOG_FILE_NAME, CappedFileHandler, JsonFormatter
from skulkd.worker.launchers.engine_log import open_log, trim_log

NODE = NodeId("naaaaaaaaaaaaaaaa")
INSTANCE = InstanceId("aaaaaa-" + "b" * 20)


def read(folder: Path, **query: object) -> LogsDocument:
    logs = NodeLogFiles(node_id=NODE, name="alpha", directory=folder)
    return asyncio.run(logs.read(LogQuery(**query)))  # pyright: ignore[reportArgumentType] - by name


def messages(page: LogsDocument) -> list[str]:
    return [line.message for line in page.lines]


def write(path: Path, *texts: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in texts)


def engine_log(folder: Path, *, rank: int = 0, attempt: int = 1) -> Path:
    return folder / "engines" / f"{INSTANCE}-{rank}.{attempt}.log"


def test_a_line_of_the_daemon_comes_with_its_fields(tmp_path: Path) -> None:
    handler = CappedFileHandler(tmp_path / LOG_FILE_NAME)
    handler.setFormatter(JsonFormatter())
    record = logging.LogRecord("skulkd.node", logging.WARNING, "", 0, "hello %s", ("you",), None)
    record.command_id = "c"
    record.peer, record.parts = "127.0.0.1", [1, 2]
    handler.emit(record)
    handler.close()
    (line,) = read(tmp_path).lines
    assert (line.level, line.logger, line.message) == ("warning", "skulkd.node", "hello you")
    assert line.command_id == "c"
    assert line.extra == {"peer": "127.0.0.1", "parts": "[1, 2]"}
    assert line.at is not None


def test_the_last_lines_come_first_and_the_next_ones_when_they_are_there(tmp_path: Path) -> None:
    path = tmp_path / LOG_FILE_NAME
    write(path, "a", "b", "c")
    page = read(tmp_path, limit=2)
    assert (messages(page), page.has_more, page.was_cut) == (["b", "c"], False, False)
    again = read(tmp_path, after=page.next_after)
    assert (messages(again), again.next_after) == ([], page.next_after)
    write(path, "d", "e", "f")
    more = read(tmp_path, after=page.next_after, limit=2)
    assert (messages(more), more.has_more) == (["d", "e"], True)
    rest = read(tmp_path, after=more.next_after, limit=2)
    assert (messages(rest), rest.has_more) == (["f"], False)


def test_a_line_that_is_not_ended_yet_is_left_to_come(tmp_path: Path) -> None:
    path = tmp_path / LOG_FILE_NAME
    write(path, "a")
    with path.open("a", encoding="utf-8") as file:
        file.write("half")
    page = read(tmp_path)
    assert (messages(page), page.has_more) == (["a"], False)
    write(path, " and half")
    assert messages(read(tmp_path, after=page.next_after)) == ["half and half"]


def test_a_position_outlives_rotation(tmp_path: Path) -> None:
    handler = CappedFileHandler(tmp_path / LOG_FILE_NAME, max_bytes=100)
    handler.setFormatter(JsonFormatter())

    def log(number: int) -> None:
        handler.emit(logging.LogRecord("x", logging.INFO, "", 0, str(number), (), None))

    log(0)
    page = read(tmp_path)
    seen = messages(page)
    for number in range(1, 4):  # each in a file of its own
        log(number)
    while True:
        page = read(tmp_path, after=page.next_after, limit=1)
        seen += messages(page)
        assert not page.was_cut
        if not page.lines:
            break
    handler.close()
    assert seen == ["0", "1", "2", "3"]
    assert messages(read(tmp_path, limit=3)) == ["1", "2", "3"]


def test_what_was_rotated_away_is_said_to_be_missing(tmp_path: Path) -> None:
    path = tmp_path / LOG_FILE_NAME
    write(path, "a", "b")
    page = read(tmp_path)
    kept = tmp_path / "kept-so-that-its-inode-stays"
    path.rename(kept)
    write(path, "c")
    later = read(tmp_path, after=page.next_after)
    assert (messages(later), later.was_cut) == (["c"], True)


def test_a_log_that_begins_later_has_lost_nothing(tmp_path: Path) -> None:
    page = read(tmp_path)
    assert (page.lines, page.was_cut, page.has_more) == ((), False, False)
    write(tmp_path / LOG_FILE_NAME, "a")
    later = read(tmp_path, after=page.next_after)
    assert (messages(later), later.was_cut) == (["a"], False)


@pytest.mark.parametrize("after", ["", "x", "1", "1.", ".1", "1.-1", "1." + "9" * 40, "zz.1"])
def test_a_position_of_no_log_is_refused(tmp_path: Path, after: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(tmp_path, after=after)
    assert refused.value.code == "request.invalid"


def test_a_page_is_bounded_in_lines_and_in_bytes_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / LOG_FILE_NAME
    lines = [f"{number:06} {'x' * 300}" for number in range(5000)]
    write(path, *lines)
    inode = path.stat().st_ino
    position, seen = f"{inode:x}.0", list[str]()
    while True:
        page = read(tmp_path, after=position, limit=10_000)
        assert len(page.lines) <= MAX_LINES
        assert sum(len(line.message) + 1 for line in page.lines) <= PAGE_BYTES
        seen += messages(page)
        position = page.next_after
        if not page.has_more:
            break
    assert seen == lines
    assert messages(read(tmp_path, limit=3)) == lines[-3:]


def test_a_line_longer_than_a_page_is_given_in_pieces_and_never_blocks_the_rest(
    tmp_path: Path,
) -> None:
    write(tmp_path / LOG_FILE_NAME, "y" * (2 * PAGE_BYTES), "after it")
    position = f"{(tmp_path / LOG_FILE_NAME).stat().st_ino:x}.0"
    seen: list[str] = []
    for _ in range(10):
        page = read(tmp_path, after=position)
        seen += messages(page)
        position = page.next_after
        if not page.has_more:
            break
    assert seen[-1] == "after it"


@pytest.mark.parametrize(
    "text", ["not json", "[1]", "{", '"text"', "\x1b[31mred\x07", "[" * 100_000]
)
def test_a_line_that_is_no_record_is_shown_as_it_is_without_control_codes(
    tmp_path: Path, text: str
) -> None:
    write(tmp_path / LOG_FILE_NAME, text)
    (line,) = read(tmp_path).lines
    assert line.level is None
    assert line.message.startswith(text.replace("\x1b", "").replace("\x07", "")[:1000])


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE_NAME).write_bytes(
        b"\xff\xfe\n" + json.dumps({"msg": "ok"}).encode() + b"\n"
    )
    assert messages(read(tmp_path)) == ["\ufffd\ufffd", "ok"]


def test_the_story_of_one_command_is_found_in_the_whole_log(tmp_path: Path) -> None:
    for number in (1, 0):
        path = tmp_path / (f"{LOG_FILE_NAME}.{number}" if number else LOG_FILE_NAME)
        story = [json.dumps({"msg": f"{number}.{step}", "command_id": INSTANCE}) for step in (1, 2)]
        write(path, story[0], *(["x" * 1000] * 2000), story[1], *(["y" * 1000] * 2000))
    page = read(tmp_path, command_id=INSTANCE, limit=3)
    assert (messages(page), page.has_more) == (["1.1", "1.2", "0.1"], True)
    rest = read(tmp_path, command_id=INSTANCE, limit=3, after=page.next_after)
    assert (messages(rest), rest.has_more) == (["0.2"], False)
    assert messages(read(tmp_path, command_id="zzzzzz-" + "b" * 20)) == []


# ---- Engines -----------------------------------------------------------------------------------


def test_an_engines_log_is_found_where_its_launcher_writes_it(tmp_path: Path) -> None:
    descriptor = open_log(engine_log(tmp_path))
    os.write(descriptor, b"loading\n")
    os.close(descriptor)
    page = read(tmp_path, instance_id=INSTANCE)
    assert (messages(page), page.instance_id) == (["loading"], INSTANCE)


def test_attempts_follow_each_other_and_an_unfinished_last_word_is_not_lost(tmp_path: Path) -> None:
    for attempt in (10, 9):
        write(engine_log(tmp_path, attempt=attempt), f"attempt {attempt}")
    with engine_log(tmp_path, attempt=9).open("a", encoding="utf-8") as file:
        file.write("killed in mid-")
    page = read(tmp_path, instance_id=INSTANCE)
    assert messages(page) == ["attempt 9", "killed in mid-", "attempt 10"]


def test_an_engines_log_that_was_cut_goes_on_from_what_is_left(tmp_path: Path) -> None:
    path = engine_log(tmp_path)
    write(path, *(f"line {number:04}" for number in range(100)))
    page = read(tmp_path, instance_id=INSTANCE)
    assert trim_log(path, cap_bytes=400)
    later = read(tmp_path, instance_id=INSTANCE, after=page.next_after)
    assert later.was_cut
    assert messages(later)[0] == "[earlier lines were cut]"
    assert messages(later)[-1] == "line 0099"


def test_an_instance_without_a_log_here_is_refused_by_name(tmp_path: Path) -> None:
    write(engine_log(tmp_path).with_name(f"{INSTANCE}x-0.1.log"), "another's")
    with pytest.raises(RequestError) as refused:
        read(tmp_path, instance_id=INSTANCE)
    assert refused.value.code == "request.not_found"
    assert "alpha" in refused.value.message


def mark(folder: Path, **query: object) -> LogMark:
    logs = NodeLogFiles(node_id=NODE, name="alpha", directory=folder)
    return asyncio.run(logs.mark(LogQuery(**query)))  # pyright: ignore[reportArgumentType] - by name


def test_a_mark_changes_with_every_line_and_with_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / LOG_FILE_NAME
    marks = [mark(tmp_path)]
    for text in ("one", "two"):
        write(path, text)
        marks.append(mark(tmp_path))
    assert mark(tmp_path) == marks[-1]
    path.rename(tmp_path / f"{LOG_FILE_NAME}.1")
    write(path, "two")
    marks.append(mark(tmp_path))
    assert len(set(marks)) == 4


def test_a_mark_of_an_instance_sees_its_next_attempt(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no log of instance"):
        mark(tmp_path, instance_id=INSTANCE)
    write(engine_log(tmp_path), "one")
    before = mark(tmp_path, instance_id=INSTANCE)
    write(engine_log(tmp_path, attempt=2))
    assert mark(tmp_path, instance_id=INSTANCE) != before
