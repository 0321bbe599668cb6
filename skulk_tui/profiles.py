"""The operator's configuration file, `config.toml`: clusters by name, and how things are shown.

    current = "home"

    [profile.home]
    seeds = ["den-01", "https://den-02.example"]
    protect = true      # every change is asked about
    readonly = false    # nothing that changes is offered
    insecure = false    # the key may go over plain HTTP to another machine

    [tui]
    theme = "dark"

A key is never in it: that of a profile lies in `keys/NAME` beside it. Changes made by the program
leave the rest of the file, comments included, as it is.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from protocol.control_api import ControlModel
from protocol.errors import ClientError
from skulk_tui.cli.nearest import nearest
from skulk_tui.own_files import CONFIG_FILE, read_text, replace_file

CONFIG_MAX_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"^[A-Za-z0-9_-]{1,63}\Z")
_TABLE: Final = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_CURRENT: Final = re.compile(r"^\s*current\s*=")

ProfileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,63}$")]
ActionId = Annotated[str, StringConstraints(pattern=r"^[a-z_]+\.[a-z_]+$", max_length=64)]
KeyName = Annotated[str, StringConstraints(min_length=1, max_length=32)]
Seed = Annotated[str, StringConstraints(min_length=1, max_length=300)]


class Profile(ControlModel):
    """One cluster that the operator knows by a name."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=32)]
    """Addresses of its nodes, the preferred one first."""
    protect: bool = False
    """Every change is asked about, and the status row says so."""
    readonly: bool = False
    insecure: bool = False


class TuiSettings(ControlModel):
    """How the terminal interface looks and behaves."""

    theme: Annotated[str, StringConstraints(max_length=60)] = ""
    """Empty is chosen by the terminal."""
    glyphs: Literal["auto", "unicode", "ascii"] = "auto"
    mouse: bool = True
    rate_hz: Annotated[float, Field(gt=0, le=30)] = 2.0
    """How often readings are painted."""
    readonly: bool = False
    keymap: Annotated[dict[ActionId, tuple[KeyName, ...]], Field(max_length=200)] = {}
    """Keys by action, in place of those it has; none leaves the action to its `:` command."""


class ClientConfig(ControlModel):
    """The whole file."""

    current: ProfileName | None = None
    profile: Annotated[dict[ProfileName, Profile], Field(max_length=256)] = {}
    tui: TuiSettings = TuiSettings.model_construct()

    def named(self, name: str, rule: str) -> Profile:
        """Give a profile.

        Raises:
            ClientError: `client.usage`, naming the nearest.
        """
        found = self.profile.get(name)
        if found is None:
            guess = nearest(name, self.profile)
            known = ", ".join(sorted(self.profile)) or "none"
            remedy = f"Did you mean {guess!r}?" if guess else f"Known: {known}."
            raise ClientError(
                "client.usage",
                f"{rule} names the unknown cluster {name[:100]!r}",
                remediation=remedy,
            )
        return found


def read_config(config_dir: Path) -> ClientConfig:
    """Read the file; a missing one is empty.

    Raises:
        ClientError: `client.usage`, with the file, the line, and the nearest key that is known.
    """
    path = config_dir / CONFIG_FILE
    text = read_text(path, max_bytes=CONFIG_MAX_BYTES)
    return ClientConfig() if text is None else parse_config(text, path)


def parse_config(text: str, path: Path) -> ClientConfig:
    """Read the file's text; `path` is for the error.

    Raises:
        ClientError: `client.usage`.
    """
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise ClientError(
            "client.usage", f"{path} is no TOML: {wrong}", remediation="Mend that place."
        ) from wrong
    try:
        config = ClientConfig.model_validate(document)
    except ValidationError as wrong:
        # An unknown key is often why another one is missing.
        faults = sorted(
            wrong.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden"
        )
        raise _fault(faults[0], text, path) from wrong
    if config.current is not None:
        config.named(config.current, f"{path}, line {_line_of(text, ('current',))}: `current`")
    return config


def _fault(first: ErrorDetails, text: str, path: Path) -> ClientError:
    where = tuple(str(part) for part in first["loc"] if part != "[key]")
    place = f"{path}, line {_line_of(text, where)}"
    if first["type"] != "extra_forbidden":
        return ClientError(
            "client.usage",
            f"{place}: {'.'.join(where)}: {first['msg']}",
            remediation="Mend that value.",
        )
    known = _keys_beside(where)
    guess = nearest(where[-1], known)
    return ClientError(
        "client.usage",
        f"{place}: the key {where[-1][:100]!r} is not known",
        remediation=f"Did you mean {guess!r}?" if guess else f"Known: {', '.join(sorted(known))}.",
    )


def _keys_beside(where: tuple[str, ...]) -> set[str]:
    kinds: dict[str, type[ControlModel]] = {"profile": Profile, "tui": TuiSettings}
    kind = ClientConfig if len(where) == 1 else kinds.get(where[0], ClientConfig)
    return set(kind.model_fields)


def _line_of(text: str, where: tuple[str, ...]) -> int:
    """Find the line of a key, or of the nearest table around it; 1 where neither can be told."""
    found, table = 1, tuple[str, ...]()
    for number, line in enumerate(text.splitlines(), start=1):
        header = _TABLE.match(line)
        if header is not None:
            table = _parts(header[1])
            if where[: len(table)] == table:
                found = number
            continue
        key, equals, _ = line.partition("=")
        if equals and (*table, *_parts(key)) == where[: len(table) + len(_parts(key))]:
            return number
    return found


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


# ---- Changes ------------------------------------------------------------------------------------


def use_profile(config_dir: Path, name: str | None) -> None:
    """Make a profile the current one; None makes none.

    Raises:
        ClientError: `client.usage`.
    """
    if name is not None:
        read_config(config_dir).named(name, "`use`")
    lines = [line for line in _top(config_dir) if not _CURRENT.match(line)]
    chosen = [] if name is None else [f"current = {json.dumps(name)}"]
    _replace(config_dir, [*chosen, *lines, *_tables(config_dir)])


def save_profile(config_dir: Path, name: str, profile: Profile) -> None:
    """Add a profile, or replace the one of that name.

    Raises:
        ClientError: `client.usage`: the name is none, or the file cannot be changed.
    """
    check_name(name)
    fields = profile.model_dump(mode="json", exclude_defaults=True)
    block = ["", f"[profile.{name}]", *(f"{key} = {json.dumps(fields[key])}" for key in fields)]
    rest = _without(_tables(config_dir), ("profile", name))
    _replace(config_dir, [*_top(config_dir), *rest, *block])


def check_name(name: str) -> None:
    """Refuse what is no name for a profile.

    Raises:
        ClientError: `client.usage`.
    """
    if not _NAME.match(name):
        raise ClientError(
            "client.usage",
            f"{name[:100]!r} is no name for a cluster",
            remediation="Use 1 to 63 letters, digits, `_` and `-`.",
        )


def remove_profile(config_dir: Path, name: str) -> None:
    """Forget a profile; its key file stays. The current one leaves no current one.

    Raises:
        ClientError: `client.usage`.
    """
    config = read_config(config_dir)
    config.named(name, "`remove`")
    top = _top(config_dir)
    if config.current == name:
        top = [line for line in top if not _CURRENT.match(line)]
    _replace(config_dir, [*top, *_without(_tables(config_dir), ("profile", name))])


def key_path(config_dir: Path, name: str) -> Path:
    """Give where the key of a profile lies."""
    return config_dir / "keys" / name


def _lines(config_dir: Path) -> list[str]:
    return (read_text(config_dir / CONFIG_FILE, max_bytes=CONFIG_MAX_BYTES) or "").splitlines()


def _top(config_dir: Path) -> list[str]:
    lines = _lines(config_dir)
    return lines[: len(lines) - len(_tables(config_dir))]


def _tables(config_dir: Path) -> list[str]:
    lines = _lines(config_dir)
    first = next((at for at, line in enumerate(lines) if _TABLE.match(line)), len(lines))
    return lines[first:]


def _without(lines: list[str], table: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    is_inside = False
    for line in lines:
        header = _TABLE.match(line)
        if header is not None:
            is_inside = _parts(header[1])[: len(table)] == table
        if not is_inside:
            kept.append(line)
    return kept


def _replace(config_dir: Path, lines: list[str]) -> None:
    path = config_dir / CONFIG_FILE
    text = "\n".join(lines).strip("\n") + "\n"
    parse_config(text, path)  # a file that could not be read again is not written
    replace_file(path, text)
