"""Which TLS certificates are believed: those that an authority vouches for, and those seen before.

A node behind a TLS proxy of its own has a certificate that nobody vouches for. The first one that
such an address shows is pinned by its SHA-256; from then on that one alone is spoken to. The pin is
checked inside the handshake, so that neither key nor request goes to anybody else.
"""

import hashlib
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast, final
from urllib.parse import urlsplit

from protocol.errors import ClientError
from skulk_tui.own_files import read_text, replace_file

PINS_FILE: Final = "known_certificates"
PINS_MAX_BYTES: Final = 1 << 20
LOOK_TIMEOUT_S: Final = 3.0
_HTTPS_PORT: Final = 443
_LINE: Final = re.compile(r"^(\S+:\d{1,5}) ([0-9a-f]{64})$")

OnPinned = Callable[[str, str], None]
"""Called with an address and the fingerprint that is believed there from now on."""


class CertificateChangedError(ssl.SSLError):
    """The handshake showed another certificate than the one that is pinned."""

    def __init__(self, url: str, pinned: str, seen: str) -> None:
        super().__init__("the certificate has changed")
        self.url = url
        self.pinned = pinned
        self.seen = seen


def fingerprint_of(certificate: bytes) -> str:
    """Give the SHA-256 of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()


def spelt_out(fingerprint: str) -> str:
    """Write a fingerprint as `openssl x509 -fingerprint -sha256` does."""
    return ":".join(fingerprint[at : at + 2] for at in range(0, len(fingerprint), 2)).upper()


@final
class TlsTrust:
    """The certificates that one operator believes.

    Args:
        path: The file of pins, one `HOST:PORT SHA256` a line.
        on_pinned: Is told of a certificate that is seen for the first time.
    """

    def __init__(self, path: Path, *, on_pinned: OnPinned | None = None) -> None:
        self._path = path
        self._on_pinned = on_pinned
        self._contexts: dict[str, ssl.SSLContext] = {}

    def context(self, url: str) -> ssl.SSLContext | None:
        """Give what a connection there is to be made with; None for one without TLS.

        Blocks: for an address that has no pin it makes a connection to look.

        Raises:
            ClientError: `client.unreachable`, `client.usage`.
        """
        if not url.startswith("https://"):
            return None
        if url not in self._contexts:
            self._contexts[url] = self._decide(url)
        return self._contexts[url]

    def change_in(self, error: BaseException) -> ClientError | None:
        """Find in what made a connection fail that its certificate is not the believed one."""
        for cause in _causes(error):
            if isinstance(cause, CertificateChangedError):
                return _changed(cause)
            if isinstance(cause, ssl.SSLCertVerificationError):
                self._contexts.clear()  # it was vouched for until now: look again
        return None

    def accept(self, url: str) -> str:
        """Believe the certificate that is shown there now, whatever was pinned.

        Returns:
            Its fingerprint; "" where an authority vouches for it and no pin is needed.

        Raises:
            ClientError: `client.unreachable`, `client.usage`.
        """
        self._contexts.pop(url, None)
        pins = self._read()
        pins.pop(_address(url), None)
        seen = self.shown_at(url)
        self._write(pins | {_address(url): seen} if seen else pins)
        return seen

    def shown_at(self, url: str) -> str:
        """Look at the certificate that is shown there now; believe nothing.

        Returns:
            Its fingerprint; "" where an authority vouches for it.

        Raises:
            ClientError: `client.unreachable`.
        """
        return "" if _is_vouched_for(url) else _look(url, _unchecked())

    def _decide(self, url: str) -> ssl.SSLContext:
        pins = self._read()
        pinned = pins.get(_address(url))
        if pinned is None:
            if _is_vouched_for(url):
                return ssl.create_default_context()
            pinned = _look(url, _unchecked())
            self._write(pins | {_address(url): pinned})
            if self._on_pinned is not None:
                self._on_pinned(url, spelt_out(pinned))
        return PinningContext.make(url, pinned)

    def _read(self) -> dict[str, str]:
        pins: dict[str, str] = {}
        text = read_text(self._path, max_bytes=PINS_MAX_BYTES) or ""
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            match = _LINE.match(line)
            if match is None:
                raise ClientError(
                    "client.usage",
                    f"{self._path}, line {number}: this is not HOST:PORT and a SHA-256",
                    remediation="Remove the line; the certificate is pinned again at its next use.",
                )
            pins[match[1]] = match[2]
        return pins

    def _write(self, pins: dict[str, str]) -> None:
        lines = [f"{address} {fingerprint}\n" for address, fingerprint in sorted(pins.items())]
        replace_file(self._path, "".join(lines))


# ---- The check inside the handshake -------------------------------------------------------------


@final
class PinningContext(ssl.SSLContext):
    """Lets a handshake end well with one certificate only."""

    url: str
    pinned: str

    @classmethod
    def make(cls, url: str, pinned: str) -> "PinningContext":
        """Believe one certificate.

        Args:
            url: Whose it is, for the error.
            pinned: Its SHA-256, in lower-case hexadecimal digits.
        """
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.url = url
        context.pinned = pinned
        context.sslsocket_class = _PinnedSocket
        context.sslobject_class = _PinnedObject
        return context

    def check(self, certificate: bytes | None) -> None:
        """Refuse a handshake that showed another certificate."""
        seen = fingerprint_of(certificate or b"")
        if seen != self.pinned:
            raise CertificateChangedError(self.url, self.pinned, seen)


class _PinnedSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:  # ruff: ignore[boolean-type-hint-positional-argument, boolean-default-value-positional-argument]  the base class's
        super().do_handshake(block)
        cast("PinningContext", self.context).check(self.getpeercert(binary_form=True))


class _PinnedObject(ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        cast("PinningContext", self.context).check(self.getpeercert(binary_form=True))


# ---- Looking ------------------------------------------------------------------------------------


def _unchecked() -> ssl.SSLContext:
    """Make a context for looking at a certificate: nothing is ever sent with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _is_vouched_for(url: str) -> bool:
    try:
        _look(url, ssl.create_default_context())
    except ssl.SSLCertVerificationError:
        return False
    return True


def _look(url: str, context: ssl.SSLContext) -> str:
    host, port = _host_and_port(url)
    try:
        with (
            socket.create_connection((host, port), timeout=LOOK_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return fingerprint_of(secure.getpeercert(binary_form=True) or b"")
    except ssl.SSLCertVerificationError:
        raise
    except OSError as wrong:
        raise ClientError(
            "client.unreachable",
            f"no node answers at {url}: {wrong}",
            remediation="Check the address, and that TLS is spoken there.",
        ) from wrong


def _host_and_port(url: str) -> tuple[str, int]:
    split = urlsplit(url)
    return split.hostname or "", split.port or _HTTPS_PORT


def _address(url: str) -> str:
    host, port = _host_and_port(url)
    return f"{host}:{port}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


def _changed(change: CertificateChangedError) -> ClientError:
    return ClientError(
        "client.certificate_changed",
        f"{change.url} shows the certificate {spelt_out(change.seen)},"
        f" and {spelt_out(change.pinned)} is pinned",
        remediation=f"If it was renewed, accept it: `skulk cluster trust {change.url}`.",
        details={"pinned": change.pinned, "seen": change.seen},
    )
