"""The `skulk` command: puts the verbs together, runs one, and ends with its exit code."""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

from protocol.errors import ClientError, SkulkError
from skulk_tui.cli import exit_codes
from skulk_tui.cli.interruptions import Interrupted, turn_signals_into_exceptions
from skulk_tui.cli.plain_streams import fit_to_locale
from skulk_tui.cli.session import Options, system_session
from skulk_tui.cli.verb import before_any_verb, tell
from skulk_tui.cli.verbs import LazyGroup

_COMPLETION_VARIABLE = "_SKULK_COMPLETE"
_ASKS_VERSION = frozenset({"--version", "-V"})
"""What most programs understand, beside the verb."""


def build_app() -> typer.Typer:
    """Make the command tree; each verb of it when it is asked for."""
    app = typer.Typer(
        name="skulk",
        cls=LazyGroup,
        help="Run models on the machines of a network, as one.",
        epilog="Exit codes: `skulk help exit-codes`. Variables: `skulk help environment`.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(before_any_verb)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code; nothing escapes but SystemExit of completion."""
    # Typer reads how the options before the verb were meant, so help is asked for by its name.
    line = list(arguments) or ["--help"]
    if line[0] in _ASKS_VERSION:
        line[0] = "version"
    try:
        ended = build_app()(line, prog_name="skulk", standalone_mode=False)
    except typer.TyperException as wrong:
        return _told(_usage_error(wrong), line)
    except typer.Abort:
        return exit_codes.SIGNAL_BASE + 2
    except KeyboardInterrupt:
        return exit_codes.SIGNAL_BASE + 2
    except Interrupted as ended_by:
        return exit_codes.SIGNAL_BASE + ended_by.signal_number
    except SystemExit:
        # Typer itself ends the process in two cases: it has answered a shell's question for
        # completions, or its reader closed the pipe, which is no error here.
        if os.environ.get(_COMPLETION_VARIABLE):
            raise
        return exit_codes.OK
    except Exception as bug:  # ruff: ignore[blind-except]  # a bug is told in one line
        return _told(_bug(bug), line)
    return ended if isinstance(ended, int) else exit_codes.OK


def _usage_error(wrong: typer.TyperException) -> ClientError:
    """Say what is wrong with the line, and whose help to read."""
    context = getattr(wrong, "ctx", None)
    verb = "skulk" if context is None else str(context.command_path)
    return ClientError("client.usage", wrong.format_message(), remediation=f"See `{verb} --help`.")


def _bug(bug: Exception) -> SkulkError:
    if os.environ.get("SKULK_DEBUG") == "1":
        traceback.print_exception(bug)
    return SkulkError(
        "internal.bug",
        f"skulk itself failed: {type(bug).__name__}: {bug}",
        remediation="Run it again with SKULK_DEBUG=1 and report what it prints.",
    )


def _told(error: SkulkError, line: Sequence[str]) -> int:
    return tell(error, system_session(_options_in(line)))


def _options_in(line: Sequence[str]) -> Options:
    """Read from a command line that could not be parsed how errors are to be told."""
    output = None
    for index, word in enumerate(line):
        if word in {"-o", "--output"} and index + 1 < len(line):
            output = line[index + 1]
        elif word.startswith("--output="):
            output = word.partition("=")[2]
    return Options(json="--json" in line, output=output)


def main() -> None:
    """Run the command line of this process."""
    turn_signals_into_exceptions()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        fit_to_locale(stream, os.environ)
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # What is left in the buffer would raise again at exit; nobody reads it, or it was told.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _open_closed_streams() -> None:
    """Give a stream that the caller closed (`2>&-`) somewhere to go; Python leaves it None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # ruff: ignore[open-file-with-context-handler]  it lives as long as the process
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))
