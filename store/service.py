"""The store of one node: which models are here, and how one comes or goes.

Knows no cluster. Starts no task: work is done by the callers that wait for it. Several processes
may share one models volume; a lock per artifact keeps them apart.
"""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from protocol.cards import HubSource, LocalSource, ModelCard, PackageSource, card_digest
from protocol.clock import Clock
from protocol.errors import StoreError, error_of
from protocol.ids import Digest, ModelId
from store.catalog import Catalog
from store.fetch import Fetcher, FetchPolicy
from store.layout import StoreLayout
from store.manifest import Manifest
from store.offers import Offers
from store.origins import on_disk
from store.peer_pull import PeerPull, PeerSources
from store.progress import TransferProgress
from store.rate_limit import RateLimit
from store.sources.local import in_place
from store.sources.package import PipResolver, WheelResolver
from store.threads import Sleep, in_thread
from store.transfer import FailPoint, PackagePull, ProgressListener, Transfer
from store.verification import ArtifactCheck, Damages, damage_of
from store.volume import ArtifactProblem, Volume
from store.weights_meta import read_gguf_header

LOCK_WAIT_S: Final = 3600.0
LOCK_POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledArtifact:
    """A model whose files are complete on this node."""

    model_id: ModelId
    card_digest: Digest
    root: Path
    """Directory of the artifact; of the file itself when it is used where it lies."""
    entry: Path
    """The file that the engine is given."""
    projector: Path | None
    """What makes images readable to the model, if the card names one that is there."""
    size_bytes: int
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedArtifact:
    """A model that was complete on this node, until a verification found otherwise."""

    model_id: ModelId
    path: Path
    size_bytes: int
    damages: Damages


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStatus:
    """A transfer in progress."""

    model_id: ModelId
    n_waiting: int
    progress: TransferProgress | None


def artifact_key(card: ModelCard) -> Digest:
    """Name the place of a card's files.

    By model id and source only, so that editing the rest of a card fetches nothing again.
    """
    source = None if card.source is None else card.source.model_dump(mode="json")
    text = json.dumps([card.model_id, source], sort_keys=True, separators=(",", ":"))
    return Digest(hashlib.sha256(b"skulk artifact\0" + text.encode()).hexdigest())


@final
class Store:
    """Cards, artifacts and transfers of one node.

    Args:
        layout: The models volume.
        clock: Measures rates and stamps manifests.
        downloads_enabled: False on a node that must fetch nothing.
        offline: True where no call may leave the cluster.
        peers: The cluster's other nodes; None asks none.
        resolver: Says where a package's wheel is; default: pip.
        policy: How patient transfers are.
        sleep: Waits between attempts.
        limit: How fast bytes may come from outside the cluster; None is as fast as they do.
        free_bytes: Of the models volume; default: what the file system says.
        fail_point: Called with the name of each step just before it.
    """

    def __init__(
        self,
        layout: StoreLayout,
        *,
        clock: Clock,
        downloads_enabled: bool = True,
        offline: bool = False,
        peers: PeerSources | None = None,
        resolver: WheelResolver | None = None,
        policy: FetchPolicy | None = None,
        sleep: Sleep = asyncio.sleep,
        limit: RateLimit | None = None,
        free_bytes: Callable[[], int] | None = None,
        fail_point: FailPoint = lambda _name: None,
    ) -> None:
        self._layout = layout
        self._volume = Volume(layout)
        self._clock = clock
        self._downloads_enabled = downloads_enabled
        self._offline = offline
        self._sleep = sleep
        self._transfers: dict[Digest, Transfer] = {}
        free_bytes = free_bytes or self._free_bytes
        self._pull = PackagePull(
            layout,
            resolver=resolver or PipResolver(),
            fetcher=Fetcher(policy=policy, sleep=sleep, limit=limit),
            clock=clock,
            free_bytes=free_bytes,
            fail_point=fail_point,
        )
        self._peer_pull = peers and PeerPull(
            layout,
            peers,
            clock=clock,
            sleep=sleep,
            free_bytes=free_bytes,
            fail_point=fail_point,
        )
        self.catalog = Catalog(layout)
        self.offers = Offers(layout, self.catalog, artifact_key)

    def locate(self, card: ModelCard) -> InstalledArtifact | None:
        """Find a card's files, if they are complete and as they were when they were verified.

        Reads no weights and hashes nothing.
        """
        found = None
        if isinstance(card.source, LocalSource):
            with suppress(StoreError):
                found = self._in_place(card, card.source)
        return found or self._in_store(card)

    async def ensure(
        self, card: ModelCard, progress: ProgressListener | None = None
    ) -> InstalledArtifact:
        """Have a card's files complete on this node.

        Idempotent. Callers that want the same artifact share one transfer; one that is cancelled
        leaves it to the others, and to nobody's harm: what was fetched stays for the next call.

        Args:
            card: Whose files.
            progress: Told ten times a second, on the event loop; must not block.

        Raises:
            StoreError: `store.incomplete` for a file in place that is not what was imported,
                `store.gguf_invalid`, `store.gguf_truncated`, `store.downloads_disabled`,
                `store.offline`, `store.no_space`, `store.in_use`, and those of fetching.
        """
        if card.source is None:
            raise _no_source(card, "does not say where its files are")
        found = self.locate(card)
        if found is None:
            await self._refuse_damaged(card)
            found = await self._share(card, progress)
        if isinstance(card.source, LocalSource):
            await in_thread(read_gguf_header, found.entry)
        return found

    def open_check(self, card: ModelCard) -> ArtifactCheck:
        """Prepare to hash a model's files again, and say of each what it is now. Blocking.

        Raises:
            StoreError: `store.not_found`: its files are not in the store, or nothing says what they
                should be; those used where they lie are their owner's.
        """
        try:
            return ArtifactCheck(self._layout, artifact_key(card))
        except (OSError, LookupError) as error:
            raise StoreError(
                "store.not_found",
                f"the store holds no files of {card.model_id} that could be verified",
                remediation="`skulk models files` shows what lies where; a file that is used where "
                "it lies has nothing that it could be held against.",
            ) from error

    async def repair(self, card: ModelCard) -> bool:
        """Let a damaged artifact be fetched anew by the next `ensure`: only what is damaged.

        Returns:
            False when no damage is known.

        Raises:
            StoreError: `store.in_use`, `store.no_space`, `store.disk_failed`.
        """
        key = artifact_key(card)
        if await on_disk(self._volume.damages, key) is None:
            return False
        async with self._claimed(key, card.model_id, wait_s=0.0):
            await on_disk(self._volume.let_be_repaired, key)
        return True

    def list_damaged(self) -> tuple[DamagedArtifact, ...]:
        """Give what a verification has found damaged. Blocking."""
        found: list[DamagedArtifact] = []
        for key in self._layout.artifact_keys():
            damages, model_id = self._volume.damages(key), self._volume.model_of(key)
            if damages is not None and model_id is not None:
                path = self._layout.artifact_path(key)
                size_bytes = self._volume.size_bytes(key)
                found.append(
                    DamagedArtifact(
                        model_id=model_id, path=path, size_bytes=size_bytes, damages=damages
                    )
                )
        return tuple(found)

    async def remove(self, model_id: ModelId) -> int:
        """Delete a model's files from the store; forget, but never touch, files used in place.

        The caller sees to it that no engine has them open.

        Returns:
            Bytes freed.

        Raises:
            StoreError: `store.not_found`, `store.in_use` while it is being fetched,
                `store.disk_failed`.
        """
        if any(transfer.model_id == model_id for transfer in self._transfers.values()):
            raise _in_use(model_id)
        entry = self.catalog.get(model_id)
        forgotten = False
        if entry is not None and isinstance(entry.card.source, LocalSource):
            forgotten = self.catalog.remove(model_id)
            await on_disk(self.offers.forget, artifact_key(entry.card))
        keys = await on_disk(self._volume.keys_of, model_id)
        freed_bytes = 0
        for key in keys:
            async with self._claimed(key, model_id, wait_s=0.0):
                freed_bytes += await on_disk(self._volume.delete, key)
        if not keys and not forgotten:
            raise StoreError(
                "store.not_found",
                f"no files of {model_id} are in the store",
                remediation="`skulk models list` shows what is.",
            )
        return freed_bytes

    def list_installed(self) -> tuple[InstalledArtifact, ...]:
        """Give every complete model on this node, those used in place included, by id."""
        located = (self.locate(entry.card) for entry in self.catalog.list())
        return tuple(artifact for artifact in located if artifact is not None)

    def problems(self) -> tuple[ArtifactProblem, ...]:
        """Give what looks like a model and is not complete: in the store, and in place."""
        found = list(self._volume.problems())
        for entry in self.catalog.list():
            source = entry.card.source
            if isinstance(source, LocalSource) and self._in_store(entry.card) is None:
                try:
                    self._in_place(entry.card, source)
                except StoreError as error:
                    found.append(
                        ArtifactProblem(
                            path=source.path,
                            model_id=entry.card.model_id,
                            size_bytes=source.size_bytes,
                            problem=error.message,
                        )
                    )
        return tuple(found)

    def transfers(self) -> tuple[TransferStatus, ...]:
        """Give the transfers in progress."""
        return tuple(
            TransferStatus(
                model_id=transfer.model_id, n_waiting=transfer.n_waiting, progress=transfer.shown
            )
            for transfer in self._transfers.values()
        )

    def staging_bytes(self) -> int:
        """Measure what transfers that have not ended take on the models volume. Blocking."""
        return self._volume.staging_bytes()

    def recover(self) -> tuple[ArtifactProblem, ...]:
        """Make the directories, and tidy up after a process that ended in the middle of something.

        Blocking; called once, at start. See `Volume.recover_staging` for what is kept.

        Returns:
            What was found, and what became of it.

        Raises:
            StoreError: `store.disk_failed`, `store.no_space`.
        """
        self._layout.prepare()
        rests = self._volume.recover_staging(now_s=self._clock.wall_ms() / 1000)
        return (*rests, *self.problems())

    def _in_place(self, card: ModelCard, source: LocalSource) -> InstalledArtifact:
        manifest = in_place(card.model_id, source, now_ms=self._clock.wall_ms())
        entry = Path(source.path)
        projector = None if source.projector is None else Path(source.projector.path)
        return _installed(card, entry, projector, manifest, root=entry.parent)

    def _in_store(self, card: ModelCard) -> InstalledArtifact | None:
        key = artifact_key(card)
        manifest = self._volume.verified_manifest(key)
        if manifest is None:
            return None
        # The card's choice before the manifest's: editing which file it is fetches nothing.
        chosen = {file.path for file in manifest.files} & {card.gguf_file}
        entry = self._layout.file_path(key, chosen.pop() if chosen else manifest.entry)
        wanted = card.vision.projector_file if card.vision is not None else None
        is_there = wanted is not None and any(file.path == wanted for file in manifest.files)
        projector = self._layout.file_path(key, wanted) if wanted and is_there else None
        return _installed(card, entry, projector, manifest, root=self._layout.artifact_path(key))

    async def _refuse_damaged(self, card: ModelCard) -> None:
        damages = await on_disk(self._volume.damages, artifact_key(card))
        if damages is not None:
            raise StoreError(
                "store.damaged",
                f"{card.model_id} cannot be used on this node: {damage_of(damages)}",
                remediation=f"`skulk models pull {card.model_id}` there fetches them anew.",
                details={"n_files": len(damages.files), "at_ms": damages.at_ms},
            )

    async def _share(self, card: ModelCard, progress: ProgressListener | None) -> InstalledArtifact:
        """Wait for, or do, the transfer that all callers for this artifact share."""
        key = artifact_key(card)
        new = Transfer(card.model_id, _own_source(card), self._clock)
        transfer = self._transfers.setdefault(key, new)
        transfer.n_waiting += 1
        if progress is not None:
            transfer.listeners.append(progress)
        try:
            async with transfer.lock:
                if transfer.error is not None:
                    raise error_of(transfer.error.body())
                return self._in_store(card) or await self._work(card, key, transfer)
        except StoreError as error:
            transfer.error = error
            raise
        finally:
            if progress is not None:
                transfer.listeners.remove(progress)
            transfer.n_waiting -= 1
            if transfer.n_waiting == 0:
                del self._transfers[key]

    async def _work(self, card: ModelCard, key: Digest, transfer: Transfer) -> InstalledArtifact:
        await on_disk(self._layout.prepare)
        async with self._claimed(key, card.model_id, wait_s=LOCK_WAIT_S):
            found = self._in_store(card)
            if found is None and not await self._verified_again(key, transfer):
                await self._bring(card, key, transfer)
            found = found or self.locate(card)
        if found is None:
            raise StoreError(
                "store.disk_failed",
                f"the files of {card.model_id} were stored and are not there",
                remediation="Check the models volume for errors and for others who write to it.",
            )
        return found

    async def _verified_again(self, key: Digest, transfer: Transfer) -> bool:
        """Hash an artifact that looks different: moved volumes change identities, not bytes."""
        again = self._volume.begin_verification(key)
        if again is None:
            return False
        transfer.begin("verify", total_bytes=again.total_bytes)
        try:
            while await on_disk(again.step):
                transfer.advance(again.done_bytes)
        except StoreError as error:
            if error.code not in {"store.digest_mismatch", "store.incomplete"}:
                raise
            # Not what it was: it is fetched again, and replaced when that is complete.
            return False
        finally:
            again.close()
        return True

    async def _bring(self, card: ModelCard, key: Digest, transfer: Transfer) -> None:
        """Have the artifact complete: from the other nodes if they can, else from its own source.

        Offline nothing comes from outside the cluster; what its nodes have is inside.
        """
        refusal = self._own_refusal(card)
        if self._peer_pull is not None and self._downloads_enabled:
            outcome = await self._peer_pull.run(card, key, transfer, is_own_remote=refusal is None)
            if outcome.error is None:
                return
            if refusal is not None and outcome.was_asked:
                raise outcome.error
            if refusal is not None and isinstance(card.source, LocalSource):
                raise _nowhere(refusal)
        if refusal is not None:
            raise refusal
        if isinstance(card.source, PackageSource):
            transfer.restart(_own_source(card))
            await self._pull.run(card, card.source, key, transfer)

    def _own_refusal(self, card: ModelCard) -> StoreError | None:
        """Say why a card's own source gives nothing here; None when it can be asked."""
        match card.source:
            case LocalSource() as source:
                try:
                    self._in_place(card, source)
                except StoreError as error:
                    return error
                return None
            case PackageSource() if self._offline:
                return StoreError(
                    "store.offline",
                    f"{card.model_id} is not on this node, no other that can be reached has it, "
                    "and offline nothing is fetched from elsewhere",
                    remediation="Start without --offline, or import a file: `skulk models import`.",
                )
            case PackageSource() if not self._downloads_enabled:
                return StoreError(
                    "store.downloads_disabled",
                    f"{card.model_id} is not on this node, and downloads are disabled here",
                    remediation="Start without --no-downloads, or import a file: "
                    "`skulk models import`.",
                )
            case PackageSource():
                return None
            case HubSource() | None:
                return _no_source(card, "names a hub repository, which is not fetched yet")

    @asynccontextmanager
    async def _claimed(
        self, key: Digest, model_id: ModelId, *, wait_s: float
    ) -> AsyncGenerator[None]:
        """Hold a key against other processes on the same volume."""
        deadline = self._clock.monotonic_s() + wait_s
        while (lock := self._volume.try_lock(key)) is None:
            if self._clock.monotonic_s() >= deadline:
                raise _in_use(model_id)
            await self._sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            os.close(lock)

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._layout.models_dir).free


def _installed(
    card: ModelCard, entry: Path, projector: Path | None, manifest: Manifest, *, root: Path
) -> InstalledArtifact:
    return InstalledArtifact(
        model_id=card.model_id,
        card_digest=card_digest(card),
        root=root,
        entry=entry,
        projector=projector,
        size_bytes=manifest.size_bytes,
        manifest=manifest,
    )


def _own_source(card: ModelCard) -> str:
    """Say where a card's files come from when no other node has them."""
    match card.source:
        case PackageSource() as source:
            return f"package {source.package} {source.version}"
        case LocalSource():
            return "the node that it was imported on"
        case HubSource() as source:
            return f"hub {source.repository}"
        case None:
            return "nowhere"


def _nowhere(in_place: StoreError) -> StoreError:
    """Say that a file is not where the card says, and with no other node either."""
    return StoreError(
        in_place.code,
        f"{in_place.message}; no other node that can be reached has its files",
        remediation=f"{in_place.remediation} Or start the node that it was imported on.",
        details=in_place.details,
    )


def _no_source(card: ModelCard, problem: str) -> StoreError:
    return StoreError(
        "store.source_unavailable",
        f"the card of {card.model_id} {problem}",
        remediation="Import a file that is on this machine: `skulk models import PATH`.",
    )


def _in_use(model_id: ModelId) -> StoreError:
    return StoreError(
        "store.in_use",
        f"{model_id} is being fetched or removed",
        remediation="Wait for it, or cancel it, then try again.",
        retry_after_s=5,
    )
