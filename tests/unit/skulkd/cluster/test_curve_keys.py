import subprocess
import sys
from pathlib import Path

import zmq
from zmq.utils import z85

from skulkd.cluster.curve_keys import make_key_pair


def test_a_made_pair_is_a_curve_pair_and_each_is_new() -> None:
    keys = make_key_pair()
    assert zmq.curve_public(z85.encode(keys.secret_key)) == z85.encode(keys.public_key)
    assert make_key_pair() != keys


def test_zeromq_is_loaded_only_when_a_key_is_made() -> None:
    code = "import sys, skulkd.cluster.curve_keys; sys.exit('zmq' in sys.modules)"
    root = Path(__file__).parents[4]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
