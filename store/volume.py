"""What lies on the models volume: complete artifacts, rests of transfers, and who works on them."""

import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from protocol.errors import StoreError
from protocol.ids import Digest, ModelId
from store.cards import read_card
from store.layout import (
    ARTIFACTS,
    CARD,
    LOCKS,
    MANIFEST,
    STAGING,
    StoreLayout,
    directory_beneath,
    disk_error,
    names_in,
    open_beneath,
    remove_tree,
)
from store.manifest import Manifest, Verification, first_difference, read_manifest, write_manifest
from store.peer_staging import seed
from store.transfer import ASSEMBLY, PEER, REPLACED, WHEEL
from store.verification import Damages, damage_of, forget_damages, read_damages

KEEP_PARTIALS_S: Final = 7 * 24 * 3600
"""A rest that nobody resumed for so long is deleted at the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactProblem:
    """Something on the models volume that is not a complete model."""

    path: str
    model_id: ModelId | None
    size_bytes: int
    problem: str
    """What is wrong, and what becomes of it."""


@final
class Volume:
    """The artifacts and staging directories of one models volume. All methods block.

    Args:
        layout: Of the volume.
    """

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout

    def verified_manifest(self, key: Digest) -> Manifest | None:
        """Give the manifest of an artifact whose files are as they were verified."""
        manifest, difference = self._compared(key)
        return manifest if difference is None else None

    def keys_of(self, model_id: ModelId) -> tuple[Digest, ...]:
        """Find what the store holds for a model: artifacts complete or not."""
        keys = self._layout.artifact_keys()
        return tuple(key for key in keys if self.model_of(key) == model_id)

    def model_of(self, key: Digest) -> ModelId | None:
        """Say whose artifact it is, by its manifest or else the card beside it."""
        manifest, _ = self._compared(key)
        if manifest is not None:
            return manifest.model_id
        try:
            return read_card(self._layout.artifact_path(key) / CARD).model_id
        except StoreError:
            return None

    def problems(self) -> tuple[ArtifactProblem, ...]:
        """Give what lies under `artifacts` and does not pass for complete."""
        found: list[ArtifactProblem] = []
        for key in self._layout.artifact_keys():
            _, difference = self._compared(key)
            if difference is not None:
                found.append(
                    ArtifactProblem(
                        path=str(self._layout.artifact_path(key)),
                        model_id=self.model_of(key),
                        size_bytes=self._bytes_under(ARTIFACTS, key),
                        problem=f"{difference}; verified or fetched again when it is wanted",
                    )
                )
        return tuple(found)

    def begin_verification(self, key: Digest) -> "Reverification | None":
        """Prepare to hash an artifact again whose files look different than they did.

        Returns:
            Nothing when there is no manifest to hold them against.
        """
        with suppress(OSError), self._layout.opened(ARTIFACTS, key) as directory:
            manifest = read_manifest(directory)
            if manifest is not None:
                return Reverification(os.dup(directory), manifest)
        return None

    def damages(self, key: Digest) -> Damages | None:
        """Say what a verification has found wrong with an artifact; None for nothing."""
        with suppress(OSError), self._layout.opened(ARTIFACTS, key) as directory:
            return read_damages(directory)
        return None

    def size_bytes(self, key: Digest) -> int:
        """Measure what an artifact takes."""
        return self._bytes_under(ARTIFACTS, key)

    def let_be_repaired(self, key: Digest) -> None:
        """Keep the files of a damaged artifact that are well for the next transfer.

        From then on it is one that is not complete. The caller holds the key's lock. Nothing where
        no damage is known.

        Raises:
            OSError: The disk refuses.
        """
        with self._layout.opened(ARTIFACTS, key) as directory:
            damages, manifest = read_damages(directory), read_manifest(directory)
            if damages is None:
                return
            if manifest is not None:
                damaged = {one.path for one in damages.files}
                well = [file for file in manifest.files if file.path not in damaged]
                seed(self._layout, key, directory, manifest, well)
                os.unlink(MANIFEST, dir_fd=directory)
            forget_damages(directory)

    def delete(self, key: Digest) -> int:
        """Delete an artifact and what staging holds for it.

        It is gone from `artifacts` in one step, before its files are deleted.

        Returns:
            Bytes freed.

        Raises:
            OSError: The disk refuses.
        """
        freed_bytes = self._bytes_under(ARTIFACTS, key) + self._bytes_under(STAGING, key)
        with self._layout.opened() as root, self._layout.opened(STAGING) as staging:
            remove_tree(staging, key)
            with suppress(FileNotFoundError):
                os.rename(
                    f"{ARTIFACTS}/{key}", f"{STAGING}/{key}", src_dir_fd=root, dst_dir_fd=root
                )
            remove_tree(staging, key)
        return freed_bytes

    def staging_bytes(self) -> int:
        """Measure the rests of transfers that have not ended."""
        return sum(self._bytes_under(STAGING, key) for key in self._layout.staging_keys())

    def recover_staging(self, *, now_s: float) -> tuple[ArtifactProblem, ...]:
        """Tidy up after a process that ended in the middle of something.

        Half-made artifacts are deleted, since they are made again in seconds. What was fetched is
        kept for seven days after its last byte. What another process works on is left alone.

        Args:
            now_s: Wall-clock seconds since 1970.

        Raises:
            StoreError: `store.disk_failed`.
        """
        found: list[ArtifactProblem] = []
        for key in self._layout.staging_keys():
            lock = self.try_lock(key)
            if lock is None:
                continue
            try:
                found.append(self._recover(key, now_s))
            except OSError as error:
                raise disk_error(error, "tidying the staging directory") from error
            finally:
                os.close(lock)
        return tuple(found)

    def try_lock(self, key: Digest) -> int | None:
        """Claim a key among all processes that share the volume.

        Returns:
            A descriptor that holds the claim until it is closed; nothing when another has it. The
            claim ends with the process, however that ends.

        Raises:
            StoreError: `store.disk_failed`.
        """
        try:
            with self._layout.opened(LOCKS) as locks:
                descriptor = open_beneath(locks, key, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise disk_error(error, "locking an artifact") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise disk_error(error, "locking an artifact") from error
        return descriptor

    def _compared(self, key: Digest) -> tuple[Manifest | None, str | None]:
        try:
            with self._layout.opened(ARTIFACTS, key) as directory:
                manifest = read_manifest(directory)
                if manifest is None:
                    return None, "it has no usable manifest"
                damages = read_damages(directory)
                if damages is not None:
                    return manifest, damage_of(damages)
                return manifest, first_difference(directory, manifest)
        except OSError as error:
            return None, f"it cannot be opened ({error.strerror})"

    def _recover(self, key: Digest, now_s: float) -> ArtifactProblem:
        n_bytes = self._bytes_under(STAGING, key)
        path = str(self._layout.staging_path(key))
        with self._layout.opened(STAGING) as root, directory_beneath(root, [key]) as staging:
            remove_tree(staging, ASSEMBLY)
            remove_tree(staging, REPLACED)
            rests = [name for name in names_in(staging) if name.startswith((WHEEL, PEER))]
            newest_s = max((_newest_s(staging, name) for name in rests), default=0.0)
            if rests and now_s - newest_s < KEEP_PARTIALS_S:
                n_bytes = self._bytes_under(STAGING, key)
                problem = "a transfer was cut short; the next one goes on from here"
                return ArtifactProblem(
                    path=path, model_id=None, size_bytes=n_bytes, problem=problem
                )
            remove_tree(root, key)
        problem = "the rest of a transfer; deleted"
        return ArtifactProblem(path=path, model_id=None, size_bytes=n_bytes, problem=problem)

    def _bytes_under(self, *parents: str) -> int:
        try:
            with self._layout.opened(*parents) as directory:
                return _bytes_in(directory)
        except OSError:
            return 0


@final
class Reverification:
    """Hashes an artifact again in steps, and records present identities when all is right.

    Args:
        directory: Descriptor of the artifact; owned, closed by `close`.
        manifest: What should be there.
    """

    def __init__(self, directory: int, manifest: Manifest) -> None:
        self._directory = directory
        self._verification = Verification(directory, manifest)
        self.total_bytes = manifest.size_bytes

    @property
    def done_bytes(self) -> int:
        """How much is hashed."""
        return self._verification.done_bytes

    def step(self) -> bool:
        """Hash the next piece; after the last one, write the manifest.

        Raises:
            StoreError: `store.digest_mismatch`, `store.incomplete`.
            OSError: The disk fails.
        """
        if self._verification.step():
            return True
        write_manifest(self._directory, self._verification.result)
        forget_damages(self._directory)
        return False

    def close(self) -> None:
        """Close what is open. Idempotent."""
        self._verification.close()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1


def _newest_s(directory: int, name: str) -> float:
    """Give the wall time of the last change to a file, or to anything in a directory."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    newest_s = found.st_mtime
    if stat.S_ISDIR(found.st_mode):
        with directory_beneath(directory, [name]) as inner:
            for entry in names_in(inner):
                newest_s = max(newest_s, _newest_s(inner, entry))
    return newest_s


def _bytes_in(directory: int) -> int:
    total = 0
    for name in names_in(directory):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            with directory_beneath(directory, [name]) as inner:
                total += _bytes_in(inner)
        else:
            total += found.st_size
    return total
