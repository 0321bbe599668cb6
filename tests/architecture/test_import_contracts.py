import subprocess
import sys
from pathlib import Path

from tests.support.source_tree import ROOT


def test_the_import_contracts_hold() -> None:
    answer = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert " 0 broken" in answer.stdout
