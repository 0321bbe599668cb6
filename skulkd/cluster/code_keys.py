"""What a code of six words stands for: the key of a guest, and a key by which both sides prove it.

A code has 66 bits. An attacker who poses as the member learns the guest's public key, or a proof,
and may guess at leisure; scrypt makes each guess cost 32 MiB and 0.1 s, so that within the ten
minutes of a code nothing comes of it.
"""

import functools
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final, Literal, final

from skulkd.cluster.curve_keys import key_pair_of
from skulkd.runtime.identity import KeyPair

_SALT: Final = b"skulk code 1\0"
_COST: Final = 1 << 15
_BLOCKS: Final = 8
_MAX_MEMORY_BYTES: Final = 64 << 20
_KEY_BYTES: Final = 32

ProofRole = Literal["guest", "host"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeKeys:
    """The two keys of one code."""

    guest: KeyPair
    mac_key: bytes
    """32 bytes; never leaves the process."""

    def __repr__(self) -> str:
        return f"CodeKeys(guest={self.guest})"


def derive(code: Sequence[str]) -> CodeKeys:
    """Stretch a code to its keys. Blocks for 0.1 s and takes 32 MiB meanwhile."""
    stretched = hashlib.scrypt(
        " ".join(code).encode(),
        salt=_SALT,
        n=_COST,
        r=_BLOCKS,
        p=1,
        maxmem=_MAX_MEMORY_BYTES,
        dklen=2 * _KEY_BYTES,
    )
    return CodeKeys(guest=key_pair_of(stretched[:_KEY_BYTES]), mac_key=stretched[_KEY_BYTES:])


def prove(mac_key: bytes, role: ProofRole, *, guest_key: bytes, host_key: bytes) -> bytes:
    """Prove to know a code, to the holder of one key and by the holder of another.

    Bound to both nodes' own public keys: whoever passes it on to somebody else has nothing.

    Args:
        mac_key: Of the code.
        role: Whose proof it is; one side's is none for the other.
        guest_key: The public key of the node that wants to join, 32 bytes.
        host_key: The public key of the member, 32 bytes.
    """
    return hmac.digest(mac_key, role.encode() + b"\0" + guest_key + host_key, "sha256")


def is_proof(
    proof: bytes, mac_key: bytes, role: ProofRole, *, guest_key: bytes, host_key: bytes
) -> bool:
    """Check a proof, in the same time whether it is right or wrong."""
    expected = prove(mac_key, role, guest_key=guest_key, host_key=host_key)
    return hmac.compare_digest(proof, expected)


@functools.cache
def code_words() -> tuple[str, ...]:
    """Read the list that codes are drawn from: 2,048 words, sorted. Blocks once, for 1 ms."""
    text = resources.files("skulkd.cluster").joinpath("words.txt").read_text(encoding="ascii")
    return tuple(text.split())
