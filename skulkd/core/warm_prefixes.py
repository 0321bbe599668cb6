"""Which instances have read the beginning of a prompt lately, and may have it in their cache. Pure.

A prompt is cut into blocks, and each block's hash is made of it and all before it, so that equal
hashes mean equal beginnings. Only hashes are kept, keyed with a secret of this process: nobody who
reads its memory or hears of them can tell a prompt by guessing it. What is known is this node's
own: what it has sent where. That an engine still has it is a guess, which ages.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, final

from protocol.ids import InstanceId
from protocol.tasks import ChatTask

BLOCK_CHARS: Final = 1024
"""Some 250 tokens: a shorter beginning is read anew in no time."""
MAX_BLOCKS: Final = 64
"""Of one prompt; two that are equal for so long are taken to be equal."""
MAX_KEPT: Final = 16_384
"""Blocks of all instances together, 3 MB of them; those that were used longest ago go first."""
WARM_S: Final = 600.0
"""Longer than that an engine seldom keeps a prompt among others."""
_HASH_BYTES: Final = 12

Blocks = tuple[bytes, ...]
"""Hashes of the whole blocks of a prompt, each standing for all of it up to there."""


@final
class WarmPrefixes:
    """See the module.

    Args:
        secret: 16 random bytes or more.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._seen: OrderedDict[tuple[InstanceId, bytes], float] = OrderedDict()
        """When each was last sent, the oldest first."""

    def __len__(self) -> int:
        """Count what is kept."""
        return len(self._seen)

    def blocks(self, task: ChatTask) -> Blocks:
        """Give the hashes of a task's prompt; none of one that is shorter than a block."""
        text = _beginning(_pieces(task), BLOCK_CHARS * MAX_BLOCKS)
        found: list[bytes] = []
        before = b""
        for end in range(BLOCK_CHARS, len(text) + 1, BLOCK_CHARS):
            block = text[end - BLOCK_CHARS : end].encode("utf-8", "surrogatepass")
            before = hashlib.blake2b(
                before + block, digest_size=_HASH_BYTES, key=self._secret
            ).digest()
            found.append(before)
        return tuple(found)

    def note(self, instance_id: InstanceId, blocks: Blocks, now: float) -> None:
        """An instance has begun to answer a prompt of these blocks."""
        for block in blocks:
            self._seen[instance_id, block] = now
            self._seen.move_to_end((instance_id, block))
        while len(self._seen) > MAX_KEPT:
            self._seen.popitem(last=False)

    def warmth(
        self, blocks: Blocks, instance_ids: Iterable[InstanceId], now: float
    ) -> Mapping[InstanceId, int]:
        """Say how many blocks of a prompt each instance has read lately; of none, nothing."""
        found: dict[InstanceId, int] = {}
        for instance_id in instance_ids:
            for number in range(len(blocks), 0, -1):
                at_s = self._seen.get((instance_id, blocks[number - 1]))
                if at_s is not None and now - at_s <= WARM_S:
                    found[instance_id] = number
                    break
        return found


def _pieces(task: ChatTask) -> Iterator[str]:
    """Give what a template writes, in the order in which it does; marks keep pieces apart."""
    if task.prompt is not None:
        yield task.prompt
    for tool in task.tools:
        yield f"\0tool\0{tool.name}\0{tool.description}\0{tool.parameters!r}"
    for message in task.messages:
        yield f"\0{message.role}\0{message.content}"
        for call in message.tool_calls:
            yield f"\0call\0{call.name}\0{call.arguments}"


def _beginning(pieces: Iterator[str], n_chars: int) -> str:
    found: list[str] = []
    for piece in pieces:
        found.append(piece[:n_chars])
        n_chars -= len(piece)
        if n_chars <= 0:
            break
    return "".join(found)
