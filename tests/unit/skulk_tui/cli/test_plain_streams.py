"""What a terminal without UTF-8 is written, and what a pipe is."""

import io
import json
from collections.abc import Mapping

import pytest

from skulk_tui.cli.output import Column, Listing, Output, Table
from skulk_tui.cli.plain_streams import fit_to_locale
from skulk_tui.cli.records import TopicRecord

UTF8 = {"LANG": "en_GB.UTF-8", "TERM": "xterm"}
C = {"LANG": "C", "TERM": "xterm"}


class Stream(io.TextIOWrapper):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def fitted(environ: Mapping[str, str], *, is_terminal: bool = True) -> Stream:
    stream = Stream(is_terminal=is_terminal)
    fit_to_locale(stream, environ)
    return stream


@pytest.mark.parametrize(
    ("environ", "is_terminal", "written"),
    [
        (UTF8, True, "caf\u00e9\u2026"),
        (C, True, "caf?~"),
        (C, False, "caf\u00e9\u2026"),
        ({**UTF8, "SKULK_ASCII": "1"}, True, "caf?~"),
        ({"TERM": "xterm"}, True, "caf?~"),
    ],
)
def test_a_terminal_without_utf_8_is_written_ascii_and_a_pipe_never_is(
    environ: dict[str, str], is_terminal: bool, written: str
) -> None:
    stream = fitted(environ, is_terminal=is_terminal)
    stream.write("caf\u00e9\u2026")
    assert stream.text() == written


def test_a_table_in_ascii_is_no_wider_than_the_terminal() -> None:
    stream = fitted(C)
    table = Table((Column("MODEL", least=8),), (("a-model-with-a-long-name",),))
    Output(stream, form="table", color=False, width=12).show(
        Listing(kind="models", items=(), tables=(table,), names=())
    )
    assert stream.text().splitlines()[1] == "a-model-wit~"


def test_json_in_ascii_says_the_same() -> None:
    stream = fitted(C)
    record = TopicRecord(name="caf\u00e9", meaning="\U0001f600")
    Output(stream, form="json", color=False, width=80).show(
        Listing(kind="topics", items=(record,), tables=(), names=())
    )
    assert stream.text().isascii()
    assert json.loads(stream.text())["items"] == [{"name": "caf\u00e9", "meaning": "\U0001f600"}]
