"""What comes from the terminal, made safe for the key parser.

A pure machine between the bytes and Textual's parser, which believes that all input is UTF-8, that
every answer is one it asked for, and that nobody pastes a megabyte. What it cannot read never gets
there: old-style mouse bytes (a terminal rebuilt under the program sends them), broken UTF-8, late
answers of the terminal, endless sequences.
"""

import re
from codecs import getincrementaldecoder
from dataclasses import dataclass
from typing import Final, final

from skulk_tui.formatting import strip_controls

MAX_PASTE_BYTES: Final = 4 << 20
"""What is pasted beyond is dropped."""
BURST_CHARACTERS: Final = 64
"""So many characters at once were not typed but pasted, by a terminal that does not say so."""
BURST_GOES_ON_S: Final = 0.05
ANSWER_PAUSE_S: Final = 0.5
"""How long the rest of an answer may be on its way."""
PASTE_PAUSE_S: Final = 5.0
"""How long the rest of a paste may be: what came is handed on then, so that keys work again."""

_ESC: Final = b"\x1b"
_PASTE_BEGINS: Final = b"\x1b[200~"
_PASTE_ENDS: Final = b"\x1b[201~"
_TYPED_AFTER_ESCAPE: Final = frozenset(
    bytes([code]) for code in range(ord("!"), 127) if chr(code) not in "NOPX[\\]^_"
)
"""Printable, and no beginning of a sequence."""
_SEQUENCE: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_SEQUENCE_BEGINS: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*\Z")
_MODE_REPORT: Final = re.compile(rb"\x1b\[\?\d+;\d+\$y")
_PRIVATE: Final = (b"\x1b[?", b"\x1b[>", b"\x1b[=")
_MAX_SEQUENCE_BYTES: Final = 64
_REPORT: Final = re.compile(rb"\x1b\]\d{1,5};[^\x07\x1b]*(?:\x07|\x1b\\)")
_REPORT_BEGINS: Final = re.compile(rb"\x1b\](?:\d{0,5}|\d{1,5};[^\x07\x1b]*\x1b?)\Z")
_MAX_REPORT_BYTES: Final = 4096
_OLD_MOUSE: Final = b"\x1b[M"
_OLD_MOUSE_BYTES: Final = 6
_OLD_MOUSE_BASE: Final = 32
_RELEASED: Final = 3
_WHEEL_OR_MOVE: Final = 64 | 32


@dataclass(frozen=True, slots=True)
class Pasted:
    """Text that was pasted, or came as fast; ends of lines are newlines, controls are gone."""

    text: str


@dataclass(frozen=True, slots=True)
class LoneEscape:
    """The Esc key: nothing followed in time that would have made a sequence of it."""


Item = str | Pasted | LoneEscape
"""A string is for the key parser."""


@final
class TerminalInput:
    """Takes the bytes in the order they come, in pieces of any size.

    Args:
        escape_delay_s: How long after an Esc the rest of a sequence may come.
    """

    def __init__(self, *, escape_delay_s: float) -> None:
        self.deadline: float | None = None
        """The earliest time it wants `tick`, in monotonic seconds."""
        self._escape_delay_s = escape_delay_s
        self._decode = getincrementaldecoder("utf-8")("ignore").decode
        self._held: bytes = b""
        self._paste: bytearray | None = None
        self._burst_until = 0.0
        self._button: int = 0

    def feed(self, data: bytes, *, now: float) -> list[Item]:
        """Take bytes; give what can be told from them by now."""
        items: list[Item] = []
        if not data:
            return items
        self._held += data
        self.deadline = None
        while self._held and self._take_one(items, now):
            pass
        return items

    def tick(self, *, now: float) -> list[Item]:
        """Give up waiting for the rest of something, if its time is over."""
        if self.deadline is None or now < self.deadline:
            return []
        self.deadline = None
        if self._paste is not None:
            return [self._end_paste()]
        held, self._held = self._held, b""
        if held == _ESC:
            return [LoneEscape()]
        if held.startswith((_OLD_MOUSE, *_PRIVATE)) or (held.startswith(b"\x1b]") and b";" in held):
            return []  # half an answer; as keys it would be commands
        return [self._decode(held)]

    def _take_one(self, items: list[Item], now: float) -> bool:
        """Take one thing from the front of what is held; False when the rest must be waited for."""
        if self._paste is not None:
            return self._take_paste(items, now)
        at = self._held.find(_ESC)
        if at:
            end = at if at > 0 else len(self._held)
            plain, self._held = self._held[:end], self._held[end:]
            self._take_plain(items, plain, now)
            return True
        return self._take_sequence(items, now)

    def _take_plain(self, items: list[Item], data: bytes, now: float) -> None:
        text = self._decode(data)
        if not text:
            return
        # A key that is held down may also come in a lump.
        is_burst = len(text) >= BURST_CHARACTERS and len(set(text)) > 1
        if is_burst or now < self._burst_until:
            self._burst_until = now + BURST_GOES_ON_S
            items.append(Pasted(_tidy(text)))
        else:
            items.append(text)

    def _take_sequence(self, items: list[Item], now: float) -> bool:
        held = self._held
        kind = held[1:2]
        if not kind:
            return self._wait(now, self._escape_delay_s)
        # Esc and a key that was typed soon after it come in one lump over a slow line, just as Alt
        # with that key does; nothing here is on Alt, and the parser would make another letter of
        # it.
        if kind == _ESC or kind in _TYPED_AFTER_ESCAPE:
            items.append(LoneEscape())
            self._held = held[1:]
            return True
        if kind == b"[":
            return self._take_control_sequence(items, now)
        if kind == b"]":
            return self._take_report(items, now)
        if kind == b"O" and len(held) < len(b"\x1bOP"):
            return self._wait(now, self._escape_delay_s)
        self._pass(items, 3 if kind == b"O" else 2)
        return True

    def _take_control_sequence(self, items: list[Item], now: float) -> bool:
        held = self._held
        if held.startswith(_OLD_MOUSE):
            return self._take_old_mouse(items, now)
        match = _SEQUENCE.match(held)
        if match is None:
            if len(held) <= _MAX_SEQUENCE_BYTES and _SEQUENCE_BEGINS.match(held):
                is_key = len(held) <= len(b"\x1b[")
                return self._wait(now, self._escape_delay_s if is_key else ANSWER_PAUSE_S)
            self._held = held[len(b"\x1b[") :]  # no sequence at all
            return True
        sequence = match[0]
        if sequence == _PASTE_BEGINS:
            self._held = held[match.end() :]
            self._paste = bytearray()
            return self._take_paste(items, now)
        if sequence.startswith(_PRIVATE) and not _MODE_REPORT.fullmatch(sequence):
            self._held = held[match.end() :]  # an answer that the parser would take for keys
        elif len(sequence) > _MAX_SEQUENCE_BYTES:
            self._held = held[match.end() :]
        else:
            self._pass(items, match.end())
        return True

    def _take_old_mouse(self, items: list[Item], now: float) -> bool:
        """Say it in the form the parser reads; the old one has raw bytes beyond column 95."""
        if len(self._held) < _OLD_MOUSE_BYTES:
            return self._wait(now, ANSWER_PAUSE_S)
        code, column, row = (
            byte - _OLD_MOUSE_BASE for byte in self._held[len(_OLD_MOUSE) : _OLD_MOUSE_BYTES]
        )
        self._held = self._held[_OLD_MOUSE_BYTES:]
        if code < 0 or column < 1 or row < 1:
            return True
        is_release = code & 3 == _RELEASED and not code & _WHEEL_OR_MOVE
        if is_release:
            code = (code & ~3) | self._button  # the old form does not say which one
        elif not code & _WHEEL_OR_MOVE:
            self._button = code & 3
        items.append(f"\x1b[<{code};{column};{row}{'m' if is_release else 'M'}")
        return True

    def _take_report(self, items: list[Item], now: float) -> bool:
        """Drop an answer about colours and the like; it came too late, or nobody asked."""
        held = self._held
        match = _REPORT.match(held)
        if match is not None:
            self._held = held[match.end() :]
        elif len(held) > _MAX_REPORT_BYTES and b";" in held[:8]:
            self._held = b""
        elif _REPORT_BEGINS.match(held):
            return self._wait(now, ANSWER_PAUSE_S if b";" in held else self._escape_delay_s)
        else:
            self._pass(items, 2)  # Alt and a bracket
        return True

    def _take_paste(self, items: list[Item], now: float) -> bool:
        paste = self._paste if self._paste is not None else bytearray()
        look_from = max(0, len(paste) - len(_PASTE_ENDS))
        paste += self._held
        self._held = b""
        end = paste.find(_PASTE_ENDS, look_from)
        if end < 0:
            # The last bytes stay: they may be the beginning of the end.
            del paste[MAX_PASTE_BYTES : -len(_PASTE_ENDS)]
            return self._wait(now, PASTE_PAUSE_S)
        self._held = bytes(paste[end + len(_PASTE_ENDS) :])
        del paste[end:]
        items.append(self._end_paste())
        return True

    def _end_paste(self) -> Pasted:
        data = bytes(self._paste or b"")[:MAX_PASTE_BYTES]
        self._paste = None
        return Pasted(_tidy(data.decode("utf-8", "replace")))

    def _pass(self, items: list[Item], n_bytes: int) -> None:
        items.append(self._decode(self._held[:n_bytes]))
        self._held = self._held[n_bytes:]

    def _wait(self, now: float, pause_s: float) -> bool:
        self.deadline = now + pause_s
        return False


def _tidy(text: str) -> str:
    return strip_controls(text.replace("\r\n", "\n").replace("\r", "\n"))
