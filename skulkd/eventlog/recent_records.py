"""The newest records of the log, as they travel: for members that missed some, and to compare."""

from collections.abc import Iterable
from typing import Final, final

from skulkd.eventlog.records import EncodedRecord

MAX_KEPT: Final = 65_536
MAX_KEPT_BYTES: Final = 8 << 20


@final
class RecentRecords:
    """A window that ends where the log ends.

    Args:
        seq: Where the log ends now.
        chain: After it.
        max_bytes: What the bodies may take; the oldest go first.
    """

    def __init__(self, seq: int, chain: bytes, *, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._records: dict[int, EncodedRecord] = {}
        self._n_bytes = 0
        self._base_seq, self._base_chain = seq, chain
        self.seq = seq
        """Of the newest record."""
        self.chain = chain
        """After it."""

    @property
    def base_seq(self) -> int:
        """The oldest position whose chain is known; the records behind it are kept."""
        return self._base_seq

    def reset(self, seq: int, chain: bytes) -> None:
        """Forget everything: the log ends here now."""
        self._records.clear()
        self._n_bytes = 0
        self._base_seq = self.seq = seq
        self._base_chain = self.chain = chain

    def extend(self, records: Iterable[EncodedRecord]) -> None:
        """Add the next records, in order."""
        kept, seq, chain, n_bytes = self._records, self.seq, self.chain, self._n_bytes
        for record in records:
            seq, body, chain = record
            kept[seq] = record
            n_bytes += len(body)
        self.seq, self.chain, self._n_bytes = seq, chain, n_bytes
        while self._n_bytes > self._max_bytes or len(kept) > MAX_KEPT:
            oldest = kept.pop(self._base_seq + 1)
            self._n_bytes -= len(oldest.body)
            self._base_seq, self._base_chain = oldest.seq, oldest.chain

    def chain_at(self, seq: int) -> bytes | None:
        """Give the chain after `seq`; None outside of the window."""
        if seq == self._base_seq:
            return self._base_chain
        record = self._records.get(seq)
        return None if record is None else record.chain

    def after(
        self, seq: int, *, max_bytes: int, max_records: int
    ) -> tuple[EncodedRecord, ...] | None:
        """Give what follows a position, at least one record if there is any.

        Returns:
            Records in order; None when the position is outside of the window.
        """
        if not self._base_seq <= seq <= self.seq:
            return None
        found: list[EncodedRecord] = []
        n_bytes = 0
        for number in range(seq + 1, min(self.seq, seq + max_records) + 1):
            record = self._records[number]
            n_bytes += len(record.body)
            if found and n_bytes > max_bytes:
                break
            found.append(record)
        return tuple(found)
