"""`skulk status | nodes | cluster …`: the cluster, who is in it, and changing that."""

from typing import Annotated

import typer

from protocol.cluster_api import (
    ClusterDocument,
    HandoverBody,
    HandoverDone,
    Invitation,
    InviteBody,
    NodesDocument,
    PolicyBody,
    TokenList,
)
from protocol.control_api import CommandAccepted
from protocol.errors import ClientError
from protocol.state import Policy
from skulk_tui.cli.answers import status_record, view_record
from skulk_tui.cli.cluster_answers import (
    cluster_record,
    invitation_record,
    made_invitation,
    member_record,
    stranger_record,
)
from skulk_tui.cli.cluster_records import MasterRecord, PolicyRecord
from skulk_tui.cli.cluster_tables import (
    cluster_tables,
    invitations_table,
    members_tables,
    strangers_table,
)
from skulk_tui.cli.completing import complete_node, complete_words
from skulk_tui.cli.join import join
from skulk_tui.cli.links import list_links
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.outcomes import show_outcome
from skulk_tui.cli.output import Listing, key_values
from skulk_tui.cli.saved_clusters import add_saved_cluster_verbs
from skulk_tui.cli.session import Session, parse_duration
from skulk_tui.cli.socket_owner import owner_of
from skulk_tui.cli.suggestions import member_of
from skulk_tui.cli.tables import nodes_table, reasons_table, status_tables
from skulk_tui.cli.verb import DryRunOption, WatchOption, group, verb
from skulk_tui.cli.waiting import state_of
from skulk_tui.client import path_of
from skulk_tui.formatting import format_duration, joined

_POLICIES: tuple[Policy, ...] = ("availability", "quorum")
_SHORTEST_TTL_S = 10

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def add_cluster_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    verb(
        app, "status", examples=("skulk status --watch", "skulk status --json | jq .items[0].nodes")
    )(show_status)
    verb(app, "nodes", examples=("skulk nodes", "skulk nodes -o wide"))(list_nodes)
    cluster = group(
        app, "cluster", "The cluster: who is in it, inviting, joining, the master; saved clusters."
    )
    _add_views(cluster)
    _add_membership(cluster)
    verb(cluster, "policy", examples=("skulk cluster policy", "skulk cluster policy quorum"))(
        show_or_set_policy
    )
    verb(
        cluster,
        "handover",
        examples=("skulk cluster handover", "skulk cluster handover studio"),
    )(hand_over)
    add_saved_cluster_verbs(cluster)


def _add_views(cluster: typer.Typer) -> None:
    verb(cluster, "status", examples=("skulk cluster status", "skulk cluster status --json"))(
        show_cluster
    )
    verb(cluster, "members", examples=("skulk cluster members", "skulk cluster members -o wide"))(
        list_members
    )
    verb(
        cluster,
        "strangers",
        examples=("skulk cluster strangers", "skulk cluster strangers --json"),
    )(list_strangers)
    verb(cluster, "links", examples=("skulk cluster links", "skulk cluster links -o wide"))(
        list_links
    )


def _add_membership(cluster: typer.Typer) -> None:
    verb(
        cluster,
        "invite",
        examples=("skulk cluster invite --ttl 1h > token", "skulk cluster invite --code"),
    )(invite)
    verb(cluster, "tokens", examples=("skulk cluster tokens", "skulk cluster tokens -o name"))(
        list_tokens
    )
    verb(
        cluster,
        "revoke",
        examples=(
            "skulk cluster revoke join-abcdefgh",
            "skulk cluster revoke join-abcdefgh --json",
        ),
    )(revoke_token)
    verb(
        cluster,
        "join",
        examples=(
            "skulk cluster join - < token",
            "skulk cluster join --code 'amber brick cedar delta eagle flint'",
        ),
    )(join)
    verb(
        cluster,
        "remove",
        examples=("skulk cluster remove studio", "skulk cluster remove studio --yes"),
    )(remove_member)


# ---- Looking -----------------------------------------------------------------------------------


def show_status(session: Session, *, watch: WatchOption = False) -> int | None:
    """Show the cluster: nodes, what is wrong with them, instances, downloads.

    With `--watch` in a pipe, and with TERM=dumb, each change is a line of words.
    """
    if watch:
        from skulk_tui.cli.watches import watch_status

        return watch_status(session)
    status = status_record(state_of(session))
    owner = owner_of(session.client.target)
    if owner is not None and not owner.is_me:
        session.narrate(f"the daemon at {session.client.target.url} is run by {owner.name}")
    session.output.show(
        Listing(
            kind="status",
            seq=status.seq,
            items=(status,),
            tables=status_tables(
                status, now_ms=session.clock.wall_ms(), has_notes=session.output.form == "wide"
            ),
            names=(status.cluster_id,),
        )
    )
    return None


def list_nodes(session: Session, *, watch: WatchOption = False) -> int | None:
    """List the nodes: alive or not, health, memory, disk, backends."""
    if watch:
        from skulk_tui.cli.watches import watch_nodes

        return watch_nodes(session)
    nodes = session.client.get("/v1/nodes", NodesDocument)
    records = [view_record(node) for node in nodes.items]
    session.output.show(
        Listing(
            kind="nodes",
            seq=nodes.seq,
            items=records,
            tables=(
                nodes_table(records),
                reasons_table(records, has_notes=session.output.form == "wide"),
            ),
            names=[record.name for record in records],
        )
    )
    return None


def show_cluster(session: Session) -> int | None:
    """Show master, quorum, ports, members and strangers, as the node that is asked sees them."""
    record = cluster_record(_cluster(session))
    session.output.show(
        Listing(
            kind="cluster",
            seq=record.commit_seq,
            items=(record,),
            tables=cluster_tables(record),
            names=(record.cluster_id,),
        )
    )
    return None


def list_members(session: Session, *, watch: WatchOption = False) -> int | None:
    """List the members: whether they are heard, by which link and address."""
    if watch:
        from skulk_tui.cli.watches import watch_members

        return watch_members(session)
    cluster = _cluster(session)
    records = [member_record(member) for member in cluster.members]
    session.output.show(
        Listing(
            kind="members",
            seq=cluster.commit_seq,
            items=records,
            tables=members_tables(records),
            names=[record.name for record in records],
        )
    )
    return None


def list_strangers(session: Session) -> int | None:
    """List who dialled this node within the last hour and was refused, with the reason."""
    records = [stranger_record(one) for one in _cluster(session).strangers]
    session.output.show(
        Listing(
            kind="strangers",
            items=records,
            tables=(strangers_table(records),),
            names=[record.address for record in records],
        )
    )
    if not records and not session.output.is_for_programs:
        session.narrate("Nobody was refused within the last hour.")
    return None


def _cluster(session: Session) -> ClusterDocument:
    return session.client.get("/v1/cluster", ClusterDocument)


# ---- Invitations -------------------------------------------------------------------------------


def invite(
    session: Session,
    *,
    uses: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="How many nodes may join by it.")
    ] = 1,
    ttl: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Such as 1h; an hour for a token, 10 minutes for a code."
        ),
    ] = None,
    code: Annotated[
        bool, typer.Option("--code", help="Six words to be spoken, for one node, in ten minutes.")
    ] = False,
    dry_run: DryRunOption = False,
) -> int | None:
    """Make an invitation and print it; a node that was closed listens to others from then on."""
    if code and uses != 1:
        raise ClientError(
            "client.usage",
            "a code serves one node",
            remediation="Make a token for several: leave out `--code`.",
        )
    ttl_s = None if ttl is None else parse_duration(ttl, "--ttl")
    if ttl_s is not None and ttl_s < _SHORTEST_TTL_S:
        raise ClientError("client.usage", f"--ttl: {ttl} is less than {_SHORTEST_TTL_S} s")
    body = InviteBody(
        kind="code" if code else "token",
        uses=uses,
        ttl_s=None if ttl_s is None else int(ttl_s),
    )
    if dry_run:
        return _show_invitation_wish(session, body)
    made = session.client.post("/v1/cluster/invite", Invitation, body)
    if session.form in {"table", "wide"}:
        session.output.write(f"{made.token or made.code}\n")
    else:
        record = made_invitation(made, now_ms=session.clock.wall_ms())
        session.output.show(
            Listing(kind="invitations", items=(record,), tables=(), names=(made.token_id,))
        )
    _narrate_invitation(session, made)
    return None


def _show_invitation_wish(session: Session, body: InviteBody) -> None:
    cluster = _cluster(session)
    uses = "once" if body.uses == 1 else f"{body.uses} times"
    opens = "" if cluster.is_open else "; this node would listen to other nodes from then on"
    show_outcome(session, f"a {body.kind}", f"would be made, to join {cluster.name} {uses}{opens}")


def _narrate_invitation(session: Session, made: Invitation) -> None:
    left_s = (made.expires_at_ms - session.clock.wall_ms()) / 1000
    if made.was_opened:
        session.narrate(f"this node listens to other nodes now, at {joined(made.addresses)}")
    uses = "once" if made.uses == 1 else f"{made.uses} times"
    session.narrate(f"{made.token_id} serves {uses}, for {format_duration(max(0.0, left_s))}")
    if session.output.is_for_programs:
        return
    if made.kind == "token":
        session.narrate("on the other machine: `skulk cluster join -`, and paste it")
        return
    session.narrate(f"on the other machine: `skulk cluster join --code '{made.code}'`")
    if made.addresses:
        # Words name nobody: without multicast the key says whom to trust with them.
        key = next((one.public_key for one in _cluster(session).members if one.is_self), "KEY")
        session.narrate(f"where mDNS does not reach: also `--peer {key}@{made.addresses[0]}`")


def list_tokens(session: Session) -> int | None:
    """List the invitations, without their secrets."""
    listed = session.client.get("/v1/cluster/tokens", TokenList)
    records = [invitation_record(token) for token in listed.items]
    session.output.show(
        Listing(
            kind="invitations",
            items=records,
            tables=(invitations_table(records),),
            names=[record.token_id for record in records],
        )
    )
    if not records and not session.output.is_for_programs:
        session.narrate("There is no invitation. Make one: `skulk cluster invite`.")
    return None


def revoke_token(
    session: Session,
    token: Annotated[str, typer.Argument(metavar="ID", help="As `skulk cluster tokens` shows it.")],
    *,
    dry_run: DryRunOption = False,
) -> int | None:
    """Make an invitation invalid; who has joined by it stays."""
    known = [one.token_id for one in session.client.get("/v1/cluster/tokens", TokenList).items]
    if token not in known:
        raise unknown_value("an invitation", token, known, see="skulk cluster tokens")
    if not dry_run:
        session.client.delete(path_of("/v1/cluster/tokens/{}", token), CommandAccepted)
    return show_outcome(session, token, "would be revoked" if dry_run else "revoked")


# ---- Members and master ------------------------------------------------------------------------


def remove_member(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(metavar="NODE", help="By name or id.", autocompletion=complete_node),
    ],
    *,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> int | None:
    """Take a node out of the cluster for good: its key opens nothing any more.

    Its instances end, and the node becomes a cluster of one. To have it back, invite it again.
    """
    member = member_of(_cluster(session), target)
    if dry_run:
        return show_outcome(session, member.name, "would be removed")
    session.confirm(f"Remove {member.name} ({member.node_id}) from the cluster?", yes=yes)
    session.client.delete(path_of("/v1/cluster/members/{}", member.node_id), CommandAccepted)
    return show_outcome(session, member.name, "removed")


def show_or_set_policy(
    session: Session,
    policy: Annotated[
        str | None,
        typer.Argument(
            metavar="[POLICY]",
            help="availability or quorum.",
            autocompletion=complete_words(*_POLICIES),
        ),
    ] = None,
    *,
    dry_run: DryRunOption = False,
) -> int | None:
    """Show or change who may elect a master: all that see each other, or only a majority.

    `availability` goes on with any node that is left, for machines that are switched off at night;
    `quorum` refuses changes without a majority, and never has two masters.
    """
    before = _cluster(session).policy
    wanted = before if policy is None else _policy_of(policy)
    if wanted != before and not dry_run:
        session.client.put("/v1/cluster/policy", CommandAccepted, PolicyBody(policy=wanted))
        session.narrate(f"the policy was {before}")
    elif wanted != before:
        session.narrate(f"the policy is {before}; it would become {wanted}")
    now = before if dry_run else wanted
    session.output.show(
        Listing(
            kind="policy",
            items=(PolicyRecord(policy=now),),
            tables=(key_values([("policy", now)]),),
            names=(now,),
        )
    )
    return None


def _policy_of(word: str) -> Policy:
    for policy in _POLICIES:
        if word == policy:
            return policy
    raise unknown_value("a policy", word, _POLICIES)


def hand_over(
    session: Session,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            help="Who shall be master; the master chooses when left out.",
            autocompletion=complete_node,
        ),
    ] = None,
    *,
    dry_run: DryRunOption = False,
) -> int | None:
    """Have another node elected master, before the present one is switched off; streams go on."""
    cluster = _cluster(session)
    member = None if target is None else member_of(cluster, target)
    if dry_run:
        who = "a node of the master's choice" if member is None else member.name
        return show_outcome(session, who, "would be asked to campaign")
    body = HandoverBody(node=None if member is None else member.node_id)
    done = session.client.post("/v1/cluster/handover", HandoverDone, body)
    record = MasterRecord(node_id=done.master, name=done.name, term=done.term)
    session.output.show(
        Listing(
            kind="master",
            items=(record,),
            tables=(key_values([("master", f"{done.name} (term {done.term})")]),),
            names=(done.name,),
        )
    )
    return None
