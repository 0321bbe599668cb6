"""One run of the command: its options, streams, clock, budget, and the node it asks."""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from protocol.errors import ClientError
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.output import (
    COLOR_CHOICES,
    OUTPUT_FORMATS,
    ColorWhen,
    Output,
    OutputFormat,
    TableWish,
)
from skulk_tui.cli.progress import note_as_json
from skulk_tui.client import NodeClient, insecure_key
from skulk_tui.clock import SystemClock, WaitingClock
from skulk_tui.formatting import strip_controls
from skulk_tui.own_files import config_dir
from skulk_tui.target import Target, check_key, resolve_target

if TYPE_CHECKING:
    from skulk_tui.tls_pins import TlsTrust

_DURATION: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)$")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_WIDTH: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may stand before or after any sub-command; None is not given."""

    node: str | None = None
    cluster: str | None = None
    output: str | None = None
    json: bool = False
    columns: str | None = None
    no_headers: bool = False
    color: str | None = None
    quiet: bool = False
    timeout: str | None = None
    insecure: bool = False

    def over(self, outer: "Options") -> "Options":
        """Merge with what stood before the sub-command; what stands nearer to the verb wins."""
        return Options(
            node=self.node or outer.node,
            cluster=self.cluster or outer.cluster,
            output=self.output or (None if self.json else outer.output),
            json=self.json or (outer.json and self.output is None),
            columns=self.columns or outer.columns,
            no_headers=self.no_headers or outer.no_headers,
            color=self.color or outer.color,
            quiet=self.quiet or outer.quiet,
            timeout=self.timeout or outer.timeout,
            insecure=self.insecure or outer.insecure,
        )


@dataclass(frozen=True, kw_only=True)
class Session:
    """Everything a verb may touch of the world around it."""

    options: Options
    environ: Mapping[str, str]
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    clock: WaitingClock
    started_s: float
    _clients: list[NodeClient] = field(default_factory=list[NodeClient])
    _permitted: list[str] = field(default_factory=list[str])
    """What has been agreed to."""

    @cached_property
    def form(self) -> OutputFormat:
        """How listings are written.

        Raises:
            ClientError: `client.usage`.
        """
        return output_format(self.options, self.environ)

    @cached_property
    def output(self) -> Output:
        """Where listings go."""
        return Output(
            self.stdout,
            form=self.form,
            color=self.colors(self.stdout),
            width=terminal_width(self.environ) if self.stdout.isatty() else None,
            wish=self.table_wish,
        )

    @cached_property
    def table_wish(self) -> TableWish:
        """What is wanted of tables.

        Raises:
            ClientError: `client.usage`; columns are wanted of what is no table.
        """
        columns = [word.strip() for word in (self.options.columns or "").split(",")]
        columns = [word for word in columns if word]
        if columns and self.form not in {"table", "wide"}:
            raise ClientError(
                "client.usage",
                f"--columns chooses columns of a table, and the output is {self.form}",
                remediation="Leave out one of the two; fields of JSON are chosen with jq.",
            )
        return TableWish(columns=tuple(columns), has_heads=not self.options.no_headers)

    @cached_property
    def color(self) -> ColorWhen:
        """When to colour: option, then SKULK_COLOR.

        Raises:
            ClientError: `client.usage`.
        """
        word = self.options.color or self.environ.get("SKULK_COLOR") or "auto"
        for choice in COLOR_CHOICES:
            if word == choice:
                return choice
        raise unknown_value("a choice of --color", word, COLOR_CHOICES)

    def colors(self, stream: TextIO) -> bool:
        """Is what goes to this stream coloured: option, NO_COLOR, FORCE_COLOR, terminal?"""
        return wants_color(self.color, self.environ, is_terminal=stream.isatty())

    @cached_property
    def timeout_s(self) -> float | None:
        """The budget of the whole command: option, then SKULK_TIMEOUT.

        Raises:
            ClientError: `client.usage`.
        """
        text = self.options.timeout or self.environ.get("SKULK_TIMEOUT")
        return parse_duration(text, "--timeout") if text else None

    @property
    def deadline_s(self) -> float | None:
        """When the budget ends, on the session's clock."""
        return None if self.timeout_s is None else self.started_s + self.timeout_s

    def check_options(self) -> None:
        """Refuse wrong options before anything is asked or done.

        Raises:
            ClientError: `client.usage`.
        """
        _ = (self.form, self.color, self.timeout_s, self.table_wish)

    @cached_property
    def config_dir(self) -> Path:
        """Where the operator's own files lie: XDG on every system, for this is a terminal tool."""
        return config_dir(self.environ)

    @cached_property
    def target(self) -> Target:
        """The node to ask, and the key.

        Raises:
            ClientError: `client.usage`.
        """
        return resolve_target(
            self.options.node,
            self.environ,
            config_dir=self.config_dir,
            insecure=self.options.insecure,
            cluster=self.options.cluster,
        )

    @cached_property
    def trust(self) -> "TlsTrust":
        """The TLS certificates that this operator believes; a new one is told."""
        from skulk_tui.tls_pins import PINS_FILE, TlsTrust

        def tell(url: str, fingerprint: str) -> None:
            self.narrate(f"{url} is seen for the first time; its certificate is {fingerprint}")

        return TlsTrust(self.config_dir / PINS_FILE, on_pinned=tell)

    @cached_property
    def client(self) -> NodeClient:
        """The node, as this command asks it."""
        client = self._client_of(self.target)
        self._clients.append(client)
        return client

    def another_client(self) -> NodeClient:
        """Make a further connection to the node that answers, for a thread that closes it."""
        return self._client_of(self.client.target)

    def client_with_key(self, api_key: str | None) -> NodeClient:
        """Make a connection to the node that answers, showing this key or none."""
        client = self._client_of(replace(self.client.target, api_key=api_key))
        self._clients.append(client)
        return client

    def _client_of(self, target: Target) -> NodeClient:
        has_tls = any(url.startswith("https:") for url in target.addresses)
        return NodeClient(
            target,
            clock=self.clock,
            deadline_s=self.deadline_s,
            trust=self.trust if has_tls else None,
            before_change=self._before_change,
        )

    def _before_change(self) -> None:
        """Refuse a change, or ask about it, where the saved cluster or a variable wants that.

        Raises:
            ClientError: `client.readonly`, `client.usage`.
        """
        target = self.client.target
        if target.readonly:
            why = f"the cluster {target.profile} is saved as read-only"
            remedy = "Save the cluster anew without --readonly"
            if self.environ.get("SKULK_READONLY"):
                why, remedy = "SKULK_READONLY is set", "Unset it"
            raise ClientError(
                "client.readonly",
                f"nothing is changed: {why}",
                remediation=f"{remedy}, or only look, with `--dry-run`.",
            )
        if target.protect and not self._permitted:
            if not self.can_prompt:
                raise ClientError(
                    "client.usage",
                    f"{target.profile} is protected, and there is no terminal to ask at",
                    remediation="Name its node: `--node URL`; or save it without --protect.",
                )
            self.confirm(f"Change the protected cluster {target.profile}?", yes=False)

    @property
    def asked_node(self) -> str | None:
        """The node's address, if this run has asked one."""
        return self._clients[0].target.url if self._clients else None

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    @property
    def can_prompt(self) -> bool:
        """May a question be asked: a person at both ends, and SKULK_NO_INPUT unset?"""
        at_terminal = self.stdin.isatty() and self.stderr.isatty()
        return at_terminal and not self.environ.get("SKULK_NO_INPUT")

    def narrate(self, text: str) -> None:
        """Tell something on stderr, unless `--quiet`; an object where a program reads it."""
        if not self.options.quiet:
            safe = strip_controls(text)
            line = note_as_json(safe.strip()) if self.output.is_for_programs else safe
            self.stderr.write(f"{line}\n")
            self.stderr.flush()

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something that cannot be undone.

        Raises:
            ClientError: `client.usage` when nobody can be asked, or the answer is not yes.
        """
        if yes:
            self._permitted.append(question)
            return
        if not self.can_prompt:
            raise ClientError(
                "client.usage",
                f"{question} needs an answer, and there is no terminal to ask at",
                remediation="Add `--yes`.",
            )
        self.stderr.write(f"{strip_controls(question)} [y/N] ")
        self.stderr.flush()
        if self.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise ClientError("client.usage", "nothing was done: the answer was not yes")
        self._permitted.append(question)

    def ask_for_key(self) -> bool:
        """Ask a person for an API key and use it; False when nobody can be asked.

        Raises:
            ClientError: `client.insecure_key`, `client.usage`.
        """
        if not self.can_prompt or self.client.target.api_key is not None:
            return False
        if not self.client.target.key_may_travel:
            raise insecure_key(self.client.target.with_key("", "the prompt"))
        import getpass

        key = getpass.getpass(f"API key for {self.client.target.url}: ", stream=self.stderr)
        self.client.use_key(check_key(key, "the prompt"), "prompt")
        return True


def system_session(options: Options) -> Session:
    """Make the session of this process."""
    clock = SystemClock()
    return Session(
        options=options,
        environ=os.environ,
        stdin=sys.stdin,
        stdout=sys.stdout,
        stderr=sys.stderr,
        clock=clock,
        started_s=clock.monotonic_s(),
    )


def output_format(options: Options, environ: Mapping[str, str]) -> OutputFormat:
    """Choose how listings are written: `--json`, `-o`, SKULK_OUTPUT, table.

    Raises:
        ClientError: `client.usage`.
    """
    if options.json:
        return "json"
    word = options.output or environ.get("SKULK_OUTPUT") or "table"
    for form in OUTPUT_FORMATS:
        if word == form:
            return form
    raise unknown_value("an output format", word, OUTPUT_FORMATS)


def wants_color(when: ColorWhen, environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Decide on colour: the option, then NO_COLOR, then FORCE_COLOR, then the terminal."""
    if when != "auto":
        return when == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


def terminal_width(environ: Mapping[str, str]) -> int:
    """Give the terminal's width in columns, bounded."""
    columns = environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() else shutil.get_terminal_size().columns
    return min(max(width, 20), _MAX_WIDTH)


def parse_duration(text: str, option: str) -> float:
    """Read `500ms`, `60s`, `5m`, `2h`, `30d` or plain seconds, above 0.

    Raises:
        ClientError: `client.usage`.
    """
    match = _DURATION.match(text.strip())
    seconds = float(match.group(1)) * _UNIT_S[match.group(2)] if match is not None else 0.0
    if seconds <= 0:
        raise ClientError(
            "client.usage",
            f"{option}: {text[:40]!r} is not a duration above 0",
            remediation="Write it like 500ms, 60s, 5m, 2h or 30d.",
        )
    return seconds
