"""Which columns the operator left out, kept for each cluster on their own disk; blocking.

A file holds an object of table names, each with the keys of the columns that are left out: columns
that a later version adds, or that come with a new node, are shown.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, final

from pydantic import TypeAdapter, ValidationError

from protocol.errors import ClientError
from skulk_tui.own_files import read_text, replace_file

MAX_BYTES: Final = 64 << 10
_FOLDER: Final = "columns"
_OF_NO_NAME: Final = "default"

LeftOut = Mapping[str, frozenset[str]]
"""By table (`cluster.nodes`), the keys of columns that are not shown."""


@final
class ColumnChoices:
    """The files of one operator.

    Args:
        state_dir: Where the program leaves things behind; None keeps nothing.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self._folder = None if state_dir is None else state_dir / _FOLDER

    def load(self, cluster: str) -> LeftOut:
        """Give what was chosen for a cluster.

        Raises:
            ClientError: `client.usage`: it cannot be read, or is no such object.
        """
        path = self._path(cluster)
        text = None if path is None else read_text(path, max_bytes=MAX_BYTES)
        if path is None or text is None:
            return {}
        try:
            return _adapter().validate_json(text)
        except ValidationError as wrong:
            raise ClientError(
                "client.usage",
                f"which columns are left out cannot be read in {path}",
                remediation="Move the file away; :columns makes it anew.",
            ) from wrong

    def keep(self, cluster: str, table: str, left_out: Collection[str]) -> None:
        """Keep a choice; those of other tables stay as another program may have left them.

        Raises:
            ClientError: `client.usage`: the disk does not allow it, or the file is no such object.
        """
        path = self._path(cluster)
        if path is None:
            return
        choices = {**self.load(cluster), table: frozenset(left_out)}
        kept = {name: sorted(keys) for name, keys in sorted(choices.items()) if keys}
        replace_file(path, TypeAdapter(dict[str, list[str]]).dump_json(kept, indent=1).decode())

    def _path(self, cluster: str) -> Path | None:
        # A profile's name is made of letters, digits, `_` and `-`.
        return None if self._folder is None else self._folder / f"{cluster or _OF_NO_NAME}.json"


def _adapter() -> TypeAdapter[dict[str, frozenset[str]]]:
    return TypeAdapter(dict[str, frozenset[str]])
