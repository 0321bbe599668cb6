"""What this node asks as a guest, so that it can say so to the member that dials it back.

A guest dials with the one-time key of its invitation, which proves the invitation and nothing of
the node that it says it is. So the member dials the node key that the guest has named, and asks
whether the request is its own; whoever only knows that key cannot answer.
"""

import hashlib
import hmac
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final, final

from protocol.errors import ClusterError
from protocol.ids import node_id_of
from protocol.joining import JoinConfirmed, JoinQuestion

HOST_PREFIX: Final = "host/"
"""Of the name under which a member that dials back comes in; no invitation's id begins with it."""


def request_digest(payload: bytes) -> bytes:
    """Name a request by its bytes: 32 bytes."""
    return hashlib.sha256(payload).digest()


@final
class OwnRequests:
    """The requests of this node that wait for an answer.

    Args:
        build: As members are told.
        on_change: Called when other members are let in to ask; must not block or raise.
    """

    def __init__(self, *, build: str, on_change: Callable[[], None]) -> None:
        self._build = build
        self._on_change = on_change
        self._digests: dict[bytes, bytes] = {}
        """Of the request to each member, by the member's public key."""

    @contextmanager
    def asking(self, host_key: bytes, payload: bytes) -> Generator[None]:
        """Confirm a request to the member with this key, and to nobody else, meanwhile."""
        self._digests[host_key] = request_digest(payload)
        self._on_change()
        try:
            yield
        finally:
            del self._digests[host_key]
            self._on_change()

    def keys(self) -> Mapping[bytes, str]:
        """Give the keys of the members that may ask, each with the name it comes in under."""
        return {key: HOST_PREFIX + node_id_of(key) for key in self._digests}

    def confirm(self, name: str, question: JoinQuestion) -> JoinConfirmed:
        """Answer a member.

        Raises:
            ClusterError: `cluster.join_refused`, this node has not asked that.
        """
        for key, digest in self._digests.items():
            is_asked = name == HOST_PREFIX + node_id_of(key)
            if is_asked and hmac.compare_digest(digest, question.digest):
                return JoinConfirmed(build=self._build, digest=digest)
        raise ClusterError(
            "cluster.join_refused",
            "this node has not asked that member to be let in, or not with these words",
            remediation="If it was to join, let it ask again; if not, somebody else has named its "
            "public key as theirs.",
        )
