"""What makes a certificate one that can be shown, and how a renewed one is taken up."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from skulkd.api.certificate import (
    LOOK_EVERY_S,
    CertificateFiles,
    ServedCertificate,
    check_certificate,
    load_certificate,
)
from skulkd.config import Settings, load_settings
from tests.support.certificates import ENCRYPTED_KEY, EXPIRED, FIRST, SECOND, written


class Watch:
    """A clock that stands still unless it is moved."""

    now_s = 0.0
    wall = 0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return self.wall


def refusal_of(files: CertificateFiles) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_certificate(files)
    assert caught.value.code == "config.tls_unusable"
    assert caught.value.remediation
    return caught.value


def test_a_pair_that_belongs_together_is_taken(tmp_path: Path) -> None:
    loaded = load_certificate(written(tmp_path))
    assert datetime.fromtimestamp(loaded.valid_until_ms / 1000, UTC).year == 2126
    assert loaded.valid_until_ms - loaded.due_ms == 3 * 86_400_000
    assert loaded.names == ("localhost",)


def test_a_certificate_that_has_expired_is_refused(tmp_path: Path) -> None:
    files = written(tmp_path, EXPIRED)
    assert str(files.certificate) in refusal_of(files).message
    assert "has expired" in refusal_of(files).message


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    second = SECOND[SECOND.index("-----BEGIN PRIVATE KEY-----") :]
    assert "is not the key of the certificate" in refusal_of(written(tmp_path, key=second)).message


def test_an_encrypted_key_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    refused = refusal_of(written(tmp_path, EXPIRED, key=ENCRYPTED_KEY))
    assert "is encrypted" in refused.message
    assert "openssl pkey" in refused.remediation


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    files = written(tmp_path)
    files.key.chmod(mode)
    refused = refusal_of(files)
    assert f"{mode:04o}" in refused.message
    assert f"chmod 600 {files.key}" in refused.remediation


@pytest.mark.parametrize("which", ["certificate", "key"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, which: str) -> None:
    files = written(tmp_path)
    path: Path = getattr(files, which)
    path.unlink()
    refused = refusal_of(files)
    assert str(path) in refused.message
    assert "No such file" in refused.message


@pytest.mark.parametrize("text", ["", "not a certificate", FIRST[: FIRST.index("MIIB") + 40]])
def test_what_is_no_certificate_is_refused(tmp_path: Path, text: str) -> None:
    files = written(tmp_path)
    files.certificate.write_text(text)
    assert str(files.certificate) in refusal_of(files).message


def checked(tmp_path: Path, **flags: object) -> Settings:
    loaded = load_settings(home=tmp_path, file_text=None, environment={}, flags=flags)
    check_certificate(loaded.settings)
    return loaded.settings


@pytest.mark.parametrize(("given", "missing"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_one_file_without_the_other_is_refused(tmp_path: Path, given: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"`{missing}` is not set"):
        checked(tmp_path, **{given: "/etc/skulk/node.pem"})


def test_paths_are_those_of_where_the_daemon_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = checked(tmp_path, tls_cert="node.crt", tls_key="node.key")
    assert (settings.tls_cert, settings.tls_key) == (tmp_path / "node.crt", tmp_path / "node.key")
    assert checked(tmp_path).tls_cert is None


def test_a_renewal_that_is_overdue_shows_what_is_left(tmp_path: Path) -> None:
    watch = Watch()
    served = ServedCertificate(written(tmp_path), watch)
    until_ms = load_certificate(written(tmp_path)).valid_until_ms
    left: list[float | None] = []
    for before_ms in (4 * 86_400_000, 86_400_000, -1_000):
        watch.wall = until_ms - before_ms
        left.append(served.left_s())
    assert left == [None, 86_400.0, -1.0]


def moved(files: CertificateFiles, watch: Watch) -> None:
    """Let a look be due, and the files differ whatever the disk's clock is worth."""
    watch.now_s += LOOK_EVERY_S
    later_ns = int((1_000 + watch.now_s) * 1e9)
    os.utime(files.certificate, ns=(later_ns, later_ns))


def test_a_renewed_certificate_is_taken_up_by_the_next_connection(tmp_path: Path) -> None:
    async def story() -> None:
        files, watch = written(tmp_path), Watch()
        served = ServedCertificate(files, watch)
        before = await served.context()
        written(tmp_path, SECOND)
        assert await served.context() is before, "no look is due"
        moved(files, watch)
        renewed = await served.context()
        assert renewed is not before
        watch.now_s += LOOK_EVERY_S
        assert await served.context() is renewed

    asyncio.run(story())


def test_files_that_cannot_be_used_are_told_once_and_the_shown_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        files, watch = written(tmp_path), Watch()
        served = ServedCertificate(files, watch)
        before = await served.context()
        written(tmp_path, SECOND, key="")
        moved(files, watch)
        for _ in range(3):
            assert await served.context() is before
            watch.now_s += LOOK_EVERY_S
        files.key.unlink()
        assert await served.context() is before
        written(tmp_path, SECOND)
        moved(files, watch)
        assert await served.context() is not before

    asyncio.run(story())
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    assert all("still shown" in message for message in errors)
