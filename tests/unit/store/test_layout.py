import errno
import os
from pathlib import Path

import pytest

from protocol.ids import Digest
from store.layout import (
    StoreLayout,
    disk_error,
    is_key,
    is_own_file,
    make_directories,
    open_beneath,
    remove_tree,
)

KEY = Digest("a" * 64)
LINK = r"Not a directory|Too many levels"
ESCAPES = [
    "..",
    "../x",
    "a/../../x",
    "/etc/passwd",
    "a//b",
    "",
    ".",
    "a/./b",
    "a\0b",
    "a/",
]


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    made = StoreLayout(tmp_path / "models")
    made.prepare()
    return made


def test_directories_are_private(layout: StoreLayout) -> None:
    folders = [layout.models_dir, *(path for path in layout.models_dir.iterdir())]
    assert {oct(folder.stat().st_mode & 0o777) for folder in folders} == {"0o700"}


def test_preparing_twice_keeps_what_is_there(layout: StoreLayout) -> None:
    kept = layout.cards_path() / "mine.toml"
    kept.write_text("")
    layout.prepare()
    assert kept.exists()


@pytest.mark.parametrize("path", ESCAPES)
def test_f27_no_path_leaves_the_store(layout: StoreLayout, path: str) -> None:
    with layout.opened() as root:
        with pytest.raises(ValueError, match="not a path below the store"):
            open_beneath(root, path, os.O_RDONLY)
        with pytest.raises(ValueError, match="not a path below the store"):
            remove_tree(root, path)


def test_f28_a_linked_file_is_not_opened(layout: StoreLayout, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (layout.cards_path() / "link").symlink_to(secret)
    with layout.opened("cards") as cards, pytest.raises(OSError, match=LINK) as refused:
        open_beneath(cards, "link", os.O_RDONLY)
    assert refused.value.errno == errno.ELOOP


def test_f28_a_linked_directory_is_not_entered(layout: StoreLayout, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (layout.models_dir / "staging" / KEY).symlink_to(outside)
    with layout.opened("staging") as staging:
        with pytest.raises(OSError, match=LINK):
            open_beneath(staging, f"{KEY}/wheel", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError, match=LINK):
            make_directories(staging, [KEY, "artifact"])
    assert list(outside.iterdir()) == []


def test_f28_removing_a_tree_deletes_links_and_not_what_they_name(
    layout: StoreLayout, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    doomed = layout.models_dir / "staging" / KEY
    doomed.mkdir()
    (doomed / "folder").symlink_to(outside)
    (doomed / "file").symlink_to(outside / "precious")
    with layout.opened("staging") as staging:
        remove_tree(staging, KEY)
    assert not doomed.exists()
    assert (outside / "precious").read_text() == "kept"


def test_removing_what_is_absent_is_no_error(layout: StoreLayout) -> None:
    other = layout.models_dir / "staging" / "another"
    other.mkdir()
    with layout.opened("staging") as staging:
        remove_tree(staging, KEY)
    assert other.exists()


def test_f28_a_file_with_a_second_name_is_not_ours_to_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert is_own_file(path.stat())
    os.link(path, tmp_path / "second")
    assert not is_own_file(path.stat())


@pytest.mark.parametrize("name", ["A" * 64, "a" * 63, "a" * 65, "g" * 64, "a" * 64 + "\n", "../x"])
def test_only_digests_are_keys(name: str) -> None:
    assert not is_key(name)


def test_strange_names_are_not_listed_as_artifacts(layout: StoreLayout) -> None:
    (layout.models_dir / "artifacts" / KEY).mkdir()
    (layout.models_dir / "artifacts" / "lost+found").mkdir()
    assert layout.artifact_keys() == [KEY]


def test_a_full_disk_is_told_apart_from_a_broken_one() -> None:
    assert disk_error(OSError(errno.ENOSPC, "full"), "x").code == "store.no_space"
    assert disk_error(OSError(errno.EDQUOT, "quota"), "x").code == "store.no_space"
    assert disk_error(OSError(errno.EIO, "broken"), "x").code == "store.disk_failed"


def test_a_models_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(Exception, match="models") as refused:
        StoreLayout(tmp_path / "models").prepare()
    assert getattr(refused.value, "code", None) == "store.disk_failed"
