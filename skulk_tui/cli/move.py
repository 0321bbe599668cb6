"""`skulk move`: have other nodes run an instance, while it serves where that is possible."""

from dataclasses import dataclass
from typing import Annotated, Final, final

import typer

from protocol.control_api import CommandAccepted, InstanceView
from protocol.errors import PlacementError, SkulkError
from protocol.move_api import MoveDocument
from protocol.placements import Plan
from skulk_tui.cli import exit_codes
from skulk_tui.cli.answers import (
    Names,
    instance_record,
    name_of,
    names_of,
    plan_record,
    refusal_record,
)
from skulk_tui.cli.completing import complete_node
from skulk_tui.cli.drain_time import parse_drain
from skulk_tui.cli.instance_tables import instances_table
from skulk_tui.cli.instances import InstanceArgument, WaitOption, find_instances
from skulk_tui.cli.operation_records import MoveRecord
from skulk_tui.cli.output import Listing, Table, key_values
from skulk_tui.cli.place import check_plan_id, plan_text
from skulk_tui.cli.plan_notes import PlanNotes, cache_dir, differences
from skulk_tui.cli.plan_tables import candidates_tables
from skulk_tui.cli.session import Session
from skulk_tui.cli.suggestions import node_ids_of
from skulk_tui.cli.verb import DryRunOption, tell, verb
from skulk_tui.cli.waiting import instance_hint, state_of, wait_until_gone, wait_until_ready
from skulk_tui.client import envelope_of, path_of
from skulk_tui.formatting import format_count, format_duration, joined
from skulk_tui.moving import MoveWish
from skulk_tui.wish import PLAN_ID_SHOWN, refused

_DEADLINE: Final = "60s"


def add_move(app: typer.Typer) -> None:
    """Register the verb."""
    verb(
        app,
        "move",
        examples=(
            "skulk move abcdef-k3x9 --nodes studio,attic --dry-run",
            "skulk move my/model --nodes studio --stop-first",
        ),
    )(move)


def move(
    session: Session,
    instance: InstanceArgument,
    *,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B",
            help="To one of these nodes, by name or id [default: the best other one].",
            autocompletion=complete_node,
        ),
    ] = None,
    stop_first: Annotated[
        bool,
        typer.Option(
            "--stop-first", help="Stop it before it is started there: nobody serves meanwhile."
        ),
    ] = False,
    deadline: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="How long requests that it is answering then may take."
        ),
    ] = _DEADLINE,
    plan: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Take exactly this plan of a dry run, or exit 5."),
    ] = None,
    wait: WaitOption = True,
    dry_run: DryRunOption = False,
) -> int | None:
    """Move an instance to other nodes, with its window and slots; no request is lost.

    It serves where it is until the new instance is ready; then requests go there, and it ends what
    it is answering. If the new one fails, it stays as it is.
    """
    state = state_of(session)
    (view,) = find_instances(state, instance)
    moving = Moving(
        session=session,
        view=view,
        wish=MoveWish(
            instance_id=view.instance_id,
            nodes=node_ids_of(state, nodes or []),
            stop_first=stop_first,
            drain_s=parse_drain(deadline, "--deadline"),
        ),
        names=names_of(state),
        notes=PlanNotes(cache_dir(session.environ) / "plans"),
    )
    look = moving.look()
    if dry_run:
        return moving.show(look)
    return moving.move(look, plan=plan, wait=wait)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """One run of the verb."""

    session: Session
    view: InstanceView
    wish: MoveWish
    names: Names
    notes: PlanNotes

    def look(self) -> MoveDocument:
        """Ask where it could go, and what that means."""
        return self.session.client.get(self.wish.path, MoveDocument, query=self.wish.query())

    def show(self, look: MoveDocument) -> int:
        """Show every candidate and the consequences; exit as the refusal says when none fits."""
        record = move_record(look, self.names)
        self.session.output.show(
            Listing(
                kind="moves",
                items=(record,),
                tables=move_tables(record),
                names=[plan.plan_id for plan in look.plans],
            )
        )
        self.notes.remember(look.plans)
        return exit_codes.OK if look.plans else tell(refused(look), self.session)

    def move(self, look: MoveDocument, *, plan: str | None, wait: bool) -> None:
        """Have the plan taken, and wait or say how to follow."""
        session, chosen = self.session, self._chosen(look, plan)
        try:
            accepted = session.client.post(
                self.wish.path, CommandAccepted, self.wish.body(chosen.plan_id)
            )
        except SkulkError as error:
            self._tell_what_changed(error, chosen)
            raise
        new_id = accepted.instance_id or accepted.command_id
        session.narrate(f"accepted as {new_id}: {plan_text(chosen, self.names)}")
        for line in look.consequences if chosen == look.plans[0] else ():
            session.narrate(line)
        if wait:
            self._wait(new_id)
        else:
            session.narrate(instance_hint(new_id))
        view = session.client.get(path_of("/instance/{}", new_id), InstanceView)
        record = instance_record(view, self.names)
        session.output.show(
            Listing(
                kind="instances",
                seq=accepted.seq,
                items=(record,),
                tables=(instances_table((record,), now_ms=session.clock.wall_ms()),),
                names=(record.instance_id,),
            )
        )

    def _wait(self, new_id: str) -> None:
        session = self.session
        started_s = session.clock.monotonic_s()
        wait_until_ready(session, new_id)
        took_s = session.clock.monotonic_s() - started_s
        there = joined(name_of(self.names, shard.node_id) for shard in self.view.plan.shards)
        session.narrate(f"ready after {format_duration(took_s)}; {there} ends what it is answering")
        wait_until_gone(session, self.view.instance_id)
        session.narrate(f"moved; back: `skulk move {new_id} --nodes {there.replace(' ', '')}`")

    def _chosen(self, look: MoveDocument, start: str | None) -> Plan:
        """Choose the best plan, or the one whose id begins so.

        Raises:
            SkulkError: Why there is none; `placement.plan_changed` when none begins so;
                `client.usage`.
        """
        if not look.plans:
            raise refused(look)
        best = look.plans[0]
        if start is None:
            return best
        check_plan_id(start, see=f"skulk move {self.view.instance_id} --dry-run")
        found = [plan for plan in look.plans if plan.plan_id.startswith(start)]
        if len(found) == 1:
            return found[0]
        noted = self.notes.whole_id(start)
        then = None if noted is None else self.notes.recall(noted)
        self._tell_difference(then, best)
        raise PlacementError(
            "placement.plan_changed",
            f"no plan of now begins with {start[:64]}",
            remediation=f"Take the plan of now: `--plan {best.plan_id[:PLAN_ID_SHOWN]}`.",
        )

    def _tell_what_changed(self, error: SkulkError, chosen: Plan) -> None:
        envelope = envelope_of(error)
        if envelope is not None and envelope.plan is not None:
            self._tell_difference(chosen, envelope.plan)
            start = envelope.plan.plan_id[:PLAN_ID_SHOWN]
            error.remediation = f"Take the plan of now: `--plan {start}`."

    def _tell_difference(self, then: Plan | None, now: Plan) -> None:
        for difference in differences(then, now) if then is not None else []:
            self.session.narrate(f"changed: {difference}")
        self.session.narrate(f"the plan now: {plan_text(now, self.names)}")
        self.notes.remember([now])


def move_record(look: MoveDocument, names: Names) -> MoveRecord:
    """Give what a move would be. Pure."""
    return MoveRecord(
        instance_id=look.instance_id,
        model_id=look.model_id,
        from_node_ids=look.from_nodes,
        from_node_names=tuple(name_of(names, node_id) for node_id in look.from_nodes),
        stop_first=look.stop_first,
        drain_s=look.drain_s,
        in_flight=look.in_flight,
        last_load_ms=look.last_load_ms,
        consequences=look.consequences,
        candidates=(
            *(plan_record(plan, names) for plan in look.plans),
            *(refusal_record(refusal, names) for refusal in look.refusals),
        ),
    )


def move_tables(record: MoveRecord) -> tuple[Table, ...]:
    """Show what a move would be: what is moved, what that means, where to. Pure."""
    load_s = None if record.last_load_ms is None else record.last_load_ms / 1000
    means = [("" if n else "means", line) for n, line in enumerate(record.consequences)]
    head = key_values(
        [
            ("instance", record.instance_id),
            ("model", record.model_id),
            ("from", joined(record.from_node_names)),
            ("requests", format_count(record.in_flight)),
            ("loaded in", format_duration(load_s)),
            *means,
        ]
    )
    return (head, *candidates_tables(record.candidates))
