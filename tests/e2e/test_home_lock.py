import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.home import open_home

HOLDER = """
import os, sys
from pathlib import Path
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.home import open_home
home = open_home(RealDisk(), Path(sys.argv[1]), pid=os.getpid())
print("held", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.e2e


def test_a_home_whose_holder_was_killed_is_taken_over(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid}"):
            open_home(RealDisk(), tmp_path, pid=os.getpid())
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(10)
        open_home(RealDisk(), tmp_path, pid=os.getpid()).close()
