"""`python -m skulkd.runner SETTINGS`: see skulkd/runner/main.py."""

import sys

from skulkd.runner.main import main

sys.exit(main(sys.argv[1:]))
