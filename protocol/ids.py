"""Identifiers and their grammars: one validator for each, used at every edge.

An identifier is opaque. Nothing is ever parsed out of one (no address, no path): files are found by
a digest of the id, never by the id itself.
"""

import base64
import hashlib
import re
from typing import Annotated, Final, NewType

from pydantic import StringConstraints

from protocol.errors import RequestError

NodeId = NewType("NodeId", str)
"""`n` and 16 base32 letters: the digest of the node's public key. Survives restarts."""
CommandId = NewType("CommandId", str)
"""`<first 6 letters of the minting node's id after n>-<20 base32 letters>`."""
InstanceId = NewType("InstanceId", str)
"""The id of the command that placed the instance; same grammar as `CommandId`."""
ModelId = NewType("ModelId", str)
"""`org/name`, optionally `:quant`; at most 200 characters."""
ClusterId = NewType("ClusterId", str)
"""`k` and 16 base32 letters."""
KeyId = NewType("KeyId", str)
"""`key-` and 8 base32 letters: the public half of an API key's name."""
TokenId = NewType("TokenId", str)
"""`join-` and 8 base32 letters: the public name of an invitation."""
Digest = NewType("Digest", str)
"""64 lower-case hexadecimal digits: a SHA-256."""

NODE_ID_PATTERN = r"^n[a-z2-7]{16}$"
COMMAND_ID_PATTERN = r"^[a-z2-7]{6}-[a-z2-7]{20}$"
CLUSTER_ID_PATTERN = r"^k[a-z2-7]{16}$"
KEY_ID_PATTERN = r"^key-[a-z2-7]{8}$"
INVITATION_ID_PATTERN = r"^join-[a-z2-7]{8}$"
DIGEST_PATTERN = r"^[0-9a-f]{64}$"
# One to three path-like segments that never begin with a dot or a dash, and an optional quant.
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
MODEL_ID_PATTERN = rf"^{_SEGMENT}(/{_SEGMENT}){{0,2}}(:[A-Za-z0-9_][A-Za-z0-9._-]{{0,31}})?$"
MODEL_ID_MAX_CHARS = 200

NodeIdField = Annotated[NodeId, StringConstraints(pattern=NODE_ID_PATTERN)]
CommandIdField = Annotated[CommandId, StringConstraints(pattern=COMMAND_ID_PATTERN)]
InstanceIdField = Annotated[InstanceId, StringConstraints(pattern=COMMAND_ID_PATTERN)]
ClusterIdField = Annotated[ClusterId, StringConstraints(pattern=CLUSTER_ID_PATTERN)]
KeyIdField = Annotated[KeyId, StringConstraints(pattern=KEY_ID_PATTERN)]
TokenIdField = Annotated[TokenId, StringConstraints(pattern=INVITATION_ID_PATTERN)]
DigestField = Annotated[Digest, StringConstraints(pattern=DIGEST_PATTERN)]
ModelIdField = Annotated[
    ModelId, StringConstraints(pattern=MODEL_ID_PATTERN, max_length=MODEL_ID_MAX_CHARS)
]

_COMMAND_ID = re.compile(COMMAND_ID_PATTERN)
_MODEL_ID = re.compile(MODEL_ID_PATTERN)


_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz234567" * 8
"""The lower-case base32 alphabet, as a table for the low five bits of a byte."""


def _base32(digest: bytes, n_letters: int) -> str:
    """Write a digest in base32; whole, so that it could be read back."""
    return base64.b32encode(digest).decode("ascii").lower().rstrip("=")[:n_letters]


def _letters(entropy: bytes, n_letters: int) -> str:
    """Give a random letter for each random byte: ten times cheaper than packing the bits."""
    if len(entropy) < n_letters:
        message = f"{n_letters} random bytes are needed, not {len(entropy)}"
        raise ValueError(message)
    return entropy[:n_letters].translate(_LETTERS).decode("ascii")


def node_id_of(public_key: bytes) -> NodeId:
    """Derive a node's id from its public key (32 bytes)."""
    return NodeId("n" + _base32(hashlib.sha256(b"skulk node\0" + public_key).digest(), 16))


def cluster_id_of(entropy: bytes) -> ClusterId:
    """Make a cluster id of at least 16 random bytes."""
    return ClusterId("k" + _base32(hashlib.sha256(b"skulk cluster\0" + entropy).digest(), 16))


def command_id_of(node_id: NodeId, entropy: bytes) -> CommandId:
    """Make a command id, prefixed with the minting node's short id, of 20 random bytes."""
    return CommandId(f"{node_id[1:7]}-{_letters(entropy, 20)}")


def further_command_id(command_id: CommandId, number: int) -> CommandId:
    """Give the id of a command's further task, always the same one for a number."""
    digest = hashlib.sha256(b"skulk task\0%d\0%b" % (number, command_id.encode())).digest()
    return CommandId(f"{command_id[:7]}{_letters(digest, 20)}")


def may_have_minted(node_id: NodeId, command_id: CommandId) -> bool:
    """Tell whether a command's id may be of a node's making: a hint whom to ask about it first."""
    return command_id.startswith(f"{node_id[1:7]}-")


def key_id_of(entropy: bytes) -> KeyId:
    """Make an API key's public id of 8 random bytes."""
    return KeyId("key-" + _letters(entropy, 8))


def token_id_of(entropy: bytes) -> TokenId:
    """Make an invitation's public name of 8 random bytes."""
    return TokenId("join-" + _letters(entropy, 8))


def is_command_id(text: str) -> bool:
    """Tell whether a text has the form of a command's id."""
    return _COMMAND_ID.fullmatch(text) is not None


def parse_command_id(text: str) -> CommandId:
    """Check a command or instance id that came from outside.

    Raises:
        RequestError: `request.invalid_id`.
    """
    if _COMMAND_ID.fullmatch(text) is None:
        raise RequestError(
            "request.invalid_id",
            f"{text[:64]!r} is not a command or instance id",
            remediation="Use an id as `skulk ps` or the x-skulk-command-id header shows it.",
        )
    return CommandId(text)


def parse_model_id(text: str) -> ModelId:
    """Check a model id that came from outside.

    Raises:
        RequestError: `request.invalid_id`.
    """
    if len(text) > MODEL_ID_MAX_CHARS or _MODEL_ID.fullmatch(text) is None:
        raise RequestError(
            "request.invalid_id",
            f"{text[:64]!r} is not a model id",
            remediation="A model id reads org/name or org/name:quant; see `skulk models list`.",
        )
    return ModelId(text)
