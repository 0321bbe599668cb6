"""A process killed with -9 at each side of each durable step, and the journal it leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skulkd.eventlog.journal_files import JournalFiles
from skulkd.eventlog.journal_recovery import Recovery
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.failpoints import ENVIRONMENT_VARIABLE
from tests.support.journal_log import CLUSTER, Log

POINTS = (
    "journal.before_write",
    "journal.before_sync",
    "journal.after_sync",
    "journal.before_snapshot",
    "journal.after_snapshot",
    "journal.before_segment",
    "journal.after_segment",
    "journal.before_prune",
)
REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


def _run_child(directory: Path, failpoints: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.journal_child", str(directory)],
        cwd=REPOSITORY,
        env=os.environ | {ENVIRONMENT_VARIABLE: failpoints},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _recover(directory: Path) -> Log:
    log = Log()
    files = JournalFiles(RealDisk(), directory, CLUSTER)
    files.prepare()
    recovery = Recovery(files, on_snapshot=log.on_snapshot, on_record=log.on_record)
    recovery.read()
    recovery.repair()
    _, file = recovery.open_end()
    file.close()
    return log


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_step_loses_nothing_acknowledged_life_after_life(
    point: str, tmp_path: Path
) -> None:
    directory = tmp_path / "journal"
    acknowledged = 0
    for nth in (1, 2):
        child = _run_child(directory, f"{point}=kill@{nth}")
        assert child.returncode == -signal.SIGKILL, child.stderr
        acknowledged = max([acknowledged, *map(int, child.stdout.split())])
        log = _recover(directory)
        assert log.holds_exactly(log.seq)
        assert log.seq >= acknowledged
    child = _run_child(directory, "")
    assert child.returncode == 0, child.stderr
    before = log.seq
    log = _recover(directory)
    assert log.seq == before + 120
    assert log.holds_exactly(log.seq)
