"""A TLS proxy before a node, with a certificate that nobody vouches for."""

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from typing import Self, final

from tests.support.certificates import FIRST


@final
class TlsProxy:
    """Speaks TLS on a port of its own and plain to the node; a context manager.

    Args:
        port: The node's, on loopback.
        directory: For the certificate's file.
        pem: Certificate and key.
        own_port: Where to listen; 0 is any.
    """

    def __init__(self, port: int, directory: Path, *, pem: str = FIRST, own_port: int = 0) -> None:
        self.port = own_port
        self._node_port = port
        path = directory / f"proxy-{threading.get_ident()}-{len(list(directory.iterdir()))}.pem"
        path.write_text(pem)
        self.certificate = path
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(path)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls proxy")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._is_stopping = False
        self.n_bytes = 0
        """How many bytes clients have sent after the handshake."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._context, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        """End by aborting connections: a handler that is cancelled while it dials leaks its end."""
        assert self._server is not None
        self._is_stopping = True
        self._server.close()
        for end in tuple(self._ends):
            end.transport.abort()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._ends.add(writer)
        try:
            await self._join(reader, writer)
        finally:
            writer.transport.abort()
            self._ends.discard(writer)
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", self._node_port)
        except OSError:
            return
        self._ends.add(plain_writer)
        back = self._loop.create_task(self._pump(plain_reader, writer, is_from_client=False))
        try:
            if not self._is_stopping:
                await self._pump(reader, plain_writer, is_from_client=True)
        finally:
            plain_writer.transport.abort()
            self._ends.discard(plain_writer)
            await asyncio.wait([back])

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_from_client: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if is_from_client:
                    self.n_bytes += len(data)
                writer.write(data)
                await writer.drain()
            if not is_from_client:
                writer.close()
