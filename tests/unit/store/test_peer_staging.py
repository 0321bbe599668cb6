"""Files on their way from other nodes: what an earlier try left is kept, and only that."""

from pathlib import Path

import pytest

from protocol.errors import StoreError
from store.layout import StoreLayout
from store.peer_staging import PeerStaging
from store.service import artifact_key
from store.sources.peer import PeerFile
from store.transfer import PEER
from store.volume import KEEP_PARTIALS_S, Volume
from tests.support.wheel_builder import MEMBER, card_of, sha256, tiny_model

MEMBERS = {MEMBER: tiny_model(100_000), "tiny_model/deep/extra.bin": b"extra" * 1000}
CARD = card_of(MEMBERS)
KEY = artifact_key(CARD)
FILES = tuple(
    PeerFile(path=path, size_bytes=len(content), sha256=sha256(content))
    for path, content in MEMBERS.items()
)
CONTENTS = tuple(MEMBERS.values())
NOW_S = 1_000_000.0


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    layout = StoreLayout(tmp_path / "models")
    layout.prepare()
    return layout


def opened(layout: StoreLayout, files: tuple[PeerFile, ...] = FILES) -> PeerStaging:
    staging = PeerStaging(layout, KEY, files)
    staging.open()
    return staging


def fill(staging: PeerStaging, index: int, content: bytes) -> None:
    partial = staging.partial(index)
    while partial.hash_slice():
        pass
    partial.append(content[partial.length :])


def test_files_become_the_artifact_in_one_step(layout: StoreLayout) -> None:
    staging = opened(layout)
    assert staging.missing() == [0, 1]
    for index, content in enumerate(CONTENTS):
        fill(staging, index, content)
        staging.settle(index)
    assert staging.missing() == []
    assert not layout.artifact_path(KEY).exists()
    staging.publish(CARD, "a test", now_ms=5)
    staging.close()
    manifest = Volume(layout).verified_manifest(KEY)
    assert manifest is not None
    assert [file.path for file in manifest.files] == list(MEMBERS)
    assert (manifest.source, manifest.entry, manifest.verified_at_ms) == ("a test", MEMBER, 5)
    assert layout.file_path(KEY, MEMBER).read_bytes() == MEMBERS[MEMBER]


def test_what_was_whole_and_what_was_begun_is_gone_on_with(layout: StoreLayout) -> None:
    staging = opened(layout)
    fill(staging, 1, CONTENTS[1])
    staging.settle(1)
    fill(staging, 0, CONTENTS[0][:40_000])
    staging.close()
    again = opened(layout)
    assert again.missing() == [0]
    assert again.begun() == [0]
    assert again.staged_bytes == 40_000 + len(CONTENTS[1])
    fill(again, 0, CONTENTS[0])
    again.settle(0)
    again.publish(CARD, "a test", now_ms=0)
    again.close()
    assert layout.file_path(KEY, MEMBER).read_bytes() == CONTENTS[0]


def test_wrong_bytes_are_forgotten(layout: StoreLayout) -> None:
    staging = opened(layout)
    fill(staging, 0, bytes(len(CONTENTS[0])))
    with pytest.raises(StoreError) as refused:
        staging.settle(0)
    assert refused.value.code == "store.digest_mismatch"
    assert staging.staged_bytes == 0
    assert staging.missing() == [0, 1]
    staging.close()


def test_files_of_other_digests_start_over(layout: StoreLayout) -> None:
    staging = opened(layout)
    fill(staging, 1, CONTENTS[1])
    staging.settle(1)
    fill(staging, 0, CONTENTS[0][:40_000])
    staging.close()
    other = PeerFile(path=MEMBER, size_bytes=100, sha256=sha256(b"other"))
    again = opened(layout, (other,))
    assert (again.missing(), again.staged_bytes) == ([0], 0)
    again.close()


def test_a_partial_that_is_too_long_starts_over(layout: StoreLayout) -> None:
    staging = opened(layout)
    fill(staging, 0, CONTENTS[0] + b"more")
    staging.close()
    again = opened(layout)
    assert again.staged_bytes == 0
    again.close()


@pytest.mark.parametrize("cut", ["verified", "complete"])
def test_a_kill_between_whole_and_found_costs_nothing(layout: StoreLayout, cut: str) -> None:
    staging = opened(layout)
    for index, content in enumerate(CONTENTS):
        fill(staging, index, content)
    # The first file was verified, and did not get to its place.
    if cut == "verified":
        staging.partial(0).publish()
    else:
        staging.settle(0)
    staging.settle(1)
    if cut == "complete":
        folder = layout.staging_path(KEY) / PEER
        (folder / "manifest.json").write_text("half a")
    staging.close()
    rests = Volume(layout).recover_staging(now_s=NOW_S)
    assert ["goes on from here" in rest.problem for rest in rests] == [True]
    again = opened(layout)
    assert again.missing() == []
    again.publish(CARD, "a test", now_ms=0)
    again.close()
    assert Volume(layout).verified_manifest(KEY) is not None


def test_a_rest_that_nobody_goes_on_with_is_deleted_after_a_week(layout: StoreLayout) -> None:
    staging = opened(layout)
    fill(staging, 0, CONTENTS[0][:40_000])
    staging.close()
    newest_s = max(path.stat().st_mtime for path in layout.staging_path(KEY).rglob("*"))
    volume = Volume(layout)
    volume.recover_staging(now_s=newest_s + KEEP_PARTIALS_S - 60)
    assert layout.staging_path(KEY).exists()
    volume.recover_staging(now_s=newest_s + KEEP_PARTIALS_S + 60)
    assert not layout.staging_path(KEY).exists()
