"""Whose daemon answers: as the kernel's tables tell, and how `info` and `status` say it."""

import json
import os
import pwd
import sys
from pathlib import Path

import pytest

from skulk_tui.cli import cluster, program
from skulk_tui.cli.socket_owner import Owner, owner_of
from skulk_tui.target import Target
from tests.support.command_line import skulk
from tests.support.fake_node import FakeNode

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when   uid\n"
PORT = 52415


def row(address: str, *, uid: int, state: str = "0A", port: int = PORT) -> str:
    rest = f"00000000:00000000 00:00000000 00000000 {uid:5}        0 12345 1"
    return f"   0: {address}:{port:04X} 00000000:0000 {state} {rest}\n"


def words(*octets: int) -> str:
    """Write an address as the kernel of this machine does."""
    raw = bytes(octets)
    parts = [int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw), 4)]
    return "".join(f"{part:08X}" for part in parts)


HERE = words(127, 0, 0, 1)
EVERYWHERE = words(0, 0, 0, 0)
SIX = words(*bytes(15), 1)


def asked(
    tmp_path: Path, tcp: str = "", tcp6: str = "", *, url: str = f"http://127.0.0.1:{PORT}"
) -> int | None:
    (tmp_path / "tcp").write_text(HEAD + tcp, encoding="ascii")
    (tmp_path / "tcp6").write_text(HEAD + tcp6, encoding="ascii")
    owner = owner_of(Target(url=url, url_rule="--node"), proc_net=tmp_path)
    return None if owner is None else owner.uid


def test_the_socket_of_the_very_address_counts_before_one_that_listens_everywhere(
    tmp_path: Path,
) -> None:
    assert asked(tmp_path, row(HERE, uid=1001)) == 1001
    assert asked(tmp_path, row(EVERYWHERE, uid=1002) + row(HERE, uid=1001)) == 1001
    assert asked(tmp_path, row(EVERYWHERE, uid=1002)) == 1002
    assert asked(tmp_path, "", row(SIX, uid=1003), url=f"http://[::1]:{PORT}") == 1003
    assert asked(tmp_path, row(HERE, uid=1001), url=f"http://localhost:{PORT}") == 1001


def test_connections_and_other_ports_are_nobodys_daemon(tmp_path: Path) -> None:
    others = row(HERE, uid=1, state="01") + row(HERE, uid=2, port=80)
    assert asked(tmp_path, others) is None


def test_what_cannot_be_told_is_not_guessed(tmp_path: Path) -> None:
    two = row(EVERYWHERE, uid=1) + row(EVERYWHERE, uid=2)
    assert asked(tmp_path, two) is None
    assert asked(tmp_path, "nonsense\n   0: zz:zz x 0A 0 0 0 x\n") is None
    assert asked(tmp_path, row(HERE, uid=1), url=f"http://192.0.2.1:{PORT}") is None
    nowhere = tmp_path / "nowhere"
    assert owner_of(Target(url="http://127.0.0.1:1", url_rule="x"), proc_net=nowhere) is None


def test_a_user_without_a_name_is_a_number(tmp_path: Path) -> None:
    free = max(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid < 60_000) + 1
    (tmp_path / "tcp").write_text(HEAD + row(HERE, uid=free), encoding="ascii")
    owner = owner_of(Target(url=f"http://127.0.0.1:{PORT}", url_rule="x"), proc_net=tmp_path)
    assert owner == Owner(uid=free, name=str(free), is_me=False)


def test_info_says_that_the_daemon_is_mine_where_the_system_tells(node: FakeNode) -> None:
    (info,) = json.loads(skulk("info", "--json", node=node.url).out)["items"]
    me = pwd.getpwuid(os.getuid()).pw_name
    is_told = sys.platform.startswith("linux")
    assert info["daemon_user"] == (me if is_told else None)
    assert info["is_own_daemon"] == (True if is_told else None)
    shown = skulk("info", node=node.url).out
    assert (f"{me} (you)" if is_told else "unknown") in shown


def test_status_says_when_the_daemon_is_somebody_elses(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def somebody(_target: Target) -> Owner:
        return Owner(uid=1001, name="ada", is_me=False)

    monkeypatch.setattr(cluster, "owner_of", somebody)
    monkeypatch.setattr(program, "owner_of", somebody)
    assert "is run by ada\n" in skulk("status", node=node.url).err
    assert "ada, another user of this machine" in skulk("info", node=node.url).out
