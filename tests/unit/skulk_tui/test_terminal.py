import pytest

from protocol.errors import ClientError
from skulk_tui.glyphs import ASCII, UNICODE
from skulk_tui.terminal import (
    background_of,
    prepare_environment,
    read_terminal,
    require_terminal,
)

USUAL = {"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}


@pytest.mark.parametrize("absent", ["stdin", "stdout", "stderr"])
def test_without_a_terminal_it_refuses_and_names_the_way_out(absent: str) -> None:
    streams = {"stdin": True, "stdout": True, "stderr": True, absent: False}
    with pytest.raises(ClientError) as refused:
        require_terminal(USUAL, **streams)
    assert refused.value.code == "client.usage"
    assert "skulk status --watch" in refused.value.remediation


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"TERM": ""}, {}])
def test_a_terminal_that_cannot_place_its_cursor_is_refused_and_a_usual_one_is_not(
    environ: dict[str, str],
) -> None:
    require_terminal(USUAL, stdin=True, stdout=True, stderr=True)
    with pytest.raises(ClientError, match="TERM is"):
        require_terminal(environ, stdin=True, stdout=True, stderr=True)


@pytest.mark.parametrize(
    ("environ", "theme"),
    [
        ({}, "light"),
        ({"COLORTERM": "truecolor"}, "light"),
        ({"TERM": "xterm"}, "ansi"),
        ({"TERM": "screen"}, "ansi"),
        ({"TERM": "linux"}, "ansi"),
        ({"TERM": "xterm", "COLORTERM": "24bit"}, "light"),
        ({"TERM": "xterm-kitty"}, "light"),
        ({"NO_COLOR": "1"}, "mono"),
        ({"NO_COLOR": "1", "COLORTERM": "truecolor"}, "mono"),
        ({"NO_COLOR": ""}, "light"),
    ],
)
def test_the_theme_follows_what_the_terminal_can_show(environ: dict[str, str], theme: str) -> None:
    terminal = read_terminal(USUAL | environ)
    assert terminal.theme("light") == theme
    assert terminal.asks_background == (theme == "light")


def test_a_terminal_that_does_not_tell_its_background_is_dark() -> None:
    assert read_terminal(USUAL).theme(None) == "dark"


@pytest.mark.parametrize(
    ("environ", "is_unicode"),
    [
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LANG": "de_DE.utf8"}, True),
        ({"LANG": "C.UTF-8"}, True),
        ({"LANG": "C"}, False),
        ({}, False),
        ({"LANG": "en_US.ISO-8859-1"}, False),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, False),
        ({"LANG": "C", "LC_ALL": "en_US.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "en_US.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),  # this is what Python makes of LANG=C
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8", "TERM": "linux"}, False),
    ],
)
def test_the_glyphs_follow_the_locale_and_the_kind_of_terminal(
    environ: dict[str, str], is_unicode: bool
) -> None:
    chosen = read_terminal({"TERM": "xterm-256color"} | environ).glyphs
    assert chosen is (UNICODE if is_unicode else ASCII)


def test_the_operator_may_ask_for_ascii() -> None:
    assert read_terminal(USUAL, ascii_only=True).glyphs is ASCII


def test_values_are_drawn_at_half_the_pace_over_ssh() -> None:
    assert read_terminal(USUAL).data_hz == 4
    assert read_terminal(USUAL | {"SSH_TTY": "/dev/pts/1"}).data_hz == 2
    assert read_terminal(USUAL | {"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}).data_hz == 2


@pytest.mark.parametrize(("value", "is_kept"), [("", False), ("1", True)])
def test_an_empty_no_color_is_as_none(value: str, is_kept: bool) -> None:
    environ = USUAL | {"NO_COLOR": value}
    prepare_environment(environ)
    assert ("NO_COLOR" in environ) == is_kept


@pytest.mark.parametrize(
    ("environ", "delay"),
    [
        ({}, "25"),
        ({"ESCDELAY": "70"}, "70"),
        ({"TMUX": "/run/tmux-0/default,1,0"}, None),
        ({"TERM": "screen-256color"}, None),
    ],
)
def test_a_lone_escape_is_told_quickly_outside_multiplexers(
    environ: dict[str, str], delay: str | None
) -> None:
    prepared = USUAL | environ
    prepare_environment(prepared)
    assert prepared.get("ESCDELAY") == delay


@pytest.mark.parametrize(
    ("answer", "background"),
    [
        (b"\x1b]11;rgb:0000/0000/0000\x1b\\", "dark"),
        (b"\x1b]11;rgb:ffff/ffff/ffff\x07", "light"),
        (b"\x1b]11;rgb:fd/f6/e3\x07", "light"),
        (b"\x1b]11;rgb:0/2b/3636\x07", "dark"),
        (b"\x1b]11;rgba:0000/0000/0000/ffff\x07", "dark"),
        (b"j\x1b]11;rgb:ffff/ffff/ffff\x07", "light"),
        (b"\x1b]11;rgb:zz/00/00\x07", None),
        (b"\x1b[?64;1c", None),
        (b"", None),
    ],
)
def test_the_background_is_read_from_the_answer(answer: bytes, background: str | None) -> None:
    assert background_of(answer) == background
