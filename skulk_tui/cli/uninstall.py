"""`skulk uninstall`: take the service away, and say what stays and how much it is."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from protocol.errors import ClientError
from skulk_tui.cli import exit_codes
from skulk_tui.cli.operation_records import LeftoverRecord
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.service import (
    manager_of,
    models_dir_of,
    own_account,
    remove_service,
    user_folder,
)
from skulk_tui.cli.service_files import STATE_DIRECTORY, STATES, ServiceSpec, spec_in
from skulk_tui.cli.service_plans import Account, Manager, unit_path
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import verb
from skulk_tui.formatting import format_bytes
from skulk_tui.own_files import state_dir


def add_uninstall(app: typer.Typer) -> None:
    """Register the verb."""
    verb(app, "uninstall", examples=("skulk uninstall --dry-run", "skulk uninstall --yes"))(
        uninstall
    )


def uninstall(
    session: Session,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would go and what is kept.")
    ] = False,
) -> int:
    """Remove the service; list the folders that are kept, with their bytes.

    Nothing that cannot be made anew is deleted: the node's identity and its models stay.
    """
    manager = manager_of(sys.platform, is_root=os.geteuid() == 0, user=False)
    account = own_account(session.environ)
    unit = unit_path(manager, account)
    is_there = unit.exists()
    folders = {**folders_of(session, account), **_service_folders(manager, account, unit)}
    if is_there and not dry_run:
        session.confirm(f"Stop the node of this machine and remove {unit}?", yes=yes)
        remove_service(session, manager, account)
    outcome = ("would be removed" if dry_run else "removed") if is_there else "absent"
    records = [
        LeftoverRecord(what="service", path=str(unit), size_bytes=None, outcome=outcome),
        *(
            LeftoverRecord(
                what=what,
                path=str(path),
                size_bytes=bytes_in(path) if path.exists() else None,
                outcome="kept" if path.exists() else "absent",
            )
            for what, path in folders.items()
        ),
    ]
    columns = (
        Column("WHAT"),
        Column("PATH", least=20, wraps=True),
        Column("SIZE", right=True),
        Column("OUTCOME"),
    )
    rows = tuple((one.what, one.path, format_bytes(one.size_bytes), one.outcome) for one in records)
    session.output.show(
        Listing(
            kind="leftovers",
            items=records,
            tables=(Table(columns, rows),),
            names=[one.path for one in records],
        )
    )
    session.narrate(
        "Delete what is kept by hand. The program itself goes the way it came: "
        "`uv tool uninstall skulkd` or `pipx uninstall skulkd`."
    )
    return exit_codes.OK


def folders_of(session: Session, account: Account) -> Mapping[str, Path]:
    """Give the folders that skulk may have made for this user."""
    data = session.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if data.startswith("/") else account.home / ".local" / "share"
    chosen = session.environ.get("SKULK_HOME")
    home = Path(chosen).absolute() if chosen else base / "skulk"
    return {
        "home": home,
        "models": models_dir_of(home) or base / "skulk-models",
        "configuration": session.config_dir,
        "crashes": state_dir(session.environ),
    }


def _service_folders(manager: Manager, account: Account, unit: Path) -> Mapping[str, Path]:
    """Give the folders of an installed service, where they are not those of this user."""
    spec = spec_in(unit.read_bytes()) if unit.is_file() else None
    if spec is None and manager != "systemd-system":
        return {}
    return folders_of_service(manager, account, spec)


def folders_of_service(
    manager: Manager, account: Account, spec: ServiceSpec | None, *, states: Path = STATES
) -> Mapping[str, Path]:
    """Give home and models of a service.

    Args:
        manager: Who runs it.
        account: Who asks.
        spec: What is installed, if anything is.
        states: Where services of the machine without a user keep theirs, also after they went.
    """
    state = states / STATE_DIRECTORY
    run_as = None if spec is None else spec.run_as
    if run_as is not None and run_as != account.name:
        try:
            base = user_folder(run_as) / ".local" / "share"
        except ClientError:  # the user has gone, and with it what is known of the folders
            return {}
    elif run_as is None and manager == "systemd-system" and state.exists():
        base = state
    elif spec is not None and spec.home is not None:
        base = account.home / ".local" / "share"
    else:
        return {}
    home = (spec.home if spec is not None else None) or base / "skulk"
    return {
        "service's home": home,
        "service's models": models_dir_of(home) or base / "skulk-models",
    }


def bytes_in(folder: Path) -> int:
    """Count what the files of a folder take, without following links; what is locked counts 0."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:  # it has gone meanwhile, as the files of a running node do
                continue
    return total
