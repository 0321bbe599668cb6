"""A card that only another node has: who is asked, what is believed, and how long it is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, final

from protocol.cards import ModelCard, card_digest
from protocol.commands import PlaceInstance
from protocol.control_api import CardDocument, read_answer
from protocol.errors import ClusterError
from protocol.ids import Digest, ModelId, NodeId
from protocol.peer_messages import ApiAnswer, CallApi
from protocol.placements import PlacementOutcome
from skulkd.api import cards_elsewhere
from skulkd.api.cards_elsewhere import CardsElsewhere
from skulkd.eventlog.replica import Replica
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.api_harness import Api, with_api
from tests.support.builders import MODEL, a_member, a_node_id, a_scripted_card, a_state
from tests.support.fake_ports import FakeDaemon, make_plan
from tests.support.two_nodes import TwoNodes

T = TypeVar("T")
B, C, D = a_node_id(2), a_node_id(3), a_node_id(4)
CARD: Final = a_scripted_card()
OTHER: Final = a_scripted_card(context_length=4096)


@final
class Others:
    """The other nodes, each with what it answers."""

    def __init__(self) -> None:
        self.documents: dict[NodeId, CardDocument] = {}
        self.bodies: dict[NodeId, bytes] = {}
        self.gone: set[NodeId] = set()
        self.asked: list[NodeId] = []
        self.paths: set[str] = set()
        self.most_at_once = self.n_open = 0

    def has(self, node_id: NodeId, card: ModelCard, *, installed: bool = False) -> None:
        self.documents[node_id] = CardDocument(
            card=card, digest=card_digest(card), installed=installed
        )

    async def call(self, node_id: NodeId, request: CallApi, *, timeout_s: float) -> ApiAnswer:
        self.asked.append(node_id)
        self.paths.add(request.path)
        self.n_open += 1
        self.most_at_once = max(self.most_at_once, self.n_open)
        await sleep(timeout_s if node_id in self.gone else 0.01)
        self.n_open -= 1
        if node_id in self.gone:
            raise ClusterError("cluster.peer_timeout", "no answer")
        document = self.documents.get(node_id)
        body = b"" if document is None else document.model_dump_json().encode()
        body = self.bodies.get(node_id, body)
        status = 200 if body else 404
        return ApiAnswer(status=status, content_type="application/json", body=body)


def played(
    others: Others,
    story: Callable[[CardsElsewhere], Awaitable[T]],
    *,
    n_nodes: int = 4,
    cut_off: frozenset[NodeId] = frozenset(),
) -> T:
    async def play() -> T:
        cards = CardsElsewhere(
            node_id=a_node_id(1),
            state=Replica(a_state(members=[a_member(number) for number in range(1, n_nodes + 1)])),
            peers=others,
            is_linked=lambda node_id: node_id not in cut_off,
            clock=LoopClock(asyncio.get_running_loop()),
        )
        return await story(cards)

    return run_virtual(play, limit_s=600)


async def found(cards: CardsElsewhere) -> ModelCard | None:
    return await cards.find(MODEL)


def test_the_card_of_the_one_node_that_has_it_is_found() -> None:
    others = Others()
    others.has(C, CARD)
    assert played(others, found) == CARD
    assert sorted(others.asked) == sorted([B, C, D])
    assert others.paths == {f"/models/cards/{MODEL}"}


def test_nobody_has_it() -> None:
    assert played(Others(), found) is None


def test_of_two_cards_the_one_with_its_files_counts_and_else_the_first_node_by_name() -> None:
    others = Others()
    others.has(B, CARD)
    others.has(C, OTHER)
    assert played(others, found) == CARD
    others.has(C, OTHER, installed=True)
    assert played(others, found) == OTHER


def test_who_cannot_be_asked_is_not_and_who_does_not_answer_holds_nobody_up_for_long() -> None:
    others = Others()
    others.has(D, CARD)
    others.gone = {B}

    async def story(cards: CardsElsewhere) -> float:
        loop = asyncio.get_running_loop()
        assert await cards.find(MODEL) == CARD
        return loop.time()

    assert played(others, story, cut_off=frozenset({C})) <= cards_elsewhere.ASK_S + 0.1
    assert C not in others.asked


def test_a_card_of_another_name_a_wrong_digest_nonsense_and_a_book_are_no_cards() -> None:
    others = Others()
    others.has(B, a_scripted_card(model_id="some/other"))
    others.documents[C] = CardDocument(card=CARD, digest=Digest("0" * 64))
    others.bodies[D] = b"{"
    assert played(others, found) is None
    long = a_scripted_card().model_copy(update={"family": "x" * cards_elsewhere.MAX_CARD_BYTES})
    others.bodies = {B: CardDocument.model_construct(
        card=long, digest=card_digest(long), installed=True,
    ).model_dump_json().encode()}  # fmt: skip
    assert played(others, found) is None


def test_an_answer_is_kept_for_a_while_and_then_asked_for_again() -> None:
    others = Others()
    others.has(B, CARD)

    async def story(cards: CardsElsewhere) -> None:
        await asyncio.gather(*(cards.find(MODEL) for _ in range(10)))
        assert len(others.asked) == 3
        others.has(B, OTHER)
        assert await cards.find(MODEL) == CARD
        await sleep(cards_elsewhere.KNOWN_S)
        assert await cards.find(MODEL) == OTHER
        assert len(others.asked) == 6

    played(others, story)


def test_that_nobody_has_it_is_kept_more_shortly() -> None:
    others = Others()

    async def story(cards: CardsElsewhere) -> None:
        assert await cards.find(MODEL) is None
        others.has(B, CARD)
        assert await cards.find(MODEL) is None
        assert len(others.asked) == 3
        await sleep(cards_elsewhere.UNKNOWN_S)
        assert await cards.find(MODEL) == CARD

    played(others, story)


def test_no_more_is_kept_than_may_be() -> None:
    others = Others()

    async def story(cards: CardsElsewhere) -> None:
        for number in range(cards_elsewhere.MAX_KEPT + 1):
            await cards.find(ModelId(f"m/{number}"))
        n_asked = len(others.asked)
        await cards.find(ModelId(f"m/{cards_elsewhere.MAX_KEPT}"))
        assert len(others.asked) == n_asked
        await cards.find(ModelId("m/0"))
        assert len(others.asked) == n_asked + 1

    played(others, story, n_nodes=2)


def test_of_a_hundred_nodes_a_few_are_asked_at_once() -> None:
    others = Others()
    others.has(a_node_id(77), CARD)
    assert played(others, found, n_nodes=100) == CARD
    assert others.most_at_once == cards_elsewhere.AT_A_TIME


# ---- Over HTTP ---------------------------------------------------------------------------------


def test_a_card_is_given_whole_and_one_of_another_node_too() -> None:
    nodes = TwoNodes()
    nodes.alpha.models.cards_elsewhere[OTHER.model_id] = OTHER

    async def story(api: Api) -> None:
        own = nodes.alpha.models.items[0].card
        answer = await api.client.get(f"/models/cards/{own.model_id}")
        shown = read_answer(CardDocument, answer.content)
        assert (shown.card, shown.digest, shown.installed) == (own, card_digest(own), True)
        answer = await api.client.get(f"/models/cards/{OTHER.model_id}")
        assert read_answer(CardDocument, answer.content).card == OTHER
        assert (await api.client.get("/models/cards/no/such")).status_code == 404

    with_api(story, nodes.alpha)


def test_a_node_that_is_asked_by_another_gives_what_it_has_and_asks_nobody() -> None:
    nodes = TwoNodes()
    nodes.beta.models.cards_elsewhere[OTHER.model_id] = OTHER

    async def story(api: Api) -> None:
        answer = await api.client.get(f"/models/cards/{OTHER.model_id}?node=beta")
        assert answer.status_code == 404
        own = nodes.beta.models.items[0].card
        answer = await api.client.get(f"/models/cards/{own.model_id}?node=beta")
        assert read_answer(CardDocument, answer.content).card == own

    with_api(story, nodes.alpha)


def test_a_placement_takes_the_card_of_another_node() -> None:
    daemon = FakeDaemon()
    daemon.models.items = []
    daemon.placements.outcome = PlacementOutcome(plans=(make_plan(OTHER),))
    daemon.models.cards_elsewhere[OTHER.model_id] = OTHER

    async def story(api: Api) -> None:
        answer = await api.client.post("/place_instance", json={"model_id": OTHER.model_id})
        assert answer.status_code == 202, answer.text
        (command,) = daemon.gateway.submitted
        assert isinstance(command, PlaceInstance)
        assert command.card == OTHER

    with_api(story, daemon)
