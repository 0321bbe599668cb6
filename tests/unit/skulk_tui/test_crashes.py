"""Runs without a terminal, through Textual's own headless driver."""

import io
import stat
from pathlib import Path

import pytest
from textual.drivers.headless_driver import HeadlessDriver

from skulk_tui.crashes import CRASHED, KEPT, QuietApp, run_app

SECRET = "sk-very-secret"


class FixedClock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_123

    def monotonic_s(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        self.now_ms += 1000
        return self.now_ms


class Ending(QuietApp[int]):
    """Ends as soon as it has begun, as it is told to."""

    def __init__(self, way: str) -> None:
        super().__init__(driver_class=HeadlessDriver)
        self.way = way

    def on_mount(self) -> None:
        api_key = SECRET
        if self.way == "raises":
            raise KeyError("den-01\x1b[2J" if api_key else "")
        if self.way == "panics":
            self.panic("the input thread died")
        if self.way == "exits":
            self.exit(return_code=143)
        if self.way == "worker":
            self.run_worker(self.fail(), exit_on_error=True)

    async def fail(self) -> None:
        message = "from a worker"
        raise ValueError(message)


def end(way: str, state_dir: Path) -> tuple[int, list[str]]:
    stderr = io.StringIO()
    code = run_app(Ending(way), mouse=False, clock=FixedClock(), state_dir=state_dir, stderr=stderr)
    return code, stderr.getvalue().splitlines()


def test_leaving_gives_the_code_it_was_asked_for_and_says_nothing(tmp_path: Path) -> None:
    assert end("exits", tmp_path) == (143, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("way", "summary"),
    [
        ("raises", "KeyError: 'den-01"),
        ("worker", "ValueError: from a worker"),
        ("panics", "it ended without being asked to"),
    ],
)
def test_a_crash_is_three_lines_a_file_and_code_1(
    way: str, summary: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, lines = end(way, tmp_path / "state")
    assert code == CRASHED
    assert len(lines) == 3
    assert lines[0].startswith(f"error: skulk tui crashed: {summary}")
    assert "skulk diag bundle" in lines[2]
    path = Path(lines[1].partition("at: ")[2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    report = path.read_text(encoding="utf-8")
    assert summary in report
    assert SECRET not in report
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err
    if way != "panics":
        assert "Traceback" in report
        assert "Traceback" not in printed.out + printed.err


def test_only_the_latest_crash_files_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        (tmp_path / f"crash-2020010{number % 10}T000000-{number:03d}.txt").write_text("old")
    _, lines = end("raises", tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == KEPT
    assert Path(lines[1].partition("at: ")[2]).name in kept


def test_a_crash_without_a_place_for_its_file_is_told_all_the_same(tmp_path: Path) -> None:
    occupied = tmp_path / "state"
    occupied.write_text("no directory")
    code, lines = end("raises", occupied)
    assert code == CRASHED
    assert "no crash file" in lines[1]
