"""`skulk connect`: have other people's tools use the placed models."""

import platform
import stat
from typing import Annotated, Final, final

import typer

from protocol.errors import ClientError, SkulkError
from protocol.keys_api import CreatedKey, CreateKeyBody
from protocol.models_api import ModelList
from skulk_tui.cli.completing import complete_placed_model, complete_words
from skulk_tui.cli.connect_offer import KEY_TO_COME, Offer, ready_models
from skulk_tui.cli.connect_tools import TOOLS, Tool
from skulk_tui.cli.foreign_files import ForeignFile, look_at
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.operation_records import ConnectionRecord, ToolRecord
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import DryRunOption, verb

_NAME_MAX_CHARS: Final = 100
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def add_connect(app: typer.Typer) -> None:
    """Register the verb."""
    verb(
        app,
        "connect",
        examples=("skulk connect codex --write", "skulk connect env --model my/model"),
    )(connect)


def connect(
    session: Session,
    tool: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOOL]",
            help=f"{', '.join(TOOLS)}; none lists them.",
            autocompletion=complete_words(*TOOLS),
        ),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="What it uses by itself [default: a ready one that calls tools].",
            autocompletion=complete_placed_model,
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put it into the tool's file; a backup is kept.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Bring the file back as it was.")] = False,
    dry_run: DryRunOption = False,
) -> int | None:
    """Print or write what a tool needs to use the placed models: codex, claude and others.

    It says where the node is, which models are ready, their windows, and what they can do. Where
    the node asks for an API key, one is made that may only ask models.
    """
    if tool is None:
        if write or undo or model is not None:
            raise ClientError("client.usage", f"name the tool: {', '.join(TOOLS)}")
        return _list(session)
    if tool not in TOOLS:
        raise unknown_value("a tool", tool, TOOLS)
    if write and undo:
        raise ClientError("client.usage", "--write and --undo are opposites")
    file = look_at(TOOLS[tool].path_in(session.environ), session.environ)
    if undo:
        return _undo(session, tool, file, dry_run=dry_run)
    return Connecting(session, tool, file, dry_run=dry_run).run(model, write=write)


def _list(session: Session) -> None:
    records: list[ToolRecord] = []
    for word, tool in TOOLS.items():
        file = look_at(tool.path_in(session.environ), session.environ)
        records.append(
            ToolRecord(
                tool=word,
                name=tool.name,
                path=str(file.path),
                found=file.text is not None,
                connected=file.is_as_written,
            )
        )
    columns = (Column("TOOL"), Column("FILE", least=20, wraps=True), Column("STATE"))
    rows = tuple((one.tool, one.path, _state_of(one)) for one in records)
    names = [one.tool for one in records]
    session.output.show(
        Listing(kind="tools", items=records, tables=(Table(columns, rows),), names=names)
    )


def _state_of(record: ToolRecord) -> str:
    if record.connected:
        return "connected"
    return "found" if record.found else "absent"


def _undo(session: Session, tool: str, file: ForeignFile, *, dry_run: bool) -> None:
    before = file.before()
    outcome, text = ("restored" if before is not None else "removed"), before
    if file.text is not None and not file.is_as_written:
        text = TOOLS[tool].take_out(file.text, before or "")
        if text is None:
            raise _changed_since(file)
        outcome = "taken out"
    if not dry_run:
        file.undo(text)
    _show(session, tool, file, outcome=f"would be {outcome}" if dry_run else outcome)
    key_id = file.note.key_id if file.note is not None else None
    if key_id is not None and not dry_run:
        session.narrate(f"Its API key is still valid: `skulk keys revoke {key_id}`.")


def _changed_since(file: ForeignFile) -> ClientError:
    backup = file.note.backup if file.note is not None else None
    was = f"; before that it was {backup}" if backup is not None else ""
    return ClientError(
        "client.usage",
        f"{file.path} was changed since it was written, and is left alone{was}",
        remediation="Take what names skulk out of it by hand.",
    )


def _show(
    session: Session,
    tool: str,
    file: ForeignFile,
    *,
    outcome: str,
    offer: Offer | None = None,
    backup: str | None = None,
    key_id: str | None = None,
    content: str | None = None,
) -> None:
    record = ConnectionRecord(
        tool=tool,
        path=str(file.path),
        outcome=outcome,
        url=offer.url if offer is not None else None,
        model_ids=tuple(one.model_id for one in offer.models) if offer is not None else (),
        backup=backup,
        key_id=key_id,
        content=content,
    )
    columns = (Column("TOOL"), Column("FILE", least=20, wraps=True), Column("OUTCOME"))
    table = Table(columns, ((tool, record.path, outcome),))
    session.output.show(
        Listing(kind="connections", items=(record,), tables=(table,), names=(record.path,))
    )


@final
class Connecting:
    """One run for one tool.

    Args:
        session: For all that is asked and told.
        word: The tool.
        file: Its configuration.
        dry_run: Nothing is made or written.
    """

    def __init__(self, session: Session, word: str, file: ForeignFile, *, dry_run: bool) -> None:
        self._session = session
        self._word = word
        self._tool: Tool = TOOLS[word]
        self._file = file
        self._dry_run = dry_run
        self._key_id: str | None = None

    def run(self, model: str | None, *, write: bool) -> None:
        """Print the configuration, or write it.

        Raises:
            SkulkError: No model is ready, or the file cannot be merged or written.
        """
        session = self._session
        entries = session.client.get("/v1/models", ModelList).data
        models = ready_models(entries, model)
        url = session.client.target.url
        if self._tool.needs_tools and not models[0].calls_tools:
            session.narrate(
                f"{models[0].model_id} calls no tools, and {self._tool.name} offers some with every"
                " request: the node will refuse them. `--model` takes another."
            )
        # A file that cannot be merged or written is told before a key is made for it.
        if write:
            self._merged(Offer(url=url, models=models, key=KEY_TO_COME))
        offer = Offer(url=url, models=models, key=self._key())
        if write:
            self._write(offer)
        else:
            self._print(offer)

    def _print(self, offer: Offer) -> None:
        session, content = self._session, self._tool.text(offer)
        if session.form in {"table", "wide"}:
            session.output.write(content)
        else:
            _show(
                session,
                self._word,
                self._file,
                outcome="shown",
                offer=offer,
                key_id=self._key_id,
                content=content,
            )
        if not session.output.is_for_programs:
            session.narrate(f"For {self._file.path}; `--write` puts it there. {self._tool.use}")

    def _write(self, offer: Offer) -> None:
        session, file = self._session, self._file
        text = self._merged(offer)
        is_private = offer.key is not None
        is_same = text == file.text and not (is_private and file.mode & _OTHERS)
        backup = file.note.backup if file.note is not None else None
        if self._dry_run:
            outcome = "unchanged" if is_same else "would be written"
        elif is_same:
            outcome = "unchanged"
        else:
            backup = file.write(text, is_private=is_private, key_id=self._key_id)
            outcome = "written"
        _show(
            session,
            self._word,
            file,
            outcome=outcome,
            offer=offer,
            backup=backup,
            key_id=self._key_id,
        )
        if session.output.is_for_programs or self._dry_run:
            return
        session.narrate(f"{offer.model.model_id} at {offer.url}. {self._tool.use}")
        if outcome == "written":
            kept = f"; what it was is in {backup}" if backup is not None else ""
            session.narrate(f"Back: `skulk connect {self._word} --undo`{kept}")

    def _merged(self, offer: Offer) -> str:
        before = self._file.text
        if before is None or not before.strip():
            return self._tool.text(offer)
        merged = self._tool.merge(before, offer)
        if merged is None:
            raise ClientError(
                "client.usage",
                f"{self._file.path} is left as it is: it is not written in a form that can be"
                " changed safely",
                remediation=f"Add by hand what `skulk connect {self._word}` prints.",
            )
        return merged

    def _key(self) -> str | None:
        """Give the key that the tool needs: none, the one that its file has, or a new one."""
        session = self._session
        own = session.client.target.api_key
        if own is None or self._opens(None):
            return None
        known = self._tool.key_in(self._file.text or "")
        if known is not None and self._opens(known):
            return known
        if self._dry_run:
            return KEY_TO_COME
        name = f"{self._word} on {platform.node() or 'a machine'}"[:_NAME_MAX_CHARS]
        try:
            made = session.client.post("/v1/keys", CreatedKey, CreateKeyBody(name=name))
        except SkulkError as refused:
            if refused.code != "request.forbidden":
                raise
            session.narrate("Your API key may make no keys: the tool gets that one.")
            return own
        self._key_id = made.key_id
        session.narrate(f"{made.key_id} was made for it: {name}, may only ask models")
        return made.key

    def _opens(self, key: str | None) -> bool:
        """Does the node answer who shows this key, or none?"""
        try:
            self._session.client_with_key(key).get("/v1/models", ModelList)
        except SkulkError as refused:
            if refused.code != "request.unauthenticated":
                raise
            return False
        return True
