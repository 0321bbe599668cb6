"""`skulk keys create | list | set | rotate | revoke`: API keys, valid on all nodes."""

from typing import Annotated

import typer

from protocol.control_api import CommandAccepted
from protocol.errors import ClientError
from protocol.keys_api import (
    ChangeKeyBody,
    CreatedKey,
    CreateKeyBody,
    KeyBound,
    KeyList,
    KeyView,
    RotateKeyBody,
)
from protocol.state import MAX_OVERLAP_MS, SCOPES, KeyLimits, Scope
from skulk_tui.cli.answers import key_record
from skulk_tui.cli.completing import complete_words
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.outcomes import show_outcome
from skulk_tui.cli.output import Listing
from skulk_tui.cli.records import KeyRecord
from skulk_tui.cli.session import Session, parse_duration
from skulk_tui.cli.tables import keys_table
from skulk_tui.cli.verb import DryRunOption, group, verb
from skulk_tui.client import path_of
from skulk_tui.formatting import rfc3339

_SHORTEST_LIFE_S = 60
_NAME_MAX_CHARS = 100

KeyArgument = Annotated[str, typer.Argument(metavar="KEY|NAME", help="A key's id or its name.")]
RateOption = Annotated[
    str | None,
    typer.Option(metavar="N/min", help="Requests for models in any minute, on each node; or none."),
]
ConcurrentOption = Annotated[
    str | None,
    typer.Option(metavar="N", help="Requests for models at a time, on each node; or none."),
]


def add_key_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    keys = group(app, "keys", "API keys; each is valid on all nodes.")
    verb(
        keys,
        "create",
        examples=(
            "skulk keys create laptop > ~/.config/skulk/api_key",
            "skulk keys create guests --rate 60/min --concurrent 4 --expires 30d",
        ),
    )(create_key)
    verb(keys, "list", examples=("skulk keys list", "skulk keys list --json"))(list_keys)
    verb(
        keys,
        "set",
        examples=(
            "skulk keys set guests --rate 120/min --concurrent 8",
            "skulk keys set guests --rate none --expires never",
        ),
    )(set_key)
    verb(
        keys,
        "rotate",
        examples=(
            "skulk keys rotate laptop > ~/.config/skulk/api_key",
            "skulk keys rotate ci --overlap 2d --json",
        ),
    )(rotate_key)
    verb(
        keys,
        "revoke",
        examples=("skulk keys revoke laptop", "skulk keys revoke key-abcdefgh --yes"),
    )(revoke_key)


def create_key(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="For people, to know it by.")],
    *,
    scope: Annotated[
        str,
        typer.Option(
            help="infer, read, operate or admin; each includes those before it.",
            autocompletion=complete_words(*SCOPES),
        ),
    ] = "infer",
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Such as 30d; never when left out.")
    ] = None,
    rate: RateOption = None,
    concurrent: ConcurrentOption = None,
    dry_run: DryRunOption = False,
) -> int | None:
    """Make an API key and print it: the only time that it can be seen."""
    life_s = None if expires is None else life_of(expires)
    if not 1 <= len(name) <= _NAME_MAX_CHARS:
        raise ClientError("client.usage", f"a key's name has 1 to {_NAME_MAX_CHARS} characters")
    body = CreateKeyBody(
        name=name,
        scope=scope_of(scope),
        expires_in_s=life_s,
        limits=KeyLimits(
            requests_per_minute=None if rate is None else rate_of(rate),
            concurrent_requests=None if concurrent is None else concurrent_of(concurrent),
        ),
    )
    if dry_run:
        # A key that may not make keys is told now, not when it matters.
        session.client.get("/v1/keys", KeyList)
        until = "until revoked" if expires is None else f"for {expires}"
        return show_outcome(session, name, f"would be made: {body.scope}, valid {until}")
    _show_made(session, session.client.post("/v1/keys", CreatedKey, body))
    return None


def _show_made(session: Session, made: CreatedKey) -> None:
    """Print a key that is not shown again: alone on stdout, for scripts and files."""
    if session.form in {"table", "wide"}:
        session.output.write(f"{made.key}\n")
        until = rfc3339(made.expires_at_ms) or "revoked"
        session.narrate(
            f"{made.key_id} ({made.scope}) is valid until {until}; it is not shown again"
        )
        return
    record = KeyRecord(
        key_id=made.key_id,
        name=made.name,
        scope=made.scope,
        created_at=None if made.previous_until_ms else rfc3339(session.clock.wall_ms()),
        expires_at=rfc3339(made.expires_at_ms),
        is_expired=False,
        requests_per_minute=made.limits.requests_per_minute,
        concurrent_requests=made.limits.concurrent_requests,
        previous_until=rfc3339(made.previous_until_ms),
        open_requests=None,
        key=made.key,
    )
    session.output.show(Listing(kind="keys", items=(record,), tables=(), names=(made.key_id,)))


def life_of(text: str) -> int:
    """Read how long a key lives, in seconds.

    Raises:
        ClientError: `client.usage`.
    """
    life_s = parse_duration(text, "--expires")
    if life_s < _SHORTEST_LIFE_S:
        raise ClientError("client.usage", f"--expires: {text} is less than a minute")
    return int(life_s)


def rate_of(text: str) -> int | None:
    """Read `60/min`, `60` or `none`.

    Raises:
        ClientError: `client.usage`.
    """
    word = text.strip().lower().removesuffix("/minute").removesuffix("/min").removesuffix("/m")
    return _limit(word, text, "--rate", 100_000, "Write it like 60/min, or none.")


def concurrent_of(text: str) -> int | None:
    """Read `4` or `none`.

    Raises:
        ClientError: `client.usage`.
    """
    return _limit(text.strip().lower(), text, "--concurrent", 10_000, "Write it like 4, or none.")


def _limit(word: str, text: str, option: str, most: int, remedy: str) -> int | None:
    if word == "none":
        return None
    is_number = word.isascii() and word.isdecimal() and len(word) <= len(str(most))
    if not is_number or not 1 <= int(word) <= most:
        raise ClientError(
            "client.usage",
            f"{option}: {text[:40]!r} is not a number from 1 to {most}",
            remediation=remedy,
        )
    return int(word)


def scope_of(word: str) -> Scope:
    """Read a scope.

    Raises:
        ClientError: `client.usage`.
    """
    for scope in SCOPES:
        if word == scope:
            return scope
    raise unknown_value("a scope", word, SCOPES)


def list_keys(session: Session) -> int | None:
    """List the API keys, without their secrets."""
    records = [key_record(key) for key in session.client.get("/v1/keys", KeyList).items]
    session.output.show(
        Listing(
            kind="keys",
            items=records,
            tables=(keys_table(records),),
            names=[record.key_id for record in records],
        )
    )
    if not records and not session.output.is_for_programs:
        session.narrate("There is no API key. Make one: `skulk keys create NAME`.")
    return None


def set_key(
    session: Session,
    key: KeyArgument,
    *,
    rate: RateOption = None,
    concurrent: ConcurrentOption = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="From now on, such as 30d; or never.")
    ] = None,
    dry_run: DryRunOption = False,
) -> int | None:
    """Change the limits and the end of an API key; what is not named stays."""
    if rate is None and concurrent is None and expires is None:
        raise ClientError("client.usage", "say what to change: --rate, --concurrent or --expires")
    limits = KeyLimits(
        requests_per_minute=None if rate is None else rate_of(rate),
        concurrent_requests=None if concurrent is None else concurrent_of(concurrent),
    )
    lifted: list[KeyBound] = []
    if rate is not None and limits.requests_per_minute is None:
        lifted.append("requests_per_minute")
    if concurrent is not None and limits.concurrent_requests is None:
        lifted.append("concurrent_requests")
    is_endless = expires == "never"
    if is_endless:
        lifted.append("expires")
    life_s = None if expires is None or is_endless else life_of(expires)
    found = _find_key(session.client.get("/v1/keys", KeyList).items, key)
    named = (("--rate", rate), ("--concurrent", concurrent), ("--expires", expires))
    words = ", ".join(f"{option} {word}" for option, word in named if word is not None)
    if dry_run:
        return show_outcome(session, found.key_id, f"would be changed: {words}")
    body = ChangeKeyBody(expires_in_s=life_s, limits=limits, unset=tuple(lifted))
    session.client.put(path_of("/v1/keys/{}", found.key_id), CommandAccepted, body)
    return show_outcome(session, found.key_id, f"changed: {words}")


def rotate_key(
    session: Session,
    key: KeyArgument,
    *,
    overlap: Annotated[
        str,
        typer.Option(metavar="DURATION", help="So long the old secret works too, up to 30d; or 0."),
    ] = "1h",
    dry_run: DryRunOption = False,
) -> int | None:
    """Give an API key a new secret and print it; the old one works for a while longer."""
    overlap_s = 0 if overlap in {"0", "0s"} else int(parse_duration(overlap, "--overlap"))
    if overlap_s > MAX_OVERLAP_MS // 1000:
        raise ClientError("client.usage", f"--overlap: {overlap} is more than 30d")
    found = _find_key(session.client.get("/v1/keys", KeyList).items, key)
    how_long = f"for {overlap}" if overlap_s else "no more"
    if dry_run:
        state = f"would be rotated: the present secret would work {how_long}"
        return show_outcome(session, found.key_id, state)
    path = path_of("/v1/keys/{}/rotate", found.key_id)
    _show_made(session, session.client.post(path, CreatedKey, RotateKeyBody(overlap_s=overlap_s)))
    session.narrate(f"The secret before works {how_long}.")
    return None


def revoke_key(
    session: Session,
    key: KeyArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRunOption = False,
) -> int | None:
    """Make an API key invalid on all nodes, at once."""
    found = _find_key(session.client.get("/v1/keys", KeyList).items, key)
    if dry_run:
        return show_outcome(session, found.key_id, f"would be revoked: {found.name}")
    session.confirm(f"Revoke {found.key_id} ({found.name})?", yes=yes)
    session.client.delete(path_of("/v1/keys/{}", found.key_id), CommandAccepted)
    return show_outcome(session, found.key_id, "revoked")


def _find_key(keys: tuple[KeyView, ...], word: str) -> KeyView:
    found = [key for key in keys if key.key_id == word] or [key for key in keys if key.name == word]
    if not found:
        known = [name for key in keys for name in (key.key_id, key.name)]
        raise unknown_value("an API key", word, known, see="skulk keys list")
    if len(found) > 1:
        ids = ", ".join(key.key_id for key in found)
        raise ClientError(
            "client.usage",
            f"{len(found)} keys are named {word!r}: {ids}",
            remediation="Name it by its id.",
        )
    return found[0]
