import pytest

from protocol.errors import ERROR_CODES, ErrorCode
from skulk_tui.cli import exit_codes
from skulk_tui.cli.exit_codes import MEANINGS, exit_code_of
from tests.support.source_tree import ROOT


@pytest.mark.parametrize("code", ERROR_CODES)
def test_every_error_ends_the_command_with_a_code_that_is_explained(code: ErrorCode) -> None:
    assert exit_code_of(code) in MEANINGS
    assert exit_code_of(code) != exit_codes.OK


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("placement.failed", 1),
        ("runner.exited", 1),
        ("internal.bug", 1),
        ("client.usage", 2),
        ("config.invalid", 2),
        ("placement.unknown_model", 2),
        ("client.unreachable", 3),
        ("placement.no_fit", 4),
        ("request.unauthenticated", 4),
        ("client.insecure_key", 4),
        ("placement.plan_changed", 5),
        ("store.in_use", 5),
        ("request.instance_loading", 8),
        ("client.timeout", 124),
    ],
)
def test_codes_of_errors_are_a_promise(code: ErrorCode, expected: int) -> None:
    assert exit_code_of(code) == expected


def test_the_manual_lists_every_exit_code() -> None:
    manual = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [code for code in MEANINGS if f"| {code} |" not in manual] == []
