import os
import struct
import time
from pathlib import Path

import pytest

from protocol.errors import StoreError
from store.gguf import MAX_ELEMENTS, MAX_KEYS, MAX_TENSORS, Skipped, read_gguf
from tests.support.gguf_builder import GgufBuilder, Tensor, text, typed


def header(*pairs: tuple[str, bytes], n_keys: int | None = None, n_tensors: int = 0) -> bytes:
    """A header of raw key-value pairs, whose counts may lie."""
    count = len(pairs) if n_keys is None else n_keys
    body = b"".join(text(key) + value for key, value in pairs)
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, count) + body


def refusal(tmp_path: Path, content: bytes) -> StoreError:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(StoreError) as refused:
        read_gguf(path)
    return refused.value


@pytest.mark.parametrize("version", [2, 3])
def test_a_valid_file_is_read(tmp_path: Path, version: int) -> None:
    path = GgufBuilder(version=version).write(tmp_path / "x.gguf")
    document = read_gguf(path)
    assert document.version == version
    assert document.metadata["llama.block_count"] == 2
    assert document.metadata["tokenizer.ggml.tokens"] == Skipped(length=4)
    assert (document.n_tensors, document.tensor_bytes) == (2, 2 * 512)
    assert document.file_bytes == path.stat().st_size


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04" + bytes(40), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"),
        (header(n_keys=MAX_KEYS + 1) + bytes(99), "metadata keys"),
        (header(n_tensors=MAX_TENSORS + 1) + bytes(99), "tensors"),
        (header(("k", struct.pack("<I", 99))), "unknown type 99"),
        (header(("k", struct.pack("<IIQ", 9, 99, 1))), "unknown type 99"),
        (header(("k", struct.pack("<IIQ", 9, 4, MAX_ELEMENTS + 1))), "elements"),
        (header(("k", struct.pack("<IQ", 8, 1 << 60))), "at most"),
        (header(("k" * 2000, typed(1))), "at most 1024"),
        (header(("k", typed(1)), ("k", typed(2))), "twice"),
        (header(("general.alignment", typed(0))), "general.alignment"),
        (header(("general.alignment", typed(7))), "general.alignment"),
        (header(("general.alignment", typed("x"))), "general.alignment"),
        (
            header(("k", struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1) * 9)),
            "nested",
        ),
        (header(("k", struct.pack("<IIQ", 9, 9, 1 << 20))), "nested"),
        (header(n_keys=1) + struct.pack("<Q", 2) + b"\xff\xfe" + typed(1), "not UTF-8"),
        (header(n_tensors=1) + text("t") + struct.pack("<I", 5) + bytes(99), "5 dimensions"),
        (
            header(n_tensors=1) + text("t") + struct.pack("<I2QIQ", 2, 1 << 40, 1 << 40, 0, 0),
            "elements",
        ),
    ],
)
def test_a_lying_header_is_invalid_and_says_what_lies(
    tmp_path: Path, content: bytes, words: str
) -> None:
    error = refusal(tmp_path, content)
    assert error.code == "store.gguf_invalid"
    assert words in error.message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GG",
        b"GGUF",
        header(n_keys=1),
        header(("k", struct.pack("<IQ", 8, 1000) + b"short")),
        header(("k", struct.pack("<IIQ", 9, 4, 1000) + b"short")),
        header(("k", struct.pack("<IIQ", 9, 8, 7_000_000) + text("short"))),
        header(n_tensors=1),
    ],
)
def test_a_file_that_ends_before_its_header_is_truncated(tmp_path: Path, content: bytes) -> None:
    error = refusal(tmp_path, content)
    assert error.code == "store.gguf_truncated"
    assert error.details["file_bytes"] == len(content)


def test_a_file_cut_in_its_weights_is_truncated_with_the_numbers(tmp_path: Path) -> None:
    whole = GgufBuilder().build()
    error = refusal(tmp_path, whole[:-33])
    assert error.code == "store.gguf_truncated"
    assert error.details == {"file_bytes": len(whole) - 33, "needed_bytes": len(whole)}


def test_a_tensor_of_an_unknown_type_must_still_begin_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    builder = GgufBuilder(tensors=[Tensor("a"), Tensor("b", kind=250)])
    whole = builder.build()
    path.write_bytes(whole)
    assert read_gguf(path).n_tensors == 2
    path.write_bytes(whole[: -2 * 512])
    with pytest.raises(StoreError, match="cut short"):
        read_gguf(path)


def test_a_cut_anywhere_in_a_header_is_an_error(tmp_path: Path) -> None:
    whole = GgufBuilder().build()
    for length in range(0, len(whole), 11):
        assert refusal(tmp_path, whole[:length]).code in {
            "store.gguf_truncated",
            "store.gguf_invalid",
        }


def test_a_vocabulary_across_windows_is_stepped_over(tmp_path: Path) -> None:
    words = [f"token-{number}-" + "x" * (number % 40) for number in range(20_000)]
    builder = GgufBuilder(metadata={"tokenizer.ggml.tokens": words, "z.last": 7})
    document = read_gguf(builder.write(tmp_path / "x.gguf"))
    assert document.metadata["tokenizer.ggml.tokens"] == Skipped(length=20_000)
    assert document.metadata["z.last"] == 7


def test_s19_what_is_kept_has_a_budget(tmp_path: Path) -> None:
    many = {f"general.k{number}": "x" * 60_000 for number in range(200)}
    path = GgufBuilder(metadata=many).write(tmp_path / "x.gguf")
    document = read_gguf(path)
    kept = sum(len(value) for value in document.metadata.values() if isinstance(value, str))
    assert kept <= 4 * 1024 * 1024


def test_only_the_header_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = GgufBuilder().write(tmp_path / "x.gguf")
    os.truncate(path, 1 << 36)
    before = time.process_time()
    assert read_gguf(path).file_bytes == 1 << 36
    assert time.process_time() - before < 1


def test_a_missing_file_a_directory_and_a_pipe_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, code in [("none", "store.not_found"), (".", "store.gguf_invalid")]:
        with pytest.raises(StoreError) as refused:
            read_gguf(tmp_path / name)
        assert refused.value.code == code
    with pytest.raises(StoreError, match="not a regular file"):
        read_gguf(tmp_path / "pipe")
