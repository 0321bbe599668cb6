"""The OpenAPI document, from the table of routes and the models of their bodies. Pure.

Source: OpenAPI Specification 3.1.0.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

from pydantic import BaseModel

from protocol.base import FrozenModel
from protocol.control_api import ErrorDocument
from skulkd.api.dialects.chat_dialect import Dialect
from skulkd.api.route_notes import NOTES, Note, Schema
from skulkd.api.routes import RouteSpec, dialect_of

_PARAMETER: Final = re.compile(r"\{(\w+)(?::path)?\}")
_REF: Final = "#/components/schemas/"


@final
class ApiDescription:
    """What the document is made from, piece by piece: all of it at once takes a tenth of a second.

    Args:
        routes: In the order in which they are shown.
        version: Of this daemon.
    """

    def __init__(self, routes: Iterable[RouteSpec], *, version: str) -> None:
        # Not above: what describes foreign bodies takes time and memory, and is seldom wanted.
        from skulkd.api.dialect_notes import DIALECT_NOTES

        table = tuple(routes)
        notes = {**NOTES, **DIALECT_NOTES}
        self._version = version
        self._noted = [(route, note_of(route, table, notes)) for route in table]
        bodies = list(_errors().values())
        for _, note in self._noted:
            bodies += (use for use in (_asked(note), _answered(note)) if use is not None)
            bodies += (_BodyUse(event, "") for event in note.events)
        self.bodies: Final = tuple(dict.fromkeys(bodies))
        """Each gives `schemas`, in a few milliseconds."""

    def document(self, schemas: Schema) -> Schema:
        """Give the document.

        Args:
            schemas: Of all bodies.
        """
        paths: dict[str, Schema] = {}
        for route, note in self._noted:
            path = _PARAMETER.sub(r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, note)
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "skulk",
                "version": self._version,
                "description": "One node of a cluster; any node serves the whole cluster.",
            },
            "paths": paths,
            "components": {
                "schemas": dict(sorted(schemas.items())),
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
        }


def note_of(route: RouteSpec, table: tuple[RouteSpec, ...], notes: Mapping[str, Note]) -> Note:
    """Find what is noted of a route, or of the one that has the same handler."""
    same = [one for one in table if one.handler == route.handler and one.method == route.method]
    for one in (route, *same):
        note = notes.get(f"{one.method} {one.path}")
        if note is not None:
            return note
    return Note(summary=f"{route.method} {route.path}")


@dataclass(frozen=True, slots=True)
class _BodyUse:
    """A model in one of the ways in which bodies are read and written."""

    model: type[BaseModel]
    way: Literal["", "Camel"]
    """In front of its name; `Camel` where its members are written in camelCase."""

    @property
    def place(self) -> Schema:
        """Where its schema is."""
        return {"$ref": f"{_REF}{self.way}{self.model.__name__}"}

    def schemas(self) -> Schema:
        """Give its schema and those that it needs, by their names."""
        own: Schema = self.model.model_json_schema(
            by_alias=self.way == "Camel" or not issubclass(self.model, FrozenModel),
            ref_template=f"{_REF}{self.way}{{model}}",
        )
        found: Schema = {**own.pop("$defs", {}), self.model.__name__: own}
        return {f"{self.way}{name}": schema for name, schema in found.items()}


def _errors() -> dict[Dialect, _BodyUse]:
    """Give the forms of errors."""
    from skulkd.api.dialects.bodies import AnthropicError, OllamaError

    ours = _BodyUse(ErrorDocument, "")
    return {
        "control": ours,
        "openai": ours,
        "anthropic": _BodyUse(AnthropicError, ""),
        "ollama": _BodyUse(OllamaError, ""),
    }


def _asked(note: Note) -> _BodyUse | None:
    return _BodyUse(note.asks, "") if isinstance(note.asks, type) else None


def _answered(note: Note) -> _BodyUse | None:
    way: Literal["", "Camel"] = "Camel" if note.is_camel else ""
    return _BodyUse(note.answers, way) if isinstance(note.answers, type) else None


def _operation(route: RouteSpec, note: Note) -> Schema:
    asked, answered = _asked(note), _answered(note)
    answer: Schema = {"description": "What was asked for."}
    if note.answers is not None:
        schema = note.answers if answered is None else answered.place
        answer["content"] = {note.media_type: {"schema": schema}}
    if note.streams is not None:
        events = [_BodyUse(event, "").place for event in note.events]
        streamed: Schema = {
            "schema": {"type": "string"},
            "x-skulk-events": events[0] if len(events) == 1 else {"anyOf": events},
        }
        answer["content"][note.streams] = streamed
    form = _errors()[dialect_of(route.path, route.kind)]
    error: Schema = {
        "description": "Why not, in the dialect's own form.",
        "content": {"application/json": {"schema": form.place}},
    }
    operation: Schema = {
        "operationId": _operation_id(route),
        "summary": note.summary,
        "tags": [route.kind],
        "x-skulk-scope": route.scope,
        "parameters": _parameters(route, note),
        "responses": {
            str(note.status): answer,
            "4XX": error,
            "5XX": error,
        },
        "security": [{}] if route.scope == "open" else [{"bearer": []}, {"header": []}, {}],
    }
    if note.asks is not None:
        content = {"application/json": {"schema": note.asks if asked is None else asked.place}}
        operation["requestBody"] = {"content": content}
    return operation


def _operation_id(route: RouteSpec) -> str:
    words = re.findall(r"\w+", _PARAMETER.sub(r"by_\1", route.path)) or ["root"]
    end = "_root" if route.path.endswith("/") and len(route.path) > 1 else ""
    return "_".join([route.method.lower(), *words]) + end


def _parameters(route: RouteSpec, note: Note) -> list[Schema]:
    names = note.query if route.reach == "local" else (*note.query, "node")
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += (
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
        for name in names
    )
    return parameters
