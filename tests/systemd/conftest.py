"""Tests that add a unit to the systemd of this machine. `make test-systemd` runs them, as root.

Elsewhere they are not collected: the unit would be one more of the machine's.
"""

import os
from typing import Final

IS_ASKED: Final = "SKULK_TEST_SYSTEMD" in os.environ
"""Set by `make test-systemd`."""

collect_ignore_glob = [] if IS_ASKED else ["test_*.py"]
