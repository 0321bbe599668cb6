"""Copying, also over SSH and inside tmux, and what can honestly be said of it afterwards.

Three ways. tmux's own buffer, which it hands on to the terminal outside under its default settings,
where it drops the plain sequence. That sequence (OSC 52), which no terminal acknowledges and many
limit. A file, which is always there.
"""

import asyncio
import base64
import contextlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final, get_args

from protocol.errors import ClientError
from skulk_tui.formatting import strip_controls
from skulk_tui.own_files import replace_file
from skulk_tui.tasks import run_blocking

Way = Literal["tmux", "osc52", "file", "off"]
Choice = Literal["auto", "tmux", "osc52", "file", "off"]
CHOICES: Final[tuple[Choice, ...]] = get_args(Choice)

MAX_OSC52_BYTES: Final = 74_994
"""Of base64: what terminals are known to take at least; more may be cut without a word."""
TMUX_WITHIN_S: Final = 2.0
_FILE: Final = "clipboard.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Which way the text went."""

    way: Way
    n_bytes: int
    path: Path | None = None
    """Where the file lies."""
    reason: str = ""
    """Why a way that came first was not taken."""

    @property
    def said(self) -> str:
        """One line for the operator; only what is known."""
        because = f" ({self.reason})" if self.reason else ""
        match self.way:
            case "tmux":
                return f"copied {self.n_bytes} bytes to tmux and the terminal outside"
            case "osc52":
                return f"sent {self.n_bytes} bytes to the terminal's clipboard{because}"
            case "file":
                return f"wrote {self.n_bytes} bytes to {self.path}{because}"
            case "off":
                return "not copied: SKULK_CLIPBOARD is off"


def clipboard_choice(environ: Mapping[str, str]) -> Choice:
    """Read SKULK_CLIPBOARD.

    Raises:
        ClientError: `client.usage`.
    """
    word = environ.get("SKULK_CLIPBOARD") or "auto"
    for choice in CHOICES:
        if word == choice:
            return choice
    raise ClientError(
        "client.usage",
        f"SKULK_CLIPBOARD is {word[:40]!r}",
        remediation=f"Choose one of {', '.join(CHOICES)}.",
    )


@final
class Clipboard:
    """Copies text, one way after the other until one works.

    Args:
        choice: What the operator asked for; `auto` tries tmux, then the terminal, then a file.
        environ: The process's environment: TMUX and PATH.
        send: Writes a sequence to the terminal (the driver's `write`).
        state_dir: Where the file goes.
    """

    def __init__(
        self,
        choice: Choice,
        *,
        environ: Mapping[str, str],
        send: Callable[[str], None],
        state_dir: Path,
    ) -> None:
        self._choice: Choice = choice
        self._environ = environ
        self._send = send
        self._state_dir = state_dir

    async def copy(self, text: str) -> Copied:
        """Copy text without its control characters; takes at most two seconds.

        Raises:
            ClientError: `client.usage`: not even a file could be written.
        """
        if self._choice == "off":
            return Copied(way="off", n_bytes=0)
        data = strip_controls(text).encode("utf-8", "replace")
        reason = ""
        if self._choice in {"auto", "tmux"}:
            fault = await self._load_into_tmux(data)
            if fault is None:
                return Copied(way="tmux", n_bytes=len(data))
            # Outside tmux nobody misses it.
            reason = fault if self._choice == "tmux" or self._environ.get("TMUX") else ""
        if self._choice in {"auto", "osc52"}:
            encoded = base64.b64encode(data).decode()
            if len(encoded) <= MAX_OSC52_BYTES:
                self._send(f"\x1b]52;c;{encoded}\x07")
                return Copied(way="osc52", n_bytes=len(data), reason=reason)
            reason = "too long for the terminal's clipboard"
        path = self._state_dir / _FILE
        await run_blocking(replace_file, path, data.decode())
        return Copied(way="file", n_bytes=len(data), path=path, reason=reason)

    async def _load_into_tmux(self, data: bytes) -> str | None:
        """Hand the text to tmux; gives what is wrong, or None."""
        if not self._environ.get("TMUX"):
            return "not inside tmux"
        program = shutil.which("tmux", path=self._environ.get("PATH"))
        if program is None:
            return "the tmux command is not here"
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *("load-buffer", "-w", "-"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=dict(self._environ),
            )
        except OSError as wrong:
            return f"tmux did not start: {wrong.strerror}"
        try:
            async with asyncio.timeout(TMUX_WITHIN_S):
                _, said = await process.communicate(data)
        except TimeoutError:
            return f"tmux did not answer within {TMUX_WITHIN_S:g} s"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode == 0:
            return None
        return f"tmux: {strip_controls(said.decode('utf-8', 'replace')).strip()[:80]}"
