"""`skulk place`: place a model and wait until it serves, or show the arithmetic first."""

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Final, final

import typer

from protocol.control_api import (
    CommandAccepted,
    InstanceView,
    PreviewsDocument,
    StateDocument,
)
from protocol.errors import ClientError, PlacementError, SkulkError
from protocol.ids import DIGEST_PATTERN, Digest, parse_model_id
from protocol.instances import MAX_TTL_S
from protocol.placements import Plan, Shape
from skulk_tui.cli import exit_codes
from skulk_tui.cli.answers import (
    Names,
    instance_record,
    name_of,
    names_of,
    plan_record,
    refusal_record,
)
from skulk_tui.cli.completing import complete_model, complete_node
from skulk_tui.cli.disconnecting import disconnect_policy
from skulk_tui.cli.instance_tables import instances_table
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.output import Listing
from skulk_tui.cli.plan_notes import PlanNotes, cache_dir, differences
from skulk_tui.cli.plan_tables import candidates_tables, speed_table
from skulk_tui.cli.session import Session, parse_duration
from skulk_tui.cli.suggestions import naming_the_nearest_model, node_ids_of
from skulk_tui.cli.verb import tell, verb
from skulk_tui.cli.waiting import instance_hint, state_of, wait_until_ready
from skulk_tui.client import envelope_of, path_of
from skulk_tui.formatting import format_bytes, format_count, format_duration, joined
from skulk_tui.wish import BACKEND_FORM, PLAN_ID_SHOWN, PRIORITY_BOUNDS, Wish, refused

_BACKENDS_SHOWN: Final = ("llama_server", "llama_cpp", "mlx", "vllm", "scripted")
_PLAN_ID: Final = re.compile(DIGEST_PATTERN)
_PLAN_PREFIX: Final = re.compile(r"^[0-9a-f]{8,64}$")


def add_place(app: typer.Typer) -> None:
    """Register the verb."""
    verb(
        app,
        "place",
        examples=(
            "skulk place HuggingFaceTB/SmolLM2-135M --dry-run",
            "skulk place my/model --nodes studio --on-demand --ttl 30m",
        ),
    )(place)


def place(
    session: Session,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="See `skulk models list`.", autocompletion=complete_model
        ),
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show plans and arithmetic; place nothing.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="As --dry-run, and how the predicted speed comes about."),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it serves.")] = True,
    copies: Annotated[
        int,
        typer.Option(min=1, max=64, metavar="N", help="Place so many, each on nodes of its own."),
    ] = 1,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the instance's id once accepted; no waiting.")
    ] = False,
    context: Annotated[
        int | None,
        typer.Option(min=256, max=1 << 24, metavar="TOKENS", help="Window of one request."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=256, metavar="N", help="Requests served at a time.")
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B", help="Only these nodes, by name or id.", autocompletion=complete_node
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B", help="Not these nodes, by name or id.", autocompletion=complete_node
        ),
    ] = None,
    min_nodes: Annotated[
        int, typer.Option(min=1, max=128, metavar="N", help="Split over at least so many nodes.")
    ] = 1,
    shape: Annotated[Shape | None, typer.Option(help="How the model is spread over nodes.")] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="TAG", help="Such as llama_server-cpu.")
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Take exactly this plan of a dry run, or exit 5."),
    ] = None,
    on_demand: Annotated[
        bool,
        typer.Option("--on-demand", help="Load it when a request asks for it, and not before."),
    ] = False,
    ttl: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="With --on-demand: unload it so long after a request, such as 10m.",
        ),
    ] = None,
    priority: Annotated[
        int,
        typer.Option(
            min=PRIORITY_BOUNDS[0],
            max=PRIORITY_BOUNDS[1],
            metavar="N",
            help="With --on-demand: which idle models make room for others first, the lowest.",
        ),
    ] = 0,
    lost_after: Annotated[
        str | None,
        typer.Option(
            "--lost-after",
            metavar="DURATION",
            help="Look for another place once a node of it is silent for so long [default: 30s].",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace/--no-replace", help="Put it on other nodes where it cannot go on."),
    ] = True,
    stop_after: Annotated[
        str | None,
        typer.Option(
            "--stop-after",
            metavar="DURATION",
            help="Stop it on a node that hears no master for so long [default: never].",
        ),
    ] = None,
) -> int | None:
    """Place a model, showing its phases until it serves.

    The wait ends early when the placement fails; ending the wait does not end the work. One that is
    on demand sleeps, and there is nothing to wait for.
    """
    model_id = parse_model_id(model)
    ttl_s = _ttl_s(ttl, on_demand=on_demand)
    if backend is not None and BACKEND_FORM.match(backend) is None:
        raise unknown_value("a backend", backend, _BACKENDS_SHOWN)
    state = state_of(session)
    wish = Wish(
        model_id=model_id,
        nodes=node_ids_of(state, nodes or []),
        excluded_nodes=node_ids_of(state, exclude or []),
        min_nodes=min_nodes,
        shape=shape,
        backend=backend,
        context_tokens=context,
        slots=slots,
        on_demand=on_demand,
        ttl_s=ttl_s,
        priority=priority,
        disconnect=disconnect_policy(lost_after, replace=replace, stop_after=stop_after),
    )
    placing = Placing(
        session=session,
        wish=wish,
        names=names_of(state),
        notes=PlanNotes(cache_dir(session.environ) / "plans"),
    )
    with naming_the_nearest_model(session, model_id):
        if dry_run or explain:
            return placing.show_candidates(explain=explain)
        if copies > 1:
            placing = placing.beside(state, plan=plan)
        return placing.place(plan=plan, wait=wait and not detach, id_only=detach, copies=copies)


def _ttl_s(ttl: str | None, *, on_demand: bool) -> int | None:
    """Read how long an on-demand instance stays loaded; None where that is not said.

    Raises:
        ClientError: `client.usage`.
    """
    if ttl is None:
        return None
    seconds = math.ceil(parse_duration(ttl, "--ttl"))
    if not on_demand:
        problem = "--ttl says when an on-demand model is unloaded; this one stays loaded"
    elif seconds > MAX_TTL_S:
        problem = f"--ttl: {ttl[:40]} is more than {MAX_TTL_S // 86400} days"
    else:
        return seconds
    raise ClientError("client.usage", problem, remediation="Write: --on-demand --ttl 10m.")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """One run of the verb: what is asked of whom, and what people call the nodes."""

    session: Session
    wish: Wish
    names: Names
    notes: PlanNotes

    def show_candidates(self, *, explain: bool = False) -> int:
        """Show every candidate with its arithmetic; exit as the refusal says when none fits."""
        document = self._previews()
        candidates = [
            *(plan_record(plan, self.names) for plan in document.plans),
            *(refusal_record(refusal, self.names) for refusal in document.refusals),
        ]
        tables = candidates_tables(candidates)
        if explain:
            tables = (*tables, speed_table(candidates))
        self.session.output.show(
            Listing(
                kind="candidates",
                items=candidates,
                tables=tables,
                names=[plan.plan_id for plan in document.plans],
            )
        )
        self.notes.remember(document.plans)
        if document.plans:
            return exit_codes.OK
        return tell(refused(document), self.session)

    def beside(self, state: StateDocument, *, plan: str | None) -> "Placing":
        """Leave out the nodes on which the model is placed already: a further copy goes elsewhere.

        Raises:
            ClientError: `client.usage` for several copies by one plan.
        """
        if plan is not None:
            raise ClientError(
                "client.usage",
                "--copies and --plan exclude each other: a plan is for one copy",
                remediation="Leave one of them out.",
            )
        views = (one for one in state.instances.values() if one.model_id == self.wish.model_id)
        taken = [
            shard.node_id for one in views if one.phase != "failed" for shard in one.plan.shards
        ]
        return replace(self, wish=self.wish.without(taken))

    def place(self, *, plan: str | None, wait: bool, id_only: bool, copies: int = 1) -> int | None:
        """Place, each copy on nodes of its own, and wait or say how to follow."""
        session, wish = self.session, self.wish
        plan_id = self._whole_plan_id(plan) if plan is not None else None
        placed: list[CommandAccepted] = []
        for number in range(1, copies + 1):
            try:
                accepted = self._accept(wish, plan_id)
            except SkulkError:
                if placed:
                    session.narrate(f"{number - 1} of {copies} copies are placed, and stay")
                raise
            placed.append(accepted)
            if accepted.plan is not None:
                wish = wish.without(shard.node_id for shard in accepted.plan.shards)
        ids = [accepted.instance_id or accepted.command_id for accepted in placed]
        if not wait:
            for instance_id in ids:
                session.narrate(instance_hint(instance_id))
        if id_only and not session.output.is_for_programs:
            session.output.write("".join(f"{instance_id}\n" for instance_id in ids))
            return None
        views = [self._outcome(instance_id, wait=wait) for instance_id in ids]
        records = tuple(instance_record(view, self.names) for view in views)
        session.output.show(
            Listing(
                kind="instances",
                seq=placed[-1].seq,
                items=records,
                tables=(instances_table(records, now_ms=session.clock.wall_ms()),),
                names=tuple(record.instance_id for record in records),
            )
        )
        return None

    def _accept(self, wish: Wish, plan_id: Digest | None) -> CommandAccepted:
        try:
            accepted = self.session.client.post(
                "/place_instance", CommandAccepted, wish.body(plan_id)
            )
        except SkulkError as error:
            self._tell_what_stands_against_it(error, plan_id)
            raise
        if accepted.plan is not None:
            instance_id = accepted.instance_id or accepted.command_id
            said = plan_text(accepted.plan, self.names)
            self.session.narrate(f"accepted as {instance_id}: {said}")
        return accepted

    def _outcome(self, instance_id: str, *, wait: bool) -> InstanceView:
        if not wait:
            return self.session.client.get(path_of("/instance/{}", instance_id), InstanceView)
        started_s = self.session.clock.monotonic_s()
        view = wait_until_ready(self.session, instance_id)
        if view.phase == "asleep":
            self.session.narrate(
                f"asleep until a request asks for it: `skulk chat {self.wish.model_id}`"
            )
            return view
        took_s = self.session.clock.monotonic_s() - started_s
        self.session.narrate(
            f"ready after {format_duration(took_s)}: `skulk chat {self.wish.model_id}`"
        )
        return view

    def _previews(self) -> PreviewsDocument:
        return self.session.client.get(
            "/instance/previews", PreviewsDocument, query=self.wish.query()
        )

    def _whole_plan_id(self, text: str) -> Digest:
        """Complete the start of a plan's id from the notes, else from the plans of now.

        Raises:
            PlacementError: `placement.plan_changed` when no plan begins so.
            ClientError: `client.usage`.
        """
        if _PLAN_ID.match(text) is not None:
            return Digest(text)
        check_plan_id(text, see=f"skulk place {self.wish.model_id} --dry-run")
        noted = self.notes.whole_id(text)
        if noted is not None:
            return noted
        document = self._previews()
        found = [plan.plan_id for plan in document.plans if plan.plan_id.startswith(text)]
        if len(found) == 1:
            return found[0]
        if not document.plans:
            raise refused(document)
        self.session.narrate(f"the plan now: {plan_text(document.plans[0], self.names)}")
        raise PlacementError(
            "placement.plan_changed",
            f"no plan of now begins with {text}",
            remediation=_take(document.plans[0]),
        )

    def _tell_what_stands_against_it(self, error: SkulkError, plan_id: Digest | None) -> None:
        """Tell what changed since the plan was made, and the smallest change that would fit."""
        envelope = envelope_of(error)
        if envelope is None:
            return
        if envelope.plan is not None:
            then = self.notes.recall(plan_id) if plan_id is not None else None
            for difference in differences(then, envelope.plan) if then is not None else []:
                self.session.narrate(f"changed: {difference}")
            self.session.narrate(f"the plan now: {plan_text(envelope.plan, self.names)}")
            self.notes.remember([envelope.plan])
            error.remediation = (
                f"Take the plan of now: `--plan {envelope.plan.plan_id[:PLAN_ID_SHOWN]}`."
            )
        for refusal in envelope.refusals:
            change = refusal.smallest_change
            if change is not None and change.text:
                self.session.narrate(f"smallest change: {change.text}")
                break


def _take(plan: Plan) -> str:
    return f"Take the plan of now: `--plan {plan.plan_id[:PLAN_ID_SHOWN]}`."


def check_plan_id(text: str, *, see: str) -> None:
    """Refuse what cannot be a plan's id, nor the start of one.

    Args:
        text: What was typed.
        see: The command that shows plans.

    Raises:
        ClientError: `client.usage`.
    """
    if _PLAN_PREFIX.match(text) is None:
        raise ClientError(
            "client.usage",
            f"--plan: {text[:80]!r} is not a plan's id: 8 to 64 hexadecimal digits",
            remediation=f"See `{see}`.",
        )


def plan_text(plan: Plan, names: Names) -> str:
    """Write a plan in one line."""
    nodes = joined(name_of(names, shard.node_id) for shard in plan.shards)
    slots = f"{plan.slots} slot{'' if plan.slots == 1 else 's'}"
    needed = sum(shard.memory.needed_bytes for shard in plan.shards)
    download = f", {format_bytes(plan.download_bytes)} to download" if plan.download_bytes else ""
    return (
        f"{plan.backend} on {nodes}, context {format_count(plan.context_tokens)},"
        f" {slots}, {format_bytes(needed)}{download}, plan {plan.plan_id[:PLAN_ID_SHOWN]}"
    )
