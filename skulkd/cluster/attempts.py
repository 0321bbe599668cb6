"""Several ways to one end, begun one after the other and not waited for one by one."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, final

from protocol.errors import SkulkError
from skulkd.runtime.tasks import Tasks

T = TypeVar("T")

_END_S: Final = 1.0

Attempt = Callable[[], Coroutine[Any, Any, T]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What each attempt failed of, in their order."""

    errors: tuple[SkulkError, ...]


@final
@dataclass(frozen=True, slots=True)
class _Success(Generic[T]):
    value: T


async def first_success(
    attempts: Sequence[Attempt[T]], *, stagger_s: float, name: str
) -> T | Failures:
    """Begin an attempt, the next when it has failed or taken `stagger_s`, and so on.

    When one has succeeded the others are cancelled and their end is waited for.

    Args:
        attempts: In the order in which they are begun.
        stagger_s: The time after which the next one may begin although others run.
        name: Of the tasks.

    Returns:
        What the first success gave, or all the failures when there was none.

    Raises:
        Exception: An attempt raised something that is no SkulkError: a bug.
    """
    tasks = Tasks(name, on_death=lambda _story, _error: None)
    begun: list[asyncio.Task[_Success[T] | SkulkError]] = []
    running: set[asyncio.Task[_Success[T] | SkulkError]] = set()
    try:
        while len(begun) < len(attempts) or running:
            if len(begun) < len(attempts):
                trying = _outcome(attempts[len(begun)])
                begun.append(tasks.start(trying, name=f"try {len(begun) + 1}", essential=False))
                running.add(begun[-1])
            done, running = await asyncio.wait(
                running,
                timeout=stagger_s if len(begun) < len(attempts) else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in begun:
                if task in done and isinstance(outcome := task.result(), _Success):
                    return outcome.value
    finally:
        await tasks.close(_END_S)
    outcomes = (task.result() for task in begun)
    return Failures(errors=tuple(one for one in outcomes if isinstance(one, SkulkError)))


async def _outcome(attempt: Attempt[T]) -> _Success[T] | SkulkError:
    try:
        return _Success(await attempt())
    except SkulkError as error:
        return error
