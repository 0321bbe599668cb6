"""Progress on stderr: one live line on a terminal, else a line per change and one per 10 s."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TextIO, final

from protocol.clock import Clock
from skulk_tui.formatting import (
    format_bytes,
    format_duration,
    format_percent,
    format_rate,
    shorten,
    strip_controls,
)

if TYPE_CHECKING:
    from protocol.control_api import InstanceView, ProgressView, TransferStatus

PLAIN_EVERY_S: Final = 10.0
LIVE_EVERY_S: Final = 0.1
_ERASE_LINE: Final = "\r\x1b[K"
_PHASE_WIDTH: Final = len("download")


def note_as_json(text: str) -> str:
    """Write what is told beside the data as an object, so that stderr can be read line by line."""
    return json.dumps({"note": text}, ensure_ascii=False)


def instance_progress(view: "InstanceView") -> dict[str, object]:
    """Give where an instance is, for programs."""
    slowest = waited_for(view.progress)
    return {
        "instance_id": view.instance_id,
        "model_id": view.model_id,
        "attempt": view.attempt,
        "phase": view.phase,
        "done_bytes": slowest.done_bytes if slowest else None,
        "total_bytes": slowest.total_bytes if slowest else None,
        "rate_bytes_s": slowest.rate_bytes_s if slowest else None,
        "eta_s": slowest.eta_s if slowest else None,
    }


def transfer_progress(transfer: "TransferStatus") -> dict[str, object]:
    """Give how far a download is, for programs."""
    return {
        "model_id": transfer.model_id,
        "phase": transfer.phase or transfer.state,
        "done_bytes": transfer.done_bytes,
        "total_bytes": transfer.total_bytes,
        "rate_bytes_s": transfer.rate_bytes_s,
        "eta_s": transfer.eta_s,
    }


def bytes_text(
    done: int | None, total: int | None, rate_bytes_s: float | None, eta_s: float | None
) -> str:
    """Write `1.2 GiB / 3.4 GiB  35 %  120 MiB/s  ETA 12 s`, leaving out what is not known."""
    parts: list[str] = []
    if done is not None:
        parts.append(
            f"{format_bytes(done)} / {format_bytes(total)}" if total else format_bytes(done)
        )
    if done is not None and total:
        parts.append(format_percent(done, total))
    if rate_bytes_s is not None:
        parts.append(format_rate(rate_bytes_s))
    if eta_s is not None:
        parts.append(f"ETA {format_duration(eta_s)}")
    return "  ".join(parts)


def instance_line(view: "InstanceView") -> str:
    """Write where an instance is on its way to ready."""
    slowest = waited_for(view.progress)
    if slowest is None:
        return f"{view.phase:<{_PHASE_WIDTH}}  {view.model_id}"
    amount = bytes_text(
        slowest.done_bytes, slowest.total_bytes, slowest.rate_bytes_s, slowest.eta_s
    )
    spent = "" if slowest.eta_s is not None else format_duration(slowest.phase_s)
    parts = [f"{view.phase:<{_PHASE_WIDTH}}", view.model_id, amount, spent, slowest.note]
    return "  ".join(part for part in parts if part)


def waited_for(progress: "tuple[ProgressView, ...]") -> "ProgressView | None":
    """Give the runner that all wait for: the least share of its bytes done."""

    def share(one: "ProgressView") -> float:
        return (one.done_bytes or 0) / one.total_bytes if one.total_bytes else 0.0

    return min(progress, key=share, default=None)


def transfer_line(transfer: "TransferStatus") -> str:
    """Write how far a download is."""
    amount = bytes_text(
        transfer.done_bytes, transfer.total_bytes, transfer.rate_bytes_s, transfer.eta_s
    )
    phase = transfer.phase or transfer.state
    return f"{phase:<{_PHASE_WIDTH}}  {transfer.model_id}  {amount}".rstrip()


@final
class ProgressLine:
    """Shows one changing line.

    Args:
        stream: Standard error.
        clock: For how often.
        live_width: Columns of the terminal whose line is rewritten; None writes plain lines.
        quiet: Show nothing at all.
        as_json: Write objects, one a line, for a program that reads stderr.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Clock,
        live_width: int | None,
        quiet: bool,
        as_json: bool = False,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._live_width = live_width
        self._quiet = quiet
        self._as_json = as_json
        self._topic = ""
        self._shown_at_s: float | None = None
        self._on_line = False

    def show(self, line: str, *, topic: str, record: Mapping[str, object]) -> None:
        """Show how things stand; a new topic (a phase) is always shown, the rest is thinned out.

        Args:
            line: For people.
            topic: What the line is about.
            record: For programs.
        """
        if self._quiet:
            return
        now_s = self._clock.monotonic_s()
        every_s = PLAIN_EVERY_S if self._live_width is None else LIVE_EVERY_S
        due = self._shown_at_s is None or now_s - self._shown_at_s >= every_s
        if topic == self._topic and not due:
            return
        self._topic, self._shown_at_s = topic, now_s
        text = strip_controls(line).replace("\n", " ")
        if self._as_json:
            self._stream.write(json.dumps({"progress": record}, ensure_ascii=False) + "\n")
        elif self._live_width is None:
            self._stream.write(f"{text}\n")
        else:
            # One column stays free: a full line makes some terminals wrap.
            self._stream.write(f"{_ERASE_LINE}{shorten(text, self._live_width - 1)}")
            self._on_line = True
        self._stream.flush()

    def say(self, line: str) -> None:
        """Write a lasting line above the changing one."""
        if self._quiet:
            return
        self.clear()
        text = strip_controls(line)
        self._stream.write(f"{note_as_json(text) if self._as_json else text}\n")
        self._stream.flush()
        self._shown_at_s = None

    def clear(self) -> None:
        """Take the changing line away; does nothing where there is none."""
        if self._on_line:
            self._stream.write(_ERASE_LINE)
            self._stream.flush()
            self._on_line = False
