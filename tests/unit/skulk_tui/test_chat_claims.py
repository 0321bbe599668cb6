"""Two programs of one operator do not write one conversation."""

import subprocess
import sys
from pathlib import Path

from skulk_tui.chat_claims import ChatClaims

HOLDER = """
import sys
from pathlib import Path
from skulk_tui.chat_claims import ChatClaims
print(ChatClaims(Path(sys.argv[1])).claim("one"), flush=True)
sys.stdin.read()
"""


def test_one_program_has_a_conversation_and_another_has_not_until_it_lets_go(
    tmp_path: Path,
) -> None:
    first, second = ChatClaims(tmp_path), ChatClaims(tmp_path)
    assert first.claim("one")
    assert first.claim("one")
    assert not second.claim("one")
    assert second.claim("two")
    first.release()
    assert second.claim("one")
    second.release()
    assert not list(tmp_path.iterdir())


def test_a_program_that_is_killed_leaves_its_conversations_to_others(tmp_path: Path) -> None:
    claims = ChatClaims(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not claims.claim("one")
        holder.kill()
        holder.wait(10)
        assert claims.claim("one")
    claims.release()


def test_a_lock_file_that_was_removed_while_it_was_opened_counts_for_nobody(
    tmp_path: Path,
) -> None:
    first, second = ChatClaims(tmp_path), ChatClaims(tmp_path)
    assert first.claim("one")
    (tmp_path / ".one.open").unlink()  # as by a program that ends
    assert second.claim("one")
    third = ChatClaims(tmp_path)
    assert not third.claim("one")
    for claims in (first, second):
        claims.release()


def test_without_a_folder_everything_is_had() -> None:
    assert ChatClaims(None).claim("one")


def test_a_folder_that_cannot_be_written_keeps_nobody_from_chatting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ChatClaims(tmp_path / "file" / "chats").claim("one")
