"""`skulk cluster links | probe links`: the links between the nodes, and what they carry."""

from typing import Annotated

import typer

from protocol.errors import error_of
from protocol.link_api import PAIR_S, LinksDocument, ProbeLinksBody, ProbeView
from skulk_tui.cli import exit_codes
from skulk_tui.cli.completing import complete_node
from skulk_tui.cli.link_tables import LinkRecord, link_records, links_tables, names_of
from skulk_tui.cli.outcomes import show_outcome
from skulk_tui.cli.output import Listing
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import DryRunOption, group, verb
from skulk_tui.cli.waiting import pause, progress_line, says_that_it_goes_on
from skulk_tui.formatting import format_duration

_SHOW = "/v1/cluster/links"
_PROBE = "/v1/cluster/links/probe"
_HINT = "Follow: `skulk cluster links`."


def add_probe_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    probe = group(app, "probe", "Measure what cannot be known without.")
    verb(probe, "links", examples=("skulk probe links", "skulk probe links den-01 den-02 --json"))(
        probe_links
    )


def list_links(session: Session) -> int | None:
    """Show the links between all nodes: round trip, kind, and what they were measured to carry."""
    document = _links(session)
    _show(session, document)
    if not document.links and not session.output.is_for_programs:
        session.narrate("Nothing is known of any link: one node alone has none.")
    return None


def probe_links(
    session: Session,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE]...",
            help="One: its links with all others. Several: those among them.",
            autocompletion=complete_node,
        ),
    ] = None,
    *,
    even_busy: Annotated[
        bool,
        typer.Option("--even-busy", help="Also nodes that answer requests: that slows these down."),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all pairs have been tried.")
    ] = True,
    dry_run: DryRunOption = False,
) -> int | None:
    """Measure what links carry, one pair of nodes after the other, and show all links.

    A direction takes half a second and 64 MiB at most, encrypted as model files are. A pair of
    which one node answers requests is left out. Exit code 6 says that some were not measured.
    """
    body = ProbeLinksBody(nodes=tuple(targets or ()), even_busy=even_busy, dry_run=dry_run)
    begun = session.client.post(_PROBE, ProbeView, body)
    if dry_run:
        usual = format_duration(begun.n_pairs * PAIR_S)
        outcome = f"pairs that would be measured: {begun.n_pairs}, in {usual}"
        return show_outcome(session, "links", outcome)
    if not wait:
        return show_outcome(
            session, "links", f"measuring the links, pair after pair: {begun.n_pairs} in all"
        )
    with says_that_it_goes_on(session, _HINT):
        document, ended = _wait_until_ended(session, begun)
    _show(session, document)
    if ended.error is not None:
        raise error_of(ended.error)
    if not ended.failures:
        return None
    is_nothing = len(ended.failures) == 2 * ended.n_pairs
    return exit_codes.FAILED if is_nothing else exit_codes.PARTIAL


def _wait_until_ended(session: Session, begun: ProbeView) -> tuple[LinksDocument, ProbeView]:
    """Wait until a series is over; another one that came after it says nothing of it.

    Raises:
        ClientError: `client.timeout`, `client.unreachable`.
    """
    line = progress_line(session)
    try:
        while True:
            document = _links(session)
            probe = document.probe
            if probe is None or probe.began_ms != begun.began_ms:
                return document, begun
            if probe.state in {"done", "failed"}:
                return document, probe
            line.show(
                _progress(document, probe),
                topic=f"{probe.n_tried}",
                record={"n_pairs": probe.n_pairs, "n_tried": probe.n_tried},
            )
            pause(session)
    finally:
        line.clear()


def _progress(document: LinksDocument, probe: ProbeView) -> str:
    names = names_of(document)
    pair = " and ".join(names.get(node_id, node_id) for node_id in probe.current or ())
    return f"measured {probe.n_tried} of {probe.n_pairs} pairs{f'; now {pair}' if pair else ''}"


def _links(session: Session) -> LinksDocument:
    return session.client.get(_SHOW, LinksDocument)


def _show(session: Session, document: LinksDocument) -> None:
    records: tuple[LinkRecord, ...] = link_records(document)
    session.output.show(
        Listing(
            kind="links",
            items=records,
            tables=links_tables(document, records, is_wide=session.form == "wide"),
            names=[f"{one.source}/{one.target}" for one in records],
        )
    )
