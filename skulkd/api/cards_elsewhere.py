"""Cards that lie only in another node's folder: asked for once a model is named that none here has.

A card is small and rarely changes, a placement asks for it many times in a row: what the others
said is kept for a while, also that they know none. What is kept is bounded in number and size.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple, final
from urllib.parse import quote

from pydantic import ValidationError

from protocol.cards import ModelCard, card_digest
from protocol.clock import Clock
from protocol.control_api import CardDocument, read_answer
from protocol.errors import SkulkError
from protocol.ids import ModelId, NodeId
from protocol.peer_messages import CallApi
from skulkd.api.ports import PeerApi
from skulkd.eventlog.gateway import StateView

MAX_KEPT: Final = 256
MAX_CARD_BYTES: Final = 64 << 10
"""Of a card as another node sends it; a longer one is nobody's."""
KNOWN_S: Final = 30.0
"""How long a card counts without being asked for again."""
UNKNOWN_S: Final = 2.0
"""How long it counts that nobody has one."""
ASK_S: Final = 2.0
"""A node that is alive answers in milliseconds; one that is not must not hold up a placement."""
AT_A_TIME: Final = 16
"""Nodes asked at once."""


class _Kept(NamedTuple):
    card: ModelCard | None
    until_s: float


@final
class CardsElsewhere:
    """Finds cards on the other nodes of the cluster.

    Args:
        node_id: This node.
        state: Names the members.
        peers: Asks them.
        is_linked: Whether the way to one is up.
        clock: Tells how old an answer is.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: StateView,
        peers: PeerApi,
        is_linked: Callable[[NodeId], bool],
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._peers = peers
        self._is_linked = is_linked
        self._clock = clock
        self._kept: OrderedDict[ModelId, _Kept] = OrderedDict()
        self._asking = asyncio.Lock()
        """One model at a time: whoever asks for the same one meanwhile finds the answer kept."""

    async def find(self, model_id: ModelId) -> ModelCard | None:
        """Give the card that the others have; None when none that can be asked has one.

        Where they have different ones, one that comes with its files counts before one that does
        not, and then the one of the first node by name: whoever asks gets the same.
        """
        async with self._asking:
            kept = self._kept.get(model_id)
            if kept is None or self._clock.monotonic_s() >= kept.until_s:
                kept = self._keep(model_id, await self._ask(model_id))
            return kept.card

    async def _ask(self, model_id: ModelId) -> ModelCard | None:
        members = self._state.state.members.values()
        others = [
            one.node_id
            for one in sorted(members, key=lambda member: (member.name, member.node_id))
            if one.node_id != self._node_id and self._is_linked(one.node_id)
        ]
        places = asyncio.Semaphore(AT_A_TIME)
        found = await asyncio.gather(*(self._ask_one(one, model_id, places) for one in others))
        answers = [document for document in found if document is not None]
        answers.sort(key=lambda document: not document.installed)  # stable: by name within each
        return answers[0].card if answers else None

    async def _ask_one(
        self, node_id: NodeId, model_id: ModelId, places: asyncio.Semaphore
    ) -> CardDocument | None:
        """Ask one node; that it has no card, cannot be asked or talks nonsense is all the same."""
        call = CallApi(method="GET", path=f"/models/cards/{quote(model_id, safe='/')}")
        async with places:
            try:
                answer = await self._peers.call(node_id, call, timeout_s=ASK_S)
            except SkulkError:
                return None
        if answer.status != HTTPStatus.OK or len(answer.body) > MAX_CARD_BYTES:
            return None
        try:
            document = read_answer(CardDocument, answer.body)
        except ValidationError:
            return None
        is_it = document.card.model_id == model_id and document.digest == card_digest(document.card)
        return document if is_it else None

    def _keep(self, model_id: ModelId, card: ModelCard | None) -> _Kept:
        lasts_s = UNKNOWN_S if card is None else KNOWN_S
        kept = self._kept[model_id] = _Kept(card, self._clock.monotonic_s() + lasts_s)
        self._kept.move_to_end(model_id)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return kept
