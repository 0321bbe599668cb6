"""A small program on the real driver, for tests that run it on a pty.

`python -m tests.support.terminal_app [--hz N] [--copy TEXT]`: shows the last thing that happened to
it as `<word>` in its first row, below it rows of digits that change N times a second.

Keys: `q` leaves, `x` crashes, `w` fails in a worker, `h` hangs in its event loop, Ctrl-Z suspends,
`y` copies.
"""

import argparse
import os
import sys
from typing import Final

from protocol.errors import ClientError
from skulk_tui.terminal import (
    ASK_BACKGROUND_S,
    Terminal,
    prepare_environment,
    read_terminal,
    require_terminal,
)

READY: Final = b"<ready>"
USAGE: Final = 2


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hz", type=float, default=0.0)
    parser.add_argument("--copy", default="copied text")
    arguments = parser.parse_args()
    try:
        require_terminal(
            os.environ,
            stdin=sys.stdin.isatty(),
            stdout=sys.stdout.isatty(),
            stderr=sys.stderr.isatty(),
        )
    except ClientError as refused:
        assert "textual" not in sys.modules
        sys.stderr.write(f"error: {refused.message}\n  remedy: {refused.remediation}\n")
        return USAGE
    prepare_environment(os.environ)
    return run(read_terminal(os.environ), arguments)


def run(terminal: Terminal, arguments: argparse.Namespace) -> int:
    from skulk_tui.clock import SystemClock
    from skulk_tui.crashes import run_app
    from skulk_tui.driver import ask_background
    from skulk_tui.own_files import state_dir
    from tests.support.terminal_board import TerminalApp

    asked = ask_background(ASK_BACKGROUND_S) if terminal.asks_background else None
    return run_app(
        TerminalApp(terminal.theme(asked), terminal, hz=arguments.hz, copied=arguments.copy),
        mouse=True,
        clock=SystemClock(),
        state_dir=state_dir(os.environ),
        stderr=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
