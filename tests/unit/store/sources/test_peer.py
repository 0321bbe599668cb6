"""What a peer says that it has, held against the card."""

from pathlib import Path

import pytest

from protocol.cards import HubSource, ModelCard
from protocol.ids import ModelId, NodeId
from store.importer import card_from_gguf
from store.sources.peer import PeerFile, PeerLiedError, agreed_files, has_collision
from tests.support.gguf_builder import write_split_set
from tests.support.wheel_builder import card_of, sha256

PEER = NodeId("n" + "a" * 16)
MEMBERS = {"a/one.gguf": b"GGUF one", "a/two.bin": b"two"}
CARD = card_of(MEMBERS)
OFFERED = tuple(
    PeerFile(path=path, size_bytes=len(content), sha256=sha256(content))
    for path, content in MEMBERS.items()
)


def changed(index: int, **fields: object) -> tuple[PeerFile, ...]:
    values = {
        "path": OFFERED[index].path,
        "size_bytes": OFFERED[index].size_bytes,
        "sha256": OFFERED[index].sha256,
    }
    file = PeerFile(**{**values, **fields})  # pyright: ignore[reportArgumentType]
    return (*OFFERED[:index], file, *OFFERED[index + 1 :])


def hub_card() -> ModelCard:
    source = HubSource(repository=ModelId("org/repo"), revision="0" * 40)
    return CARD.model_copy(update={"source": source})


def test_a_packages_files_are_those_of_the_card() -> None:
    assert agreed_files(CARD, OFFERED, PEER) == OFFERED


@pytest.mark.parametrize(
    "offered",
    [
        OFFERED[:1],
        OFFERED[::-1],
        (*OFFERED, OFFERED[0]),
        changed(0, path="a/other.gguf"),
        changed(1, size_bytes=4),
        changed(1, sha256=sha256(b"other")),
    ],
)
def test_any_other_list_is_a_lie(offered: tuple[PeerFile, ...]) -> None:
    with pytest.raises(PeerLiedError) as lie:
        agreed_files(CARD, offered, PEER)
    assert lie.value.error.code == "store.source_changed"
    assert PEER in lie.value.error.message


def test_files_in_place_elsewhere_have_the_cards_sizes_and_our_names(tmp_path: Path) -> None:
    paths = write_split_set(tmp_path / "set", "big", 3)
    card = card_from_gguf(paths[0])
    offered = tuple(
        PeerFile(
            path=f"whatever{number}",
            size_bytes=path.stat().st_size,
            sha256=sha256(path.read_bytes()),
        )
        for number, path in enumerate(paths)
    )
    agreed = agreed_files(card, offered, PEER)
    assert [file.path for file in agreed] == [path.name for path in paths]
    assert [file.sha256 for file in agreed] == [file.sha256 for file in offered]
    with pytest.raises(PeerLiedError):
        agreed_files(card, offered[:2], PEER)
    larger = (*offered[:2], PeerFile(path="x", size_bytes=1 << 40, sha256=offered[2].sha256))
    with pytest.raises(PeerLiedError):
        agreed_files(card, larger, PEER)


def test_a_hubs_files_are_as_the_peer_names_them_if_they_can_be_files() -> None:
    assert agreed_files(hub_card(), OFFERED, PEER) == OFFERED
    with pytest.raises(PeerLiedError):
        agreed_files(hub_card(), (*OFFERED, OFFERED[0]), PEER)


@pytest.mark.parametrize(
    ("paths", "collide"),
    [
        (("a", "b"), False),
        (("a/b", "a/c"), False),
        (("a", "a"), True),
        (("a", "a/b"), True),
        (("a/b/c", "a/b"), True),
        (("ab", "a/b"), False),
    ],
)
def test_paths_collide_when_one_is_a_directory_of_another(
    paths: tuple[str, ...], collide: bool
) -> None:
    assert has_collision(paths) == collide
