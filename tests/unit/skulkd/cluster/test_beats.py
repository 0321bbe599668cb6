import asyncio
from collections import UserList
from collections.abc import Callable

from protocol.ids import NodeId
from skulkd.cluster.beats import AT_ONCE, Beats
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_node_id

MANY = [a_node_id(number) for number in range(3 * AT_ONCE + 1)]
FIRST, SECOND = b"first", b"second"


class Outgoing(UserList[tuple[NodeId, bytes]]):
    def take(self, node_id: NodeId, payload: bytes) -> None:
        self.append((node_id, payload))


def on_a_loop(story: Callable[[Beats, Outgoing], object]) -> Outgoing:
    """Run a story, and what it leaves to the turns of the loop that follow."""
    sent = Outgoing()

    async def main() -> None:
        story(Beats(sent.take), sent)
        await sleep(1.0)

    run_virtual(main, seed=1, limit_s=10)
    return sent


def test_everybody_is_told_once_in_order() -> None:
    sent = on_a_loop(lambda beats, _: beats.begin(FIRST, MANY))
    assert sent == [(node_id, FIRST) for node_id in MANY]


def test_others_have_their_turn_while_many_are_told() -> None:
    told: list[int] = []

    def story(beats: Beats, sent: Outgoing) -> None:
        beats.begin(FIRST, MANY)
        asyncio.get_running_loop().call_soon(lambda: told.append(len(sent)))

    on_a_loop(story)
    assert told == [2 * AT_ONCE]


def test_a_beat_that_is_overtaken_goes_before_the_next() -> None:
    def story(beats: Beats, sent: Outgoing) -> None:
        beats.begin(FIRST, MANY)
        beats.begin(SECOND, MANY)
        assert sent[: len(MANY)] == [(node_id, FIRST) for node_id in MANY]

    sent = on_a_loop(story)
    assert sent[len(MANY) :] == [(node_id, SECOND) for node_id in MANY]


def test_what_is_said_next_finds_everybody_told() -> None:
    def story(beats: Beats, sent: Outgoing) -> None:
        beats.begin(FIRST, MANY)
        beats.finish()
        assert len(sent) == len(MANY)

    assert len(on_a_loop(story)) == len(MANY)


def test_a_beat_that_is_dropped_goes_no_further() -> None:
    def story(beats: Beats, sent: Outgoing) -> None:
        beats.begin(FIRST, MANY)
        beats.drop()

    assert len(on_a_loop(story)) == AT_ONCE
