"""`skulk models list | show | import | pull | rm | files`: the catalogue and its files."""

from pathlib import Path
from typing import Annotated, Final, get_args

import typer

from protocol.cluster_api import ClusterStorage
from protocol.control_api import CommandAccepted, ImportModelBody, TransferStatus
from protocol.errors import ClientError, SkulkError
from protocol.ids import ModelId, parse_model_id
from protocol.models_api import ModelEntry, ModelList
from protocol.storage_api import FoundModels, FoundSource, RemovedModel
from skulk_tui.cli import exit_codes
from skulk_tui.cli.answers import found_record, model_record, names_of, transfer_record
from skulk_tui.cli.completing import complete_model, complete_node, complete_words
from skulk_tui.cli.instances import several_exit_code
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.outcomes import outcomes_listing
from skulk_tui.cli.output import Listing
from skulk_tui.cli.records import FileRecord, ImportRecord, OutcomeRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.suggestions import naming_the_nearest_model
from skulk_tui.cli.tables import (
    files_table,
    imports_table,
    model_table,
    models_table,
    transfers_table,
)
from skulk_tui.cli.verb import DryRunOption, WatchOption, group, verb
from skulk_tui.cli.waiting import state_of, wait_until_downloaded
from skulk_tui.client import Query, path_of
from skulk_tui.formatting import format_bytes

FOUND_SOURCES: Final[tuple[FoundSource, ...]] = get_args(FoundSource)
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="NODE",
        help="Another node than the one that is asked, by name or id.",
        autocompletion=complete_node,
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model's id; see `skulk models list`.",
        autocompletion=complete_model,
    ),
]


def add_model_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    models = group(app, "models", "The catalogue of models and their files.")
    verb(models, "list", examples=("skulk models list", "skulk models list --json"))(list_models)
    verb(
        models,
        "show",
        examples=(
            "skulk models show HuggingFaceTB/SmolLM2-135M",
            "skulk models show my/model --json",
        ),
    )(show_model)
    verb(
        models,
        "import",
        examples=(
            "skulk models import ~/models/qwen3-8b-q4_k_m.gguf",
            "skulk models import --from ollama,lmstudio --dry-run",
        ),
    )(import_models)
    verb(
        models,
        "pull",
        examples=(
            "skulk models pull HuggingFaceTB/SmolLM2-135M",
            "skulk models pull my/model --on studio --no-wait",
        ),
    )(pull_model)
    verb(
        models,
        "rm",
        examples=("skulk models rm my/model", "skulk models rm my/model other/model --yes"),
    )(remove_models)
    verb(models, "files", examples=("skulk models files", "skulk models files --on studio"))(
        list_files
    )


def list_models(session: Session, *, watch: WatchOption = False) -> int | None:
    """List the models that can be placed, and how far each has come."""
    if watch:
        from skulk_tui.cli.watches import watch_models

        return watch_models(session)
    entries = session.client.get("/v1/models", ModelList).data
    records = sorted((model_record(entry) for entry in entries), key=lambda one: one.model_id)
    session.output.show(
        Listing(
            kind="models",
            items=records,
            tables=(models_table(records),),
            names=[record.model_id for record in records],
        )
    )
    if not records and not session.output.is_for_programs:
        session.narrate("The catalogue is empty. Add a model: `skulk models import PATH`.")
    return None


def show_model(session: Session, model: ModelArgument) -> int | None:
    """Show one model of the catalogue."""
    model_id = parse_model_id(model)
    with naming_the_nearest_model(session, model_id):
        entry = session.client.get(path_of("/v1/models/{}", model_id), ModelEntry)
    record = model_record(entry)
    session.output.show(
        Listing(
            kind="models", items=(record,), tables=(model_table(record),), names=(record.model_id,)
        )
    )
    return None


def import_models(
    session: Session,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="GGUF files on the node's machine."),
    ] = None,
    *,
    sources: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="LIST",
            help="What other programs left: hf,ollama,lmstudio,llamacpp.",
            autocompletion=complete_words(*FOUND_SOURCES),
        ),
    ] = None,
    model_id: Annotated[
        str | None, typer.Option("--id", metavar="MODEL", help="The id to give one imported file.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --from: list what is there, import nothing.")
    ] = False,
) -> int | None:
    """Make cards for model files that lie on the node's machine.

    The files stay where they are and are used in place; importing moves and copies nothing.
    """
    if not paths and not sources:
        raise ClientError(
            "client.usage",
            "nothing to import: neither a path nor --from is given",
            remediation="Write `skulk models import PATH` or `--from hf,ollama,lmstudio,llamacpp`.",
        )
    if model_id is not None and (sources or len(paths or []) != 1):
        raise ClientError("client.usage", "--id names one imported file: give exactly one path")
    chosen = [_given(session, path, model_id) for path in paths or []]
    chosen += _found(session, sources) if sources else []
    if dry_run:
        return _show_imports(session, chosen, [])
    records: list[ImportRecord] = []
    errors: list[SkulkError] = []
    for one in chosen:
        if one.imported or (one.problem and one.source != "path"):
            records.append(one)
            continue
        try:
            records.append(_import(session, one))
        except SkulkError as error:
            if error.code == "client.unreachable" or len(chosen) == 1:
                raise
            errors.append(error)
            records.append(_with_problem(one, error.message))
    return _show_imports(session, records, errors)


def _given(session: Session, path: str, model_id: str | None) -> ImportRecord:
    """Take a path of the command line; beyond this machine it is the node's path."""
    expanded = Path(path).expanduser()
    if session.target.is_loopback:
        whole = str(expanded.absolute())
    elif expanded.is_absolute():
        whole = str(expanded)
    else:
        raise ClientError(
            "client.usage",
            f"{path!r} is relative, and the node {session.target.url} is another machine",
            remediation="Give the file's whole path on that machine.",
        )
    chosen = parse_model_id(model_id) if model_id is not None else None
    return ImportRecord(
        source="path",
        name=expanded.name,
        path=whole,
        size_bytes=None,
        model_id=chosen,
        imported=False,
        problem="",
    )


def _found(session: Session, sources: str) -> list[ImportRecord]:
    words = [word.strip() for word in sources.split(",") if word.strip()]
    for word in words:
        if word not in FOUND_SOURCES:
            raise unknown_value("a source of --from", word, FOUND_SOURCES)
    found = session.client.get("/models/found", FoundModels, query={"source": words}).items
    if not found:
        session.narrate(f"No model files of {', '.join(words)} on the node's machine.")
    return [found_record(one) for one in found]


def _import(session: Session, one: ImportRecord) -> ImportRecord:
    body = ImportModelBody(
        path=one.path, model_id=ModelId(one.model_id) if one.model_id is not None else None
    )
    entry = session.client.post("/models/import", ModelEntry, body)
    return ImportRecord(
        source=one.source,
        name=entry.name,
        path=one.path,
        size_bytes=entry.storage_size_bytes,
        model_id=entry.id,
        imported=True,
        problem="",
    )


def _with_problem(one: ImportRecord, problem: str) -> ImportRecord:
    return ImportRecord(
        source=one.source,
        name=one.name,
        path=one.path,
        size_bytes=one.size_bytes,
        model_id=one.model_id,
        imported=False,
        problem=problem,
    )


def _show_imports(
    session: Session, records: list[ImportRecord], errors: list[SkulkError]
) -> int | None:
    session.output.show(
        Listing(
            kind="imports",
            items=records,
            tables=(imports_table(records),),
            names=[record.model_id or record.path for record in records],
        )
    )
    return several_exit_code(errors, len(records))


def pull_model(
    session: Session,
    model: ModelArgument,
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the files are complete.")
    ] = True,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End a download; a later pull goes on from its rest.")
    ] = False,
    on: OnOption = None,
    dry_run: DryRunOption = False,
) -> int | None:
    """Fetch a model's files to the node, verified before they count."""
    model_id = parse_model_id(model)
    if dry_run:
        return _show_pull_wish(session, model_id, on, cancel=cancel)
    path, query = path_of("/store/models/{}/download", model_id), _query(on)
    with naming_the_nearest_model(session, model_id):
        if cancel:
            status = session.client.delete(path, TransferStatus, query=query)
        else:
            status = session.client.post(path, TransferStatus, query=query)
            if wait and status.state != "complete":
                status = wait_until_downloaded(session, model_id, query)
    record = transfer_record(status)
    session.output.show(
        Listing(
            kind="transfers",
            items=(record,),
            tables=(transfers_table((record,)),),
            names=(record.model_id,),
        )
    )
    return None


def _show_pull_wish(session: Session, model_id: ModelId, on: str | None, *, cancel: bool) -> None:
    with naming_the_nearest_model(session, model_id):
        entry = session.client.get(path_of("/v1/models/{}", model_id), ModelEntry)
    disk = session.client.get("/store/storage", ClusterStorage, query=_query(on))
    size, free = format_bytes(entry.storage_size_bytes), format_bytes(disk.disk_free_bytes)
    if cancel:
        outcome = "its download would be ended"
    elif any(item.model_id == model_id and item.damaged for item in disk.items):
        outcome = "is damaged there; what is damaged would be fetched anew"
    elif any(item.model_id == model_id for item in disk.items):
        outcome = "is there already"
    else:
        outcome = f"would be fetched: {size}, and {free} are free in {disk.models_dir}"
    record = OutcomeRecord(target=model_id, model_id=model_id, outcome=outcome)
    session.output.show(outcomes_listing(record))


def remove_models(
    session: Session,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="Model ids.", autocompletion=complete_model)
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    on: OnOption = None,
    dry_run: DryRunOption = False,
) -> int | None:
    """Remove models' files from the node.

    An imported model is forgotten and its file stays where it lies; with `--on` only files go.
    """
    known = {entry.id: entry for entry in session.client.get("/v1/models", ModelList).data}
    entries: list[ModelEntry] = []
    for model in models:
        entry = known.get(parse_model_id(model))
        if entry is None:
            raise unknown_value("a model", model, known, see="skulk models list")
        entries.append(entry)
    if dry_run:
        disk = session.client.get("/store/storage", ClusterStorage, query=_query(on))
        session.output.show(outcomes_listing(*(_would_go(entry, on, disk) for entry in entries)))
        return None
    where = f" from {on}" if on is not None else ""
    session.confirm(f"Remove {', '.join(entry.id for entry in entries)}{where}?", yes=yes)
    outcomes: list[OutcomeRecord] = []
    errors: list[SkulkError] = []
    for entry in entries:
        try:
            outcomes.append(_remove(session, entry, on))
        except SkulkError as error:
            if error.code == "client.unreachable" or len(entries) == 1:
                raise
            errors.append(error)
            outcomes.append(
                OutcomeRecord(
                    target=entry.id,
                    model_id=entry.id,
                    outcome="failed",
                    error_code=error.code,
                    error=error.message,
                )
            )
    session.output.show(outcomes_listing(*outcomes))
    return several_exit_code(errors, len(entries))


def _would_go(entry: ModelEntry, on: str | None, disk: ClusterStorage) -> OutcomeRecord:
    is_imported = "custom" in entry.tags and on is None
    held = [item for item in disk.items if item.model_id == entry.id]
    freed_bytes: int | None = None
    if any(item.in_use for item in held):
        outcome = "is in use; would be refused"
    elif is_imported:
        outcome = "would be forgotten; its file stays"
    elif held:
        outcome, freed_bytes = "would be removed", sum(item.size_bytes for item in held)
    else:
        outcome = "has no files there"
    return OutcomeRecord(
        target=entry.id, model_id=entry.id, outcome=outcome, freed_bytes=freed_bytes
    )


def _query(on: str | None) -> Query:
    return {} if on is None else {"node": on}


def _remove(session: Session, entry: ModelEntry, on: str | None) -> OutcomeRecord:
    # The card is the whole cluster's; whoever names a node means what lies there.
    is_custom = "custom" in entry.tags and on is None
    freed_bytes = 0
    path = path_of("/store/models/{}", entry.id)
    try:
        removed = session.client.delete(path, RemovedModel, query=_query(on))
        freed_bytes = removed.freed_bytes
    except SkulkError as error:
        # A card that was imported has no files in the store; only the card is to go.
        if error.code != "store.not_found" or not is_custom:
            raise
    if is_custom:
        session.client.delete(path_of("/models/custom/{}", entry.id), CommandAccepted)
    return OutcomeRecord(
        target=entry.id, model_id=entry.id, outcome="removed", freed_bytes=freed_bytes
    )


def list_files(session: Session, *, on: OnOption = None) -> int | None:
    """List the model files on the nodes, and what space there is for more.

    Exit code: 6 when a node did not answer.
    """
    storage = session.client.get("/store/storage", ClusterStorage, query=_query(on))
    names = names_of(state_of(session))
    disks = (storage, *storage.others)
    records = [
        FileRecord(
            model_id=item.model_id,
            node_id=disk.node_id,
            node_name=names.get(disk.node_id, disk.node_id),
            size_bytes=item.size_bytes,
            in_use=item.in_use,
            linked=item.linked,
            path=item.path,
            damaged=item.damaged,
        )
        for disk in disks
        for item in disk.items
    ]
    records.sort(key=lambda one: (one.model_id, one.node_name))
    session.output.show(
        Listing(
            kind="files",
            items=records,
            tables=(files_table(records),),
            names=[record.path for record in records],
        )
    )
    for disk in disks:
        free, total = format_bytes(disk.disk_free_bytes), format_bytes(disk.disk_total_bytes)
        name = names.get(disk.node_id, disk.node_id)
        session.narrate(f"{name}: {free} of {total} free in {disk.models_dir}")
    for silent in storage.unanswered:
        session.narrate(f"{silent.name or silent.node_id} did not answer: {silent.error.message}")
    return exit_codes.PARTIAL if storage.unanswered else None
