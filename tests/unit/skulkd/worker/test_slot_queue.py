from collections import deque

import hypothesis
from hypothesis import strategies

from skulkd.worker.slot_queue import Admit, Count, SlotQueue, Step


def steps_of(queue: SlotQueue, *, now: float = 0.0) -> list[Step]:
    found: list[Step] = []
    while (step := queue.next_step(now=now)) is not None:
        found.append(step)
    return found


def enqueue(queue: SlotQueue, tokens: int, *, is_exact: bool = True) -> int:
    ticket = queue.try_enqueue(tokens, is_exact=is_exact)
    assert ticket is not None
    return ticket


def test_tasks_start_in_order_until_the_slots_are_taken() -> None:
    queue = SlotQueue(slots=2, pool_tokens=100)
    first, second, third = (enqueue(queue, 10) for _ in range(3))
    assert steps_of(queue) == [Admit(first), Admit(second)]
    queue.leave(second, now=1.0)
    assert steps_of(queue) == [Admit(third)]


def test_the_pool_is_shared_and_a_short_task_does_not_overtake() -> None:
    queue = SlotQueue(slots=4, pool_tokens=100)
    running, long, short = enqueue(queue, 60), enqueue(queue, 50), enqueue(queue, 5)
    assert steps_of(queue) == [Admit(running)]
    queue.leave(running, now=1.0)
    assert steps_of(queue) == [Admit(long), Admit(short)]


def test_a_task_starts_at_once_only_where_it_would_be_the_next_and_fits() -> None:
    queue = SlotQueue(slots=2, pool_tokens=100)
    first = queue.try_start(60, now=0.0)
    assert first is not None
    assert (queue.n_running, queue.n_queued, queue.used_tokens) == (1, 0, 60)
    assert queue.try_start(50, now=0.0) is None, "the pool has no room"
    long = enqueue(queue, 50)
    assert queue.try_start(5, now=0.0) is None, "one waits that came before"
    queue.leave(long, now=0.0)
    second = queue.try_start(40, now=0.0)
    assert second is not None
    assert queue.try_start(0, now=0.0) is None, "no slot is free"
    queue.leave(first, now=1.0)
    queue.leave(second, now=1.0)
    assert (queue.n_running, queue.used_tokens) == (0, 0)
    assert queue.try_start(500, now=1.0) is not None, "alone, any task may run"


def test_a_task_larger_than_the_pool_runs_alone() -> None:
    queue = SlotQueue(slots=4, pool_tokens=100)
    large, small = enqueue(queue, 500), enqueue(queue, 1)
    assert steps_of(queue) == [Admit(large)]
    queue.leave(large, now=1.0)
    assert steps_of(queue) == [Admit(small)]


def test_only_a_head_whose_bound_does_not_fit_is_counted_and_once() -> None:
    queue = SlotQueue(slots=4, pool_tokens=100)
    first, second = enqueue(queue, 60, is_exact=False), enqueue(queue, 60, is_exact=False)
    assert steps_of(queue) == [Admit(first), Count(second)]
    assert steps_of(queue) == []
    queue.set_exact(second, 40)
    assert steps_of(queue) == [Admit(second)]
    assert queue.used_tokens == 100


def test_a_task_that_is_counted_starts_when_room_appears_first() -> None:
    queue = SlotQueue(slots=4, pool_tokens=100)
    first, second = enqueue(queue, 60), enqueue(queue, 60, is_exact=False)
    assert steps_of(queue) == [Admit(first), Count(second)]
    queue.leave(first, now=1.0)
    assert steps_of(queue) == [Admit(second)]
    queue.set_exact(second, 1)
    queue.leave(second, now=2.0)
    assert queue.used_tokens == 0


def test_a_full_queue_takes_no_more() -> None:
    queue = SlotQueue(slots=1, pool_tokens=100, max_queued=2)
    enqueue(queue, 1)
    steps_of(queue)
    assert [queue.try_enqueue(1, is_exact=True) is None for _ in range(3)] == [False, False, True]


def waiting(queue: SlotQueue, tasks: str) -> dict[int, str]:
    """Have tasks wait, one of each asker that is named by a letter."""
    tickets: dict[int, str] = {}
    for asker in tasks:
        ticket = queue.try_enqueue(1, is_exact=True, asker=asker)
        assert ticket is not None
        tickets[ticket] = asker
    return tickets


def started(queue: SlotQueue, tickets: dict[int, str]) -> str:
    """Run all that wait, one after the other, and give their askers."""
    order = ""
    while (step := queue.next_step(now=0.0)) is not None:
        order += tickets[step.ticket]
        queue.leave(step.ticket, now=1.0)
    return order


def test_askers_take_turns_and_the_tasks_of_each_keep_their_order() -> None:
    queue = SlotQueue(slots=1, pool_tokens=100)
    enqueue(queue, 1)
    (running,) = steps_of(queue)
    tickets = waiting(queue, "aaaaabbc")
    assert "".join(place.asker for place in queue.places(9, now=0.0)) == "abcabaaa"
    queue.leave(running.ticket, now=1.0)
    assert started(queue, tickets) == "abcabaaa"


def test_who_has_a_hundred_tasks_waiting_delays_a_newcomer_by_one() -> None:
    queue = SlotQueue(slots=1, pool_tokens=1000)
    tickets = waiting(queue, "a" * 100)
    for _ in range(40):
        step = queue.next_step(now=0.0)
        assert step is not None
        queue.leave(step.ticket, now=1.0)
    tickets |= waiting(queue, "b")
    assert "b" in started(queue, tickets)[:2]


def test_tasks_that_leave_cost_their_asker_no_turn() -> None:
    queue = SlotQueue(slots=1, pool_tokens=100)
    enqueue(queue, 1)
    (running,) = steps_of(queue)
    tickets = waiting(queue, "aaaaabb")
    for ticket in [ticket for ticket, asker in tickets.items() if asker == "a"][:4]:
        queue.leave(ticket, now=0.0)
    tickets |= waiting(queue, "a")
    queue.leave(running.ticket, now=1.0)
    assert started(queue, tickets) == "abba"


def test_the_last_quarter_of_the_queue_is_for_those_of_whom_none_waits() -> None:
    queue = SlotQueue(slots=1, pool_tokens=100, max_queued=8)
    waiting(queue, "aaaaaa")
    assert queue.try_enqueue(1, is_exact=True, asker="a") is None
    waiting(queue, "bc")
    assert not queue.has_room("d")


def test_places_tell_how_long_each_has_waited_and_will() -> None:
    queue = SlotQueue(slots=2, pool_tokens=100)
    for asker in "abcd":
        queue.try_enqueue(1, is_exact=True, asker=asker, now=1.0)
    first, _ = steps_of(queue, now=1.0)
    assert [place.expected_s for place in queue.places(9, now=4.0)] == [None, None]
    queue.leave(first.ticket, now=7.0)
    (place,) = queue.places(1, now=7.0)
    assert (place.asker, place.waited_s) == ("c", 6.0)
    assert place.expected_s is not None
    assert queue.places(9, now=7.0)[1].expected_s == 2 * place.expected_s


@hypothesis.given(
    strategies.lists(
        strategies.tuples(strategies.sampled_from("abc"), strategies.sampled_from(("ask", "leave")))
    )
)
def test_nobody_starts_thrice_running_while_another_one_waits(steps: list[tuple[str, str]]) -> None:
    queue = SlotQueue(slots=1, pool_tokens=10_000, max_queued=1000)
    tickets: dict[int, str] = {}
    for asker, word in steps:
        if word == "ask":
            tickets |= waiting(queue, asker)
        else:
            for ticket in [ticket for ticket, name in tickets.items() if name == asker][:1]:
                queue.leave(ticket, now=0.0)
                del tickets[ticket]
    order = started(queue, tickets)
    assert sorted(order) == sorted(tickets.values())
    for index, (first, second, third) in enumerate(zip(order, order[1:], order[2:], strict=False)):
        assert not first == second == third or set(order[index:]) == {first}


def test_the_guess_of_waiting_time_follows_the_service_time() -> None:
    queue = SlotQueue(slots=1, pool_tokens=100)
    now = 0.0
    for _ in range(50):
        ticket = enqueue(queue, 1)
        steps_of(queue, now=now)
        now += 10.0
        queue.leave(ticket, now=now)
    assert queue.retry_after_s() == 10
    for _ in range(100):
        enqueue(queue, 1)
    assert queue.retry_after_s() == 60


Move = tuple[str, int, bool]
MOVES = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(["enqueue", "finish", "leave", "count"]),
        strategies.integers(min_value=1, max_value=150),
        strategies.booleans(),
    ),
    max_size=60,
)


@hypothesis.given(moves=MOVES, slots=strategies.integers(min_value=1, max_value=4))
def test_nobody_is_overtaken_and_limits_hold_in_any_history(moves: list[Move], slots: int) -> None:
    queue = SlotQueue(slots=slots, pool_tokens=100, max_queued=8)
    waiting: deque[int] = deque()
    running: dict[int, int] = {}
    tokens: dict[int, int] = {}
    counting: set[int] = set()
    for kind, number, is_exact in moves:
        if kind == "enqueue":
            ticket = queue.try_enqueue(number, is_exact=is_exact)
            # Two of the eight places are kept for other askers.
            assert (ticket is None) == (len(waiting) >= 6)
            if ticket is not None:
                waiting.append(ticket)
                tokens[ticket] = number
        elif kind == "finish" and running:
            ticket = sorted(running)[number % len(running)]
            del running[ticket]
            queue.leave(ticket, now=1.0)
        elif kind == "leave" and waiting:
            ticket = waiting[number % len(waiting)]
            waiting.remove(ticket)
            queue.leave(ticket, now=1.0)
        elif kind == "count" and counting:
            ticket = min(counting)
            counting.discard(ticket)
            if ticket in waiting:
                tokens[ticket] = min(tokens[ticket], number)
            queue.set_exact(ticket, tokens[ticket])
        for step in steps_of(queue):
            assert step.ticket == waiting[0], "first come, first served"
            if isinstance(step, Count):
                assert step.ticket not in counting
                counting.add(step.ticket)
            else:
                running[waiting.popleft()] = tokens[step.ticket]
        assert queue.n_running == len(running) <= slots
        assert queue.n_queued == len(waiting)
        assert queue.used_tokens == sum(running.values())
        assert len(running) <= 1 or queue.used_tokens <= 100
        # Work is conserved: with nothing running, nothing waits.
        assert running or not waiting
