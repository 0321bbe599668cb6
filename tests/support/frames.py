"""Text frames: what stands on the screen, compared line by line with a file in the repository.

A frame is text, so that a review reads it and a diff shows what moved. `UPDATE_FRAMES=1` writes the
files anew. Ages that grow while a test runs are masked to `0s`.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FRAMES: Final = Path(__file__).resolve().parent.parent / "tui" / "frames"
_AGES: Final = (
    (re.compile(r"\b(LIVE|STALE|CONNECTING|PAUSED) \d+ ?s"), r"\1 0s"),
    (re.compile(r"\bSTALE \d+s"), "STALE 0s"),
    (re.compile(r"\b\d\d:\d\d old"), "00:00 old"),
    (re.compile(r"\('127\.0\.0\.1', \d+\)"), "('127.0.0.1', 00000)"),
    (re.compile(r"http://127\.0\.0\.1:\d{4,5}"), "http://127.0.0.1:00000"),
    (re.compile(r"\bLOST \d\d:\d\d  (?:retry|try) \d+(?: in \d+s)?"), "LOST 00:00  retry 1 in 0s"),
    (re.compile(r"\b\d+s old"), "0s old"),
    # How much of a trace is drawn depends on how long the test has been running.
    (
        re.compile(r"\b(cpu {4}|memory |slots {2}|tok/s {2})\[[ .:=+*#-]{8,}\] +\S+"),
        r"\1[trace]",
    ),
)


def check_frame(name: str, rows: Sequence[str]) -> None:
    """Compare rows with the file `<name>.txt`.

    Raises:
        AssertionError: They differ, or there is no such file.
    """
    text = "\n".join(_masked(row) for row in rows).rstrip() + "\n"
    path = FRAMES / f"{name}.txt"
    if os.environ.get("UPDATE_FRAMES") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    assert path.exists(), f"there is no frame {name}; run with UPDATE_FRAMES=1, and read it"
    expected = path.read_text(encoding="utf-8")
    assert text == expected, f"the frame {name} has changed; run with UPDATE_FRAMES=1 if it should"


def _masked(row: str) -> str:
    for pattern, replacement in _AGES:
        # What follows keeps its column: a longer age pushes it to the right.
        row = pattern.sub(replacement, row)
    return row.rstrip()
