"""Invitations as people and machines hand them on: one-line tokens, and codes of six words.

Pure. A token has all that a node needs to join: where to knock, whom to trust, and a secret that
is the CURVE key of a guest; a code has only the secret, short enough to be read out, so it is
stretched (skulkd/cluster/code_keys.py) and good for ten minutes and one guest. No secret is ever
part of an error, a `repr` or a log line.

    token   skulk1-<base32 of version, cluster id, inviter's key, secret, expiry, addresses, CRC>

The checksum finds every wrong character, and all but one in four billion of any other damage.
"""

import base64
import difflib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, final

from protocol.errors import ClusterError
from protocol.ids import ClusterId

TOKEN_VERSION: Final = 1
PREFIX: Final = f"skulk{TOKEN_VERSION}-"
MAX_ADDRESSES: Final = 8
MAX_TOKEN_CHARS: Final = 4096
KEY_BYTES: Final = 32
CODE_WORDS: Final = 6
MAX_CODE_CHARS: Final = 200
MIN_PREFIX_LETTERS: Final = 4
"""The words of the list differ in their first four letters."""
CODE_ENTROPY_BYTES: Final = 16
CODE_VALID_S: Final = 600
CODE_TRIES: Final = 5

_CLUSTER_BYTES: Final = 10
_EXPIRY_BYTES: Final = 6
_CHECK_BYTES: Final = 4
_PORT_BYTES: Final = 2
_NAME, _IPV4, _IPV6 = 0, 4, 6
_VERSIONED: Final = re.compile(r"skulk([0-9]{1,4})-")
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
"""A name, or an IPv6 address with the name of an interface."""
_ALPHABET: Final = frozenset("abcdefghijklmnopqrstuvwxyz234567")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenToken:
    """A join token as its holder has it: with the secret that State never sees."""

    cluster_id: ClusterId
    inviter_key: bytes
    """The public key of the member that lets the guest in, 32 bytes."""
    addresses: tuple[str, ...]
    """Where it is dialled, `HOST:BASE`, best first; 1 to 8."""
    expires_at_ms: int
    """By the inviter's wall clock."""
    secret: bytes
    """The guest's CURVE secret key, 32 bytes."""

    def __repr__(self) -> str:
        return f"OpenToken(cluster_id={self.cluster_id}, expires_at_ms={self.expires_at_ms})"


def write_token(token: OpenToken) -> str:
    """Write a token as one line.

    Raises:
        ValueError: It has no address or too many, or one that is none: a bug of the caller.
    """
    if not 1 <= len(token.addresses) <= MAX_ADDRESSES:
        message = f"a token has 1 to {MAX_ADDRESSES} addresses, not {len(token.addresses)}"
        raise ValueError(message)
    body = b"".join((
        bytes((TOKEN_VERSION,)),
        base64.b32decode(token.cluster_id[1:].upper()),
        token.inviter_key,
        token.secret,
        token.expires_at_ms.to_bytes(_EXPIRY_BYTES, "big"),
        bytes((len(token.addresses),)),
        *map(_write_address, token.addresses),
    ))  # fmt: skip
    return PREFIX + _base32(body + _check(body))


def read_token(text: str) -> OpenToken:
    """Read a token; spaces and line ends from pasting, and upper case, do not matter.

    Raises:
        ClusterError: `cluster.token_invalid`, saying what is wrong and nothing of the content.
    """
    if len(text) > MAX_TOKEN_CHARS:
        reason = f"it has {len(text)} characters, and none has more than {MAX_TOKEN_CHARS}"
        raise _token_invalid(reason)
    line = "".join(text.split()).lower()
    _check_version(line)
    encoded = line.removeprefix(PREFIX)
    for position, letter in enumerate(encoded, start=len(PREFIX) + 1):
        if letter not in _ALPHABET:
            reason = f"character {position} is none that a token has"
            raise _token_invalid(reason)
    data = _from_base32(encoded)
    if (
        data is None
        or len(data) <= _CHECK_BYTES
        or _check(data[:-_CHECK_BYTES]) != data[-_CHECK_BYTES:]
    ):
        reason = f"a character of it is wrong or missing ({len(line)} have arrived)"
        raise _token_invalid(reason)
    try:
        return _read_body(data[:-_CHECK_BYTES])
    except (ValueError, IndexError) as error:
        reason = "it was written by something else than skulk"
        raise _token_invalid(reason) from error


def token_expired(token: OpenToken, *, now_ms: int) -> ClusterError:
    """Say that a token is past its time by this machine's clock; the inviter's own clock counts."""
    past_s = (now_ms - token.expires_at_ms) // 1000
    return ClusterError(
        "cluster.token_expired",
        f"the token expired {past_s} s ago by this machine's clock",
        remediation="Make a new one on a member: skulk cluster invite. If it is new, compare the "
        "clocks of the two machines.",
        details={"expires_at_ms": token.expires_at_ms},
    )


# ---- Codes ----


def make_code(entropy: bytes, words: Sequence[str]) -> tuple[str, ...]:
    """Draw a code of six words.

    Args:
        entropy: At least 16 random bytes.
        words: To draw from; 2,048 give a code 66 bits.
    """
    if len(entropy) < CODE_ENTROPY_BYTES:
        message = f"{CODE_ENTROPY_BYTES} random bytes are needed, not {len(entropy)}"
        raise ValueError(message)
    number = int.from_bytes(entropy, "big")
    chosen: list[str] = []
    for _ in range(CODE_WORDS):
        number, index = divmod(number, len(words))
        chosen.append(words[index])
    return tuple(chosen)


def write_code(code: Sequence[str]) -> str:
    """Write a code as one word of the shell."""
    return "-".join(code)


def read_code(text: str, words: Sequence[str]) -> tuple[str, ...]:
    """Read a code as people type it: any case, any separators, words cut after four letters.

    Args:
        text: What was typed.
        words: The list that codes are drawn from.

    Raises:
        ClusterError: `cluster.token_invalid`; where one word is wrong, with the nearest of the
            list, and never with what was typed.
    """
    if len(text) > MAX_CODE_CHARS:
        reason = f"it has {len(text)} characters, and none has more than {MAX_CODE_CHARS}"
        raise _code_invalid(reason)
    typed = re.findall(r"[^\W\d_]+", text.lower())
    if len(typed) != CODE_WORDS:
        reason = f"it has {len(typed)} words, and a code has {CODE_WORDS}"
        raise _code_invalid(reason)
    return tuple(_word(part, number, words) for number, part in enumerate(typed, start=1))


def _word(typed: str, number: int, words: Sequence[str]) -> str:
    if typed in words:
        return typed
    begun = [word for word in words if word.startswith(typed)]
    if len(typed) >= MIN_PREFIX_LETTERS and len(begun) == 1:
        return begun[0]
    near = difflib.get_close_matches(typed, words, n=1, cutoff=0.7)
    hint = f"; is it `{near[0]}`?" if near else ""
    reason = f"word {number} is not one that codes have{hint}"
    raise _code_invalid(reason)


# ---- The bytes of a token ----


def _check_version(line: str) -> None:
    found = _VERSIONED.match(line)
    if found is None:
        reason = f"it does not begin with {PREFIX}"
        raise _token_invalid(reason)
    if int(found[1]) != TOKEN_VERSION or not line.startswith(PREFIX):
        reason = f"it begins with {found[0]}, and this build reads {PREFIX}"
        raise _token_invalid(reason, remedy="Run the same build on both machines.")


def _read_body(body: bytes) -> OpenToken:
    reader = _Reader(body)
    if reader.take(1)[0] != TOKEN_VERSION:
        message = "another version"
        raise ValueError(message)
    token = OpenToken(
        cluster_id=ClusterId("k" + _base32(reader.take(_CLUSTER_BYTES))),
        inviter_key=reader.take(KEY_BYTES),
        secret=reader.take(KEY_BYTES),
        expires_at_ms=int.from_bytes(reader.take(_EXPIRY_BYTES), "big"),
        addresses=tuple(_read_address(reader) for _ in range(reader.take(1)[0])),
    )
    if reader.n_left or not 1 <= len(token.addresses) <= MAX_ADDRESSES:
        message = "more or less than a token"
        raise ValueError(message)
    return token


@final
class _Reader:
    """Takes bytes off the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def n_left(self) -> int:
        return len(self._data) - self._at

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > self.n_left:
            message = "cut short"
            raise ValueError(message)
        self._at += n_bytes
        return self._data[self._at - n_bytes : self._at]


def _write_address(address: str) -> bytes:
    host, colon, digits = address.rpartition(":")
    port = int(digits).to_bytes(_PORT_BYTES, "big")
    inside = host.removeprefix("[").removesuffix("]")
    ip = _ip(inside)
    if ip is not None:
        return bytes((ip.version,)) + ip.packed + port
    name = inside.encode("ascii")
    if not colon or _HOST.fullmatch(inside) is None:
        message = "an address without a host"
        raise ValueError(message)
    return bytes((_NAME, len(name))) + name + port


def _read_address(reader: _Reader) -> str:
    kind = reader.take(1)[0]
    if kind == _NAME:
        host = reader.take(reader.take(1)[0]).decode("ascii")
        if _HOST.fullmatch(host) is None:
            message = "a host name that is none"
            raise ValueError(message)
    elif kind in {_IPV4, _IPV6}:
        host = str(ip_address(reader.take(4 if kind == _IPV4 else 16)))
    else:
        message = "an unknown kind of address"
        raise ValueError(message)
    port = int.from_bytes(reader.take(_PORT_BYTES), "big")
    if port == 0:
        message = "no port"
        raise ValueError(message)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    """Give an address without a zone as a value; a zoned one travels as text."""
    try:
        return None if "%" in host else ip_address(host)
    except ValueError:
        return None


def _check(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_CHECK_BYTES, "big")


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode("ascii").rstrip("=").lower()


def _from_base32(text: str) -> bytes | None:
    """Decode; None when no bytes are written so, also when unused bits are not zero."""
    try:
        data = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    except ValueError:
        return None
    return data if _base32(data) == text else None


def _token_invalid(reason: str, *, remedy: str = "") -> ClusterError:
    return ClusterError(
        "cluster.token_invalid",
        f"this is no join token: {reason}",
        remediation=remedy
        or "Copy the whole line that skulk cluster invite has shown, or make a new token there.",
    )


def _code_invalid(reason: str) -> ClusterError:
    return ClusterError(
        "cluster.token_invalid",
        f"this is no code: {reason}",
        remediation=f"Type the {CODE_WORDS} words that skulk cluster invite has shown; their first "
        f"{MIN_PREFIX_LETTERS} letters are enough.",
    )
