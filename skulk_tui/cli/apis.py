"""`skulk api open | close | status`: where the node's HTTP API is served."""

from typing import Annotated
from urllib.parse import urlsplit

import typer

from protocol.base import FrozenModel
from protocol.control_api import ListenersDocument, NodeIdentity, OpenApiBody
from skulk_tui.cli.outcomes import show_outcome
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.records import ListenersRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import DryRunOption, group, verb
from skulk_tui.target import is_loopback_host


def add_api_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    api = group(app, "api", "Where the node's HTTP API is served.")
    verb(api, "open", examples=("skulk api open", "skulk api open --host 192.168.1.5"))(open_api)
    verb(api, "close", examples=("skulk api close", "skulk api close --json"))(close_api)
    verb(api, "status", examples=("skulk api status", "skulk api status -o name"))(show_api)


def open_api(
    session: Session,
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address of this machine to serve on.")
    ] = "0.0.0.0",
    persist: Annotated[
        bool, typer.Option("--persist/--no-persist", help="Also after a restart of the daemon.")
    ] = True,
    dry_run: DryRunOption = False,
) -> int | None:
    """Serve beyond loopback; every request from there needs an API key."""
    if dry_run:
        urls = session.client.get("/node/identity", NodeIdentity).urls
        return show_outcome(session, host, f"would be served beside {', '.join(urls)}")
    return _ask(session, "/v1/api/open", OpenApiBody(host=host, persist=persist))


def close_api(session: Session, *, dry_run: DryRunOption = False) -> int | None:
    """Serve on loopback only."""
    if dry_run:
        urls = session.client.get("/node/identity", NodeIdentity).urls
        beyond = [url for url in urls if not _is_here(url)]
        return show_outcome(session, ", ".join(beyond) or "nothing", "would be closed")
    return _ask(session, "/v1/api/close", None)


def show_api(session: Session) -> int | None:
    """Show the addresses that the node is served at, and those for other machines."""
    node = session.client.get("/node/identity", NodeIdentity)
    return _show(session, node.urls, node.base_urls)


def _ask(session: Session, path: str, body: FrozenModel | None) -> int | None:
    served = session.client.post(path, ListenersDocument, body)
    return _show(session, served.urls, served.base_urls)


def _show(session: Session, urls: tuple[str, ...], base_urls: tuple[str, ...]) -> None:
    beyond = any(not _is_here(url) for url in urls)
    table = Table(
        (Column("SERVED AT"), Column("REACHED FROM")),
        tuple(
            (
                url,
                "this machine" if _is_here(url) else "the network, with an API key",
            )
            for url in urls
        ),
    )
    tables = (table,)
    if base_urls:
        rows = tuple((url, f"{url}/v1") for url in base_urls)
        tables = (table, Table((Column("FROM ANOTHER MACHINE"), Column("OPENAI CLIENTS")), rows))
    record = ListenersRecord(urls=urls, base_urls=base_urls, beyond_loopback=beyond)
    session.output.show(Listing(kind="listeners", items=(record,), tables=tables, names=urls))


def _is_here(url: str) -> bool:
    return is_loopback_host(urlsplit(url).hostname or "")
