import io
import json
import tarfile
from pathlib import Path
from typing import Any, final

import pytest
import zstandard

from protocol.cluster_api import LogLineView, LogsDocument
from protocol.control_api import StateDocument
from skulk_tui.cli.bundle_archive import write_bundle
from skulk_tui.cli.bundle_documents import Collected
from skulk_tui.cli.bundle_wish import LEVELS, BundleWish, Sampling
from skulk_tui.cli.redaction import Redactor
from skulk_tui.client import NodeClient
from skulk_tui.target import Target
from tests.support.builders import a_node_id
from tests.support.command_line import Ran, skulk
from tests.support.fake_node import KEY, FakeNode, refusal

PLANTED = (
    KEY,
    "skulk1-" + "abcd" * 10,
    "hf_abcdefghijkl",
    "the prompt nobody may read",
    "/home/someone",
    "/Users/someone",
)


def planted_log() -> LogsDocument:
    lines = (
        *(LogLineView(message=f"before {text} after", level="info") for text in PLANTED[:3]),
        LogLineView(message=f'{{"messages": [{{"content": "{PLANTED[3]}"}}]}}', level="info"),
        LogLineView(message="x", level="info", extra={"prompt": PLANTED[3], "path": PLANTED[4]}),
        LogLineView(message=f"opened {PLANTED[5]}/models/a.gguf: Bearer abc", level="info"),
        LogLineView(message="ordinary", level="info"),
    )
    return LogsDocument(node_id=a_node_id(), name="studio", lines=lines, next_after="1.1")


def made(node: FakeNode, path: Path, *arguments: str) -> Ran:
    node.on("GET", "/v1/logs", planted_log())
    return skulk("diag", "bundle", "-O", str(path), *arguments, node=node.url)


def read(path: Path) -> dict[str, bytes]:
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        data = io.BytesIO(stream.read())
    with tarfile.open(fileobj=data) as tar:
        found = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read() for name, file in found.items() if file is not None}


def manifest(path: Path) -> dict[str, Any]:
    return json.loads(read(path)["skulk-bundle/manifest.json"])


def test_s34_nothing_that_was_planted_is_in_the_archive(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.zst"
    ran = made(node, path)
    assert ran.code == 0, ran.err
    everything = b"\n".join([*read(path).values(), *map(str.encode, read(path))]).decode()
    assert "ordinary" in everything
    assert [text for text in PLANTED if text in everything] == []
    counts = manifest(path)["removed"]
    assert counts["secret"] >= 3
    assert counts["prompt"] >= 2
    assert counts["home"] >= 2
    assert path.stat().st_mode & 0o077 == 0


def test_it_holds_state_events_logs_versions_and_settings_of_each_node(
    node: FakeNode, tmp_path: Path
) -> None:
    path = tmp_path / "b.tar.zst"
    ran = made(node, path)
    names = {name.rpartition("/")[2] for name in read(path)}
    assert names == {
        "state.json", "events.json", "identity.json", "health.json", "cluster.json",
        "config.json", "log.json", "manifest.json",
    }  # fmt: skip
    assert "at most" in ran.err
    assert "Review it before you share it" in ran.err
    assert manifest(path)["partial"] is False


def test_what_a_node_does_not_give_is_named_and_the_rest_is_there(
    node: FakeNode, tmp_path: Path
) -> None:
    node.on("GET", "/config", refusal("request.forbidden", f"no {KEY}", status=403))
    path = tmp_path / "b.tar.zst"
    ran = made(node, path)
    assert ran.code == 6
    (failed,) = manifest(path)["failed"].items()
    assert failed[0].endswith("/config.json")
    assert KEY not in failed[1]


def test_nodes_beyond_the_bound_are_named_as_left_out(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.zst"
    ran = made(node, path, "--max-nodes", "1")
    left_out = manifest(path)["nodes_left_out"]
    assert ran.code == (6 if left_out else 0)
    assert len(manifest(path)["nodes"]) == 1


def test_ctrl_c_keeps_what_there_is_and_says_that_it_is_partial(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: Collected) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(Collected, "_events", interrupted)
    path = tmp_path / "b.tar.zst"
    ran = made(node, path)
    assert ran.code == 130
    assert manifest(path)["partial"] is True
    names = {name.rpartition("/")[2] for name in read(path)}
    assert "state.json" in names
    assert names & {"events.json", "log.json"} == set()


def test_an_archive_that_cannot_be_written_leaves_nothing(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "gone" / "b.tar.zst"
    ran = made(node, path)
    assert ran.code == 2
    assert list(tmp_path.iterdir()) == []


def test_since_reads_a_log_from_its_beginning_and_drops_what_is_older(
    node: FakeNode, tmp_path: Path
) -> None:
    old = LogLineView(message="long ago", at="2001-01-01T00:00:00.000+00:00")
    new = LogLineView(message="just now", at="2999-01-01T00:00:00.000+00:00")
    page = planted_log().model_copy(update={"lines": (old, new), "has_more": False})
    path = tmp_path / "b.tar.zst"
    node.on("GET", "/v1/logs", page)
    ran = skulk("bundle", "--since", "10m", "-O", str(path), node=node.url)
    assert ran.code == 0, ran.err
    assert node.asked("GET", "/v1/logs")[0].query["after"] == ["0.0"]
    everything = b"".join(read(path).values())
    assert b"just now" in everything
    assert b"long ago" not in everything


def test_a_duration_looks_again_and_again_at_what_changes(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.zst"
    ran = made(node, path, "--duration", "30ms", "--interval", "10ms")
    assert ran.code == 0, ran.err
    samples = [name.split("/") for name in read(path) if "/samples/" in name]
    assert [sorted({name[2][:4] for name in samples})] == [["0001", "0002", "0003"]]
    assert {name[-1] for name in samples} == {"state.json", "health.json", "cluster.json"}


def test_ctrl_c_between_two_looks_keeps_the_looks_before(node: FakeNode, tmp_path: Path) -> None:
    looks: list[float] = []

    @final
    class OnceWaited:
        def monotonic_s(self) -> float:
            return 0.0

        def wall_ms(self) -> int:
            return 0

        def wait_s(self, duration_s: float) -> None:
            looks.append(duration_s)
            if len(looks) > 1:
                raise KeyboardInterrupt

    client = NodeClient(Target(url=node.url, url_rule="--node"), clock=OnceWaited())
    state = client.get("/state", StateDocument)
    sampling = Sampling(interval_s=30.0, n_samples=5)
    wish = BundleWish(nodes=tuple(state.members), parts=frozenset({"health"}), sampling=sampling)
    collected = Collected(client, wish, OnceWaited(), tell=lambda _: None)
    record, ended = write_bundle(tmp_path / "b", collected, wish, state, now_ms=0)
    assert isinstance(ended, KeyboardInterrupt)
    assert record.partial
    assert looks == [30.0, 60.0]
    assert [name for name in read(tmp_path / "b") if "/samples/" in name] == [
        f"skulk-bundle/samples/0001-19700101T000000Z/nodes/{next(iter(state.members))}/health.json"
    ]


def test_samples_together_are_bounded(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skulk_tui.cli.bundle_documents.MAX_SAMPLED_BYTES", 100)
    path = tmp_path / "b.tar.zst"
    ran = made(node, path, "--duration", "30ms", "--interval", "10ms")
    assert ran.code == 6
    assert [name for name in read(path) if "/samples/" in name] == []
    assert any("all samples together" in why for why in manifest(path)["failed"].values())


@pytest.mark.parametrize(
    ("duration", "interval", "more"),
    [("1s", "2s", ()), ("1h", "1s", ()), ("2m", "30s", ("--timeout", "60s"))],
)
def test_looks_that_cannot_be_are_refused_before_any(
    node: FakeNode, tmp_path: Path, duration: str, interval: str, more: tuple[str, ...]
) -> None:
    path = tmp_path / "b.tar.zst"
    ran = made(node, path, "--duration", duration, "--interval", interval, *more)
    assert ran.code == 2
    assert not path.exists()


def test_only_lines_from_a_level_on_are_kept(node: FakeNode, tmp_path: Path) -> None:
    lines = tuple(LogLineView(message=f"at {level}", level=level) for level in LEVELS)
    plain = LogLineView(message="of an engine")
    path = tmp_path / "b.tar.zst"
    node.on("GET", "/v1/logs", planted_log().model_copy(update={"lines": (*lines, plain)}))
    ran = skulk("bundle", "--log-level", "WARN", "-O", str(path), node=node.url)
    assert ran.code == 0, ran.err
    everything = b"".join(read(path).values()).decode()
    kept = ["at warning", "at error", "at critical", "of an engine"]
    assert [text for text in kept if text not in everything] == []
    assert "at info" not in everything
    assert skulk("bundle", "--log-level", "loud", node=node.url).code == 2


def test_parts_are_chosen_by_name(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.zst"
    ran = made(node, path, "--include", "state, log,health", "--exclude", "log")
    assert ran.code == 0, ran.err
    names = {name.rpartition("/")[2] for name in read(path)}
    assert names == {"state.json", "health.json", "manifest.json"}
    assert manifest(path)["parts"] == ["state", "health"]
    nothing = skulk("bundle", "--include", "log", "--exclude", "log", node=node.url)
    assert nothing.code == 2
    unknown = skulk("bundle", "--exclude", "logs", node=node.url)
    assert "'log'" in unknown.err


def test_codes_of_errors_and_ordinary_fields_stay() -> None:
    redactor = Redactor()
    document = {"code": "client.usage", "tokens": 7, "name": "studio", "seq": [1, None, True]}
    assert redactor.value(document) == document
    assert not +redactor.counts


def test_what_is_nested_without_end_is_cut() -> None:
    value: object = "deep"
    for _ in range(100):
        value = [value]
    redactor = Redactor()
    assert "too deep" in json.dumps(redactor.value(value))
