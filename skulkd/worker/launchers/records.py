"""The records of started processes, one small file each. Blocking; knows no process."""

import logging
from pathlib import Path
from typing import Final, final

from pydantic import ValidationError

from skulkd.runtime.disk import TEMPORARY_SUFFIX, Disk
from skulkd.worker.launchers.base import ProcessRecord

_log = logging.getLogger(__name__)

_SUFFIX: Final = ".json"
_MAX_BYTES: Final = 64 << 10


@final
class ProcessRecords:
    """A directory of records.

    Args:
        directory: Where they lie; made on first use.
        disk: The file system.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk

    def write(self, record: ProcessRecord) -> None:
        """Write or replace a record."""
        self._disk.make_private_directory(self._directory)
        self._disk.replace(self._path(record), record.model_dump_json().encode())

    def remove(self, record: ProcessRecord) -> None:
        """Forget a process that is gone."""
        self._disk.remove(self._path(record))

    def read_all(self) -> tuple[ProcessRecord, ...]:
        """Read every record; one that cannot be read is logged and removed."""
        found = (self._read(self._directory / name) for name in self._names())
        return tuple(record for record in found if record is not None)

    def remove_halves(self) -> None:
        """Remove what a crash in the middle of a write left; while nobody writes, that is."""
        for name in self._names():
            if name.endswith(TEMPORARY_SUFFIX):
                self._remove(self._directory / name)

    def _names(self) -> tuple[str, ...]:
        try:
            return self._disk.list(self._directory)
        except FileNotFoundError:
            return ()
        except OSError as error:
            _log.warning("launch records cannot be read: %s", error)
            return ()

    def _read(self, path: Path) -> ProcessRecord | None:
        if path.suffix != _SUFFIX:
            return None
        try:
            return ProcessRecord.model_validate_json(self._disk.read(path, max_bytes=_MAX_BYTES))
        except OSError as error:
            _log.warning("a launch record cannot be read: %s", error)
            return None
        except ValidationError:
            _log.warning("removing an unreadable launch record", extra={"path": str(path)})
            self._remove(path)
            return None

    def _remove(self, path: Path) -> None:
        """Remove what is of no use; where that fails it stays, and the next start tries again."""
        try:
            self._disk.remove(path)
        except OSError as error:
            _log.warning("%s cannot be removed: %s", path, error)

    def _path(self, record: ProcessRecord) -> Path:
        return self._directory / f"{record.launch_id}{_SUFFIX}"
