"""Files on their way here from other nodes, as they lie in staging.

    staging/<key>/peer.json               what is being fetched
    staging/<key>/peer.incoming/<n>…      the partial of file n
    staging/<key>/peer/files/<path>       files that are whole and verified

The directory `peer` becomes the artifact by one rename, so that there is no moment at which a kill
costs a file that was whole. What is left of an earlier try is gone on with if it is part of the
same files, whichever node they come from.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final, final

from pydantic import Field, ValidationError

from protocol.base import FrozenModel
from protocol.cards import ModelCard, RelativePath
from protocol.ids import Digest, DigestField
from store.layout import (
    FILES,
    STAGING,
    StoreLayout,
    directory_beneath,
    make_directories,
    names_in,
    open_beneath,
    remove_tree,
    stat_beneath,
    sync_directory,
)
from store.manifest import Manifest, ManifestFile, write_durably
from store.partial import Partial
from store.sources.peer import PeerFile
from store.transfer import PEER, complete, make_staging, publish, verified_file

_EXPECTED: Final = f"{PEER}.json"
_INCOMING: Final = f"{PEER}.incoming"
_MAX_EXPECTED_BYTES: Final = 2 * 1024 * 1024


class _ExpectedFile(FrozenModel):
    path: RelativePath
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: DigestField


class _Expected(FrozenModel):
    files: Annotated[tuple[_ExpectedFile, ...], Field(min_length=1)]


def seed(
    layout: StoreLayout,
    key: Digest,
    artifact: int,
    manifest: Manifest,
    well: Sequence[ManifestFile],
) -> None:
    """Have files of an artifact that are well counted as arrived, by links: no byte is copied.

    Args:
        layout: Of the volume.
        key: Of the artifact; the caller holds its lock.
        artifact: Descriptor of its directory.
        manifest: What it consists of.
        well: Files of it that are as they should be.

    Raises:
        OSError: The disk refuses.
    """
    files = tuple(
        PeerFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)
        for file in manifest.files
        if file.sha256 is not None
    )
    if len(files) != len(manifest.files):
        return
    staging = PeerStaging(layout, key, files)
    try:
        staging.open()
        for file in well:
            staging.link(file.path, artifact)
    finally:
        staging.close()


@final
class PeerStaging:
    """One artifact's files on their way. All methods block; one caller at a time.

    Args:
        layout: Of the volume.
        key: Of the artifact; the caller holds its lock.
        files: What is to be fetched.
    """

    def __init__(self, layout: StoreLayout, key: Digest, files: tuple[PeerFile, ...]) -> None:
        self._layout = layout
        self._key = key
        self.files = files
        self._staging = self._directory = self._incoming = -1
        self._partials: dict[int, Partial] = {}
        self._whole: set[int] = set()

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def staged_bytes(self) -> int:
        """Of them, what is here."""
        return self.whole_bytes + sum(partial.length for partial in self._partials.values())

    @property
    def whole_bytes(self) -> int:
        """Of the files that are whole."""
        return sum(self.files[index].size_bytes for index in self._whole)

    def open(self) -> None:
        """Take up what an earlier try left, or start over where that was of other files.

        Raises:
            OSError: The disk refuses.
        """
        make_staging(self._layout, self._key)
        with self._layout.opened(STAGING, self._key) as staging:
            self._staging = os.dup(staging)
        if self._read_expected() != self._expected():
            for name in (PEER, _INCOMING):
                remove_tree(self._staging, name)
            content = self._expected().model_dump_json().encode()
            write_durably(self._staging, _EXPECTED, content)
        make_directories(self._staging, [PEER, FILES])
        make_directories(self._staging, [_INCOMING])
        with directory_beneath(self._staging, [PEER]) as directory:
            self._directory = os.dup(directory)
        with directory_beneath(self._staging, [_INCOMING]) as incoming:
            self._incoming = os.dup(incoming)
        arrived = set(names_in(self._incoming))
        for index in range(len(self.files)):
            if str(index) in arrived:
                self._settle(index)
            elif self._is_whole(index):
                self._whole.add(index)
            elif f"{index}.partial" in arrived:
                self.partial(index)

    def missing(self) -> list[int]:
        """List the files that are not whole."""
        return [index for index in range(len(self.files)) if index not in self._whole]

    def begun(self) -> list[int]:
        """List the files of which some bytes are here."""
        return [index for index, partial in self._partials.items() if partial.length]

    def partial(self, index: int) -> Partial:
        """Open a file's partial, or give the one that is open.

        Raises:
            OSError: The disk refuses.
        """
        partial = self._partials.get(index)
        if partial is None:
            partial = Partial(self._incoming, str(index), self.files[index].sha256)
            partial.open()
            partial.describe(total_bytes=self.files[index].size_bytes, etag=None)
            if partial.length > self.files[index].size_bytes:
                partial.restart()
            self._partials[index] = partial
        return partial

    def settle(self, index: int) -> None:
        """Verify a file that is all here, and give it its name.

        Raises:
            StoreError: `store.digest_mismatch`; its bytes are gone then.
            OSError: The disk refuses.
        """
        self._partials[index].publish()
        self._partials.pop(index).close()
        self._settle(index)

    def link(self, path: str, artifact: int) -> None:
        """Take a file that is whole and verified from an artifact's directory.

        Raises:
            OSError: The disk refuses.
        """
        *parents, name = path.split("/")
        with (
            directory_beneath(artifact, [FILES, *parents]) as source,
            directory_beneath(self._directory, [FILES]) as files,
        ):
            make_directories(files, parents)
            with directory_beneath(files, parents) as place, suppress(FileExistsError):
                os.link(name, name, src_dir_fd=source, dst_dir_fd=place, follow_symlinks=False)
                sync_directory(place)

    def publish(self, card: ModelCard, source: str, *, now_ms: int) -> None:
        """Make the files, which are all whole, the artifact.

        Raises:
            OSError: The disk refuses; nothing is lost.
        """
        files = tuple(
            verified_file(self._directory, file.path, file.size_bytes, file.sha256)
            for file in self.files
        )
        complete(self._directory, card, source, files, now_ms=now_ms)
        publish(self._layout, self._key, self._staging, PEER)

    def close(self) -> None:
        """Close what is open; everything stays. Idempotent."""
        for partial in self._partials.values():
            partial.close()
        self._partials.clear()
        for descriptor in (self._staging, self._directory, self._incoming):
            if descriptor >= 0:
                os.close(descriptor)
        self._staging = self._directory = self._incoming = -1

    def _settle(self, index: int) -> None:
        """Move a verified file to its place."""
        *parents, name = self.files[index].path.split("/")
        with directory_beneath(self._directory, [FILES]) as files:
            make_directories(files, parents)
            with directory_beneath(files, parents) as place:
                os.rename(str(index), name, src_dir_fd=self._incoming, dst_dir_fd=place)
                sync_directory(place)
        self._whole.add(index)

    def _is_whole(self, index: int) -> bool:
        try:
            stat_beneath(self._directory, f"{FILES}/{self.files[index].path}")
        except OSError:
            return False
        return True

    def _expected(self) -> _Expected:
        return _Expected(
            files=tuple(
                _ExpectedFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)
                for file in self.files
            )
        )

    def _read_expected(self) -> _Expected | None:
        with suppress(OSError, ValidationError):
            descriptor = open_beneath(self._staging, _EXPECTED, os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                return _Expected.model_validate_json(file.read(_MAX_EXPECTED_BYTES))
        return None
