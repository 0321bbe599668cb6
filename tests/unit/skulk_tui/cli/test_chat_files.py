"""`skulk chat` with files: what goes along, what is refused, and conversations that go on."""

import base64
import json
import stat
from pathlib import Path

import pytest

from skulk_tui.cli import chat_attachments
from tests.support.builders import MODEL
from tests.support.command_line import skulk
from tests.support.fake_node import FakeNode, a_model, chat_stream

CHAT = "/v1/chat/completions"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(16))


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    node.on("POST", CHAT, chat_stream("Paris."))
    return node


def asked(node: FakeNode) -> list[dict[str, object]]:
    return node.asked("POST", CHAT)[-1].body["messages"]


def test_files_of_text_stand_before_the_question_under_their_names(
    node: FakeNode, tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_text("one\n")
    (tmp_path / "b.md").write_text("has ``` in it")
    files = ("-f", str(tmp_path / "a.md"), "--file", str(tmp_path / "b.md"))
    assert skulk("chat", MODEL, "Why?", *files, node=node.url).code == 0
    (turn,) = asked(node)
    expected = "a.md:\n```\none\n```\n\nb.md:\n````\nhas ``` in it\n````\n\nWhy?"
    assert turn == {"role": "user", "content": expected}


def test_an_image_goes_to_a_model_that_sees(node: FakeNode, tmp_path: Path) -> None:
    # Its name says nothing: what it holds decides.
    (tmp_path / "photo.txt").write_bytes(PNG)
    node.on("GET", f"/v1/models/{MODEL}", a_model(capabilities=("text", "vision")))
    ran = skulk("chat", MODEL, "What is it?", "-f", str(tmp_path / "photo.txt"), node=node.url)
    assert ran.code == 0
    (turn,) = asked(node)
    data = base64.b64encode(PNG).decode()
    assert turn["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    ]


def test_an_image_for_a_model_that_takes_text_is_refused_before_it_travels(
    node: FakeNode, tmp_path: Path
) -> None:
    (tmp_path / "photo.png").write_bytes(PNG)
    ran = skulk("chat", MODEL, "What?", "-f", str(tmp_path / "photo.png"), "--json", node=node.url)
    error = json.loads(ran.err)["error"]
    assert ran.code == 2
    assert error["code"] == "request.unsupported_field"
    assert "has no vision" in error["message"]
    assert node.asked("POST", CHAT) == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"\xff\xfe\x00", "neither an image nor text in UTF-8 (byte 0)"),
        (b"a\x00b", "neither an image nor text"),
        (b"x" * (chat_attachments.TEXT_MAX_BYTES + 1), "its text is larger than 1.00 MiB"),
        (PNG + bytes(chat_attachments.TOTAL_MAX_BYTES), "the files are larger than 5.00 MiB"),
        (None, "there is no such file"),
    ],
)
def test_what_cannot_go_along_is_refused_and_nothing_is_asked(
    node: FakeNode, tmp_path: Path, content: bytes | None, fault: str
) -> None:
    path = tmp_path / "thing"
    if content is not None:
        path.write_bytes(content)
    ran = skulk("chat", MODEL, "What?", "-f", str(path), node=node.url)
    assert (ran.code, ran.out) == (2, "")
    assert fault in ran.err
    assert node.seen == []


def test_a_folder_and_too_many_files_are_refused(node: FakeNode, tmp_path: Path) -> None:
    ran = skulk("chat", MODEL, "What?", "-f", str(tmp_path), node=node.url)
    assert ran.code == 2
    assert "it is no file" in ran.err
    many = ["-f", str(tmp_path)] * 33
    assert "33 files are more than the 32" in skulk("chat", MODEL, "x", *many, node=node.url).err


def test_a_conversation_in_a_file_goes_on(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    options = ("--session", str(path))
    assert skulk("chat", MODEL, "First?", *options, "--system", "Brief.", node=node.url).code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert skulk("chat", MODEL, "Second?", *options, node=node.url).code == 0
    assert [turn["content"] for turn in asked(node)] == ["First?", "Paris.", "Second?"]
    kept = json.loads(path.read_text())
    assert kept["model"] == MODEL
    assert [turn["role"] for turn in kept["messages"]] == ["user", "assistant"] * 2


def test_a_conversation_at_a_terminal_is_kept_after_each_answer(
    node: FakeNode, tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    people = frozenset({"stdin", "stderr"})
    arguments = ("chat", MODEL, "--session", str(path))
    skulk(*arguments, node=node.url, stdin="One?\n/exit\n", terminals=people)
    ran = skulk(*arguments, node=node.url, stdin="Two?\n", terminals=people)
    assert "Going on after 2 messages." in ran.err
    assert len(json.loads(path.read_text())["messages"]) == 4


def test_an_attachment_goes_along_with_the_first_question_only(
    node: FakeNode, tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_text("one")
    arguments = ("chat", MODEL, "-f", str(tmp_path / "a.md"))
    people = frozenset({"stdin", "stderr"})
    skulk(*arguments, node=node.url, stdin="One?\nTwo?\n", terminals=people)
    first, _, second = asked(node)
    assert "a.md:" in str(first["content"])
    assert second["content"] == "Two?"


@pytest.mark.parametrize("text", ["[]", "{", '{"model": "m", "messages": [{"role": "x"}]}'])
def test_a_file_that_is_no_conversation_is_refused_and_left_alone(
    node: FakeNode, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "talk.json"
    path.write_text(text)
    ran = skulk("chat", MODEL, "What?", "--session", str(path), node=node.url)
    assert ran.code == 2
    assert "holds no conversation" in ran.err
    assert path.read_text() == text


def test_control_characters_reach_a_terminal_only_when_asked_for(node: FakeNode) -> None:
    node.on("POST", CHAT, chat_stream("\x1b[31mred"))
    terminal = frozenset({"stdout"})
    assert "\x1b" not in skulk("chat", MODEL, "x", node=node.url, terminals=terminal).out
    assert "\x1b[31m" in skulk("chat", MODEL, "x", "--raw", node=node.url, terminals=terminal).out
