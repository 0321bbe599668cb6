"""The certificate that this node shows beyond loopback: judged before it is shown, and renewed.

What a client would find wrong is found here first, by shaking hands with ourselves in memory: a key
of another certificate, one that has expired, one that is too weak or not for servers. Files that
change are taken up by the next connection, so that a renewal needs no restart and no signal.
"""

import asyncio
import logging
import os
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast, final

from protocol.clock import Clock
from protocol.errors import ConfigError
from skulkd.config import Settings
from skulkd.runtime.tasks import run_blocking

_log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
"""A renewed file is shown after this long; no look is taken while nobody connects."""
_MAX_KEY_BYTES: Final = 64 * 1024
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_LATE_RATIO: Final = 0.1
"""Of a certificate's time: clients of ACME renew it when a third is left, or a half."""
_LATE_MAX_S: Final = 3 * 86_400.0
_N_FLIGHTS: Final = 4
"""Of a handshake, either way; the newest version of TLS takes three."""

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Where an operator keeps them."""

    certificate: Path
    """In PEM: the node's own first, then those in between."""
    key: Path
    """In PEM, without a passphrase, readable by its owner only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCertificate:
    """A certificate that has been tried out."""

    context: ssl.SSLContext
    """What connections are made with."""
    valid_until_ms: int
    due_ms: int
    """When it should have been renewed."""
    names: tuple[str, ...]
    """The DNS names that it is made out to, in lower case; wildcards name nobody."""


def certificate_files(settings: Settings) -> CertificateFiles | None:
    """Give the files that the settings name; None where the API is served without TLS.

    Raises:
        ConfigError: `config.invalid`; only one of the two is named.
    """
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        raise ConfigError(
            "config.invalid",
            f"TLS takes a certificate and its key, and `{missing}` is not set",
            remediation="Give both, --tls-cert FILE --tls-key FILE, or neither.",
            details={"key": missing},
        )
    return CertificateFiles(certificate=settings.tls_cert, key=settings.tls_key)


def check_certificate(settings: Settings) -> None:
    """Refuse a certificate that clients would refuse. Blocks.

    Raises:
        ConfigError: `config.invalid`, `config.tls_unusable`.
    """
    files = certificate_files(settings)
    if files is not None:
        load_certificate(files)


def load_certificate(files: CertificateFiles) -> LoadedCertificate:
    """Read certificate and key, and try them out. Blocks.

    Raises:
        ConfigError: `config.tls_unusable`, with what is wrong and what to do.
    """
    _check_key_file(files.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key)
        return _tried_out(context, files.certificate)
    except ssl.SSLCertVerificationError as error:
        raise _unusable(
            files.certificate,
            f"would be refused by clients: {error.verify_message}",
            "Renew it, or name another with --tls-cert.",
        ) from error
    except ssl.SSLError as error:
        raise _unfit(files, error) from error
    except OSError as error:
        raise _unreadable(files.certificate, error) from error


@final
class ServedCertificate:
    """The certificate of the moment.

    Args:
        files: Where it lies.
        clock: For how often they are looked at.

    Raises:
        ConfigError: `config.tls_unusable`. Blocks.
    """

    def __init__(self, files: CertificateFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._stamp = _stamp_of(files)
        self._loaded = load_certificate(files)
        self._look_at_s = clock.monotonic_s() + LOOK_EVERY_S
        self._looking = asyncio.Lock()

    def left_s(self) -> float | None:
        """How long it is valid still, once it should have been renewed; None before."""
        now_ms = self._clock.wall_ms()
        loaded = self._loaded
        return None if now_ms < loaded.due_ms else (loaded.valid_until_ms - now_ms) / 1000

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names that it is made out to, in lower case."""
        return self._loaded.names

    async def context(self) -> ssl.SSLContext:
        """Give what the next connection is made with.

        Files that have changed are taken up first. Where they cannot be used the log says so, once,
        and what was shown before still is.
        """
        if self._clock.monotonic_s() >= self._look_at_s and not self._looking.locked():
            async with self._looking:
                self._look_at_s = self._clock.monotonic_s() + LOOK_EVERY_S
                await run_blocking(self._look)
        return self._loaded.context

    def _look(self) -> None:
        stamp = _stamp_of(self._files)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._loaded = load_certificate(self._files)
        except ConfigError as error:
            _log.error(
                "the certificate of before is still shown, until it expires: %s", error.message,
                extra={"code": error.code, "remedy": error.remediation},
            )  # fmt: skip
        else:
            until = datetime.fromtimestamp(self._loaded.valid_until_ms / 1000, UTC)
            _log.info("a renewed certificate is shown; it is valid until %s", until.isoformat())


def _stamp_of(files: CertificateFiles) -> _Stamp:
    """Give what changes with the files; nothing for one that is not there."""
    found: list[tuple[int, int, int]] = []
    for path in (files.certificate, files.key):
        try:
            about = path.stat()
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((about.st_mtime_ns, about.st_ino, about.st_size))
    return tuple(found)


def _check_key_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if mode & _OTHERS:
        raise _unusable(
            path,
            f"is a key that other users can read: its mode is {stat.S_IMODE(mode):04o}",
            f"chmod 600 {path}, and have it owned by the user that runs skulkd.",
        )
    if b"ENCRYPTED" in data:
        raise _unusable(
            path,
            "is encrypted, and a service has nobody to ask for its passphrase",
            f"Write it without: openssl pkey -in {path} -out FILE; chmod 600 FILE",
        )


def _tried_out(context: ssl.SSLContext, certificate: Path) -> LoadedCertificate:
    """Shake hands with ourselves as a client does that trusts exactly this certificate."""
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname = False
    client_side.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client_side.load_verify_locations(certificate)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_N_FLIGHTS):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = cast("dict[str, Any]", client.getpeercert())
    from_s, until_s = (
        ssl.cert_time_to_seconds(shown[bound]) for bound in ("notBefore", "notAfter")
    )
    late_s = min((until_s - from_s) * _LATE_RATIO, _LATE_MAX_S)
    named = (name.lower() for kind, name in shown.get("subjectAltName", ()) if kind == "DNS")
    return LoadedCertificate(
        context=context,
        valid_until_ms=until_s * 1000,
        due_ms=int((until_s - late_s) * 1000),
        names=tuple(name for name in named if "*" not in name),
    )


def _unfit(files: CertificateFiles, error: ssl.SSLError) -> ConfigError:
    """Say in words what OpenSSL says in its own."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return _unusable(
            files.key,
            f"is not the key of the certificate {files.certificate}",
            "Name two that belong together; of a chain the node's own certificate is the first.",
        )
    said = (error.reason or "it is not PEM").replace("_", " ").lower()
    return _unusable(
        files.certificate,
        f"cannot be used with the key {files.key}: {said}",
        "Give both in PEM: --tls-cert takes the chain, the node's own first, --tls-key its key.",
    )


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return _unusable(
        path,
        f"cannot be read: {error.strerror or error}",
        "Check the path, and that the user that runs skulkd may read it.",
    )


def _unusable(path: Path, fault: str, remediation: str) -> ConfigError:
    return ConfigError("config.tls_unusable", f"{path} {fault}", remediation=remediation)
