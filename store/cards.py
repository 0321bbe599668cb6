"""Model cards as files: strict TOML in, TOML out.

Strict means that a mistyped field is refused by name with the nearest known one, never ignored: a
card that quietly loses its `max_context_tokens` fails on the machine, hours later.
"""

import difflib
import errno
import json
import os
import re
import stat
import tomllib
from pathlib import Path
from types import UnionType
from typing import Annotated, Final, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protocol.cards import ModelCard
from protocol.errors import StoreError

MAX_CARD_BYTES: Final = 256 * 1024
MAX_KEY_PARTS: Final = 16
"""The deepest field of a card has 4. tomllib keeps every prefix of a dotted key: 256 KiB of one key
would take 60 GB."""

_PART: Final = rb"""(?:[\w-]{1,99}+|"(?:[^"\\\n]|\\.){0,99}+"|'[^'\n]{0,99}+')"""
# Bounded and possessive, so that looking costs no more than reading; longer parts are too few.
_DEEP_KEY: Final = re.compile(
    rb"(?<![\w-])%b(?:[ \t]*+\.[ \t]*+%b){%d}" % (_PART, _PART, MAX_KEY_PARTS)
)

_UNSERVED_TABLES: Final = {
    "audio": "audio",
    "music": "music",
    "video": "video",
    "uses_cfg": "image",
}
"""Fields that only cards of another modality carry."""
_UNSERVED_TASKS: Final = {
    "TextToImage": "image",
    "ImageToImage": "image",
    "TextToSpeech": "audio",
    "SpeechToText": "audio",
    "SpeechTranslation": "audio",
    "TextToMusic": "music",
    "TextToVideo": "video",
    "ImageToVideo": "video",
    "ReferenceToVideo": "video",
}
_SHOWN_PROBLEMS: Final = 5
_SHOWN_CHARS: Final = 80

_Plain = str | int | float | bool | list["_Plain"] | dict[str, "_Plain"]


def read_card(path: Path) -> ModelCard:
    """Read one card file.

    Raises:
        StoreError: `store.card_invalid`, `store.card_unknown_field`, `store.not_found`.
    """
    try:
        content = _read_bounded(path)
    except FileNotFoundError as error:
        raise StoreError(
            "store.not_found",
            f"no card file at {path}",
            remediation="See `skulk models list` for the cards this node knows.",
        ) from error
    except OSError as error:
        raise _invalid(str(path), f"cannot be read: {error.strerror}") from error
    return parse_card(content, origin=str(path))


def parse_card(content: bytes, *, origin: str) -> ModelCard:
    """Parse a card.

    Args:
        content: TOML in UTF-8, at most 256 KiB.
        origin: Where it came from; named in errors.

    Raises:
        StoreError: `store.card_invalid`, or `store.card_unknown_field` naming the field and the
            nearest known one.
    """
    if len(content) > MAX_CARD_BYTES:
        raise _invalid(origin, f"more than {MAX_CARD_BYTES} bytes")
    if _DEEP_KEY.search(content):
        raise _invalid(origin, f"a key has more than {MAX_KEY_PARTS} parts")
    try:
        document = tomllib.loads(content.decode("utf-8"))
        text = json.dumps(document, allow_nan=False)
    except UnicodeDecodeError as error:
        raise _invalid(origin, f"not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise _invalid(origin, f"not TOML: {error}") from error
    except RecursionError as error:
        raise _invalid(origin, "nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise _invalid(origin, f"a card holds no dates and no infinite numbers: {error}") from error
    _refuse_other_modalities(document, origin)
    try:
        return ModelCard.model_validate_json(text, strict=True, by_alias=False, by_name=True)
    except ValidationError as error:
        raise _refusal(error, origin) from error


def to_toml(card: ModelCard) -> str:
    """Write a card as TOML that parses back to an equal card; defaults are left out."""
    lines: list[str] = []
    _write_table(lines, (), _document(card))
    return "\n".join(lines).strip() + "\n"


def _read_bounded(path: Path) -> bytes:
    # Non-blocking, or a named pipe under a card's name would hang the reader.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(MAX_CARD_BYTES + 1)


def _document(card: ModelCard) -> dict[str, _Plain]:
    document = card.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    if card.source is not None:
        # The tag is a default and would be left out, but tells the kinds apart on reading.
        document["source"] = {"kind": card.source.kind, **document["source"]}
    return cast("dict[str, _Plain]", document)


def _write_table(lines: list[str], path: tuple[str, ...], table: dict[str, _Plain]) -> None:
    nested: dict[str, dict[str, _Plain]] = {}
    repeated: dict[str, list[dict[str, _Plain]]] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            nested[name] = value
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            repeated[name] = cast("list[dict[str, _Plain]]", value)
        else:
            lines.append(f"{name} = {_toml_value(value)}")
    for name, inner in nested.items():
        lines.extend(["", f"[{'.'.join((*path, name))}]"])
        _write_table(lines, (*path, name), inner)
    for name, rows in repeated.items():
        for row in rows:
            lines.extend(["", f"[[{'.'.join((*path, name))}]]"])
            _write_table(lines, (*path, name), row)


def _toml_value(value: _Plain) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _toml_string(value)
        case int():
            return str(value)
        case float():
            return repr(value)
        case list():
            return "[" + ", ".join(_toml_value(item) for item in value) + "]"
        case dict():
            inner = ", ".join(f"{name} = {_toml_value(item)}" for name, item in value.items())
            return "{" + inner + "}"


def _toml_string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped; surrogate pairs are avoided
    # by leaving what lies beyond ASCII as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _refuse_other_modalities(document: dict[str, object], origin: str) -> None:
    modality = next((kind for name, kind in _UNSERVED_TABLES.items() if name in document), None)
    tasks = document.get("tasks")
    if modality is None and isinstance(tasks, list):
        named = (str(task) for task in cast("list[object]", tasks))
        modality = next((_UNSERVED_TASKS[task] for task in named if task in _UNSERVED_TASKS), None)
    if modality is not None:
        model_id = str(document.get("model_id", "?"))[:200]
        raise StoreError(
            "store.card_invalid",
            f"{origin}: {model_id} is an {modality} model, and {modality} is not served yet"
            if modality[0] in "aeiou"
            else f"{origin}: {model_id} is a {modality} model, and {modality} is not served yet",
            remediation="Text models are served: TextGeneration, TextEmbedding and TextRerank.",
            details={"modality": modality},
        )
    stamp = next((name for name in document if name.startswith("registry_")), None)
    stamp = stamp or ("is_custom" if "is_custom" in document else None)
    if stamp is not None:
        raise StoreError(
            "store.card_unknown_field",
            f"{origin}: {stamp[:100]} is stamped on a card at load, never read from a file",
            remediation="Delete the line.",
            details={"field": stamp[:100]},
        )


def _refusal(error: ValidationError, origin: str) -> StoreError:
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["type"] == "extra_forbidden":
            return _unknown_field(problem, origin)
    shown = "; ".join(_describe(problem) for problem in problems[:_SHOWN_PROBLEMS])
    more = len(problems) - _SHOWN_PROBLEMS
    return _invalid(origin, shown + (f"; and {more} more" if more > 0 else ""))


def _unknown_field(problem: ErrorDetails, origin: str) -> StoreError:
    location = problem["loc"]
    name = str(location[-1])[:100]
    known = _known_fields(location[:-1])
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; the nearest known one is {nearest[0]}" if nearest else ""
    where = _path_of(location[:-1])
    room = f"[{where}]" if where else "a card"
    return StoreError(
        "store.card_unknown_field",
        f"{origin}: {room} has no field {name!r}{hint}",
        remediation="Correct the name or delete the line; docs/models.md lists every field.",
        details={"field": name, "nearest": nearest[0] if nearest else None},
    )


def _describe(problem: ErrorDetails) -> str:
    value = repr(problem["input"])
    shown = "" if problem["type"] == "missing" or len(value) > _SHOWN_CHARS else f" (it is {value})"
    where = _path_of(problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where}: {message}{shown}"


def _path_of(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:100] for part in location)


def _known_fields(location: tuple[int | str, ...]) -> list[str]:
    models: list[type[BaseModel]] = [ModelCard]
    for part in location:
        tagged = [model for model in models if _tag(model) == part]
        if tagged:
            models = tagged
            continue
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        models = [inner for field in fields for inner in _models_in(field.annotation)] or models
    return [name for model in models for name in model.model_fields]


def _tag(model: type[BaseModel]) -> object:
    field = model.model_fields.get("kind")
    return None if field is None else field.default


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in {Annotated, Union, UnionType, tuple}:
        return [inner for argument in get_args(annotation) for inner in _models_in(argument)]
    return []


def _invalid(origin: str, problem: str) -> StoreError:
    return StoreError(
        "store.card_invalid",
        f"{origin}: {problem}",
        remediation="Correct the card; docs/models.md lists every field with its bounds.",
        details={"origin": origin},
    )
