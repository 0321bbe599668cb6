"""Cards for files in place, and split sets: case B20."""

import os
from pathlib import Path

import pytest

from protocol.cards import ArtifactFile, LocalSource, projector_bytes
from protocol.errors import StoreError
from protocol.ids import Digest, ModelId
from store.cards import parse_card, to_toml
from store.importer import card_from_gguf, model_id_of, part_names
from store.service import artifact_key
from store.sources.local import in_place
from store.weights_meta import GgufHeader, read_gguf_header
from tests.support.gguf_builder import GgufBuilder, write_split_set
from tests.support.projector import write_projector

KEY_WITHOUT_PROJECTOR = "079cf0e923f04750ddca1b9ae2a70aa0a65a5e64fa1d4dd208424680d8a4aeec"


def test_a_card_references_the_file_where_it_lies(tmp_path: Path) -> None:
    path = GgufBuilder().write(tmp_path / "My Model (v2).Q4_1.gguf")
    before = path.stat()
    card = card_from_gguf(path)
    assert card.model_id == "My-Model-v2-.Q4_1"
    assert card.source == LocalSource(
        path=str(path), size_bytes=before.st_size, modified_ns=before.st_mtime_ns
    )
    assert (card.n_layers, card.hidden_size, card.num_key_value_heads) == (2, 64, 2)
    assert card.storage_size.in_bytes == before.st_size
    assert card.placement.compatible_backends == ("llama_server", "llama_cpp")
    assert path.stat() == before


def test_an_imported_card_survives_its_file(tmp_path: Path) -> None:
    card = card_from_gguf(GgufBuilder().write(tmp_path / "a b.gguf"), ModelId("org/x:Q4"))
    assert parse_card(to_toml(card).encode(), origin="x") == card
    assert card.model_id == "org/x:Q4"


def test_a_model_that_pools_is_for_embeddings(tmp_path: Path) -> None:
    path = GgufBuilder(metadata={"llama.pooling_type": 3}).write(tmp_path / "e.gguf")
    card = card_from_gguf(path)
    assert (card.tasks, card.capabilities) == (("TextEmbedding",), ("embedding",))


def test_a_model_that_pools_to_a_score_ranks(tmp_path: Path) -> None:
    path = GgufBuilder(metadata={"llama.pooling_type": 4}).write(tmp_path / "r.gguf")
    card = card_from_gguf(path)
    assert (card.tasks, card.capabilities) == (("TextRerank",), ("rerank",))


def test_a_link_is_followed_and_kept_by_its_name(tmp_path: Path) -> None:
    blob = GgufBuilder().write(tmp_path / "blobs" / "abc")
    link = tmp_path / "model.gguf"
    link.symlink_to(blob)
    source = card_from_gguf(link).source
    assert isinstance(source, LocalSource)
    assert source.path == str(link)


def test_a_file_that_is_no_model_makes_no_card(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text("not a model")
    with pytest.raises(StoreError) as refused:
        card_from_gguf(tmp_path / "x.gguf")
    assert refused.value.code == "store.gguf_invalid"
    adapter = GgufBuilder(metadata={"general.type": "adapter"}).write(tmp_path / "lora.gguf")
    with pytest.raises(StoreError, match="adapter"):
        card_from_gguf(adapter)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("loop.gguf", "store.not_found"),
        ("loop-00001-of-00002.gguf", "store.incomplete"),
        ("loop.gguf/x.gguf", "store.not_found"),
        ("file/x.gguf", "store.not_found"),
        ("x" * 300 + ".gguf", "store.not_found"),
        ("x" * 250 + "-00001-of-00002.gguf", "store.incomplete"),
        ("x/" * 2500 + "x.gguf", "store.not_found"),
        ("odd\udcff.gguf", "store.card_invalid"),
        ("lone\ud800.gguf", "store.card_invalid"),
        ("nul\0.gguf", "store.card_invalid"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_by_name(tmp_path: Path, name: str, code: str) -> None:
    for loop in ("loop.gguf", "loop-00001-of-00002.gguf"):
        (tmp_path / loop).symlink_to(loop)
    (tmp_path / "file").touch()
    GgufBuilder().write(tmp_path / "plain.gguf").rename(
        os.fsdecode(bytes(tmp_path) + b"/odd\xff.gguf")
    )
    with pytest.raises(StoreError) as refused:
        card_from_gguf(tmp_path / name)
    assert refused.value.code == code
    refused.value.message.encode()  # it can be told


def test_a_file_that_goes_while_it_is_imported_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = GgufBuilder().write(tmp_path / "x.gguf")

    def read_and_lose(path: Path) -> GgufHeader:
        header = read_gguf_header(path)
        path.unlink()
        return header

    monkeypatch.setattr("store.importer.read_gguf_header", read_and_lose)
    with pytest.raises(StoreError) as refused:
        card_from_gguf(path)
    assert refused.value.code == "store.not_found"


@pytest.mark.parametrize("part", [0, 1, 2])
def test_b20_any_part_stands_for_the_set_and_the_card_names_part_1(
    tmp_path: Path, part: int
) -> None:
    paths = write_split_set(tmp_path, "big-Q4_K_M", 3)
    card = card_from_gguf(paths[part])
    assert card.model_id == "big-Q4_K_M"
    assert card.gguf_file == paths[0].name
    assert isinstance(card.source, LocalSource)
    assert card.source.path == str(paths[0])
    assert [part.path for part in card.source.further_parts] == [str(p) for p in paths[1:]]
    assert card.storage_size.in_bytes == sum(path.stat().st_size for path in paths)


def test_b20_another_quant_in_the_folder_is_no_part(tmp_path: Path) -> None:
    paths = write_split_set(tmp_path, "big-Q4_K_M", 2)
    write_split_set(tmp_path, "big-Q8_0", 2)
    source = card_from_gguf(paths[0]).source
    assert isinstance(source, LocalSource)
    assert [part.path for part in source.further_parts] == [str(paths[1])]


def test_b20_a_set_of_one_is_whole(tmp_path: Path) -> None:
    (path,) = write_split_set(tmp_path, "small", 1)
    card = card_from_gguf(path)
    assert card.model_id == "small"
    assert isinstance(card.source, LocalSource)
    assert card.source.further_parts == ()


def test_b20_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = write_split_set(tmp_path, "big", 3)
    paths[1].unlink()
    with pytest.raises(StoreError, match="part 2 of 3") as refused:
        card_from_gguf(paths[2])
    assert refused.value.code == "store.incomplete"
    assert paths[1].name in refused.value.message


def test_b20_a_part_that_is_cut_short_is_named(tmp_path: Path) -> None:
    paths = write_split_set(tmp_path, "big", 3)
    paths[1].write_bytes(paths[1].read_bytes()[:-100])
    with pytest.raises(StoreError, match="part 2") as refused:
        card_from_gguf(paths[0])
    assert refused.value.code == "store.incomplete"


@pytest.mark.parametrize(
    "name",
    ["x-00004-of-00003.gguf", "x-00000-of-00003.gguf", "x-00001-of-99999.gguf"],
)
def test_b20_a_part_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="cannot be") as refused:
        card_from_gguf(GgufBuilder().write(tmp_path / name))
    assert refused.value.code == "store.incomplete"


def test_b20_parts_whose_headers_and_names_disagree_are_refused(tmp_path: Path) -> None:
    paths = write_split_set(tmp_path, "big", 2)
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(StoreError, match="its header says part 1, its name says 2"):
        card_from_gguf(paths[0])
    paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(StoreError, match="part 1 of 2"):
        card_from_gguf(tmp_path / "renamed.gguf")


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("...gguf", "model"),
        ("-x.gguf", "x"),
        ("ünïcödé.gguf", "n-c-d"),
        ("x" * 300 + ".gguf", "x" * 96),
        ("a;rm -rf.gguf", "a-rm--rf"),
    ],
)
def test_f27_any_file_name_gives_an_id_within_the_grammar(name: str, model_id: str) -> None:
    assert model_id_of(name) == model_id


@pytest.mark.parametrize(
    ("template", "takes_tools"),
    [
        ("{% for tool in tools %}{{ tool }}{% endfor %}", True),
        ("{{ messages }}", False),
        (None, False),
    ],
)
def test_a_card_says_whether_the_prompt_format_has_a_place_for_tools(
    tmp_path: Path, template: str | None, takes_tools: bool
) -> None:
    path = GgufBuilder(metadata={"tokenizer.chat_template": template}).write(tmp_path / "x.gguf")
    assert card_from_gguf(path).tooling.supports_tool_calling == takes_tools


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/m/model.gguf", "model.gguf"),
        ("/m/My Model (v2).gguf", "My_Model_v2_.gguf"),
        ("/m/.hidden.gguf", "hidden.gguf"),
        ("/m/---.gguf", "model.gguf"),
        ("/m/sha256-0123abcd", "sha256-0123abcd.gguf"),
        ("/m/" + "x" * 250, "x" * 120 + ".gguf"),
        ("/m/日本.gguf", "_.gguf"),
    ],
)
def test_a_file_gets_a_plain_name_in_a_store(path: str, name: str) -> None:
    assert part_names(LocalSource(path=path, size_bytes=1)) == (name,)
    # The grammar of a card's files holds it.
    ArtifactFile(path=name, size_bytes=1, sha256=Digest("0" * 64))


def test_b20_parts_keep_the_names_that_an_engine_finds_them_by(tmp_path: Path) -> None:
    paths = write_split_set(tmp_path, "a b", 3)
    source = card_from_gguf(paths[1]).source
    assert isinstance(source, LocalSource)
    assert part_names(source) == tuple(f"a_b-{number:05d}-of-00003.gguf" for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("template", "toggle", "thinking_format"),
    [
        ("{% if enable_thinking %}<think>{% endif %}", True, "token_delimited"),
        ("{{ '<think>' }}", False, "token_delimited"),
        ("{{ content.split('</think>')[-1] }}", False, "none"),
        (None, False, "none"),
    ],
)
def test_a_card_says_what_its_prompt_format_knows_of_thinking(
    tmp_path: Path, template: str | None, toggle: bool, thinking_format: str
) -> None:
    path = GgufBuilder(metadata={"tokenizer.chat_template": template}).write(tmp_path / "x.gguf")
    reasoning = card_from_gguf(path).reasoning
    assert (reasoning.supports_toggle, reasoning.format) == (toggle, thinking_format)


def test_a_projector_beside_a_model_comes_with_it(tmp_path: Path) -> None:
    path = GgufBuilder().write(tmp_path / "m.gguf")
    projector = write_projector(tmp_path / "mmproj-F16.gguf", 64)
    card = card_from_gguf(path)
    assert card.capabilities == ("text", "vision")
    assert card.vision is not None
    assert card.vision.projector_file == "mmproj.gguf"
    assert projector_bytes(card) == projector.stat().st_size
    assert isinstance(card.source, LocalSource)
    assert part_names(card.source) == ("m.gguf", "mmproj.gguf")
    manifest = in_place(card.model_id, card.source, now_ms=1)
    assert [file.path for file in manifest.files] == [str(path), str(projector)]
    assert parse_card(to_toml(card).encode(), origin="x") == card
    projector.write_bytes(b"other")
    with pytest.raises(StoreError, match="mmproj"):
        in_place(card.model_id, card.source, now_ms=1)


def test_a_projector_that_does_not_fit_or_is_one_of_several_is_left(tmp_path: Path) -> None:
    path = GgufBuilder().write(tmp_path / "m.gguf")
    write_projector(tmp_path / "mmproj-other.gguf", 576)
    (tmp_path / "mmproj-broken.gguf").write_bytes(b"GGUF")
    card = card_from_gguf(path)
    assert (card.vision, card.capabilities) == (None, ("text",))
    write_projector(tmp_path / "mmproj-a.gguf", 64)
    assert card_from_gguf(path).vision is not None
    write_projector(tmp_path / "mmproj-b.gguf", 64)
    assert card_from_gguf(path).vision is None


def test_the_key_of_files_without_a_projector_is_what_it_was(tmp_path: Path) -> None:
    card = card_from_gguf(GgufBuilder().write(tmp_path / "m.gguf"))
    assert isinstance(card.source, LocalSource)
    fixed = card.source.model_copy(update={"path": "/m.gguf", "size_bytes": 1, "modified_ns": 2})
    known = card.model_copy(update={"source": fixed, "model_id": ModelId("m")})
    assert artifact_key(known) == KEY_WITHOUT_PROJECTOR
