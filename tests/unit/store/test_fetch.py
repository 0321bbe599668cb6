"""Fetching from loopback origins that misbehave: cases B16 and B17, fault F37."""

import asyncio
import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from protocol.errors import StoreError
from store import partial as partial_module
from store.fetch import Fetcher, FetchPolicy
from store.layout import StoreLayout
from store.origins import FetchRequest
from store.partial import Partial
from tests.support.range_server import Origin, serving
from tests.support.wheel_builder import sha256

CONTENT = b"".join(hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(65_536))
"""2 MiB that do not repeat."""
OTHER = CONTENT[::-1]
QUICK = FetchPolicy(stall_s=0.3, connect_s=2.0, backoff_s=0.0, fruitless_attempts=3)


@dataclass
class Observer:
    """Records what it is told."""

    done: list[int] = field(default_factory=list[int])
    sizes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    resumed: list[int] = field(default_factory=list[int])
    refuse: StoreError | None = None
    cancel_at: int | None = None

    def on_size(self, total_bytes: int, staged_bytes: int) -> None:
        self.sizes.append((total_bytes, staged_bytes))
        if self.refuse is not None:
            raise self.refuse

    def on_resumed(self, staged_bytes: int, total_bytes: int | None) -> None:
        self.resumed.append(staged_bytes)

    def on_bytes(self, done_bytes: int) -> None:
        self.done.append(done_bytes)
        if self.cancel_at is not None and done_bytes >= self.cancel_at:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()


@pytest.fixture
def origin() -> Iterator[Origin]:
    with serving(Origin(content=CONTENT)) as served:
        yield served


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    StoreLayout(tmp_path).prepare()
    return tmp_path / "staging"


def fetch(
    origin: Origin | str,
    staging: Path,
    observer: Observer | None = None,
    *,
    expected: bytes = CONTENT,
    policy: FetchPolicy = QUICK,
    max_bytes: int = 1 << 30,
) -> Observer:
    """Fetch once, as one call of the store does."""
    seen = observer or Observer()
    url = origin if isinstance(origin, str) else origin.url

    async def run() -> None:
        request = FetchRequest(url=url, sha256=sha256(expected), max_bytes=max_bytes)
        with StoreLayout(staging.parent).opened("staging") as directory:
            await Fetcher(policy=policy).fetch(request, directory, "file", seen)

    asyncio.run(run())
    return seen


def refusal(origin: Origin | str, staging: Path, **options: object) -> StoreError:
    with pytest.raises(StoreError) as refused:
        fetch(origin, staging, **options)  # pyright: ignore[reportArgumentType]  passed through
    assert not (staging / "file").exists()
    return refused.value


def leave_partial(origin: Origin, staging: Path, n_bytes: int) -> None:
    """Have an earlier try cancelled after at least so many bytes."""
    with suppress(asyncio.CancelledError):
        fetch(origin, staging, Observer(cancel_at=n_bytes))
    assert not (staging / "file").exists()
    assert (staging / "file.partial").stat().st_size >= n_bytes


def test_a_file_gets_its_name_with_its_bytes_and_nothing_is_left(
    origin: Origin, staging: Path
) -> None:
    seen = fetch(origin, staging)
    assert (staging / "file").read_bytes() == CONTENT
    assert [path.name for path in staging.iterdir()] == ["file"]
    assert seen.sizes == [(len(CONTENT), 0)]
    assert seen.done == sorted(seen.done)
    assert seen.done[-1] == len(CONTENT)


def test_b18_cancel_keeps_the_partial_and_the_next_call_resumes(
    origin: Origin, staging: Path
) -> None:
    leave_partial(origin, staging, len(CONTENT) // 2)
    kept = (staging / "file.partial").stat().st_size
    seen = fetch(origin, staging)
    assert origin.requests == [None, f"bytes={kept}-"]
    assert seen.resumed == [kept]
    assert seen.sizes == [(len(CONTENT), kept)]
    assert (staging / "file").read_bytes() == CONTENT


def test_b15_a_partial_with_all_bytes_is_verified_without_the_network(
    origin: Origin, staging: Path
) -> None:
    leave_partial(origin, staging, len(CONTENT))
    assert len(origin.requests) == 1
    fetch(origin, staging)
    assert len(origin.requests) == 1
    assert (staging / "file").read_bytes() == CONTENT


def test_b16_an_origin_that_ignores_ranges_starts_over(origin: Origin, staging: Path) -> None:
    leave_partial(origin, staging, len(CONTENT) // 2)
    origin.ignore_range = True
    fetch(origin, staging)
    assert (staging / "file").read_bytes() == CONTENT


def test_b16_a_changed_version_discards_the_partial(origin: Origin, staging: Path) -> None:
    leave_partial(origin, staging, len(CONTENT) // 2)
    origin.content, origin.etag = OTHER, '"v2"'
    fetch(origin, staging, expected=CONTENT[::-1])
    assert (staging / "file").read_bytes() == OTHER


def test_b16_an_etag_that_changes_on_a_range_answer_starts_over(
    origin: Origin, staging: Path
) -> None:
    origin.etag = 'W/"v1"'  # weak, so that no If-Range guards the request
    leave_partial(origin, staging, len(CONTENT) // 2)
    origin.etag = 'W/"v2"'
    fetch(origin, staging)
    assert origin.requests[-1] is None
    assert (staging / "file").read_bytes() == CONTENT


def test_b16_an_answer_with_another_range_starts_over(origin: Origin, staging: Path) -> None:
    leave_partial(origin, staging, len(CONTENT) // 2)
    origin.wrong_range = True
    fetch(origin, staging)
    assert origin.requests[-1] is None
    assert (staging / "file").read_bytes() == CONTENT


def test_b16_a_partial_longer_than_the_new_version_starts_over(
    origin: Origin, staging: Path
) -> None:
    origin.etag = None
    leave_partial(origin, staging, len(CONTENT) // 2)
    origin.content = CONTENT[:1000]
    fetch(origin, staging, expected=CONTENT[:1000])
    assert (staging / "file").read_bytes() == CONTENT[:1000]


def test_b16_wrong_bytes_once_are_deleted_and_fetched_again(origin: Origin, staging: Path) -> None:
    origin.corrupt_answers = 1
    fetch(origin, staging)
    assert origin.requests == [None, None]
    assert (staging / "file").read_bytes() == CONTENT


def test_b16_wrong_bytes_every_time_are_bounded(origin: Origin, staging: Path) -> None:
    origin.corrupt_answers = 99
    assert refusal(origin, staging).code == "store.digest_mismatch"
    assert len(origin.requests) == QUICK.mismatches
    assert (staging / "file.partial").stat().st_size == 0


def test_b16_a_partial_damaged_on_disk_never_gets_the_name(origin: Origin, staging: Path) -> None:
    leave_partial(origin, staging, len(CONTENT) // 2)
    with (staging / "file.partial").open("r+b") as file:
        file.write(b"damage")
    fetch(origin, staging)
    assert (staging / "file").read_bytes() == CONTENT


def test_a_partial_of_another_file_is_not_resumed(origin: Origin, staging: Path) -> None:
    leave_partial(origin, staging, len(CONTENT) // 2)
    origin.content, origin.etag = OTHER, '"v1"'
    fetch(origin, staging, expected=OTHER)
    assert origin.requests == [None, None]


def test_a_partial_without_its_sidecar_is_not_resumed(origin: Origin, staging: Path) -> None:
    leave_partial(origin, staging, len(CONTENT) // 2)
    (staging / "file.partial.json").unlink()
    fetch(origin, staging)
    assert origin.requests == [None, None]


def test_f37_a_cut_connection_is_resumed_from_the_offset(origin: Origin, staging: Path) -> None:
    origin.cut_after = 700_000
    seen = fetch(origin, staging)
    assert [asked for asked in origin.requests[1:] if asked is None] == []
    assert len(origin.requests) == 3
    assert seen.done[-1] == len(CONTENT)
    assert (staging / "file").read_bytes() == CONTENT


def test_b17_a_stall_is_detected_and_resumed_from_the_offset(origin: Origin, staging: Path) -> None:
    origin.stall_after = 1_500_000
    fetch(origin, staging)
    assert origin.requests[0] is None
    assert origin.requests[1] is not None
    assert (staging / "file").read_bytes() == CONTENT


def test_b17_an_origin_that_never_sends_headers_fails_as_stalled(
    origin: Origin, staging: Path
) -> None:
    origin.stall_before_headers = True
    error = refusal(origin, staging, policy=FetchPolicy(stall_s=0.05, backoff_s=0.0))
    assert error.code == "store.stalled"
    assert "0.05 s" in error.message
    assert len(origin.requests) == 5


def test_b17_slow_and_steady_is_left_alone(origin: Origin, staging: Path) -> None:
    origin.content, origin.pause_s = CONTENT[: 20 * 16_384], 0.02
    fetch(origin, staging, expected=origin.content, policy=FetchPolicy(stall_s=0.25))
    assert origin.requests == [None]


def test_b17_an_origin_that_drips_and_cuts_is_given_up_in_the_end(
    origin: Origin, staging: Path
) -> None:
    origin.cut_after = 10
    error = refusal(origin, staging, policy=FetchPolicy(attempts=6, backoff_s=0.0))
    assert "gave up after 6 attempts" in error.message
    assert len(origin.requests) == 6


def test_an_answer_without_a_length_is_verified_by_its_digest(
    origin: Origin, staging: Path
) -> None:
    origin.with_length = False
    fetch(origin, staging)
    assert (staging / "file").read_bytes() == CONTENT


def test_more_bytes_than_expected_are_refused(origin: Origin, staging: Path) -> None:
    error = refusal(origin, staging, max_bytes=len(CONTENT) - 1)
    assert "at most" in error.message
    origin.with_length = False
    error = refusal(origin, staging, max_bytes=len(CONTENT) - 1)
    assert "sends more" in error.message


def test_s31_a_redirect_is_not_followed(origin: Origin, staging: Path) -> None:
    origin.status, origin.location = 302, "http://169.254.169.254/secret"
    error = refusal(origin, staging)
    assert error.code == "store.source_unavailable"
    assert "not followed" in error.message
    assert "secret" not in error.message
    assert len(origin.requests) == 1


def test_f25_another_encoding_than_asked_for_is_refused(origin: Origin, staging: Path) -> None:
    origin.encoding = "gzip"
    assert "gzip" in refusal(origin, staging).message


@pytest.mark.parametrize(("status", "n_requests"), [(404, 1), (403, 1), (503, 3), (429, 3)])
def test_only_what_may_pass_is_tried_again(
    origin: Origin, staging: Path, status: int, n_requests: int
) -> None:
    origin.status = status
    assert f"answered {status}" in refusal(origin, staging).message
    assert len(origin.requests) == n_requests


def test_an_origin_that_is_not_there_is_unavailable_after_bounded_tries(staging: Path) -> None:
    with serving(Origin(content=b"")) as gone:
        url = gone.url
    error = refusal(url, staging)
    assert error.code == "store.source_unavailable"
    assert "127.0.0.1" in error.message


def test_a_secret_in_an_address_is_not_told(staging: Path) -> None:
    with serving(Origin(content=b"", status=401)) as origin:
        error = refusal(origin.url.replace("127", "me:secret@127") + "?sig=secret", staging)
    assert "secret" not in error.message


@pytest.mark.parametrize("url", ["ftp://x/y", "gopher://x", "", "http://[::1", "/etc/passwd"])
def test_other_addresses_are_refused(staging: Path, url: str) -> None:
    assert refusal(url, staging).code == "store.source_unavailable"


def test_b19_no_room_is_said_before_the_first_byte(origin: Origin, staging: Path) -> None:
    full = StoreError("store.no_space", "no room")
    error = refusal(origin, staging, observer=Observer(refuse=full))
    assert error.code == "store.no_space"
    assert (staging / "file.partial").stat().st_size == 0


def test_b19_a_disk_that_fills_up_keeps_the_partial_and_a_later_try_goes_on(
    origin: Origin, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = os.pwrite

    def full_after_a_mebibyte(descriptor: int, content: bytes, offset: int) -> int:
        if offset >= 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", full_after_a_mebibyte)
    assert refusal(origin, staging).code == "store.no_space"
    kept = (staging / "file.partial").stat().st_size
    assert kept >= 1 << 20
    monkeypatch.setattr(os, "pwrite", written)
    fetch(origin, staging)
    assert origin.requests == [None, f"bytes={kept}-"]


def test_f28_a_link_under_the_partials_name_is_not_written_through(
    origin: Origin, staging: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (staging / "file.partial").symlink_to(victim)
    assert refusal(origin, staging).code == "store.disk_failed"
    assert victim.read_text() == "kept"


def test_f28_a_hard_link_under_the_partials_name_is_left_alone(
    origin: Origin, staging: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    os.link(victim, staging / "file.partial")
    fetch(origin, staging)
    assert victim.read_text() == "kept"
    assert (staging / "file").read_bytes() == CONTENT


def test_a_file_address_is_copied_and_resumed(staging: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "a wheel.whl"
    wheel.write_bytes(CONTENT)
    with suppress(asyncio.CancelledError):
        fetch(wheel.as_uri(), staging, Observer(cancel_at=1 << 20))
    seen = fetch(wheel.as_uri(), staging)
    assert seen.resumed == [1 << 20]
    assert (staging / "file").read_bytes() == CONTENT
    assert wheel.read_bytes() == CONTENT


def test_a_file_address_that_changed_starts_over(staging: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "wheel.whl"
    wheel.write_bytes(OTHER)
    with suppress(asyncio.CancelledError):
        fetch(wheel.as_uri(), staging, Observer(cancel_at=1 << 20))
    wheel.write_bytes(CONTENT)
    os.utime(wheel, ns=(1, 1))
    fetch(wheel.as_uri(), staging)
    assert (staging / "file").read_bytes() == CONTENT


def test_a_file_address_of_nothing_is_unavailable(staging: Path, tmp_path: Path) -> None:
    assert refusal((tmp_path / "none.whl").as_uri(), staging).code == "store.source_unavailable"
    assert "regular" in refusal(tmp_path.as_uri(), staging).message


def test_the_sidecar_says_what_the_partial_is_part_of(origin: Origin, staging: Path) -> None:
    leave_partial(origin, staging, 1000)
    sidecar = json.loads((staging / "file.partial.json").read_text())
    assert sidecar == {"sha256": sha256(CONTENT), "etag": '"v1"', "total_bytes": len(CONTENT)}


def test_a_partial_that_shrinks_while_it_is_hashed_counts_for_what_is_there(
    origin: Origin, staging: Path
) -> None:
    leave_partial(origin, staging, len(CONTENT) // 2)
    with StoreLayout(staging.parent).opened("staging") as directory:
        partial = Partial(directory, "file", sha256(CONTENT))
        partial.open()
        os.truncate(staging / "file.partial", 500)
        assert not partial.hash_slice()
        assert (partial.length, partial.hashed_bytes) == (500, 500)
        partial.close()


def test_b17_hashing_a_partial_is_no_stall_and_is_seen(
    origin: Origin, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_partial(origin, staging, len(CONTENT) // 2)
    kept = (staging / "file.partial").stat().st_size
    monkeypatch.setattr(partial_module, "REHASH_SLICE_BYTES", 1 << 18)
    hash_slice = Partial.hash_slice

    def hash_slowly(partial: Partial) -> bool:
        time.sleep(0.1)
        return hash_slice(partial)

    monkeypatch.setattr(Partial, "hash_slice", hash_slowly)
    seen = fetch(origin, staging, policy=FetchPolicy(stall_s=0.2, backoff_s=0.0))
    assert len([done for done in seen.done if done < kept]) >= 3
    assert origin.requests == [None, f"bytes={kept}-"]
