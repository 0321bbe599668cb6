"""What the terminal can do, decided from the environment: refusal, theme, glyphs, pace.

Pure, and without Textual, which reads some variables when it is imported: `prepare_environment`
comes before that. What only the terminal itself can tell is asked by the driver.
"""

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final, Literal

from protocol.errors import ClientError
from skulk_tui.glyphs import ASCII, UNICODE, GlyphSet

ThemeName = Literal["dark", "light", "ansi", "mono"]
Background = Literal["dark", "light"]
ColourDepth = Literal["none", "16", "256", "truecolor"]

ASK_BACKGROUND_S: Final = 0.1
"""How long the terminal has for telling its background; over a slow line it comes too late."""
LOCAL_HZ: Final = 4.0
REMOTE_HZ: Final = 2.0

_USELESS_TERMS: Final = frozenset({"", "dumb", "unknown"})
# Their fonts hold a few hundred characters, blocks and arrows among them only by luck.
_ASCII_TERMS: Final = frozenset({"linux", "vt52", "vt100", "vt102", "vt220", "ansi", "cons25"})
# By the part of TERM after its last hyphen, as Rich reads it, which writes the codes.
_DEPTH_BY_SUFFIX: Final[Mapping[str, ColourDepth]] = {"kitty": "256", "256color": "256"}
_LOCALE_VARIABLES: Final = ("LC_ALL", "LC_CTYPE", "LANG")
# Python sets LC_CTYPE so when the locale it was started in is "C" (PEP 538).
_COERCED: Final = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})
_PLAIN_LOCALES: Final = frozenset({"", "C", "POSIX"})
_ESCAPE_DELAY_MS: Final = "25"
_FRAMES_PER_S: Final = "120"
"""At most; what asks for none costs none."""
_RGB: Final = re.compile(
    rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})"
)
# Weights of ITU-R BT.709 for the perceived brightness of red, green and blue.
_BRIGHTNESS: Final = (0.2126, 0.7152, 0.0722)
_LIGHT_FROM: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """What the environment tells of the terminal."""

    colour_depth: ColourDepth
    """`none` where the operator asked for no colour."""
    glyphs: GlyphSet
    is_remote: bool
    """Reached over SSH, as far as the environment tells."""
    is_multiplexed: bool
    """Inside tmux or screen."""

    @property
    def data_hz(self) -> float:
        """How often a second new values may be drawn."""
        return REMOTE_HZ if self.is_remote else LOCAL_HZ

    @property
    def asks_background(self) -> bool:
        """Whether the theme depends on the terminal's background."""
        return self.colour_depth in {"256", "truecolor"}

    def theme(self, background: Background | None) -> ThemeName:
        """Choose the theme; `background` is the terminal's answer, None if it gave none in time."""
        if self.colour_depth == "none":
            return "mono"
        if self.colour_depth == "16":
            return "ansi"
        return background or "dark"


def require_terminal(
    environ: Mapping[str, str], *, stdin: bool, stdout: bool, stderr: bool
) -> None:
    """Refuse to start where nothing could be shown, or no key would ever come.

    Args:
        environ: The process's environment.
        stdin: Whether standard input is a terminal; the others likewise.
        stdout: See above.
        stderr: See above; the screen is drawn there.

    Raises:
        ClientError: `client.usage`.
    """
    streams = {"standard input": stdin, "standard output": stdout, "standard error": stderr}
    absent = [name for name, is_terminal in streams.items() if not is_terminal]
    if absent:
        reason = f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not a terminal"
    elif environ.get("TERM", "").lower() in _USELESS_TERMS:
        reason = f"TERM is {environ.get('TERM', '')!r}: such a terminal cannot place its cursor"
    else:
        return
    raise ClientError(
        "client.usage",
        f"`skulk tui` needs a terminal: {reason}",
        remediation="`skulk status --watch` shows the cluster as lines. Over SSH: `ssh -t`.",
    )


def read_terminal(environ: Mapping[str, str], *, ascii_only: bool = False) -> Terminal:
    """Decide from the environment; `ascii_only` is the operator's wish (`--ascii`, SKULK_ASCII)."""
    term = environ.get("TERM", "").strip().lower()
    return Terminal(
        colour_depth=_colour_depth(environ, term),
        glyphs=ASCII if ascii_only or not _shows_unicode(environ, term) else UNICODE,
        is_remote=bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY")),
        is_multiplexed=_is_multiplexed(environ, term),
    )


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Set what Textual reads while it is imported; call it before.

    An empty NO_COLOR means nothing by its convention, and Textual takes it for a wish. Movement
    nobody asked for costs bytes. A key that comes just after new values were drawn is drawn with
    the next frame, which therefore may follow sooner. A lone Esc is told from a sequence by a
    pause, which has to be long only where a multiplexer sits between.
    """
    if not environ.get("NO_COLOR"):
        environ.pop("NO_COLOR", None)
    environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    environ.setdefault("TEXTUAL_FPS", _FRAMES_PER_S)
    if not _is_multiplexed(environ, environ.get("TERM", "").lower()):
        environ.setdefault("ESCDELAY", _ESCAPE_DELAY_MS)


def background_of(answer: bytes) -> Background | None:
    """Read a terminal's answer to the question for its background (OSC 11); None if it is none."""
    match = _RGB.search(answer)
    if match is None:
        return None
    shares = [int(part, 16) / (16 ** len(part) - 1) for part in match.groups()]
    brightness = sum(weight * share for weight, share in zip(_BRIGHTNESS, shares, strict=True))
    return "light" if brightness >= _LIGHT_FROM else "dark"


def _colour_depth(environ: Mapping[str, str], term: str) -> ColourDepth:
    if environ.get("NO_COLOR"):
        return "none"
    if environ.get("COLORTERM", "").strip().lower() in {"truecolor", "24bit"}:
        return "truecolor"
    return _DEPTH_BY_SUFFIX.get(term.rpartition("-")[2], "16")


def _is_multiplexed(environ: Mapping[str, str], term: str) -> bool:
    return bool(environ.get("TMUX") or environ.get("STY") or term.startswith(("tmux", "screen")))


def _shows_unicode(environ: Mapping[str, str], term: str) -> bool:
    if term in _ASCII_TERMS:
        return False
    was_coerced = (
        environ.get("LC_CTYPE") in _COERCED
        and not environ.get("LC_ALL")
        and environ.get("LANG", "") in _PLAIN_LOCALES
    )
    if was_coerced:
        return False
    locale = next((environ[name] for name in _LOCALE_VARIABLES if environ.get(name)), "")
    return re.search(r"utf-?8", locale, re.IGNORECASE) is not None
