"""What this node has promised in elections: a term, and whom it voted for in it.

A promise is on the disk before it is given. A vote that a crash could take back would elect two
masters for one term.
"""

import hashlib
from pathlib import Path
from typing import Final, cast, final

from protocol.codec import decode_trusted_values, encode_values
from protocol.errors import ClusterError
from protocol.ids import NodeId
from skulkd.core.voting import TermVote
from skulkd.runtime import failpoints
from skulkd.runtime.disk import Disk

_MAGIC: Final = b"SKULKTRM"
_DIGEST_BYTES: Final = 16
_MAX_FILE_BYTES: Final = 4096


@final
class TermFile:
    """One small file. Every call blocks.

    Args:
        disk: Where it lies.
        path: Its name; the directory exists.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def read(self) -> TermVote:
        """Give what was last promised; term 0 when nothing ever was.

        Raises:
            ClusterError: `cluster.journal_corrupt`; the file is damaged, so what was promised in
                it is unknown.
            OSError: The disk cannot be read.
        """
        try:
            data = self._disk.read(self._path, max_bytes=_MAX_FILE_BYTES)
        except FileNotFoundError:
            return TermVote()
        digest, body = data[: len(_MAGIC) + _DIGEST_BYTES], data[len(_MAGIC) + _DIGEST_BYTES :]
        if digest != _seal(body):
            raise ClusterError(
                "cluster.journal_corrupt",
                f"{self._path} is damaged: this node no longer knows whom it voted for",
                remediation=(
                    f"Remove {self._path} only when every other node of the cluster is running; "
                    "this node then learns the current term from them."
                ),
                details={"file": str(self._path)},
            )
        term, voted_for = cast("tuple[int, NodeId | None]", decode_trusted_values(body))
        return TermVote(term=term, voted_for=voted_for)

    def write(self, vote: TermVote) -> None:
        """Make a promise durable; only then may it be given.

        Raises:
            ValueError: It takes an earlier promise back: a bug.
            ClusterError: See `read`.
            OSError: It is not durable; the earlier promise stands.
        """
        earlier = self.read()
        is_other_vote = vote.term == earlier.term and earlier.voted_for not in {
            None,
            vote.voted_for,
        }
        if vote.term < earlier.term or is_other_vote:
            message = f"{vote} takes {earlier} back"
            raise ValueError(message)
        if vote != earlier:
            self._replace(vote)

    def write_anew(self, vote: TermVote) -> None:
        """Put a promise in place of a damaged file; durable like any other.

        The caller has learned from all other voters which promises cannot have been in it.

        Raises:
            OSError: It is not durable; the file may still be damaged.
        """
        self._replace(vote)

    def _replace(self, vote: TermVote) -> None:
        body = encode_values((vote.term, vote.voted_for))
        failpoints.hit("term.before_write")
        self._disk.replace(self._path, _seal(body) + body)
        failpoints.hit("term.after_write")


def _seal(body: bytes) -> bytes:
    return _MAGIC + hashlib.blake2b(_MAGIC + body, digest_size=_DIGEST_BYTES).digest()
