"""The API on real loopback sockets with everything behind it in memory."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, final

import httpx
import uvloop

from skulkd.api.app import ApiApp, create_app
from skulkd.api.certificate import ServedCertificate
from skulkd.api.connection import ConnectionLimits
from skulkd.api.server import ApiServer
from skulkd.runtime.tasks import Tasks
from tests.support.fake_ports import FakeDaemon

CHAT = "/v1/chat/completions"


@final
class Api:
    """A running API, and ways to talk to it."""

    def __init__(
        self, daemon: FakeDaemon, app: ApiApp, server: ApiServer, client: httpx.AsyncClient
    ) -> None:
        self.daemon = daemon
        self.app = app
        self.server = server
        self.client = client

    @property
    def port(self) -> int:
        return self.server.port

    async def chat(self, **fields: object) -> httpx.Response:
        """Ask the scripted model; `fields` override the plain request."""
        return await self.client.post(CHAT, json=chat_body(**fields))

    async def raw(self, data: bytes, *, until: bytes | None = None, wait_s: float = 5.0) -> bytes:
        """Send bytes and read until the server closes, `until` has come, or `wait_s` of silence."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        received = b""
        try:
            writer.write(data)
            while part := await asyncio.wait_for(reader.read(65536), wait_s):
                received += part
                if until is not None and until in received:
                    break
        except TimeoutError:
            pass
        finally:
            writer.close()
        return received


def request_bytes(method: str, path: str, body: object = None, headers: str = "") -> bytes:
    """Write a request as it goes over the wire."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def chat_body(**fields: object) -> dict[str, Any]:
    """Make a plain request."""
    return {
        "model": "test/scripted",
        "messages": [{"role": "user", "content": "hi"}],
        **fields,
    }


def events_of(text: str) -> list[dict[str, Any]]:
    """Parse the JSON events of a stream; comments and `[DONE]` are left out."""
    return [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: ") and line != "data: [DONE]"
    ]


@asynccontextmanager
async def running_api(
    daemon: FakeDaemon,
    limits: ConnectionLimits | None = None,
    certificate: ServedCertificate | None = None,
) -> AsyncGenerator[Api]:
    """Serve on a free port; everything is closed on leaving, and no essential task has died."""
    tasks = Tasks("test api", on_death=lambda story, _: daemon.deaths.append(story))
    server = ApiServer(clock=daemon.clock, limits=limits, certificate=certificate)
    app = create_app(daemon.dependencies(tasks))
    await server.start(app, port=0)
    base = f"http://127.0.0.1:{server.port}"
    try:
        async with httpx.AsyncClient(
            base_url=base,
            timeout=10,
            trust_env=False,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        ) as client:
            yield Api(daemon, app, server, client)
    finally:
        await server.close(grace_s=2)
        await tasks.close(2)
    assert daemon.deaths == []


def with_api(
    story: Callable[[Api], Awaitable[None]],
    daemon: FakeDaemon | None = None,
    limits: ConnectionLimits | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> None:
    """Run a test's story against a running API, on the loop that the daemon uses."""

    async def run() -> None:
        async with running_api(daemon or FakeDaemon(), limits) as api:
            await story(api)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


async def until(holds: Callable[[], bool], *, within_s: float = 3.0) -> None:
    """Wait, in small steps, until something holds."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it never came to hold"
        await asyncio.sleep(0.005)
