"""`GET /openapi.json` and `GET /docs`: the API, described by itself."""

import json
from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

from skulkd.api.http import Answer, Header, Reply, Request
from skulkd.api.reference_page import reference_page
from skulkd.api.route_notes import Schema
from skulkd.runtime.tasks import run_blocking, sleep

_HTML: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
)


class Bodies(Protocol):
    """Models that make a part of the schemas."""

    def schemas(self) -> Schema:
        """Give their schemas by name, in a few milliseconds."""
        ...


class Description(Protocol):
    """`skulkd.api.openapi.ApiDescription`, which knows the table that these routes stand in."""

    @property
    def bodies(self) -> Sequence[Bodies]:
        """What the schemas come from."""
        ...

    def document(self, schemas: Schema) -> Schema:
        """Give the document, once all schemas are there."""
        ...


@final
class ReferenceRoutes:
    """The routes that describe all routes; the document is made when it is first asked for."""

    def __init__(self) -> None:
        self.describe: Callable[[], Description] = _unset
        """Set once there is a table of routes."""
        self._document: Schema | None = None

    async def document(self, request: Request) -> Answer:
        """`GET /openapi.json`."""
        del request
        return Reply(body=json.dumps(await self._described()).encode())

    async def page(self, request: Request) -> Answer:
        """`GET /docs`: a page that needs nothing from elsewhere."""
        del request
        return Reply(body=reference_page(await self._described()), headers=_HTML)

    async def _described(self) -> Schema:
        """Give the document, made bit by bit, so that streams go on meanwhile."""
        if self._document is None:
            # What describes foreign bodies is loaded by this; that takes a tenth of a second.
            description = await run_blocking(self.describe)
            schemas: Schema = {}
            for body in description.bodies:
                schemas.update(body.schemas())
                await sleep(0)
            self._document = description.document(schemas)
        return self._document


def _unset() -> Description:
    message = "no table of routes has been set"
    raise AssertionError(message)
