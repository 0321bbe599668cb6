"""`skulk keys create | list | revoke`: API keys, valid on all nodes."""

from typing import Annotated

import typer

from protocol.control_api import CommandAccepted, CreatedKey, CreateKeyBody, KeyList, KeyView
from protocol.errors import ClientError
from protocol.state import SCOPES, Scope
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


def add_key_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    keys = group(app, "keys", "API keys; each is valid on all nodes.")
    verb(
        keys,
        "create",
        examples=(
            "skulk keys create laptop > ~/.config/skulk/api_key",
            "skulk keys create ci --scope operate --expires 30d --json",
        ),
    )(create_key)
    verb(keys, "list", examples=("skulk keys list", "skulk keys list --json"))(list_keys)
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
    dry_run: DryRunOption = False,
) -> int | None:
    """Make an API key and print it: the only time that it can be seen."""
    life_s = parse_duration(expires, "--expires") if expires is not None else None
    if life_s is not None and life_s < _SHORTEST_LIFE_S:
        raise ClientError("client.usage", f"--expires: {expires} is less than a minute")
    if not 1 <= len(name) <= _NAME_MAX_CHARS:
        raise ClientError("client.usage", f"a key's name has 1 to {_NAME_MAX_CHARS} characters")
    body = CreateKeyBody(
        name=name,
        scope=scope_of(scope),
        expires_in_s=None if life_s is None else int(life_s),
    )
    if dry_run:
        # A key that may not make keys is told now, not when it matters.
        session.client.get("/v1/keys", KeyList)
        until = "until revoked" if expires is None else f"for {expires}"
        return show_outcome(session, name, f"would be made: {body.scope}, valid {until}")
    made = session.client.post("/v1/keys", CreatedKey, body)
    if session.form in {"table", "wide"}:
        session.output.write(f"{made.key}\n")
        until = rfc3339(made.expires_at_ms) or "revoked"
        session.narrate(
            f"{made.key_id} ({made.scope}) is valid until {until}; it is not shown again"
        )
        return None
    record = KeyRecord(
        key_id=made.key_id,
        name=made.name,
        scope=made.scope,
        created_at=rfc3339(session.clock.wall_ms()),
        expires_at=rfc3339(made.expires_at_ms),
        key=made.key,
    )
    session.output.show(Listing(kind="keys", items=(record,), tables=(), names=(made.key_id,)))
    return None


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


def revoke_key(
    session: Session,
    key: Annotated[str, typer.Argument(metavar="KEY|NAME", help="A key's id or its name.")],
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
