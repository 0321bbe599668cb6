"""Writes docs/cli-json.md: the fields of what `skulk … --json` gives, from the records themselves.

Renew it once a record has changed:

    python -m tests.support.json_document
"""

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any, Final, cast

from skulk_tui.cli import (
    bench_figures,
    cluster_records,
    link_tables,
    operation_records,
    records,
    saved_clusters,
)
from tests.support.source_tree import ROOT

DOCUMENT: Final = ROOT / "docs" / "cli-json.md"
KINDS: Final[dict[str, type]] = {
    "bench": bench_figures.BenchRecord,
    "bundle": operation_records.BundleRecord,
    "candidates": records.CandidateRecord,
    "chat": records.ChatRecord,
    "checks": records.CheckRecord,
    "cluster": cluster_records.ClusterRecord,
    "clusters": saved_clusters.SavedClusterRecord,
    "connections": operation_records.ConnectionRecord,
    "completion": records.CompletionRecord,
    "drains": operation_records.DrainRecord,
    "environment": records.TopicRecord,
    "events": cluster_records.EventRecord,
    "exit_codes": records.TopicRecord,
    "files": records.FileRecord,
    "help": records.TopicRecord,
    "imports": records.ImportRecord,
    "info": records.InfoRecord,
    "instances": records.InstanceRecord,
    "invitations": cluster_records.InvitationRecord,
    "joined": cluster_records.JoinRecord,
    "keys": records.KeyRecord,
    "links": link_tables.LinkRecord,
    "leftovers": operation_records.LeftoverRecord,
    "listeners": records.ListenersRecord,
    "logs": cluster_records.LogLineRecord,
    "man": records.TopicRecord,
    "master": cluster_records.MasterRecord,
    "members": cluster_records.MemberRecord,
    "models": records.ModelRecord,
    "moves": operation_records.MoveRecord,
    "nodes": records.NodeRecord,
    "outcomes": records.OutcomeRecord,
    "output": records.TopicRecord,
    "policy": cluster_records.PolicyRecord,
    "restarts": operation_records.RestartRecord,
    "service": operation_records.ServiceRecord,
    "settings": operation_records.SettingRecord,
    "status": records.StatusRecord,
    "steps": operation_records.StepRecord,
    "verified": operation_records.VerifiedRecord,
    "strangers": cluster_records.StrangerRecord,
    "timeline": cluster_records.TimelineRecord,
    "tools": operation_records.ToolRecord,
    "top": records.StatusRecord,
    "topics": records.TopicRecord,
    "transfers": records.TransferRecord,
    "version": records.VersionRecord,
}
"""Every kind of listing, and what its items are."""
_HEAD: Final = (
    "# What `--json` gives\n\n"
    "Made of the program's own records by `python -m tests.support.json_document`; a test keeps "
    "both in step. How it is wrapped, and which verb gives which kind, is in [cli.md](cli.md). "
    "Fields are only ever added; what is not known is null. With `--watch` a record of a listing "
    "is the `object` of each change; the cluster in short, kind `cluster` there, is a "
    "[HeadRecord](#headrecord).\n\n"
    "| `kind` | `items` |\n|---|---|\n"
)
_WORDS: Final[dict[object, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def document() -> str:
    """Write the document."""
    kinds = "".join(f"| `{kind}` | {_link(record)} |\n" for kind, record in sorted(KINDS.items()))
    wanted = [*KINDS.values(), records.HeadRecord]
    found = {one.__name__: one for record in wanted for one in _with_parts(record)}
    return _HEAD + kinds + "".join(_section(found[name]) for name in sorted(found))


def _with_parts(record: type) -> Iterator[type]:
    yield record
    for annotation in typing.get_type_hints(record).values():
        for part in _parts(annotation):
            if is_dataclass(part):
                yield from _with_parts(cast("type", part))


def _parts(annotation: Any) -> Iterator[Any]:  # ruff: ignore[any-type]  an annotation has no type
    yield annotation
    for inner in typing.get_args(annotation):
        yield from _parts(inner)


def _section(record: type) -> str:
    hints, said = typing.get_type_hints(record), _said_of(record)
    rows = "".join(
        f"| `{one.name}` | {_type(hints[one.name])} | {said.get(one.name, '')} |\n"
        for one in fields(record)
    )
    about = " ".join(str(inspect.getdoc(record)).split())
    return f"\n## {record.__name__}\n\n{about}\n\n| Field | Type | Meaning |\n|---|---|---|\n{rows}"


def _type(annotation: Any) -> str:  # ruff: ignore[any-type]  see above
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is types.UnionType or origin is typing.Union:
        return " or ".join(_type(one) for one in inner)
    if origin is tuple:
        return f"array of {_type(inner[0])}"
    if origin is dict or annotation is dict:
        return "object"
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if is_dataclass(annotation):
        return _link(cast("type", annotation))
    return _WORDS[annotation]


def _link(record: type) -> str:
    return f"[{record.__name__}](#{record.__name__.lower()})"


def _said_of(record: type) -> dict[str, str]:
    """Read what stands below each field: no class keeps it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    body = cast("ast.ClassDef", tree).body
    said: dict[str, str] = {}
    for field, below in pairwise(body):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            text = cast("ast.Constant", cast("ast.Expr", below).value).value
            said[field.target.id] = " ".join(str(text).replace("|", "\\|").split())
    return said


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
