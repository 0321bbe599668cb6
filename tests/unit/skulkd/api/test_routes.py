"""The route table and its page agree."""

import re
from pathlib import Path

import pytest

from protocol.errors import RequestError
from skulkd.api.routes import RouteTable
from tests.support.scope_table import all_routes

PAGE = Path(__file__).parents[4] / "docs" / "api.md"
DOCUMENTED = re.compile(r"`(GET|HEAD|POST|PUT|DELETE) (/[^`]*)`")


def shape_of(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_every_route_is_documented_with_its_scope_and_no_other_is() -> None:
    documented: set[tuple[str, str, str]] = set()
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1].startswith("`"):
            documented.update(
                (method, shape_of(path), cells[2]) for method, path in DOCUMENTED.findall(cells[1])
            )
    documented -= {("HEAD", "/", "open")}
    served = {
        (route.method, shape_of(route.path), route.scope)
        for route in all_routes()
        if not route.path.startswith("/ollama/v1/")
    }
    assert served == documented


def test_the_inference_routes_under_v1_are_there_under_ollama_too() -> None:
    routes = {(route.method, route.path): route for route in all_routes()}
    own = {
        key: route
        for key, route in routes.items()
        if route.path.startswith("/v1/") and route.kind == "inference"
    }
    twins = {key for key in routes if key[1].startswith("/ollama/v1/")}
    assert twins == {(method, f"/ollama{path}") for method, path in own}
    for (method, path), route in own.items():
        twin = routes[method, f"/ollama{path}"]
        assert (twin.scope, twin.is_heavy, twin.reach) == (route.scope, route.is_heavy, route.reach)


@pytest.mark.parametrize(
    ("method", "path", "params"),
    [
        ("GET", "/v1/models/a/b:Q4", {"model_id": "a/b:Q4"}),
        ("GET", "/store/models/a/b/download/status", {"model_id": "a/b"}),
        ("DELETE", "/store/models/a/b/download", {"model_id": "a/b"}),
        ("DELETE", "/store/models/a/b", {"model_id": "a/b"}),
        ("GET", "/instance/x", {"instance_id": "x"}),
        ("POST", "/instance/x/retry", {"instance_id": "x"}),
        ("GET", "/instance/placement", {}),
        ("HEAD", "/health", {}),
        ("PUT", "/v1/cluster/policy", {}),
        ("DELETE", "/v1/cluster/members/studio", {"node": "studio"}),
    ],
)
def test_paths_find_their_route(method: str, path: str, params: dict[str, str]) -> None:
    found, given = RouteTable(all_routes()).find(path)
    assert dict(given) == params
    route = found.route_for(method)
    assert route.method == ("GET" if method == "HEAD" else method)


@pytest.mark.parametrize("path", ["", "/x", "/instance/", "/instance/a/b", "/v1/models/", "//"])
def test_other_paths_find_none(path: str) -> None:
    with pytest.raises(RequestError) as caught:
        RouteTable(all_routes()).find(path)
    assert caught.value.code == "request.not_found"
