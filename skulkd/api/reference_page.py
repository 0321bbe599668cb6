"""The API's reference as one page without scripts, from the OpenAPI document. Pure."""

from html import escape
from itertools import starmap
from typing import Final

from skulkd.api.route_notes import Schema

_REF: Final = "#/components/schemas/"
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;"
    "color:#222;background:#fff}table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0;"
    "border-bottom:1px solid #ddd}code{font:13px ui-monospace,monospace}"
    "h3{margin:1.5rem 0 .25rem}@media(prefers-color-scheme:dark){body{color:#ddd;background:#111}"
    "td,th{border-color:#333}a{color:#8bf}}"
)
_SCOPES: Final = (
    "Scope is what a key must hold; each includes the ones before it: infer, read, operate, admin. "
    "Routes that are open need none."
)


def reference_page(document: Schema) -> bytes:
    """Write the page.

    Args:
        document: From `skulkd.api.openapi`.
    """
    info = document["info"]
    routes = [
        _route(method, path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    schemas = list(starmap(_schema, document["components"]["schemas"].items()))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['description'])} The same for programs: ",
        "<a href='openapi.json'>openapi.json</a>.</p><h2>Routes</h2>",
        f"<p>{_SCOPES}</p>",
        "<table><tr><th>Route<th>Scope<th>What it does<th>Asks<th>Answers</tr>",
        *routes,
        "</table><h2>Bodies</h2>",
        *schemas,
        "</html>",
    ]
    return "\n".join(parts).encode()


def _route(method: str, path: str, operation: Schema) -> str:
    query = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
    asked = [f"<code>?{escape(name)}=</code>" for name in query]
    if "requestBody" in operation:
        asked.append(_type(_schema_in(operation["requestBody"])))
    status, answer = next(iter(operation["responses"].items()))
    return (
        f"<tr><td><code>{method.upper()} {escape(path)}</code>"
        f"<td>{escape(operation['x-skulk-scope'])}<td>{escape(operation['summary'])}"
        f"<td>{' '.join(asked)}<td>{status} {_type(_schema_in(answer))}</tr>"
    )


def _schema_in(body: Schema) -> Schema:
    content: dict[str, Schema] = body.get("content", {})
    schemas: list[Schema] = [one["schema"] for one in content.values()]
    return schemas[0] if schemas else {}


def _schema(name: str, schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(field)}</code>{'' if field in required else ' (may be left out)'}"
        f"<td>{_type(value)}</tr>"
        for field, value in schema.get("properties", {}).items()
    ]
    meaning = escape(str(schema.get("description", "")).partition("\n\n")[0])
    table = f"<table>{''.join(rows)}</table>" if rows else f"<p>{_type(schema)}</p>"
    return f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{meaning}</p>{table}"


def _type(known: Schema) -> str:
    """Say in a few words what a value may be."""
    if "$ref" in known:
        name = escape(str(known["$ref"]).removeprefix(_REF))
        return f"<a href='#{name}'>{name}</a>"
    for word in ("anyOf", "oneOf"):
        if word in known:
            return " or ".join(_type(one) for one in known[word])
    if "enum" in known:
        return ", ".join(f"<code>{escape(str(one))}</code>" for one in known["enum"])
    if "const" in known:
        return f"<code>{escape(str(known['const']))}</code>"
    if known.get("type") == "array":
        return f"list of {_type(known.get('items', {})) or 'anything'}"
    return escape(str(known.get("type", "")))
