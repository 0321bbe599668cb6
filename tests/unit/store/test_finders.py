import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from store.finders import MAX_DEPTH, FinderKind, FoundModel, default_roots, find_models
from tests.support.gguf_builder import GgufBuilder, write_split_set

BLOB = "a" * 64


def find(kind: FinderKind, home: Path, **environment: str) -> list[tuple[str, str]]:
    found = find_models(kind, home=home, environment=environment)
    return [(model.model_id, str(model.path.relative_to(home))) for model in found]


def ollama_manifest(home: Path, *names: str, digest: str = f"sha256:{BLOB}") -> Path:
    path = home.joinpath(".ollama", "models", "manifests", *names)
    path.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": 1},
        {"mediaType": "application/vnd.ollama.image.template", "digest": digest},
    ]
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return path


def test_a_hub_cache_is_found_by_its_links(tmp_path: Path) -> None:
    repository = tmp_path / ".cache" / "huggingface" / "hub" / "models--org--Tiny-GGUF"
    blob = GgufBuilder().write(repository / "blobs" / BLOB)
    snapshot = repository / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "tiny-Q4_K_M.gguf").symlink_to(blob)
    (snapshot / "mmproj-F16.gguf").symlink_to(blob)
    (snapshot / "gone-Q8_0.gguf").symlink_to(repository / "blobs" / "missing")
    prefix = ".cache/huggingface/hub/models--org--Tiny-GGUF/snapshots"
    assert find("hf", tmp_path) == [
        ("org/Tiny-GGUF:Q4_K_M", f"{prefix}/{'c' * 40}/tiny-Q4_K_M.gguf")
    ]


def test_one_file_under_two_revisions_is_found_once(tmp_path: Path) -> None:
    repository = tmp_path / ".cache" / "huggingface" / "hub" / "models--org--Tiny"
    blob = GgufBuilder().write(repository / "blobs" / BLOB)
    for revision in ("c" * 40, "d" * 40):
        (repository / "snapshots" / revision).mkdir(parents=True)
        (repository / "snapshots" / revision / "tiny.gguf").symlink_to(blob)
    assert len(find("hf", tmp_path)) == 1


def test_an_ollama_model_is_its_blob_under_its_own_name(tmp_path: Path) -> None:
    ollama_manifest(tmp_path, "hf.co", "org", "model", "Q4_K_M")
    blobs = tmp_path / ".ollama" / "models" / "blobs"
    GgufBuilder().write(blobs / f"sha256-{BLOB}")
    assert find("ollama", tmp_path) == [
        ("hf.co/org/model:Q4_K_M", f".ollama/models/blobs/sha256-{BLOB}")
    ]


@pytest.mark.parametrize(
    ("names", "model_id"),
    [
        (("registry.ollama.ai", "library", "llama3.2", "1b"), "llama3.2:1b"),
        (("registry.ollama.ai", "someone", "tuned", "latest"), "someone/tuned:latest"),
    ],
)
def test_ollamas_own_registry_is_left_out_of_the_name(
    tmp_path: Path, names: tuple[str, ...], model_id: str
) -> None:
    ollama_manifest(tmp_path, *names)
    GgufBuilder().write(tmp_path / ".ollama" / "models" / "blobs" / f"sha256-{BLOB}")
    assert [found for found, _ in find("ollama", tmp_path)] == [model_id]


@pytest.mark.parametrize(
    "digest", ["sha256:../../../etc/passwd", "sha256:" + "A" * 64, "md5:x", "", "/etc/passwd"]
)
def test_f27_an_ollama_digest_is_validated(tmp_path: Path, digest: str) -> None:
    ollama_manifest(tmp_path, "registry.ollama.ai", "library", "x", "y", digest=digest)
    assert find("ollama", tmp_path) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, '{"layers": 3}', "\x00"])
def test_a_broken_ollama_manifest_is_passed_over(tmp_path: Path, content: str) -> None:
    ollama_manifest(tmp_path, "registry.ollama.ai", "library", "x", "y").write_text(content)
    assert find("ollama", tmp_path) == []


def test_a_pipe_under_a_manifests_name_holds_nobody_up(tmp_path: Path) -> None:
    path = ollama_manifest(tmp_path, "hf.co", "org", "model", "Q4_K_M")
    path.unlink()
    os.mkfifo(path)
    assert find("ollama", tmp_path) == []


def test_a_name_that_is_no_text_hides_no_other(tmp_path: Path) -> None:
    folder = tmp_path / ".cache" / "llama.cpp"
    GgufBuilder().write(folder / "tiny.gguf")
    with suppress(OSError):  # a file system that takes UTF-8 only cannot bring us there
        (folder / os.fsdecode(b"tiny-\xff.gguf")).write_bytes(b"")
    assert find("llamacpp", tmp_path) == [("tiny", ".cache/llama.cpp/tiny.gguf")]


@pytest.mark.parametrize("quant", ["IQ3_XXS", "Q4" + "_K" * 40])
def test_a_quant_that_an_id_has_no_room_for_is_left_out(tmp_path: Path, quant: str) -> None:
    owner, name = "o" * 96, "n" * 96
    folder = tmp_path / ".lmstudio" / "models" / owner / name
    GgufBuilder().write(folder / f"model-{quant}.gguf")
    (found,) = find_models("lmstudio", home=tmp_path, environment={})
    assert found.model_id == f"{owner}/{name}"


def test_lm_studio_names_owner_and_repository(tmp_path: Path) -> None:
    GgufBuilder().write(tmp_path / ".lmstudio/models/org/Tiny-GGUF/Tiny-Q8_0.gguf")
    GgufBuilder().write(tmp_path / ".cache/lm-studio/models/org/Old/Old-IQ2_XS.gguf")
    assert [model_id for model_id, _ in find("lmstudio", tmp_path)] == [
        "org/Old:IQ2_XS",
        "org/Tiny-GGUF:Q8_0",
    ]


def test_llama_cpp_keeps_files_in_one_folder(tmp_path: Path) -> None:
    GgufBuilder().write(tmp_path / ".cache/llama.cpp/org_Tiny_tiny-q4_0.gguf")
    assert find("llamacpp", tmp_path) == [
        ("org_Tiny_tiny-q4_0", ".cache/llama.cpp/org_Tiny_tiny-q4_0.gguf")
    ]


def test_a_split_set_is_found_by_its_first_part(tmp_path: Path) -> None:
    write_split_set(tmp_path / ".cache/llama.cpp", "big-Q4_0", 3)
    assert find("llamacpp", tmp_path) == [
        ("big-Q4_0", ".cache/llama.cpp/big-Q4_0-00001-of-00003.gguf")
    ]


@pytest.mark.parametrize(
    ("kind", "variable"),
    [
        ("hf", "HF_HUB_CACHE"),
        ("hf", "HF_HOME"),
        ("ollama", "OLLAMA_MODELS"),
        ("llamacpp", "LLAMA_CACHE"),
        ("llamacpp", "XDG_CACHE_HOME"),
    ],
)
def test_the_programs_own_variables_are_honoured(
    tmp_path: Path, kind: FinderKind, variable: str
) -> None:
    (root, *_) = default_roots(kind, home=tmp_path, environment={variable: "/elsewhere"})
    assert str(root).startswith("/elsewhere")


@pytest.mark.parametrize("kind", ["hf", "ollama", "lmstudio", "llamacpp"])
def test_where_nothing_is_nothing_is_found(tmp_path: Path, kind: FinderKind) -> None:
    assert find_models(kind, home=tmp_path, environment={}, roots=(tmp_path / "none",)) == ()


def test_a_walk_ends(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*(["x"] * (MAX_DEPTH + 1)))
    GgufBuilder().write(deep / "deep.gguf")
    GgufBuilder().write(tmp_path / "near.gguf")
    (tmp_path / "loop").symlink_to(tmp_path)
    found: tuple[FoundModel, ...] = find_models(
        "llamacpp", home=tmp_path, environment={}, roots=(tmp_path,)
    )
    assert [model.model_id for model in found] == ["near"]
