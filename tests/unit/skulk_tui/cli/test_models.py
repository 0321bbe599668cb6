import json
from pathlib import Path

import pytest

from protocol.errors import ErrorBody
from protocol.models_api import ModelList
from protocol.storage_api import FoundModels, FoundModelView
from tests.support.builders import GIB, MIB, MODEL
from tests.support.cluster_documents import some_storage
from tests.support.command_line import skulk
from tests.support.fake_node import FakeNode, a_model, a_transfer, document, refusal

DOWNLOAD = f"/store/models/{MODEL}/download"


pytestmark = pytest.mark.usefixtures("no_real_waiting")


def found(name: str, *, problem: str = "", imported: bool = False) -> FoundModelView:
    return FoundModelView(
        source="hf",
        name=name,
        path=f"/cache/{name}.gguf",
        size_bytes=GIB,
        problem=problem,
        imported=imported,
    )


def test_a_relative_path_is_completed_where_the_node_is_this_machine(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert skulk("models", "import", "a.gguf", "--id", "my/a", node=node.url).code == 0
    (asked,) = node.asked("POST", "/models/import")
    assert asked.body == {"path": str(tmp_path / "a.gguf"), "model_id": "my/a"}


def test_a_relative_path_is_refused_for_another_machine() -> None:
    ran = skulk("models", "import", "a.gguf", node="http://192.0.2.1")
    assert ran.code == 2
    assert "another machine" in ran.err


def test_everything_importable_that_was_found_is_imported(node: FakeNode) -> None:
    files = (found("a"), found("b", problem="split set is incomplete"), found("c", imported=True))
    node.on("GET", "/models/found", FoundModels(items=files))
    ran = skulk("models", "import", "--from", "hf, ollama", "--json", node=node.url)
    assert ran.code == 0
    assert [item["imported"] for item in json.loads(ran.out)["items"]] == [True, False, True]
    assert [seen.body["path"] for seen in node.asked("POST", "/models/import")] == ["/cache/a.gguf"]
    assert node.asked("GET", "/models/found")[0].query == {"source": ["hf", "ollama"]}


def test_a_dry_run_lists_and_imports_nothing(node: FakeNode) -> None:
    ran = skulk("models", "import", "--from", "ollama", "--dry-run", node=node.url)
    assert ran.code == 0
    assert "/models/phi.gguf" in ran.out
    assert node.asked("POST", "/models/import") == []


def test_some_imported_and_some_not_is_6(node: FakeNode) -> None:
    bad = refusal("store.gguf_invalid", "not a GGUF file")
    node.on("POST", "/models/import", document(a_model(), status=201), bad)
    ran = skulk("models", "import", "/a.gguf", "/b.gguf", node=node.url)
    assert ran.code == 6
    assert "not a GGUF file" in ran.out


def test_one_file_that_cannot_be_imported_is_its_error(node: FakeNode) -> None:
    node.on("POST", "/models/import", refusal("store.gguf_invalid", "not a GGUF file"))
    ran = skulk("models", "import", "/a.gguf", node=node.url)
    assert (ran.code, ran.out) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to import"),
        (("--from", "olama"), "'ollama'"),
        (("/a", "/b", "--id", "x/y"), "exactly one path"),
    ],
)
def test_senseless_imports_are_refused(
    node: FakeNode, arguments: tuple[str, ...], said: str
) -> None:
    ran = skulk("models", "import", *arguments, node=node.url)
    assert ran.code == 2
    assert said in ran.err


def test_a_pull_shows_its_progress_and_ends_when_complete(node: FakeNode) -> None:
    node.on("POST", DOWNLOAD, document(a_transfer(), status=202))
    node.on(
        "GET",
        f"{DOWNLOAD}/status",
        a_transfer(rate_bytes_s=5.0 * MIB, eta_s=10.0),
        a_transfer("complete", 100 * MIB),
    )
    ran = skulk("models", "pull", MODEL, node=node.url)
    assert ran.code == 0
    assert ran.err == "download  test/tiny  50.0 MiB / 100 MiB  50 %  5.00 MiB/s  ETA 10 s\n"
    assert "complete" in ran.out


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (a_transfer("failed", error=ErrorBody(code="store.no_space", message="full")), 4),
        (a_transfer("cancelled"), 1),
        (a_transfer("absent"), 1),
    ],
)
def test_a_pull_that_ends_badly_is_its_error(node: FakeNode, ending: object, code: int) -> None:
    node.on("POST", DOWNLOAD, document(a_transfer(), status=202))
    assert isinstance(ending, type(a_transfer()))
    node.on("GET", f"{DOWNLOAD}/status", ending)
    ran = skulk("models", "pull", MODEL, node=node.url)
    assert (ran.code, ran.out) == (code, "")


def test_a_pull_is_cancelled(node: FakeNode) -> None:
    ran = skulk("models", "pull", MODEL, "--cancel", "--json", node=node.url)
    assert json.loads(ran.out)["items"][0]["state"] == "cancelled"
    assert node.asked("POST", DOWNLOAD) == []


def test_files_are_removed_only_after_a_yes(node: FakeNode) -> None:
    ran = skulk("models", "rm", MODEL, node=node.url)
    assert ran.code == 2
    assert "--yes" in ran.err
    person = frozenset({"stdin", "stderr"})
    ran = skulk("models", "rm", MODEL, node=node.url, stdin="n\n", terminals=person)
    assert ran.code == 2
    assert node.asked("DELETE", f"/store/models/{MODEL}") == []
    ran = skulk("models", "rm", MODEL, node=node.url, stdin="y\n", terminals=person)
    assert ran.code == 0
    assert len(node.asked("DELETE", f"/store/models/{MODEL}")) == 1


def test_nobody_is_asked_when_input_is_switched_off(node: FakeNode) -> None:
    person = frozenset({"stdin", "stderr"})
    off = {"SKULK_NO_INPUT": "1"}
    ran = skulk(
        "models", "rm", MODEL, node=node.url, stdin="y\n", terminals=person, environment=off
    )
    assert ran.code == 2


def test_an_imported_model_is_forgotten_too(node: FakeNode) -> None:
    node.on("GET", "/v1/models", ModelList(data=(a_model(tags=("custom",), source="local"),)))
    node.on("DELETE", f"/store/models/{MODEL}", refusal("store.not_found", status=404))
    assert skulk("models", "rm", MODEL, "--yes", node=node.url).code == 0
    assert len(node.asked("DELETE", f"/models/custom/{MODEL}")) == 1


def test_a_model_in_use_stays(node: FakeNode) -> None:
    node.on("DELETE", f"/store/models/{MODEL}", refusal("store.in_use", "it runs", status=409))
    assert skulk("models", "rm", MODEL, "--yes", node=node.url).code == 5


def test_an_unknown_model_names_the_nearest(node: FakeNode) -> None:
    for arguments in (("rm", "test/tinny", "--yes"), ("show", "test/tinny")):
        node.on("GET", "/v1/models/test/tinny", refusal("request.model_not_found", status=404))
        ran = skulk("models", *arguments, node=node.url)
        assert (ran.code, ran.err.splitlines()[-1]) == (2, f"  remedy: Did you mean '{MODEL}'?")


# ---- On other nodes ----------------------------------------------------------------------------


def test_a_pull_on_another_node_is_asked_for_and_followed_there(node: FakeNode) -> None:
    node.on("POST", DOWNLOAD, document(a_transfer(), status=202))
    assert skulk("models", "pull", MODEL, "--on", "studio", node=node.url).code == 0
    assert node.asked("POST", DOWNLOAD)[0].query == {"node": ["studio"]}
    assert node.asked("GET", f"{DOWNLOAD}/status")[0].query == {"node": ["studio"]}


def test_files_are_removed_from_another_node_and_the_card_stays(node: FakeNode) -> None:
    node.on("GET", "/v1/models", ModelList(data=(a_model(tags=("custom",)),)))
    ran = skulk("models", "rm", MODEL, "--on", "studio", "--yes", node=node.url)
    assert ran.code == 0
    assert node.asked("DELETE", f"/store/models/{MODEL}")[0].query == {"node": ["studio"]}
    assert node.asked("DELETE", f"/models/custom/{MODEL}") == []


def test_files_of_all_nodes_are_listed_with_the_space_left(node: FakeNode) -> None:
    ran = skulk("models", "files", node=node.url)
    first, second = ran.out.splitlines()[1:]
    assert "in use" in first
    assert "/big/a.gguf" in second
    assert "1.00 GiB of 9.00 GiB free in /big" in ran.err


def test_a_node_that_did_not_answer_makes_the_list_partial(node: FakeNode) -> None:
    node.on("GET", "/store/storage", some_storage(is_answered=False))
    ran = skulk("models", "files", node=node.url)
    assert ran.code == 6
    assert "node-2 did not answer: the link is silent" in ran.err
