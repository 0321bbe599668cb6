"""Writes the routes by scope into docs/api.md, from the table of routes.

python -m tests.support.scope_table
"""

from typing import Final, get_args

from skulkd.api.auth import RouteScope
from skulkd.api.other_nodes import OtherNodes
from skulkd.api.routes import RouteSpec, Services, build_routes
from skulkd.runtime.tasks import Tasks
from tests.support.fake_ports import FakeDaemon
from tests.support.source_tree import ROOT

DOCUMENT: Final = ROOT / "docs" / "api.md"
BEGINS: Final = "<!-- scopes: made by python -m tests.support.scope_table -->\n"
ENDS: Final = "<!-- scopes end -->\n"


def all_routes() -> tuple[RouteSpec, ...]:
    """Give the table that every node serves."""
    tasks = Tasks("none", on_death=lambda _story, _error: None)
    deps = FakeDaemon().dependencies(tasks)
    return build_routes(Services.build(deps, OtherNodes(deps)))


def table() -> str:
    """Give a row for each scope, with its routes by path."""
    rows = [f"| `{scope}` | {_routes(scope)} |" for scope in get_args(RouteScope)]
    return "\n".join(["| Scope | Routes |", "|---|---|", *rows]) + "\n"


def documented() -> str:
    """Read what the document holds."""
    _, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGINS)
    return rest.partition(ENDS)[0]


def renew() -> None:
    """Write the table of now into the document."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGINS)
    after = rest.partition(ENDS)[2]
    DOCUMENT.write_text(f"{before}{BEGINS}{table()}{ENDS}{after}", encoding="utf-8")


def _routes(scope: RouteScope) -> str:
    """Write a path once, with all its methods of this scope."""
    methods: dict[str, list[str]] = {}
    for route in all_routes():
        if route.scope == scope and not route.path.startswith("/ollama/v1/"):
            methods.setdefault(route.path.replace(":path}", "}"), []).append(route.method)
    return ", ".join(f"`{' '.join(names)} {path}`" for path, names in sorted(methods.items()))


if __name__ == "__main__":
    renew()
