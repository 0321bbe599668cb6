"""Every card this node knows: custom, installed and bundled, merged by precedence.

A bad file is a finding that names it, never a reason not to know the other cards.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, Literal, final

from protocol.cards import ModelCard
from protocol.errors import StoreError
from protocol.ids import ModelId
from store.cards import parse_card, read_card, to_toml
from store.layout import CARD, CARDS, StoreLayout, disk_error
from store.manifest import write_durably

CardOrigin = Literal["custom", "installed", "bundled"]
"""In order of precedence: the operator's own, that of an artifact, that of the distribution."""

MAX_CARDS: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A card, and where it comes from."""

    card: ModelCard
    origin: CardOrigin
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFinding:
    """A card file that cannot be used, or is hidden by another of the same precedence."""

    path: str
    error: StoreError


_Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """What the files said when they had this signature."""

    signature: _Signature
    entries: Mapping[ModelId, CatalogEntry]
    findings: tuple[CardFinding, ...]


@final
class Catalog:
    """The cards of one node.

    Reading is cheap: files are parsed again only when a name, size or time of change differs.
    Threads may share it. All methods block for as long as the disk takes, and none waits for the
    network.
    """

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout
        self._bundled: dict[ModelId, CatalogEntry] | None = None
        self._snapshot: _Snapshot | None = None

    def get(self, model_id: ModelId) -> CatalogEntry | None:
        """Find a card by the id an operator types."""
        return self._current().entries.get(model_id)

    def list(self) -> tuple[CatalogEntry, ...]:
        """Give every card that is in force, sorted by id."""
        entries = self._current().entries
        return tuple(entries[model_id] for model_id in sorted(entries))

    def findings(self) -> tuple[CardFinding, ...]:
        """Give the card files that are not in force because they are wrong."""
        return self._current().findings

    def add(self, card: ModelCard) -> CatalogEntry:
        """Keep a card as the operator's own, in place of an earlier one of that id. Idempotent.

        Raises:
            StoreError: `store.disk_failed`, `store.no_space`; the earlier card stays.
        """
        self._layout.prepare()
        name = _file_name(card.model_id)
        content = f"# {card.model_id}\n{to_toml(card)}".encode()
        try:
            with self._layout.opened(CARDS) as directory:
                write_durably(directory, name, content)
        except OSError as error:
            raise disk_error(error, f"writing the card of {card.model_id}") from error
        path = str(self._layout.cards_path() / name)
        return CatalogEntry(card=card, origin="custom", path=path)

    def remove(self, model_id: ModelId) -> bool:
        """Forget the operator's own card of an id; an installed or bundled one shows again.

        Returns:
            Whether there was one.

        Raises:
            StoreError: `store.disk_failed`.
        """
        entry = self._current().entries.get(model_id)
        if entry is None or entry.origin != "custom":
            return False
        try:
            with self._layout.opened(CARDS) as directory:
                os.unlink(Path(entry.path).name, dir_fd=directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise disk_error(error, f"removing the card of {model_id}") from error
        return True

    def _current(self) -> _Snapshot:
        paths = (*self._custom_paths(), *self._installed_paths())
        signature = _signature(paths)
        known = self._snapshot
        if known is not None and known.signature == signature:
            return known
        entries = dict(self._bundled_entries())
        findings: list[CardFinding] = []
        custom: set[ModelId] = set()
        # The least precedence first; of two custom files for one id the first name wins.
        for path in reversed(paths):
            origin: CardOrigin = "custom" if path.parent.name == CARDS else "installed"
            try:
                card = read_card(path)
            except StoreError as error:
                findings.append(CardFinding(path=str(path), error=error))
                continue
            if origin == "custom" and card.model_id in custom:
                findings.append(_hidden(entries[card.model_id], path))
            if origin == "custom":
                custom.add(card.model_id)
            entries[card.model_id] = CatalogEntry(card=card, origin=origin, path=str(path))
        # One assignment, since threads share a catalogue: never the entries of one state of the
        # files under the signature of another.
        snapshot = _Snapshot(signature=signature, entries=entries, findings=tuple(findings))
        self._snapshot = snapshot
        return snapshot

    def _custom_paths(self) -> tuple[Path, ...]:
        found = sorted(self._layout.cards_path().glob("*.toml"))
        return tuple(path for path in found[:MAX_CARDS] if not path.name.startswith("."))

    def _installed_paths(self) -> tuple[Path, ...]:
        keys = self._layout.artifact_keys()[:MAX_CARDS]
        paths = (self._layout.artifact_path(key) / CARD for key in keys)
        return tuple(path for path in paths if path.exists())

    def _bundled_entries(self) -> dict[ModelId, CatalogEntry]:
        if self._bundled is None:
            folder = resources.files("store") / "data" / "cards"
            entries: dict[ModelId, CatalogEntry] = {}
            for file in sorted(folder.iterdir(), key=lambda item: item.name):
                if file.name.endswith(".toml"):
                    card = parse_card(file.read_bytes(), origin=f"bundled {file.name}")
                    entries[card.model_id] = CatalogEntry(
                        card=card, origin="bundled", path=f"bundled:{file.name}"
                    )
            self._bundled = entries
        return self._bundled


def _hidden(hidden: CatalogEntry, winner: Path) -> CardFinding:
    return CardFinding(
        path=hidden.path,
        error=StoreError(
            "store.card_invalid",
            f"{hidden.path} is hidden by {winner}: both describe {hidden.card.model_id}",
            remediation="Delete one of the two files.",
        ),
    )


def _file_name(model_id: ModelId) -> str:
    return f"{hashlib.sha256(model_id.encode()).hexdigest()}.toml"


def _signature(paths: tuple[Path, ...]) -> _Signature:
    found: list[tuple[str, int, int]] = []
    for path in paths:
        with suppress(FileNotFoundError):
            status = path.lstat()
            found.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(found)
