from pathlib import Path

import pytest

from protocol.ids import ModelId
from store.cards import to_toml
from store.catalog import Catalog
from store.layout import StoreLayout
from tests.support.wheel_builder import card_of

DEMO = ModelId("smollm2-135m-instruct")
CARD = card_of({"a/x.gguf": b"x"}, "org/mine", "a/x.gguf")


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    made = StoreLayout(tmp_path)
    made.prepare()
    return made


def test_the_demo_model_is_bundled_and_described_by_its_header(layout: StoreLayout) -> None:
    entry = Catalog(layout).get(DEMO)
    assert entry is not None
    assert entry.origin == "bundled"
    assert entry.card.gguf_cache_geometry is not None
    assert entry.card.gguf_cache_geometry.kv_bytes_per_token() == 23_040


def test_an_added_card_is_found_in_force_at_once(layout: StoreLayout) -> None:
    catalog = Catalog(layout)
    assert catalog.get(CARD.model_id) is None
    added = catalog.add(CARD)
    assert catalog.get(CARD.model_id) == added
    assert [entry.card.model_id for entry in catalog.list()] == ["org/mine", DEMO]


def test_f27_a_cards_file_is_named_by_a_digest_of_its_id(layout: StoreLayout) -> None:
    Catalog(layout).add(CARD)
    (path,) = layout.cards_path().iterdir()
    assert len(path.stem) == 64
    assert path.stat().st_mode & 0o777 == 0o600


def test_custom_precedes_installed_and_installed_precedes_bundled(layout: StoreLayout) -> None:
    catalog = Catalog(layout)
    bundled = catalog.get(DEMO)
    assert bundled is not None
    installed = bundled.card.model_copy(update={"family": "installed"})
    folder = layout.models_dir / "artifacts" / ("a" * 64)
    folder.mkdir()
    (folder / "card.toml").write_text(to_toml(installed))
    seen = catalog.get(DEMO)
    assert seen is not None
    assert (seen.origin, seen.card.family) == ("installed", "installed")
    catalog.add(bundled.card.model_copy(update={"family": "custom"}))
    seen = catalog.get(DEMO)
    assert seen is not None
    assert (seen.origin, seen.card.family) == ("custom", "custom")


def test_removing_a_custom_card_shows_the_bundled_one_again(layout: StoreLayout) -> None:
    catalog = Catalog(layout)
    bundled = catalog.get(DEMO)
    assert bundled is not None
    catalog.add(bundled.card.model_copy(update={"family": "custom"}))
    assert catalog.remove(DEMO)
    assert catalog.get(DEMO) == bundled
    assert not catalog.remove(DEMO)


def test_a_file_edited_by_hand_is_read_again(layout: StoreLayout) -> None:
    catalog = Catalog(layout)
    path = layout.cards_path() / "mine.toml"
    path.write_text(to_toml(CARD))
    assert catalog.get(CARD.model_id) is not None
    path.write_text(to_toml(CARD.model_copy(update={"family": "edited"})))
    entry = catalog.get(CARD.model_id)
    assert entry is not None
    assert entry.card.family == "edited"


def test_a_bad_file_is_a_finding_and_the_others_stay(layout: StoreLayout) -> None:
    (layout.cards_path() / "bad.toml").write_text("model_id = 3")
    (layout.cards_path() / "typo.toml").write_text(to_toml(CARD) + "\n[licence]\n")
    (layout.cards_path() / "link.toml").symlink_to("/etc/hostname")
    catalog = Catalog(layout)
    assert catalog.get(DEMO) is not None
    found = {Path(finding.path).name: finding.error.code for finding in catalog.findings()}
    assert found == {
        "bad.toml": "store.card_invalid",
        "typo.toml": "store.card_unknown_field",
        "link.toml": "store.card_invalid",
    }


def test_of_two_files_for_one_model_the_first_counts_and_the_other_is_named(
    layout: StoreLayout,
) -> None:
    (layout.cards_path() / "a.toml").write_text(to_toml(CARD))
    (layout.cards_path() / "b.toml").write_text(
        to_toml(CARD.model_copy(update={"family": "hidden"}))
    )
    catalog = Catalog(layout)
    entry = catalog.get(CARD.model_id)
    assert entry is not None
    assert entry.card.family is None
    (finding,) = catalog.findings()
    assert finding.path.endswith("b.toml")
    assert "a.toml" in finding.error.message


def test_a_catalog_without_its_directory_still_knows_the_bundled_cards(tmp_path: Path) -> None:
    assert Catalog(StoreLayout(tmp_path / "none")).get(DEMO) is not None
