import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import StoreError
from protocol.ids import ModelId
from store.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestFile,
    Verification,
    first_difference,
    identity_of,
    read_manifest,
    write_durably,
    write_manifest,
)
from tests.support.wheel_builder import sha256

CONTENT = b"weights" * 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files" / "sub").mkdir(parents=True)
    (tmp_path / "files" / "sub" / "a.gguf").write_bytes(CONTENT)
    return tmp_path


@pytest.fixture
def directory(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def manifest_of(folder: Path) -> Manifest:
    found = (folder / "files" / "sub" / "a.gguf").stat()
    file = ManifestFile(
        path="sub/a.gguf",
        size_bytes=len(CONTENT),
        sha256=sha256(CONTENT),
        identity=identity_of(found),
    )
    return Manifest(
        model_id=ModelId("m"), source="here", entry="sub/a.gguf", files=(file,), verified_at_ms=1
    )


def verify(directory: int, manifest: Manifest) -> Manifest:
    verification = Verification(directory, manifest)
    try:
        while verification.step():
            pass
        return verification.result
    finally:
        verification.close()


def test_a_written_manifest_reads_back(folder: Path, directory: int) -> None:
    write_manifest(directory, manifest_of(folder))
    assert read_manifest(directory) == manifest_of(folder)
    assert not (folder / "manifest.json.tmp").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema_number": 2}', b" " * (MAX_MANIFEST_BYTES + 1), b"\xff"],
)
def test_what_is_no_manifest_makes_nothing_complete(
    folder: Path, directory: int, content: bytes
) -> None:
    (folder / "manifest.json").write_bytes(content)
    assert read_manifest(directory) is None


@pytest.mark.parametrize("path", ["../x", "sub/../../x", ".hidden"])
def test_f27_a_manifest_cannot_name_a_file_outside(folder: Path, directory: int, path: str) -> None:
    text = manifest_of(folder).model_dump_json().replace("sub/a.gguf", path)
    (folder / "manifest.json").write_text(text)
    assert read_manifest(directory) is None


def test_a_linked_manifest_is_none(folder: Path, directory: int) -> None:
    (folder / "elsewhere").write_text(manifest_of(folder).model_dump_json())
    (folder / "manifest.json").symlink_to(folder / "elsewhere")
    assert read_manifest(directory) is None


def test_an_untouched_artifact_has_no_difference(folder: Path, directory: int) -> None:
    assert first_difference(directory, manifest_of(folder)) is None


def test_each_kind_of_change_is_seen(folder: Path, directory: int) -> None:
    manifest = manifest_of(folder)
    path = folder / "files" / "sub" / "a.gguf"
    os.utime(path, ns=(1, 1))
    assert "was replaced or written to" in str(first_difference(directory, manifest))
    path.write_bytes(CONTENT[:-1])
    assert "6999 bytes, not 7000" in str(first_difference(directory, manifest))
    path.unlink()
    assert "missing" in str(first_difference(directory, manifest))
    path.symlink_to("/etc/hostname")
    assert "not a regular file" in str(first_difference(directory, manifest))


def test_verifying_records_present_identities(folder: Path, directory: int) -> None:
    manifest = manifest_of(folder)
    path = folder / "files" / "sub" / "a.gguf"
    os.utime(path, ns=(1, 1))
    again = verify(directory, manifest)
    assert again.files[0].identity.modified_ns == 1
    assert first_difference(directory, again) is None


def test_verifying_finds_one_changed_byte(folder: Path, directory: int) -> None:
    manifest = manifest_of(folder)
    (folder / "files" / "sub" / "a.gguf").write_bytes(b"W" + CONTENT[1:])
    with pytest.raises(StoreError) as refused:
        verify(directory, manifest)
    assert refused.value.code == "store.digest_mismatch"


def test_verifying_a_missing_or_short_file_names_it(folder: Path, directory: int) -> None:
    manifest = manifest_of(folder)
    path = folder / "files" / "sub" / "a.gguf"
    path.write_bytes(CONTENT[:10])
    with pytest.raises(StoreError, match="10 bytes of 7000"):
        verify(directory, manifest)
    path.unlink()
    with pytest.raises(StoreError, match=r"sub/a\.gguf"):
        verify(directory, manifest)


def test_a_file_that_is_written_to_while_it_is_verified_is_not_believed(
    folder: Path, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifest_of(folder)
    path = folder / "files" / "sub" / "a.gguf"
    real = os.pread

    def read_and_write(descriptor: int, n_bytes: int, offset: int) -> bytes:
        chunk = real(descriptor, n_bytes, offset)
        with path.open("r+b") as file:
            file.write(b"W")
        os.utime(path, ns=(1, 1 + offset))
        return chunk

    monkeypatch.setattr(os, "pread", read_and_write)
    with pytest.raises(StoreError, match="written to while it was verified"):
        verify(directory, manifest)


def test_f28_a_hard_link_under_the_temporarys_name_is_left_alone(
    folder: Path, directory: int
) -> None:
    victim = folder / "victim"
    victim.write_bytes(b"precious")
    os.link(victim, folder / "note.tmp")
    write_durably(directory, "note", b"ours")
    assert victim.read_bytes() == b"precious"
    assert (folder / "note").read_bytes() == b"ours"


def test_a_failed_write_leaves_what_was_there(
    folder: Path, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_durably(directory, "note", b"before")

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        write_durably(directory, "note", b"after")
    assert (folder / "note").read_bytes() == b"before"
