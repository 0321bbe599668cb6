import pytest

from protocol.errors import ClientError
from skulk_tui.cli.output import ColorWhen
from skulk_tui.cli.session import (
    Options,
    output_format,
    parse_duration,
    terminal_width,
    wants_color,
)


def test_what_stands_nearer_to_the_verb_wins() -> None:
    outer = Options(node="a", output="wide", timeout="1s", quiet=True)
    merged = Options(node="b", json=True).over(outer)
    assert merged == Options(node="b", json=True, timeout="1s", quiet=True)
    assert Options(output="name").over(Options(json=True)) == Options(output="name")


def test_the_output_format_comes_from_option_then_variable() -> None:
    assert output_format(Options(json=True), {"SKULK_OUTPUT": "wide"}) == "json"
    assert output_format(Options(output="name"), {"SKULK_OUTPUT": "wide"}) == "name"
    assert output_format(Options(), {"SKULK_OUTPUT": "wide"}) == "wide"
    assert output_format(Options(), {}) == "table"
    with pytest.raises(ClientError, match="jsno") as caught:
        output_format(Options(output="jsno"), {})
    assert "'json'" in caught.value.remediation


@pytest.mark.parametrize(
    ("when", "environ", "is_terminal", "colored"),
    [
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
    ],
)
def test_color_is_decided_by_option_then_variables_then_terminal(
    when: ColorWhen, environ: dict[str, str], is_terminal: bool, colored: bool
) -> None:
    assert wants_color(when, environ, is_terminal=is_terminal) is colored


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("60s", 60), ("1.5m", 90), ("2h", 7200), ("3", 3)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "1y", "s", "1 2s", "1e9s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ClientError, match="--timeout"):
        parse_duration(text, "--timeout")


def test_an_absurd_width_is_bounded() -> None:
    assert terminal_width({"COLUMNS": "99999"}) == 500
    assert terminal_width({"COLUMNS": "1"}) == 20
