"""Files that this node gives to its peers: verified ones, by artifact and number, never by path.

An artifact of the store was verified when it came. A file that is used where it lies never was: it
is hashed once before it is first given, and its digest is kept for as long as it looks the same.
Everything here blocks; callers go to a thread.
"""

import hashlib
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from protocol.cards import LocalSource, ModelCard
from protocol.errors import StoreError
from protocol.ids import Digest, ModelId
from store.catalog import Catalog
from store.importer import part_names
from store.layout import ARTIFACTS, DIGESTS, FILES, StoreLayout, disk_error, open_beneath
from store.manifest import (
    HASH_CHUNK_BYTES,
    STEP_BYTES,
    FileIdentity,
    Manifest,
    ManifestFile,
    identity_of,
    incomplete,
    read_document,
    write_durably,
)
from store.sources.local import in_place
from store.sources.peer import PeerFile
from store.volume import Volume

KeyOf = Callable[[ModelCard], Digest]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldArtifact:
    """An artifact that is complete here."""

    key: Digest
    model_id: ModelId
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where one offered file is, and how it looked when its digest was taken."""

    file: PeerFile
    identity: FileIdentity
    location: str
    """Below the artifact's directory; absolute for a file that is used where it lies."""


@final
class Offer:
    """An artifact that a peer may read. Safe to be closed while another thread reads.

    Args:
        layout: Of the volume.
        key: Of the artifact.
        sources: Its files, in the order of its card.
    """

    def __init__(self, layout: StoreLayout, key: Digest, sources: tuple[_Source, ...]) -> None:
        self._layout = layout
        self._key = key
        self._sources = sources
        self._lock = threading.Lock()
        self._open_index = -1
        self._descriptor = -1
        self._is_closed = False

    @property
    def files(self) -> tuple[PeerFile, ...]:
        """What it consists of."""
        return tuple(source.file for source in self._sources)

    def read(self, index: int, offset: int, n_bytes: int) -> bytes:
        """Read a piece of a file, if it is still the file that was verified.

        Raises:
            StoreError: `store.incomplete` when it is not, or the piece lies outside the file;
                `store.disk_failed`.
        """
        with self._lock:
            if self._is_closed or not 0 <= index < len(self._sources):
                raise incomplete(str(index), "it is not offered")
            source = self._sources[index]
            if offset + n_bytes > source.file.size_bytes:
                raise incomplete(source.file.path, f"it ends before byte {offset + n_bytes}")
            try:
                return self._read(source, index, offset, n_bytes)
            except OSError as error:
                raise disk_error(error, f"reading {source.file.path} for a peer") from error

    def close(self) -> None:
        """Close what is open, after the read that is under way. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._shut()

    def _read(self, source: _Source, index: int, offset: int, n_bytes: int) -> bytes:
        if index != self._open_index:
            self._shut()
            self._descriptor = _open(self._layout, self._key, source)
            self._open_index = index
        pieces: list[bytes] = []
        missing = n_bytes
        while missing and (
            piece := os.pread(self._descriptor, missing, offset + n_bytes - missing)
        ):
            pieces.append(piece)
            missing -= len(piece)
        # Looked at after the bytes were read, so that they are those that were verified.
        if missing or identity_of(os.fstat(self._descriptor)) != source.identity:
            raise incomplete(source.file.path, "it was written to since it was verified")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _shut(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = self._open_index = -1


@final
class UnhashedOffer:
    """Files used where they lie whose digests are not known yet: hashes them in steps.

    Args:
        layout: Of the volume, where the digests are kept.
        key: Of the artifact.
        manifest: The files as they look now, without digests.
    """

    def __init__(self, layout: StoreLayout, key: Digest, manifest: Manifest) -> None:
        self._layout = layout
        self._key = key
        self._manifest = manifest
        self._hashed: list[ManifestFile] = []
        self._hash = hashlib.sha256()
        self._descriptor = -1
        self._offset = 0
        self._done_bytes = 0
        self.total_bytes = manifest.size_bytes

    @property
    def done_bytes(self) -> int:
        """How much is hashed."""
        return self._done_bytes

    def step(self) -> bool:
        """Hash the next 32 MiB; after the last ones, keep the digests.

        Returns:
            Whether more is to come.

        Raises:
            StoreError: `store.incomplete` for a file that is written to meanwhile;
                `store.disk_failed`, `store.no_space`.
        """
        file = self._manifest.files[len(self._hashed)]
        try:
            self._step(file)
            if len(self._hashed) < len(self._manifest.files):
                return True
            self._keep()
        except OSError as error:
            raise disk_error(error, f"hashing {file.path}") from error
        return False

    def close(self) -> None:
        """Close what is open. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _step(self, file: ManifestFile) -> None:
        if self._descriptor < 0:
            self._descriptor = _open_in_place(file.path)
            self._hash, self._offset = hashlib.sha256(), 0
        for _ in range(STEP_BYTES // HASH_CHUNK_BYTES):
            chunk = os.pread(self._descriptor, HASH_CHUNK_BYTES, self._offset)
            if not chunk:
                self._end(file)
                return
            self._hash.update(chunk)
            self._offset += len(chunk)
            self._done_bytes += len(chunk)

    def _end(self, file: ManifestFile) -> None:
        if identity_of(os.fstat(self._descriptor)) != file.identity:
            raise incomplete(file.path, "it was written to while it was hashed")
        digest = Digest(self._hash.hexdigest())
        self._hashed.append(file.model_copy(update={"sha256": digest}))
        self.close()

    def _keep(self) -> None:
        known = self._manifest.model_copy(update={"files": tuple(self._hashed)})
        self._layout.prepare()
        with self._layout.opened(DIGESTS) as directory:
            write_durably(directory, f"{self._key}.json", known.model_dump_json().encode())


@final
class Offers:
    """What this node can give to its peers. Threads may share it.

    Args:
        layout: Of the volume.
        catalog: Names the files that are used where they lie.
        key_of: Names the artifact of a card.
    """

    def __init__(self, layout: StoreLayout, catalog: Catalog, key_of: KeyOf) -> None:
        self._layout = layout
        self._volume = Volume(layout)
        self._catalog = catalog
        self._key_of = key_of

    def held(self) -> tuple[HeldArtifact, ...]:
        """List what is complete here, those files included that are used where they lie.

        Reads no weights; costs one look at each file.
        """
        found: dict[Digest, HeldArtifact] = {}
        for key in self._layout.artifact_keys():
            manifest = self._volume.verified_manifest(key)
            if manifest is not None:
                found[key] = _held(key, manifest)
        for key, card, source in self._local_cards():
            with suppress(StoreError):
                found.setdefault(key, _held(key, in_place(card.model_id, source, now_ms=0)))
        return tuple(found[key] for key in sorted(found))

    def open(self, key: Digest) -> Offer | UnhashedOffer | None:
        """Have an artifact ready to be read, or hashed first; None when it is not complete here."""
        manifest = self._volume.verified_manifest(key)
        if manifest is not None and all(file.sha256 for file in manifest.files):
            return Offer(self._layout, key, _stored_sources(manifest))
        for other, card, source in self._local_cards():
            if other == key:
                return self._open_in_place(key, card, source)
        return None

    def forget(self, key: Digest) -> None:
        """Forget the digests of files that are no longer used where they lie. Idempotent.

        Raises:
            OSError: The disk refuses.
        """
        with suppress(FileNotFoundError), self._layout.opened(DIGESTS) as directory:
            os.unlink(f"{key}.json", dir_fd=directory)

    def _open_in_place(
        self, key: Digest, card: ModelCard, source: LocalSource
    ) -> Offer | UnhashedOffer | None:
        try:
            present = in_place(card.model_id, source, now_ms=0)
        except StoreError:
            return None
        known = self._known(key)
        if known is None or not _is_same(known, present):
            return UnhashedOffer(self._layout, key, present)
        return Offer(self._layout, key, _sources_in_place(known, source))

    def _known(self, key: Digest) -> Manifest | None:
        try:
            with self._layout.opened(DIGESTS) as directory:
                return read_document(directory, f"{key}.json")
        except OSError:
            return None

    def _local_cards(self) -> list[tuple[Digest, ModelCard, LocalSource]]:
        cards = [entry.card for entry in self._catalog.list()]
        return [
            (self._key_of(card), card, card.source)
            for card in cards
            if isinstance(card.source, LocalSource)
        ]


def _held(key: Digest, manifest: Manifest) -> HeldArtifact:
    return HeldArtifact(key=key, model_id=manifest.model_id, size_bytes=manifest.size_bytes)


def _stored_sources(manifest: Manifest) -> tuple[_Source, ...]:
    return tuple(_source(file.path, f"{FILES}/{file.path}", file) for file in manifest.files)


def _sources_in_place(known: Manifest, source: LocalSource) -> tuple[_Source, ...]:
    names = part_names(source)
    return tuple(
        _source(name, file.path, file) for name, file in zip(names, known.files, strict=True)
    )


def _source(name: str, location: str, file: ManifestFile) -> _Source:
    if file.sha256 is None:
        message = f"{file.path} has no digest and cannot be offered"
        raise AssertionError(message)
    offered = PeerFile(path=name, size_bytes=file.size_bytes, sha256=file.sha256)
    return _Source(file=offered, identity=file.identity, location=location)


def _is_same(known: Manifest, present: Manifest) -> bool:
    return [(file.path, file.identity) for file in known.files if file.sha256] == [
        (file.path, file.identity) for file in present.files
    ]


def _open(layout: StoreLayout, key: Digest, source: _Source) -> int:
    if source.location.startswith("/"):
        return _open_in_place(source.location)
    flags = os.O_RDONLY | os.O_NONBLOCK
    with layout.opened(ARTIFACTS, key) as directory:
        return open_beneath(directory, source.location, flags)


def _open_in_place(path: str) -> int:
    # As its owner laid it out: hub caches are made of links. What it leads to is compared with
    # what was hashed.
    descriptor = os.open(Path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise incomplete(path, "it is not a regular file")
    return descriptor
