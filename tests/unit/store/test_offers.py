"""What a node gives to its peers: verified files, and nothing once they have changed."""

import asyncio
import os
from pathlib import Path

import pytest

from protocol.cards import LocalSource
from protocol.errors import StoreError
from protocol.ids import Digest
from store.importer import card_from_gguf
from store.layout import StoreLayout
from store.offers import Offer, Offers, UnhashedOffer
from store.service import Store, artifact_key
from tests.support.direct_peers import holding_store
from tests.support.gguf_builder import GgufBuilder, write_split_set
from tests.support.wheel_builder import MEMBER, card_of, sha256, tiny_model

MEMBERS = {MEMBER: tiny_model(300_000), "tiny_model/extra.bin": b"extra" * 1000}
CARD = card_of(MEMBERS)
KEY = artifact_key(CARD)
NOTHING = Digest("0" * 64)


class FixedClock:
    def monotonic_s(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return holding_store(tmp_path / "models", CARD, tuple(MEMBERS.values()), FixedClock())


def offer_of(offers: Offers, key: Digest = KEY) -> Offer:
    offer = offers.open(key)
    assert isinstance(offer, Offer)
    return offer


def test_what_was_fetched_is_offered_in_the_order_of_the_card(store: Store) -> None:
    offer = offer_of(store.offers)
    assert [file.path for file in offer.files] == list(MEMBERS)
    assert [file.sha256 for file in offer.files] == [sha256(item) for item in MEMBERS.values()]
    assert offer.read(0, 100, 5) == MEMBERS[MEMBER][100:105]
    assert offer.read(1, 4_990, 10) == MEMBERS["tiny_model/extra.bin"][-10:]
    offer.close()
    (held,) = store.offers.held()
    assert (held.key, held.model_id) == (KEY, CARD.model_id)
    assert held.size_bytes == sum(len(content) for content in MEMBERS.values())


def test_what_is_not_here_is_not_offered(store: Store) -> None:
    assert store.offers.open(NOTHING) is None


@pytest.mark.parametrize(
    ("index", "offset", "n_bytes"), [(2, 0, 1), (-1, 0, 1), (0, 400_000, 1), (1, 4_999, 2)]
)
def test_no_byte_beyond_the_files_is_given(
    store: Store, index: int, offset: int, n_bytes: int
) -> None:
    offer = offer_of(store.offers)
    with pytest.raises(StoreError) as refused:
        offer.read(index, offset, n_bytes)
    assert refused.value.code == "store.incomplete"
    offer.close()


def test_a_closed_offer_gives_nothing(store: Store) -> None:
    offer = offer_of(store.offers)
    offer.read(0, 0, 1)
    offer.close()
    offer.close()
    with pytest.raises(StoreError, match="not offered"):
        offer.read(0, 0, 1)


def test_a_file_that_is_written_to_is_given_no_more(store: Store) -> None:
    offer = offer_of(store.offers)
    offer.read(0, 0, 1)
    path = StoreLayout(_models(store)).file_path(KEY, MEMBER)
    with path.open("r+b") as file:
        file.write(b"other")
    with pytest.raises(StoreError, match="written to since it was verified"):
        offer.read(0, 0, 1)
    offer.close()
    assert store.offers.open(KEY) is None
    assert store.offers.held() == ()


def test_a_link_in_a_files_place_is_not_followed(store: Store, tmp_path: Path) -> None:
    offer = offer_of(store.offers)
    path = StoreLayout(_models(store)).file_path(KEY, MEMBER)
    secret = tmp_path / "secret"
    secret.write_bytes(MEMBERS[MEMBER])
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(StoreError) as refused:
        offer.read(0, 0, 1)
    assert refused.value.code == "store.disk_failed"
    assert store.offers.open(KEY) is None


def test_a_model_that_is_deleted_while_it_is_read_is_read_to_its_end(store: Store) -> None:
    offer = offer_of(store.offers)
    offer.read(0, 0, 1)
    path = StoreLayout(_models(store)).file_path(KEY, MEMBER)
    path.unlink()
    assert offer.read(0, 100, 5) == MEMBERS[MEMBER][100:105]
    offer.close()


# Files used where they lie.


def imported(store: Store, path: Path) -> Digest:
    card = card_from_gguf(path)
    store.catalog.add(card)
    return artifact_key(card)


def hashed(store: Store, key: Digest) -> Offer:
    unhashed = store.offers.open(key)
    assert isinstance(unhashed, UnhashedOffer)
    while unhashed.step():
        assert 0 < unhashed.done_bytes <= unhashed.total_bytes
    unhashed.close()
    return offer_of(store.offers, key)


def test_a_file_in_place_is_hashed_once_and_then_offered(store: Store, tmp_path: Path) -> None:
    path = GgufBuilder().write(tmp_path / "My Model.gguf")
    key = imported(store, path)
    assert key in {item.key for item in store.offers.held()}
    offer = hashed(store, key)
    (file,) = offer.files
    assert (file.path, file.sha256) == ("My_Model.gguf", sha256(path.read_bytes()))
    assert offer.read(0, 0, 4) == b"GGUF"
    offer.close()
    # Also for the process after this one.
    again = Store(StoreLayout(_models(store)), clock=FixedClock())
    offer_of(again.offers, key).close()


def test_a_split_set_in_place_is_offered_under_names_that_an_engine_finds(
    store: Store, tmp_path: Path
) -> None:
    paths = write_split_set(tmp_path / "set", "big", 3)
    offer = hashed(store, imported(store, paths[0]))
    assert [file.path for file in offer.files] == [path.name for path in paths]
    assert [offer.read(n, 0, 4) for n in range(3)] == [b"GGUF"] * 3
    offer.close()


def test_a_link_that_was_imported_is_followed_as_its_owner_meant_it(
    store: Store, tmp_path: Path
) -> None:
    blob = GgufBuilder().write(tmp_path / "blob")
    link = tmp_path / "model.gguf"
    link.symlink_to(blob)
    offer = hashed(store, imported(store, link))
    assert offer.read(0, 0, 4) == b"GGUF"
    # Turned to another file, it is not what was hashed.
    other = GgufBuilder().write(tmp_path / "other")
    link.unlink()
    link.symlink_to(other)
    os.utime(other, ns=(0, blob.stat().st_mtime_ns))
    offer.close()
    reopened = store.offers.open(artifact_key(card_from_gguf(link)))
    assert not isinstance(reopened, Offer)


def test_a_file_in_place_that_changes_is_not_offered(store: Store, tmp_path: Path) -> None:
    path = GgufBuilder().write(tmp_path / "mine.gguf")
    key = imported(store, path)
    offer = hashed(store, key)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(StoreError, match="written to"):
        offer.read(0, 0, 4)
    offer.close()
    assert store.offers.open(key) is None


def test_a_file_that_is_written_to_while_it_is_hashed_gets_no_digest(
    store: Store, tmp_path: Path
) -> None:
    path = GgufBuilder().write(tmp_path / "mine.gguf")
    key = imported(store, path)
    unhashed = store.offers.open(key)
    assert isinstance(unhashed, UnhashedOffer)
    os.utime(path, ns=(1, 1))
    with pytest.raises(StoreError, match="written to while it was hashed"):
        unhashed.step()
    unhashed.close()


def test_digests_are_forgotten_with_the_card(store: Store, tmp_path: Path) -> None:
    path = GgufBuilder().write(tmp_path / "mine.gguf")
    card = card_from_gguf(path)
    assert isinstance(card.source, LocalSource)
    hashed(store, imported(store, path)).close()
    kept = _models(store) / "digests"
    assert len(list(kept.iterdir())) == 1
    asyncio.run(store.remove(card.model_id))
    assert list(kept.iterdir()) == []
    assert path.exists()
    # There may be none to forget.
    store.offers.forget(artifact_key(card))


def _models(store: Store) -> Path:
    located = store.locate(CARD)
    if located is not None:
        return located.root.parents[1]
    (entry,) = [item for item in store.catalog.list() if item.origin == "installed"]
    return Path(entry.path).parents[2]
