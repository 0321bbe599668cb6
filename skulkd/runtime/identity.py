"""Who this node is: a key pair made once, the id derived from it, and the cluster it founded."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast, final

from protocol.errors import ConfigError
from protocol.ids import ClusterId, NodeId, cluster_id_of, node_id_of
from skulkd.runtime.disk import Disk

_ENTROPY_BYTES: Final = 16
_SCHEMA: Final = 1
_MAX_FILE_BYTES: Final = 4096


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A CURVE25519 key pair, each half 32 bytes."""

    public_key: bytes
    secret_key: bytes

    def __repr__(self) -> str:
        return f"KeyPair(public_key={self.public_key.hex()})"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a node is known by; survives restarts."""

    node_id: NodeId
    cluster_id: ClusterId
    keys: KeyPair


def load_or_create(
    disk: Disk,
    path: Path,
    *,
    make_keys: Callable[[], KeyPair],
    entropy: Callable[[int], bytes],
) -> Identity:
    """Read the identity; make it, and a cluster of one, where there is none yet. Blocks.

    Args:
        disk: Where it lies.
        path: The file, in the private home.
        make_keys: Called only when a key must be made.
        entropy: Gives that many random bytes, for the cluster's id.

    Raises:
        ConfigError: `config.invalid`; the file is damaged. `config.home_unusable`; it cannot be
            read or written.
    """
    try:
        text = disk.read(path, max_bytes=_MAX_FILE_BYTES)
    except FileNotFoundError:
        return _create(disk, path, make_keys(), cluster_id_of(entropy(_ENTROPY_BYTES)))
    except OSError as error:
        raise _unusable(path, error) from error
    return _parse(path, text)


def adopt_cluster(disk: Disk, path: Path, identity: Identity, cluster_id: ClusterId) -> Identity:
    """Make another cluster this node's own, under the same key. Blocks.

    Raises:
        ConfigError: `config.home_unusable`; the earlier identity stands.
    """
    return _create(disk, path, identity.keys, cluster_id)


def _create(disk: Disk, path: Path, keys: KeyPair, cluster_id: ClusterId) -> Identity:
    identity = Identity(node_id=node_id_of(keys.public_key), cluster_id=cluster_id, keys=keys)
    fields: dict[str, str | int] = {
        "schema": _SCHEMA,
        "node_id": identity.node_id,
        "cluster_id": cluster_id,
        "public_key": keys.public_key.hex(),
        "secret_key": keys.secret_key.hex(),
    }
    document = fields | {"digest": _digest(fields)}
    try:
        disk.replace(path, json.dumps(document, indent=2).encode() + b"\n")
    except OSError as error:
        raise _unusable(path, error) from error
    return identity


def _parse(path: Path, text: bytes) -> Identity:
    try:
        document: object = json.loads(text)
    except ValueError as error:
        raise _damaged(path, "it is no JSON") from error
    if not isinstance(document, dict):
        raise _damaged(path, "it is no JSON object")
    fields = cast("dict[str, object]", document)
    digest = fields.pop("digest", None)
    if digest != _digest(fields):
        raise _damaged(path, "its digest differs")
    schema = fields.get("schema")
    if isinstance(schema, int) and schema > _SCHEMA:
        raise ConfigError(
            "config.downgrade",
            f"{path} has schema {schema}, and this daemon knows schemas up to {_SCHEMA}",
            remediation="Start the newer skulkd again.",
        )
    known = cast("dict[str, str]", fields)
    keys = KeyPair(
        public_key=bytes.fromhex(known["public_key"]), secret_key=bytes.fromhex(known["secret_key"])
    )
    return Identity(
        node_id=NodeId(known["node_id"]), cluster_id=ClusterId(known["cluster_id"]), keys=keys
    )


def _digest(fields: "dict[str, object] | dict[str, str | int]") -> str:
    """Cover every field, so that a flipped bit in a key is found here and not at a peer."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        "config.invalid",
        f"the identity file {path} is damaged: {reason}",
        remediation=(
            f"Restore {path} from a copy. Without one, move the whole home away: this machine "
            "then starts as a new node and must join its cluster again."
        ),
        details={"file": str(path)},
    )


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        "config.home_unusable",
        f"the identity file {path} cannot be used: {error.strerror or error}",
        remediation="Make the home readable and writable for this user.",
        details={"file": str(path), "errno": error.errno},
    )
