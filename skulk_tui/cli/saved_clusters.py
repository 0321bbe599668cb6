"""`skulk cluster list | use | save | forget | trust`: clusters by name, on this machine alone.

No node is asked, but by `trust`: these work with nothing in reach. What reads the file is loaded by
the verb that wants it, as every start of `skulk` would pay for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from protocol.errors import ClientError
from skulk_tui.cli.outcomes import show_outcome
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import DryRunOption, verb
from skulk_tui.formatting import UNKNOWN
from skulk_tui.own_files import replace_file
from skulk_tui.target import check_key, parse_node_url

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A saved cluster.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedClusterRecord:
    """A cluster that the operator knows by a name."""

    name: str
    is_current: bool
    seeds: tuple[str, ...]
    protect: bool
    readonly: bool
    has_key: bool
    """It has a key of its own."""


def add_saved_cluster_verbs(cluster: typer.Typer) -> None:
    """Register the verbs."""
    verb(cluster, "list", examples=("skulk cluster list", "skulk cluster list -o name"))(
        list_clusters
    )
    verb(cluster, "use", examples=("skulk cluster use home", "skulk cluster use --none"))(
        use_cluster
    )
    verb(
        cluster,
        "save",
        examples=(
            "skulk cluster save home den-01 den-02",
            "skulk cluster save work https://lab.example --protect --with-key < key",
        ),
    )(save_cluster)
    verb(
        cluster, "forget", examples=("skulk cluster forget home", "skulk cluster forget a --json")
    )(forget_cluster)
    verb(
        cluster,
        "trust",
        examples=(
            "skulk cluster trust https://den-02",
            "skulk cluster trust https://den-02 --json",
        ),
    )(trust)


def list_clusters(session: Session) -> int | None:
    """List the clusters that are saved on this machine; no node is asked."""
    from skulk_tui.profiles import key_path, read_config

    config = read_config(session.config_dir)
    records = [
        SavedClusterRecord(
            name=name,
            is_current=name == config.current,
            seeds=profile.seeds,
            protect=profile.protect,
            readonly=profile.readonly,
            has_key=key_path(session.config_dir, name).exists(),
        )
        for name, profile in sorted(config.profile.items())
    ]
    session.output.show(
        Listing(
            kind="clusters",
            items=records,
            tables=(_table(records),),
            names=[record.name for record in records],
        )
    )
    if not records and not session.output.is_for_programs:
        session.narrate("No cluster is saved. Save one: `skulk cluster save NAME NODE...`.")
    return None


def use_cluster(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A saved cluster.")] = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="Ask this machine's node again.")] = False,
    dry_run: DryRunOption = False,
) -> int | None:
    """Ask a saved cluster from now on, where neither an option nor a variable names another."""
    if (name is None) is not none:
        raise ClientError("client.usage", "give either the name of a saved cluster, or --none")
    from skulk_tui.profiles import read_config, use_profile

    if dry_run:
        if name is not None:
            read_config(session.config_dir).named(name, "`use`")
        would = "would be asked from now on" if name else "no cluster would be current"
        return show_outcome(session, name or "none", would)
    use_profile(session.config_dir, name)
    now = "is asked from now on" if name else "no cluster is current"
    return show_outcome(session, name or "none", now)


def save_cluster(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    seeds: Annotated[list[str], typer.Argument(metavar="NODE...", help="Addresses of its nodes.")],
    *,
    protect: Annotated[bool, typer.Option("--protect", help="Ask before every change.")] = False,
    readonly: Annotated[
        bool, typer.Option("--readonly", help="Offer nothing that changes something.")
    ] = False,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Read its API key from the prompt, or stdin.")
    ] = False,
    dry_run: DryRunOption = False,
) -> int | None:
    """Save a cluster under a name, or replace the one of that name."""
    from pydantic import ValidationError

    from skulk_tui.profiles import Profile, check_name, key_path, save_profile

    for seed in seeds:
        parse_node_url(seed, f"the address {seed!r}")
    try:
        profile = Profile(
            seeds=tuple(seeds),
            protect=protect,
            readonly=readonly,
            insecure=session.options.insecure,
        )
    except ValidationError as wrong:
        first = wrong.errors(include_url=False)[0]
        raise ClientError("client.usage", f"{first['loc'][0]}: {first['msg']}") from wrong
    if dry_run:
        check_name(name)
        return show_outcome(session, name, f"would be saved: {', '.join(seeds)}")
    key = _read_key(session, name) if with_key else None
    save_profile(session.config_dir, name, profile)
    if key is not None:
        replace_file(key_path(session.config_dir, name), f"{key}\n")
    show_outcome(session, name, "saved; `skulk cluster use` makes it the one that is asked")
    return None


def forget_cluster(
    session: Session, name: NameArgument, *, dry_run: DryRunOption = False
) -> int | None:
    """Forget a saved cluster and its key; the cluster itself is not touched."""
    from skulk_tui.profiles import key_path, read_config, remove_profile

    if dry_run:
        read_config(session.config_dir).named(name, "`forget`")
        return show_outcome(session, name, "would be forgotten")
    remove_profile(session.config_dir, name)
    key_path(session.config_dir, name).unlink(missing_ok=True)
    show_outcome(session, name, "forgotten")
    return None


def trust(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="An https address.")],
    *,
    dry_run: DryRunOption = False,
) -> int | None:
    """Believe the TLS certificate that an address shows now, instead of the one before."""
    node = parse_node_url(url, "URL")
    if not node.startswith("https://"):
        raise ClientError(
            "client.usage",
            f"{node} speaks no TLS, so there is nothing to believe",
            remediation="Give an https address.",
        )
    if dry_run:
        fingerprint, word = session.trust.shown_at(node), "would be believed"
    else:
        fingerprint, word = session.trust.accept(node), "is believed"
    if not fingerprint:
        return show_outcome(session, node, "a public authority vouches for its certificate")
    return show_outcome(session, node, f"its certificate {word}: {fingerprint}")


def _read_key(session: Session, name: str) -> str:
    if session.can_prompt:
        import getpass

        return check_key(
            getpass.getpass(f"API key for {name}: ", stream=session.stderr), "the prompt"
        )
    return check_key(session.stdin.readline(), "standard input")


def _table(records: Sequence[SavedClusterRecord]) -> Table:
    return Table(
        (
            Column("CLUSTER", least=8),
            Column("CURRENT"),
            Column("NODES", least=12),
            Column("KEY", drop=1),
            Column("MODE", drop=2),
        ),
        tuple(
            (
                record.name,
                "yes" if record.is_current else "no",
                ", ".join(record.seeds),
                "own" if record.has_key else "common",
                " ".join(
                    word
                    for word, holds in (
                        ("protected", record.protect),
                        ("readonly", record.readonly),
                    )
                    if holds
                )
                or UNKNOWN,
            )
            for record in records
        ),
    )
