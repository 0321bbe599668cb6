"""`skulk cluster join`: this machine's node becomes a member of another cluster."""

import getpass
from pathlib import Path
from typing import Annotated, Final

import typer

from protocol.cluster_api import ClusterDocument, JoinBody, Joined
from protocol.control_api import StateDocument
from protocol.errors import ClientError, ClusterError, SkulkError
from skulk_tui.cli.cluster_records import JoinRecord
from skulk_tui.cli.outcomes import outcomes_listing
from skulk_tui.cli.output import Listing, key_values
from skulk_tui.cli.records import OutcomeRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.waiting import pause, progress_line, says_that_it_goes_on, state_of
from skulk_tui.formatting import joined as joined_names

TOKEN_MAX_CHARS: Final = 4096
_WORDS_MAX_CHARS: Final = 200
_STDIN: Final = "-"
WAIT_S: Final = 60.0
"""A node that was admitted is a member within seconds; a snapshot of a large state takes longer."""
_AWAY: Final = frozenset({"client.unreachable", "client.bad_answer", "cluster.stopping"})
_IN_HISTORY: Final = (
    "warning: the token is in your shell's history and in the list of processes now; "
    "use `skulk cluster join -` or `--file`"
)


def join(
    session: Session,
    token: Annotated[
        str | None,
        typer.Argument(metavar="[TOKEN|-]", help="What `invite` printed; `-` reads it from stdin."),
    ] = None,
    *,
    code: Annotated[
        str | None, typer.Option(metavar="'SIX WORDS'", help="What `invite --code` printed.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds the token.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="[KEY@]HOST:PORT", help="A member to dial; may be repeated."),
    ] = None,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard",
            help="Give up what this node has decided: instances stop, the journal is archived.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be given up; change nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the node is a member.")
    ] = True,
) -> int | None:
    """Have the node that is asked join the cluster that an invitation comes from.

    Its rooms start anew for that; the command waits until it is a member.
    """
    wish = _wish(session, token=token, code=code, file=file, peers=peer or [], discard=discard)
    if dry_run or (discard and not yes):
        state = state_of(session)
        if dry_run:
            return _show_loss(session, state, discard=discard)
        session.confirm(f"Join, and give up {_loss(state)}?", yes=yes)
    joined = session.client.post("/v1/cluster/join", Joined, wish)
    session.narrate(f"admitted to {joined.cluster_id} through {joined.address}")
    if joined.archived:
        session.narrate(f"the journal of before is kept in {joined.archived}")
    cluster = _wait_until_member(session, joined) if wait else None
    _show(session, joined, cluster)
    return None


# ---- What is given -----------------------------------------------------------------------------


def _wish(
    session: Session,
    *,
    token: str | None,
    code: str | None,
    file: Path | None,
    peers: list[str],
    discard: bool,
) -> JoinBody:
    given = [
        name for name, value in (("TOKEN", token), ("--code", code), ("--file", file)) if value
    ]
    if len(given) > 1:
        raise ClientError(
            "client.usage",
            f"{' and '.join(given)} are both given; one invitation is enough",
            remediation="Leave one out.",
        )
    if code is not None:
        token = None
    elif file is not None:
        token = _from_file(file)
    elif token == _STDIN:
        token = _word(session.stdin.read(TOKEN_MAX_CHARS + 1), "standard input")
    elif token is not None:
        session.narrate(_IN_HISTORY)
        token = _word(token, "TOKEN")
    else:
        token = _asked_for(session)
    too_long = next((one for one in [*peers, code or ""] if len(one) > _WORDS_MAX_CHARS), None)
    if too_long is not None:
        raise ClientError("client.usage", f"{too_long[:40]!r}… is neither a code nor an address")
    return JoinBody(token=token, code=code, peers=tuple(peers), discard=discard)


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(TOKEN_MAX_CHARS + 1)
    except OSError as error:
        raise ClientError(
            "client.usage",
            f"--file: {path} cannot be read: {error.strerror or error}",
            remediation="Write there what `skulk cluster invite` printed.",
        ) from error
    return _word(data.decode("utf-8", "replace"), str(path))


def _asked_for(session: Session) -> str:
    if not session.can_prompt:
        raise ClientError(
            "client.usage",
            "no invitation is given, and there is no terminal to ask at",
            remediation="Give a token on standard input (`skulk cluster join - < token`), "
            "`--file`, or `--code`.",
        )
    return _word(getpass.getpass("Invitation: ", stream=session.stderr), "the prompt")


def _word(text: str, where: str) -> str:
    """Take the one word that a token is; it is never shown."""
    words = text.split()
    if len(words) != 1 or len(words[0]) > TOKEN_MAX_CHARS:
        raise ClientError(
            "client.usage",
            f"{where} holds no token: one word of at most {TOKEN_MAX_CHARS} characters is expected",
            remediation="Take what `skulk cluster invite` printed; six words go with `--code`.",
        )
    return words[0]


# ---- What is given up --------------------------------------------------------------------------


def _loss(state: StateDocument) -> str:
    others = len(state.members) - 1
    parts = [
        _counted(len(state.instances), "instance"),
        _counted(state.api_keys, "API key"),
        _counted(len(state.custom_models), "custom model"),
        f"the membership in a cluster with {_counted(others, 'other node')}" if others else "",
    ]
    shown = [part for part in parts if part and not part.startswith("0 ")]
    return ", ".join(shown) or "nothing but its settings"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _show_loss(session: Session, state: StateDocument, *, discard: bool) -> None:
    name = state.members[state.node_id].name if state.node_id in state.members else state.node_id
    loss = f"would give up {_loss(state)}" if discard else f"would join; it has {_loss(state)}"
    record = OutcomeRecord(target=name, outcome=loss)
    session.output.show(outcomes_listing(record))


# ---- Waiting -----------------------------------------------------------------------------------


def _wait_until_member(session: Session, joined: Joined) -> ClusterDocument:
    """Wait until the node answers again, as a member of the cluster that it joined.

    Raises:
        ClusterError: `cluster.join_failed`, it was admitted and has not arrived in time.
        ClientError: `client.timeout`.
    """
    line = progress_line(session)
    hint = "Follow: `skulk cluster status`."
    started_s = session.clock.monotonic_s()
    seen = "the node does not answer yet"
    try:
        with says_that_it_goes_on(session, hint):
            while session.clock.monotonic_s() - started_s < WAIT_S:
                cluster = _try_cluster(session)
                if cluster is not None:
                    seen = _standing(cluster, joined)
                    if not seen:
                        return cluster
                line.show(f"joining: {seen}", topic=seen, record={"phase": "join", "note": seen})
                pause(session)
    finally:
        line.clear()
    raise ClusterError(
        "cluster.join_failed",
        f"the cluster has admitted this node, which is no member after {WAIT_S:.0f} s: {seen}",
        remediation=f"It goes on trying. {hint} Both directions are needed: see "
        "`skulk cluster members` and the log (`skulk logs`) on both machines.",
        details={"cluster_id": joined.cluster_id},
    )


def _try_cluster(session: Session) -> ClusterDocument | None:
    """Ask for the cluster; None while the node's rooms start anew."""
    try:
        return session.client.get("/v1/cluster", ClusterDocument)
    except SkulkError as error:
        if error.code not in _AWAY:
            raise
        session.client.close()  # what was open may lead to a listener that is gone
        return None


def _standing(cluster: ClusterDocument, joined: Joined) -> str:
    """Say what is missing until the node takes part; empty when nothing is."""
    if cluster.cluster_id != joined.cluster_id:
        return "the node starts anew"
    if cluster.master is None:
        return "it hears no master"
    own = next((member for member in cluster.members if member.is_self), None)
    if own is None:
        return "it fetches the state"
    return "" if own.presence == "present" else f"it is {own.presence}"


def _show(session: Session, joined: Joined, cluster: ClusterDocument | None) -> None:
    names = {} if cluster is None else {one.node_id: one.name for one in cluster.members}
    master = None if cluster is None else cluster.master
    record = JoinRecord(
        cluster_id=joined.cluster_id,
        inviter=joined.inviter,
        address=joined.address,
        archived=joined.archived,
        is_member=cluster is not None,
        master=master,
    )
    pairs = [("joined", joined.cluster_id), ("through", joined.address)]
    if cluster is not None:
        pairs += [
            ("members", joined_names(names.values())),
            ("master", "none" if master is None else names.get(master, master)),
        ]
    session.output.show(
        Listing(
            kind="joined",
            items=(record,),
            tables=(key_values(pairs),),
            names=(joined.cluster_id,),
        )
    )
