"""A client of `/v1/session` that a test steers frame by frame."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

WAIT_S: Final = 5.0
Frame = dict[str, Any]


@final
class SessionClient:
    """Sends what it is told, keeps what comes, and answers pings and gives credit by itself.

    Args:
        socket: Open.
        gives_credit: Whether what is read is given back as credit.
    """

    def __init__(self, socket: ClientConnection, *, gives_credit: bool = True) -> None:
        self.socket = socket
        self.frames: list[Frame] = []
        """All that came, but pings."""
        self.n_pings = 0
        self.n_bytes = 0
        self._gives_credit = gives_credit
        self._next_id = 0

    async def send(self, **fields: object) -> None:
        """Send one frame."""
        await self.socket.send(json.dumps(fields))

    async def hello(self, **fields: object) -> Frame:
        """Say hello, and give the node's answer."""
        await self.send(type="hello", **fields)
        return await self.next("hello")

    async def next(
        self, *types: str, where: Callable[[Frame], bool] | None = None, wait_s: float = WAIT_S
    ) -> Frame:
        """Read until a frame of one of these types comes (any by default), and give it."""
        async with asyncio.timeout(wait_s):
            while True:
                frame = await self.read()
                if (not types or frame["type"] in types) and (where is None or where(frame)):
                    return frame

    async def read(self) -> Frame:
        """Read one frame that is no ping."""
        while True:
            text = await self.socket.recv()
            size = len(text.encode() if isinstance(text, str) else text)
            self.n_bytes += size
            frame: Frame = json.loads(text)
            if self._gives_credit and frame["type"] != "closing":
                await self.send(type="credit", bytes=size)
            if frame["type"] != "ping":
                self.frames.append(frame)
                return frame
            self.n_pings += 1
            await self.send(type="pong", n=frame["n"])

    async def closed(self, *, wait_s: float = WAIT_S) -> Frame | None:
        """Read until the socket closes; gives the `closing` frame, if there was one."""
        closing: Frame | None = None
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    frame = await self.read()
                    closing = frame if frame["type"] == "closing" else closing
        except ConnectionClosed:
            return closing

    def new_id(self) -> int:
        """Give an id that this session has not used."""
        self._next_id += 1
        return self._next_id

    async def subscribe(self, topic: str, **fields: object) -> int:
        """Follow a topic, and give the subscription's id."""
        number = self.new_id()
        await self.send(type="subscribe", id=number, topic=topic, **fields)
        return number

    async def ask(self, method: str, path: str, **fields: object) -> Frame:
        """Ask a route, and give the answer."""
        number = self.new_id()
        await self.send(type="request", id=number, method=method, path=path, **fields)
        return await self.next("answer", where=lambda frame: frame["id"] == number)

    async def rows_until(
        self, holds: Callable[[dict[str, Any]], bool], *, wait_s: float = WAIT_S
    ) -> dict[str, Any]:
        """Gather rows of all subscriptions until something holds of them."""
        rows: dict[str, Any] = {}
        async with asyncio.timeout(wait_s):
            while not holds(rows):
                frame = await self.next("rows", wait_s=wait_s)
                rows |= frame["rows"]
        return {key: row for key, row in rows.items() if row is not None}


@asynccontextmanager
async def session_with(
    port: int,
    *,
    headers: dict[str, str] | None = None,
    says_hello: bool = True,
    gives_credit: bool = True,
    **hello: object,
) -> AsyncGenerator[SessionClient]:
    """Open a session with a node on loopback."""
    async with connect(
        f"ws://127.0.0.1:{port}/v1/session",
        additional_headers=headers,
        compression=None,
        max_size=4 << 20,
        proxy=None,
        ping_interval=None,
        close_timeout=1,
    ) as socket:
        client = SessionClient(socket, gives_credit=gives_credit)
        if says_hello:
            await client.hello(**hello)
        yield client
