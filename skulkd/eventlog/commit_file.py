"""How far the log was known to be committed: a hint that a start begins with.

The journal also holds events that were never committed, and might be given up. The file is written
now and then, so it may say less than was known, never more; what it does not cover is shown again
once a master says that it is committed.
"""

import hashlib
from pathlib import Path
from typing import Final, NamedTuple, cast

from protocol.codec import decode_trusted_values, encode_values
from skulkd.runtime.disk import Disk

FILE_NAME: Final = "commit"
_MAGIC: Final = b"SKULKCMT"
_DIGEST_BYTES: Final = 16
_MAX_FILE_BYTES: Final = 256


class CommitMark(NamedTuple):
    """A committed position of one history."""

    seq: int
    chain: bytes
    """After it: a mark of another history says nothing."""


def read_commit_mark(disk: Disk, directory: Path) -> CommitMark | None:
    """Give what was last written; None where nothing was, or it is damaged. Blocks.

    Raises:
        OSError: The disk cannot be read.
    """
    try:
        data = disk.read(directory / FILE_NAME, max_bytes=_MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    body = data[len(_MAGIC) + _DIGEST_BYTES :]
    if data != _sealed(body):
        # Only a hint is lost: the log itself says what there is.
        return None
    seq, chain = cast("tuple[int, bytes]", decode_trusted_values(body))
    return CommitMark(seq, chain)


def write_commit_mark(disk: Disk, directory: Path, mark: CommitMark) -> None:
    """Keep a position, durably. Blocks.

    Raises:
        OSError: The older one stands.
    """
    disk.replace(directory / FILE_NAME, _sealed(encode_values(tuple(mark))))


def _sealed(body: bytes) -> bytes:
    return _MAGIC + hashlib.blake2b(_MAGIC + body, digest_size=_DIGEST_BYTES).digest() + body
