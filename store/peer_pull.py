"""Brings an artifact from the nodes that have it, or that are just fetching it.

One download serves all nodes: who has the files gives them; who fetches them now is waited for, as
long as it gets on; and of two that begin at the same time the one with the lower id goes on. What
a peer gives costs it nothing more than one refusal when it is wrong: it is not asked again for a
while, and what came from others is kept.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, final

from protocol.cards import ModelCard
from protocol.clock import Clock
from protocol.errors import StoreError
from protocol.ids import Digest, NodeId
from protocol.readings import PAUSED_PHASE
from store.admission import SpaceNeed, check_space
from store.layout import StoreLayout
from store.origins import on_disk
from store.peer_staging import PeerStaging
from store.sources.peer import (
    IDLE_PHASES,
    PeerBusyError,
    PeerError,
    PeerFiles,
    PeerHoldings,
    PeerLease,
    PeerLiedError,
    PeerTransfer,
    agreed_files,
    peer_error,
)
from store.threads import Sleep
from store.transfer import FailPoint, Transfer, clear_staging

_MAX_DISTRUSTED: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPolicy:
    """How patient a node is with its peers."""

    fruitless_attempts: int = 3
    """With one peer, in a row without a new byte; then it is not asked again by this transfer."""
    attempts: int = 100
    """In all, so that a peer that drips and breaks cannot keep a transfer alive for ever."""
    mismatches: int = 3
    """Whole files with a wrong digest; then no peer is asked any more."""
    backoff_s: float = 1.0
    """Doubled with each fruitless attempt."""
    backoff_max_s: float = 30.0
    distrust_s: float = 600.0
    """For so long a peer that lied about an artifact is not asked for it."""
    look_s: float = 1.5
    """For so long a node says that it is about to fetch, before it does: longer than it takes
    readings to go round."""
    poll_s: float = 0.5
    """How often the readings are looked at while another node is waited for."""
    silent_s: float = 90.0
    """A node that fetches, and has not got on for so long, is not waited for any more."""
    busy_s: float = 600.0
    """For so long a peer that serves others first is waited for, if the card has another source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSources:
    """What a store is told of other nodes.

    Args:
        node_id: This node.
        files: The way to their files.
        holdings: What they have.
        policy: How patient to be with them.
    """

    node_id: NodeId
    files: PeerFiles
    holdings: PeerHoldings
    policy: PeerPolicy = field(default_factory=PeerPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOutcome:
    """How it went."""

    error: StoreError | None
    """None when the artifact is complete here."""
    was_asked: bool
    """Whether any peer said that it has the files."""


@dataclass(slots=True)
class _Waiting:
    since_s: float
    until_s: float
    done_bytes: int


@dataclass(slots=True, kw_only=True)
class _Run:
    """One call's state."""

    card: ModelCard
    key: Digest
    transfer: Transfer
    is_own_remote: bool
    staging: PeerStaging | None = None
    error: StoreError | None = None
    suggested: NodeId | None = None
    """Who has just ended fetching it: may have it before its readings say so."""
    passed_over: set[NodeId] = field(default_factory=set[NodeId])
    failures: dict[NodeId, int] = field(default_factory=dict[NodeId, int])
    """In a row, without a new byte."""
    busy: dict[NodeId, _Waiting] = field(default_factory=dict[NodeId, _Waiting])
    given_up: set[NodeId] = field(default_factory=set[NodeId])
    """Whose fetching is not waited for any more."""
    givers: dict[int, set[NodeId]] = field(default_factory=dict[int, set[NodeId]])
    """Who gave bytes of a file that is not whole."""
    inherited: set[int] = field(default_factory=set[int])
    """Files whose first bytes are of an earlier run, from nobody knows whom."""
    is_unmixed: bool = False
    """Whether each file is taken from one node only, so that a wrong one has one to blame."""
    high_bytes: int = 0
    n_attempts: int = 0
    n_waits: int = 0
    n_mismatches: int = 0
    has_looked: bool = False
    was_asked: bool = False

    @property
    def staged_bytes(self) -> int:
        return 0 if self.staging is None else self.staging.staged_bytes


@final
class PeerPull:
    """Brings artifacts from other nodes into the store.

    Args:
        layout: Where to.
        sources: Who the other nodes are.
        clock: For patience and manifests.
        sleep: Waits.
        free_bytes: Of the models volume.
        fail_point: Called with the name of each step just before it; tests cut there.
    """

    def __init__(
        self,
        layout: StoreLayout,
        sources: PeerSources,
        *,
        clock: Clock,
        sleep: Sleep,
        free_bytes: Callable[[], int],
        fail_point: FailPoint,
    ) -> None:
        self._layout = layout
        self._node_id = sources.node_id
        self._files = sources.files
        self._holdings = sources.holdings
        self._policy = sources.policy
        self._clock = clock
        self._sleep = sleep
        self._free_bytes = free_bytes
        self._fail_point = fail_point
        self._distrusted: dict[tuple[NodeId, Digest], float] = {}

    async def run(
        self, card: ModelCard, key: Digest, transfer: Transfer, *, is_own_remote: bool
    ) -> PeerOutcome:
        """Have the artifact complete under its final name, if the other nodes make it possible.

        The caller holds the key's lock. Cancelled at any point, what was fetched stays in staging.

        Args:
            card: Whose files.
            key: Of the artifact.
            transfer: Shows progress.
            is_own_remote: Whether this node could fetch the files from outside the cluster.

        Raises:
            StoreError: `store.no_space`, `store.disk_failed`: no other source would help.
        """
        run = _Run(card=card, key=key, transfer=transfer, is_own_remote=is_own_remote)
        try:
            while run.n_attempts < self._policy.attempts:
                node_id = self._choose(run)
                if node_id is None:
                    if not await self._await_another(run):
                        break
                elif await self._try(run, node_id):
                    return PeerOutcome(error=None, was_asked=True)
            return PeerOutcome(error=run.error or _nobody(card), was_asked=run.was_asked)
        finally:
            if run.staging is not None:
                run.staging.close()

    def _choose(self, run: _Run) -> NodeId | None:
        """Take the holder that has failed least; of equals the first."""
        now = self._clock.monotonic_s()
        held = list(self._holdings.holders(run.key))
        if run.suggested is not None and run.suggested not in held:
            held.append(run.suggested)
        usable = [
            node_id
            for node_id in held
            if node_id not in run.passed_over
            and self._distrusted.get((node_id, run.key), 0.0) <= now
        ]
        if not usable or run.n_mismatches >= self._policy.mismatches:
            return None

        def rank(node_id: NodeId) -> tuple[float, int]:
            waiting = run.busy.get(node_id)
            return (0.0 if waiting is None else waiting.until_s, run.failures.get(node_id, 0))

        return min(usable, key=rank)

    async def _try(self, run: _Run, node_id: NodeId) -> bool:
        """Get what is missing from one node; False when it is not all here then."""
        await self._pause(run, node_id)
        run.n_attempts += 1
        try:
            async with self._files.open(node_id, run.key) as lease:
                run.was_asked = True
                run.busy.pop(node_id, None)
                staging = await self._take(run, node_id, lease)
        except PeerBusyError as busy:
            run.was_asked = True
            run.n_attempts -= 1
            self._note_busy(run, node_id, busy)
        except PeerError as failed:
            self._note_failure(run, node_id, failed)
        else:
            await self._publish(run, node_id, staging)
            return True
        return False

    async def _pause(self, run: _Run, node_id: NodeId) -> None:
        """Wait as long as it takes before a node may be asked again."""
        waiting = run.busy.get(node_id)
        if waiting is not None:
            await self._sleep(max(0.0, waiting.until_s - self._clock.monotonic_s()))
        n_failures = run.failures.get(node_id, 0)
        if n_failures:
            backoff_s = self._policy.backoff_s * 2.0 ** (n_failures - 1)
            await self._sleep(min(self._policy.backoff_max_s, backoff_s))

    async def _take(self, run: _Run, node_id: NodeId, lease: PeerLease) -> PeerStaging:
        staging = await self._staging(run, node_id, lease)
        need = SpaceNeed(file_bytes=staging.total_bytes, staged_bytes=staging.staged_bytes)
        check_space(need, free_bytes=self._free_bytes())
        run.transfer.name_source(self._source(node_id))
        for index in staging.missing():
            await self._take_file(run, node_id, lease, staging, index)
        return staging

    async def _staging(self, run: _Run, node_id: NodeId, lease: PeerLease) -> PeerStaging:
        files = agreed_files(run.card, lease.files, node_id)
        if run.staging is None:
            staging = PeerStaging(self._layout, run.key, files)
            run.staging = staging
            await on_disk(staging.open)
            run.high_bytes = staging.staged_bytes
            run.inherited = set(staging.begun())
        elif run.staging.files != files:
            # Only possible where the card does not say what the files are.
            problem = f"its files of {run.card.model_id} are others than those of an earlier node"
            error = peer_error(node_id, problem, "store.source_changed")
            raise PeerError(error, is_final=True)
        return run.staging

    async def _take_file(
        self, run: _Run, node_id: NodeId, lease: PeerLease, staging: PeerStaging, index: int
    ) -> None:
        partial = await on_disk(staging.partial, index)
        whole_bytes, total_bytes = staging.whole_bytes, staging.total_bytes
        run.transfer.begin("download", done_bytes=whole_bytes, total_bytes=total_bytes)
        # Hashed outside any network timer, and seen as progress.
        while await on_disk(partial.hash_slice):
            run.transfer.advance(whole_bytes + partial.hashed_bytes)
        done_bytes = whole_bytes + partial.length
        run.transfer.begin("download", done_bytes=done_bytes, total_bytes=total_bytes)
        if partial.length < staging.files[index].size_bytes:
            self._fail_point("store.before_fetch")
            givers = run.givers.setdefault(index, set())
            if run.is_unmixed and givers - {node_id}:
                givers.clear()
                await on_disk(partial.restart)
            givers.add(node_id)
            async with aclosing(lease.read(index, partial.length)) as pieces:
                async for contents in pieces:
                    await on_disk(partial.append, *contents)
                    run.transfer.advance(whole_bytes + partial.length)
                    self._fail_point("store.during_fetch")
            self._fail_point("store.after_fetch")
        try:
            await on_disk(staging.settle, index)
        except StoreError as error:
            if error.code != "store.digest_mismatch":
                raise
            raise self._mismatch(run, node_id, index, error) from error

    async def _publish(self, run: _Run, node_id: NodeId, staging: PeerStaging) -> None:
        run.transfer.begin("verify")
        self._fail_point("store.before_publish")
        now_ms = self._clock.wall_ms()
        await on_disk(staging.publish, run.card, self._source(node_id), now_ms=now_ms)
        self._fail_point("store.after_publish")
        await on_disk(clear_staging, self._layout, run.key)

    # What failed.

    def _mismatch(self, run: _Run, node_id: NodeId, index: int, error: StoreError) -> PeerError:
        """Say whose fault wrong bytes are: a peer's, when all of them came from it."""
        run.n_mismatches += 1
        run.high_bytes = run.staged_bytes
        givers = run.givers.pop(index, set())
        if index not in run.inherited and givers == {node_id}:
            return PeerLiedError(error)
        run.inherited.discard(index)
        run.is_unmixed = True
        return PeerError(error)

    def _note_failure(self, run: _Run, node_id: NodeId, failed: PeerError) -> None:
        run.error = failed.error
        if run.staged_bytes > run.high_bytes:
            run.high_bytes = run.staged_bytes
            run.failures.clear()
        n_failures = run.failures[node_id] = run.failures.get(node_id, 0) + 1
        if failed.is_final or n_failures >= self._policy.fruitless_attempts:
            run.passed_over.add(node_id)
        if isinstance(failed, PeerLiedError):
            now = self._clock.monotonic_s()
            until = {who: at for who, at in self._distrusted.items() if at > now}
            until[node_id, run.key] = now + self._policy.distrust_s
            self._distrusted = dict(list(until.items())[-_MAX_DISTRUSTED:])

    def _note_busy(self, run: _Run, node_id: NodeId, busy: PeerBusyError) -> None:
        run.error = busy.error
        now = self._clock.monotonic_s()
        before = run.busy.get(node_id)
        gets_on = before is None or busy.done_bytes > before.done_bytes
        since_s = now if before is None or gets_on else before.since_s
        until_s = now + busy.retry_after_s
        run.busy[node_id] = _Waiting(since_s, until_s, busy.done_bytes)
        if run.is_own_remote and now - since_s >= self._policy.busy_s:
            run.passed_over.add(node_id)
            return
        self._show_wait(run, node_id, busy.done_bytes, busy.total_bytes or None)

    # Others that fetch.

    async def _await_another(self, run: _Run) -> bool:
        """Wait for another node's transfer; False when there is none to be waited for."""
        fetcher = self._fetcher(run)
        if fetcher is not None and run.n_waits < self._policy.attempts:
            run.n_waits += 1
            run.has_looked = False
            await self._wait_for(run, fetcher)
            return True
        if run.has_looked or not run.is_own_remote or not self._holdings.has_peers():
            return False
        # Whoever wants it at the same moment sees this in our readings, as we see theirs.
        run.has_looked = True
        run.transfer.restart("the other nodes")
        run.transfer.begin("look")
        await self._sleep(self._policy.look_s)
        return True

    def _fetcher(self, run: _Run) -> PeerTransfer | None:
        """Find the node whose transfer is to be waited for."""
        found = [
            item
            for item in self._holdings.fetchers(run.card.model_id)
            if item.node_id not in run.given_up
        ]
        for item in sorted(found, key=lambda item: (item.phase in IDLE_PHASES, item.node_id)):
            if item.phase not in IDLE_PHASES:
                return item
            goes_first = item.node_id < self._node_id or not run.is_own_remote
            if item.phase == "look" and goes_first:
                return item
        return None

    async def _wait_for(self, run: _Run, fetcher: PeerTransfer) -> None:
        """Return when somebody holds it, or the node has ended, or does not get on."""
        node_id = fetcher.node_id
        run.passed_over.discard(node_id)
        self._show_wait(run, node_id, fetcher.done_bytes, fetcher.total_bytes)
        silent_s = 0.0
        while silent_s < self._policy.silent_s:
            await self._sleep(self._policy.poll_s)
            now = {item.node_id: item for item in self._holdings.fetchers(run.card.model_id)}
            shown = now.get(node_id)
            if shown is None or shown.phase in {"wait", PAUSED_PHASE}:
                # It may have it already: readings of two kinds do not arrive at one moment.
                run.suggested = node_id if shown is None else None
                return
            if self._choose(run) is not None:
                return
            gets_on = (shown.phase, shown.done_bytes) != (fetcher.phase, fetcher.done_bytes)
            silent_s = 0.0 if gets_on else silent_s + self._policy.poll_s
            fetcher = shown
            run.transfer.advance(shown.done_bytes)
        run.given_up.add(node_id)

    def _show_wait(
        self, run: _Run, node_id: NodeId, done_bytes: int, total_bytes: int | None
    ) -> None:
        run.transfer.restart(self._source(node_id))
        run.transfer.begin("wait", done_bytes=done_bytes, total_bytes=total_bytes)

    def _source(self, node_id: NodeId) -> str:
        return f"peer {node_id}/{self._holdings.name_of(node_id)}"


def _nobody(card: ModelCard) -> StoreError:
    return StoreError(
        "store.source_unavailable",
        f"no other node that can be reached has the files of {card.model_id}",
        remediation="Start a node that has them, or give the card another source.",
        retry_after_s=60,
    )
