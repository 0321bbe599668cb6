import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from protocol.errors import ClusterError, ErrorCode, RequestError, SkulkError
from protocol.ids import NodeId
from protocol.peer_messages import (
    CancelTask,
    Journalled,
    OpenSnapshot,
    PeerAnswer,
    Refused,
    TaskCancelled,
    pack_frame,
)
from skulkd.cluster.peer_calls import MAX_ANSWERING, MAX_ASKED, ControlCalls
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork, SimulatedTransport
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_command_id, a_node_id

A, B = a_node_id(1), a_node_id(2)
QUESTION = CancelTask(command_id=a_command_id())


@dataclass
class Two:
    network: SimulatedNetwork
    transports: dict[NodeId, SimulatedTransport]
    asker: ControlCalls
    answerer: ControlCalls
    tasks: Tasks


def with_two(story: Callable[[Two], Awaitable[None]], *, seed: int = 0) -> None:
    async def main() -> None:
        def die(story: str, error: BaseException) -> None:
            raise AssertionError(story) from error

        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(seed)
        tasks = Tasks("calls", on_death=die)
        network = SimulatedNetwork(rng, NetworkFaults())
        transports = {node: network.attach(node) for node in (A, B)}
        calls = {node: ControlCalls(transports[node], rng=rng, tasks=tasks) for node in transports}
        network.introduce_all()
        await asyncio.sleep(1)
        await story(Two(network, transports, calls[A], calls[B], tasks))
        await tasks.close(1)

    run_virtual(main, seed=seed, limit_s=600)


async def cancelled(_sender: NodeId, _request: CancelTask) -> PeerAnswer:
    return TaskCancelled(was_known=True)


async def slow(_sender: NodeId, _request: CancelTask) -> PeerAnswer:
    await asyncio.sleep(100)
    return TaskCancelled(was_known=False)


async def refusal_of(calls: ControlCalls, *, timeout_s: float = 1.0) -> ErrorCode:
    with pytest.raises(SkulkError) as refused:
        await calls.ask(B, QUESTION, timeout_s=timeout_s)
    return refused.value.code


def test_a_question_is_answered_by_who_serves_its_kind() -> None:
    async def story(two: Two) -> None:
        two.answerer.serve(CancelTask, cancelled)
        answers = await asyncio.gather(
            *(two.asker.ask(B, QUESTION, timeout_s=1) for _ in range(20))
        )
        assert answers == [TaskCancelled(was_known=True)] * 20
        assert await refused_kind(two) == "request.not_found"

    async def refused_kind(two: Two) -> ErrorCode:
        with pytest.raises(RequestError) as refused:
            await two.asker.ask(B, OpenSnapshot(number=1), timeout_s=1)
        return refused.value.code

    with_two(story)


def test_a_node_may_ask_itself() -> None:
    async def story(two: Two) -> None:
        two.asker.serve(CancelTask, cancelled)
        assert await two.asker.ask(A, QUESTION, timeout_s=1) == TaskCancelled(was_known=True)

    with_two(story)


def test_a_refusal_comes_back_as_the_error_it_was() -> None:
    async def refuse(_sender: NodeId, _request: CancelTask) -> PeerAnswer:
        raise ClusterError(
            "cluster.no_master",
            "nobody decides",
            remediation="Wait.",
            details={"n": 3},
            retry_after_s=7,
        )

    async def story(two: Two) -> None:
        two.answerer.serve(CancelTask, refuse)
        with pytest.raises(ClusterError) as refused:
            await two.asker.ask(B, QUESTION, timeout_s=1)
        error = refused.value
        assert (error.code, error.message, error.remediation) == (
            "cluster.no_master",
            "nobody decides",
            "Wait.",
        )
        assert (error.details, error.retry_after_s) == ({"n": 3}, 7)

    with_two(story)


def test_a_bug_of_a_handler_is_told_as_one_and_ends_nothing_else() -> None:
    async def fail(_sender: NodeId, _request: CancelTask) -> PeerAnswer:
        raise ZeroDivisionError

    async def story(two: Two) -> None:
        two.answerer.serve(CancelTask, fail)
        assert await refusal_of(two.asker) == "internal.bug"
        two.answerer.serve(CancelTask, cancelled)
        assert await two.asker.ask(B, QUESTION, timeout_s=1) == TaskCancelled(was_known=True)

    with_two(story)


def test_a_question_ends_by_its_deadline_and_the_late_answer_is_dropped() -> None:
    async def story(two: Two) -> None:
        two.answerer.serve(CancelTask, slow)
        began_s = asyncio.get_running_loop().time()
        assert await refusal_of(two.asker, timeout_s=3.0) == "cluster.peer_timeout"
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(3.0, abs=0.01)
        await asyncio.sleep(200)
        assert two.asker.n_garbage == 0

    with_two(story)


def test_a_link_that_breaks_ends_what_waits_at_once() -> None:
    async def story(two: Two) -> None:
        two.answerer.serve(CancelTask, slow)
        asked = asyncio.ensure_future(two.asker.ask(B, QUESTION, timeout_s=90))
        await asyncio.sleep(1)
        await two.transports[B].close()
        await asyncio.sleep(0.2)
        assert asked.done()
        with pytest.raises(ClusterError) as refused:
            await asked
        assert refused.value.code == "cluster.peer_unreachable"
        assert await refusal_of(two.asker) == "cluster.peer_unreachable"

    with_two(story)


def test_nobody_keeps_more_questions_than_the_limits_allow() -> None:
    async def story(two: Two) -> None:
        two.answerer.serve(CancelTask, slow)
        asked = [
            asyncio.ensure_future(two.asker.ask(B, QUESTION, timeout_s=90))
            for _ in range(MAX_ASKED)
        ]
        await asyncio.sleep(1)
        refused = [one for one in asked if one.done()]
        assert len(refused) == MAX_ASKED - MAX_ANSWERING
        for one in refused:
            error = one.exception()
            assert isinstance(error, RequestError)
            assert error.code == "request.overloaded"
        more = [
            asyncio.ensure_future(two.asker.ask(B, QUESTION, timeout_s=90))
            for _ in range(MAX_ASKED)
        ]
        await asyncio.sleep(0)
        assert sum(one.done() for one in more) == MAX_ANSWERING
        for one in (*asked, *more):
            one.cancel()
        await asyncio.gather(*asked, *more, return_exceptions=True)

    with_two(story)


def test_questions_of_one_kind_do_not_crowd_out_those_of_another() -> None:
    async def opened(_sender: NodeId, _request: OpenSnapshot) -> PeerAnswer:
        return Refused(error=ClusterError("cluster.no_master", "no", remediation="Wait.").body())

    async def story(two: Two) -> None:
        two.answerer.serve(CancelTask, slow)
        two.answerer.serve(OpenSnapshot, opened)
        asked = [
            asyncio.ensure_future(two.asker.ask(B, QUESTION, timeout_s=9))
            for _ in range(MAX_ASKED + 1)
        ]
        await asyncio.sleep(1)
        with pytest.raises(ClusterError) as refused:
            await two.asker.ask(B, OpenSnapshot(number=1), timeout_s=1)
        assert refused.value.code == "cluster.no_master"
        await asyncio.gather(*asked, return_exceptions=True)

    with_two(story)


def test_garbage_is_counted_and_disturbs_nothing() -> None:
    async def story(two: Two) -> None:
        two.answerer.serve(CancelTask, cancelled)
        good = pack_frame(Journalled(1, 2))
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        chance = random.Random(1)
        told: list[tuple[NodeId, Journalled]] = []
        two.answerer.on_journalled(lambda sender, frame: told.append((sender, frame)))
        for _ in range(300):
            two.transports[A].send(B, "control", chance.randbytes(chance.randrange(40)))
            two.transports[A].send(B, "control", good[: chance.randrange(len(good))])
        two.transports[A].send(B, "control", good)
        await asyncio.sleep(1)
        assert two.answerer.n_garbage == 600
        assert told == [(A, Journalled(1, 2))]
        assert await two.asker.ask(B, QUESTION, timeout_s=1) == TaskCancelled(was_known=True)

    with_two(story)


def test_an_answer_that_does_not_decode_fails_the_question_it_answers() -> None:
    from protocol.peer_messages import Answer, Ask, unpack_control

    async def story(two: Two) -> None:
        def answer_badly(sender: NodeId, payload: bytes) -> None:
            frame = unpack_control(payload)
            assert isinstance(frame, Ask)
            bad = pack_frame(Answer(frame.request_id, b"\xc1"))
            two.transports[B].send(sender, "control", bad)

        two.transports[B].on_receive("control", answer_badly)
        assert await refusal_of(two.asker) == "protocol.bad_frame"
        assert two.asker.n_garbage == 1

    with_two(story)
