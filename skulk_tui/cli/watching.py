"""`--watch`: the same listing, kept up over a session until it is ended from outside.

A person at a terminal sees the tables change in place, and keeps the last ones; a pipe gets a line
for each change, in words that a screen reader can read out; a program gets an object a line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.session import Topic
from skulk_tui.cli.linked import Linked, run_linked
from skulk_tui.cli.live_screen import LiveScreen, takes_live_screen
from skulk_tui.cli.output import Table, plain
from skulk_tui.cli.session import Session
from skulk_tui.cli.watched import Changed, Picture, changes_between
from skulk_tui.formatting import one_line, strip_controls
from skulk_tui.view_state import ViewState

SETTLE_S: Final = 0.1
"""Changes within so short a time are told at once: a decision often comes in several rows."""
REDRAW_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is watched, and how it is drawn."""

    topics: tuple[Topic, ...]
    picture: Callable[[ViewState], Picture]
    tables: Callable[[ViewState], Sequence[Table]]
    redraw_s: float = REDRAW_S
    """The shortest time between two pictures on a terminal."""


def watch(session: Session, what: Watch) -> None:
    """Show changes until Ctrl-C, a signal, or the end of the budget; returns never.

    Raises:
        SkulkError: The node refused, or `client.timeout`.
        BrokenPipeError: Nobody reads any more.
    """
    if takes_live_screen(session):
        run_linked(session, lambda linked: _redraw(session, what, linked))
    else:
        run_linked(session, lambda linked: _tell(session, what, linked))


async def _begin(what: Watch, linked: Linked) -> list[int]:
    followed = [linked.link.subscribe(topic) for topic in what.topics]
    await linked.start()
    return followed


def _check(linked: Linked, followed: Sequence[int]) -> None:
    for subscription in followed:
        refusal = linked.link.error_of(subscription)
        if refusal is not None:
            raise refusal


# ---- A terminal --------------------------------------------------------------------------------


async def _redraw(session: Session, what: Watch, linked: Linked) -> None:
    followed = await _begin(what, linked)
    linked.tells_of_link = False
    with LiveScreen(session) as screen:
        while True:
            _check(linked, followed)
            text = session.output.text_of(what.tables(linked.view))
            screen.show(text, status="" if linked.is_up else linked.link.view.reason)
            await linked.changed_within(what.redraw_s)


# ---- A pipe ------------------------------------------------------------------------------------


async def _tell(session: Session, what: Watch, linked: Linked) -> None:
    followed = await _begin(what, linked)
    known: Picture = {}
    n_returns = -1
    while True:
        _check(linked, followed)
        if linked.is_up:
            now = what.picture(linked.view)
            for change in changes_between(known, now):
                _write_change(session, change, _seq(linked.view))
            known = now
            if n_returns != linked.n_returns:
                n_returns = linked.n_returns
                _write_bookmark(session, _seq(linked.view))
        await linked.changed()
        await linked.changed_within(SETTLE_S)


def _seq(view: ViewState) -> int | None:
    return None if view.head is None else view.head.seq


def _write_change(session: Session, change: Changed, seq: int | None) -> None:
    thing, output = change.thing, session.output
    if output.is_for_programs:
        output.write_record(
            {"type": change.word, "kind": thing.kind, "seq": seq, "object": plain(thing.record)}
        )
    elif output.form == "name":
        output.write(f"{thing.name}\n")
    elif change.is_told:
        said = "gone" if change.word == "deleted" else thing.said
        text = f"{_NOUNS.get(thing.kind, thing.kind)} {thing.name}: {one_line(said)}"
        output.write(f"{strip_controls(text) if output.is_terminal else text}\n")


_NOUNS: Final = {
    "nodes": "node",
    "instances": "instance",
    "transfers": "download",
    "models": "model",
    "members": "member",
    "checks": "node",
}


def _write_bookmark(session: Session, seq: int | None) -> None:
    """Tell a program that everything up to here has been told."""
    if session.output.is_for_programs:
        session.output.write_record({"type": "bookmark", "kind": None, "seq": seq, "object": None})
