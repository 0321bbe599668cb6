"""The API's description of itself: complete, whole, and readable without a network."""

import json
import re
from html.parser import HTMLParser
from typing import Any

from skulkd.api.dialect_notes import DIALECT_NOTES
from skulkd.api.openapi import ApiDescription
from skulkd.api.route_notes import NOTES
from tests.support.api_harness import Api, with_api
from tests.support.scope_table import all_routes


def described() -> dict[str, Any]:
    description = ApiDescription(all_routes(), version="1.2.3")
    schemas: dict[str, Any] = {}
    for body in description.bodies:
        for name, schema in body.schemas().items():
            assert schemas.setdefault(name, schema) == schema, f"two models are called {name}"
    return description.document(schemas)


def refs_in(document: object) -> set[str]:
    return set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(document)))


def test_every_route_is_described_with_its_scope() -> None:
    routes = all_routes()
    paths = described()["paths"]
    found = {
        (method, path, operation["x-skulk-scope"])
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    assert found == {
        (route.method.lower(), re.sub(r"\{(\w+):path\}", r"{\1}", route.path), route.scope)
        for route in routes
    }


def test_every_note_is_of_a_route() -> None:
    assert set(NOTES) | set(DIALECT_NOTES) <= {
        f"{route.method} {route.path}" for route in all_routes()
    }


def test_every_reference_leads_to_a_schema_and_every_schema_is_used() -> None:
    document = described()
    schemas = document["components"]["schemas"]
    places = {f"#/components/schemas/{name}" for name in schemas}
    assert refs_in(document) - places == set()
    used = refs_in(document["paths"])
    for _ in schemas:
        used |= refs_in([schemas[place.rpartition("/")[2]] for place in used])
    assert places - used == set()


def test_operations_have_ids_of_their_own_and_all_parameters_of_their_paths() -> None:
    paths = described()["paths"]
    operations = [
        (path, operation) for path, entry in paths.items() for operation in entry.values()
    ]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for path, operation in operations:
        named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path)), path


def test_bodies_are_described_as_they_are_written() -> None:
    document = described()
    schemas = document["components"]["schemas"]
    assert schemas["PlaceInstanceBody"]["required"] == ["model_id"]
    place = document["paths"]["/place_instance"]["post"]["requestBody"]["content"]
    assert place["application/json"]["schema"] == {"$ref": "#/components/schemas/PlaceInstanceBody"}
    state = document["paths"]["/state"]["get"]["responses"]["200"]["content"]
    assert state["application/json"]["schema"] == {
        "$ref": "#/components/schemas/CamelStateDocument"
    }
    assert "nodeHealth" in schemas["CamelStateDocument"]["properties"]


def test_the_document_is_served() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.get("/openapi.json")
        assert reply.headers["content-type"] == "application/json"
        document = reply.json()
        assert document["openapi"] == "3.1.0"
        assert document["info"]["version"] == "0.1.0"
        assert document == (await api.client.get("/openapi.json")).json()

    with_api(story)


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.targets: set[str] = set()
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        self.targets |= {values[name] or "" for name in ("href", "src") if name in values}
        self.ids |= {values["id"] or ""} if "id" in values else set()


def test_the_page_needs_nothing_from_elsewhere() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.get("/docs")
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        page = Links()
        page.feed(reply.text)
        assert "script" not in page.tags
        assert page.targets == {"openapi.json", *(f"#{name}" for name in page.ids)} & page.targets
        assert "POST /v1/chat/completions" in reply.text
        assert "CamelStateDocument" in page.ids

    with_api(story)
