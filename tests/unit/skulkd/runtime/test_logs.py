import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

import skulkd
from skulkd.runtime.logs import (
    LOG_FILE_NAME,
    CappedFileHandler,
    JsonFormatter,
    Logs,
    ScreenHandler,
    command_id,
    node_name,
)
from tests.support.builders import a_node_id


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_carries_its_fields_and_extras(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stderr = io.StringIO()
    logs = Logs(directory=tmp_path, stderr=stderr)
    log = logging.getLogger("skulkd.worker.service")
    token = command_id.set("abcdef-chain")
    log.info("spawned %s", "runner", extra={"pid": 7, "path": tmp_path})
    command_id.reset(token)
    log.debug("not at this level")
    log.warning("own id", extra={"command_id": "given"})
    log.info("no id")
    logs.close()
    logs.close()
    log.info("after the end")
    first, second, third = _lines(tmp_path / LOG_FILE_NAME)
    assert str(first.pop("ts")).endswith("+00:00")
    assert first == {
        "level": "info",
        "logger": "skulkd.worker.service",
        "msg": "spawned runner",
        "command_id": "abcdef-chain",
        "pid": 7,
        "path": str(tmp_path),
    }
    assert second["command_id"] == "given"
    assert "command_id" not in third
    assert [json.loads(line)["msg"] for line in stderr.getvalue().splitlines()] == [
        "spawned runner",
        "own id",
        "no id",
    ]
    assert not capsys.readouterr().out


def test_an_exception_is_in_the_line() -> None:
    stderr = io.StringIO()
    logs = Logs(directory=None, stderr=stderr)
    try:
        int("cheese")
    except ValueError:
        logging.getLogger("skulkd").exception("failed\non two lines")
    logs.close()
    [line] = stderr.getvalue().splitlines()
    document = cast("dict[str, str]", json.loads(line))
    assert document["msg"] == "failed\non two lines"
    assert "ValueError: invalid literal" in document["exception"]


def test_a_terminal_gets_text_for_people() -> None:
    stderr = _Terminal()
    logs = Logs(directory=None, stderr=stderr)
    logging.getLogger("skulkd.api.app").warning("slow", extra={"lag_s": 2})
    logs.close()
    assert "warning  api.app: slow lag_s=2\n" in stderr.getvalue()


def test_a_node_is_named_with_its_id_wherever_its_name_is_known() -> None:
    studio, stranger = a_node_id(1), a_node_id(2)
    stderr = io.StringIO()
    logs = Logs(directory=None, stderr=stderr)
    log = logging.getLogger("skulkd")
    log.warning("follow %s", studio)
    before = node_name.set(lambda node_id: "studio" if node_id == studio else "")
    log.warning("follow %s", studio)
    log.warning("refused %s, of studio (%s)", stranger, studio)
    log.warning("the word %sx", studio)
    node_name.reset(before)
    logs.close()
    shown = [json.loads(line)["msg"] for line in stderr.getvalue().splitlines()]
    assert shown == [
        f"follow {studio}",
        f"follow studio ({studio})",
        f"refused {stranger}, of studio ({studio})",
        f"the word {studio}x",
    ]


def test_foreign_text_neither_commands_a_terminal_nor_forges_a_line() -> None:
    stderr = _Terminal()
    logs = Logs(directory=None, stderr=stderr)
    forged = "/x\x1b]0;owned\x07\x9b2J\u202e\n12:00:00 info     audit: all is well"
    logging.getLogger("skulkd.audit").warning("%s", forged, extra={"peer": "\x1b[2J"})
    logs.close()
    shown = stderr.getvalue()
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)
    assert "\\x1b]0;owned" in shown
    _, second = shown.splitlines()
    assert second.startswith("    12:00:00")


def test_a_reader_that_stops_costs_lines_which_are_counted_and_no_time() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as stream:
        handler = ScreenHandler(stream)
        for number in range(200):
            handler.emit(_a_record("%d " + "x" * 1000, number))
        taken = reader.read(1 << 20).splitlines()
        assert [line.split()[0] for line in taken] == [b"%d" % n for n in range(len(taken))]
        assert handler.n_dropped_lines == 200 - len(taken) + (len(taken[-1]) < len(taken[-2]))
        handler.emit(_a_record("y" * 30_000))
        handler.emit(_a_record("the end"))
        assert reader.read(1 << 20).splitlines()[-2:] == [b"y" * 30_000, b"the end"]


def test_a_reader_that_has_gone_costs_lines_only() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        handler = ScreenHandler(stream)
        handler.emit(_a_record("nobody reads"))
        assert handler.n_dropped_lines == 1


def _a_record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("x", 20, "", 0, text, arguments, None)


def test_files_are_capped_in_size_and_number(tmp_path: Path) -> None:
    path = tmp_path / "log"
    handler = CappedFileHandler(path, max_bytes=300, n_files=3)
    handler.setFormatter(JsonFormatter())
    for number in range(50):
        handler.emit(logging.LogRecord("x", 20, "", 0, "line %d", (number,), None))
    handler.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["log", "log.1", "log.2"]
    assert all(file.stat().st_size <= 300 for file in files)
    oldest_first = [line["msg"] for file in reversed(files) for line in _lines(file)]
    assert oldest_first == [f"line {n}" for n in range(50 - len(oldest_first), 50)]


def test_a_file_goes_on_where_the_last_process_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(2):
        handler = CappedFileHandler(path, max_bytes=1000)
        handler.setFormatter(JsonFormatter())
        handler.emit(logging.LogRecord("x", 20, "", 0, f"life {number}", None, None))
        handler.close()
    assert [line["msg"] for line in _lines(path)] == ["life 0", "life 1"]


def test_a_full_disk_costs_lines_which_are_counted() -> None:
    full = Path("/dev/full")
    if not full.exists():
        full = Path("/dev/null")
    handler = CappedFileHandler(full, max_bytes=1 << 30)
    handler.setFormatter(JsonFormatter())
    handler.emit(logging.LogRecord("x", 20, "", 0, "lost", None, None))
    handler.close()
    assert handler.n_dropped_lines == (1 if full.name == "full" else 0)


def test_importing_it_loads_neither_sockets_nor_pickle() -> None:
    code = (
        "import sys, skulkd.runtime.logs;"
        "sys.exit(bool({'socket', 'pickle', 'asyncio', 'logging.handlers'} & set(sys.modules)))"
    )
    root = Path(skulkd.__path__[0]).parent  # of the wheel, when that is tested
    assert subprocess.run([sys.executable, "-S", "-c", code], cwd=root, check=False).returncode == 0
