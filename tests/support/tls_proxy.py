"""A TLS proxy before a node, with certificates that nobody vouches for.

The certificates and keys were made for these tests, serve 127.0.0.1 alone, and are no secret.
"""

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from typing import Final, Self, final

FIRST: Final = """\
-----BEGIN CERTIFICATE-----
MIIBnDCCAUOgAwIBAgIUINiTznu4mUHb/RPMuPa05uqUkFcwCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKdGVzdCBmaXJzdDAgFw0yNjExMzAxMTA5NTdaGA8yMTI2MTEw
NjExMDk1N1owFTETMBEGA1UEAwwKdGVzdCBmaXJzdDBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABG3m3TPvTw5fpqh7jWYtJpQkl6D497oMlTwiYUbDcs9Q5El6ONcC
82kNFQQjhCJGEqNhH4315okeAE7GtVhpAFujbzBtMB0GA1UdDgQWBBSZXJCJ2S1z
n5dvy+xmqol8d3MNlTAfBgNVHSMEGDAWgBSZXJCJ2S1zn5dvy+xmqol8d3MNlTAP
BgNVHRMBAf8EBTADAQH/MBoGA1UdEQQTMBGHBH8AAAGCCWxvY2FsaG9zdDAKBggq
hkjOPQQDAgNHADBEAiA5s4ZYC9wAA0fol+cj9Iz2s/RJQaLCZTUxVe4bW5LHgQIg
dTzjLIq8Ub1dqWgyR9IBSYE46o/pMIVlIGC7pfXMQ5Y=
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgV6zriVnlSwLIoLZC
D+aeCftv+6SQ+RPSd+AucytH0mqhRANCAARt5t0z708OX6aoe41mLSaUJJeg+Pe6
DJU8ImFGw3LPUORJejjXAvNpDRUEI4QiRhKjYR+N9eaJHgBOxrVYaQBb
-----END PRIVATE KEY-----
"""
SECOND: Final = """\
-----BEGIN CERTIFICATE-----
MIIBnjCCAUWgAwIBAgIUCalQQQDDK1GMQz7AVh4G9b4fIokwCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLdGVzdCBzZWNvbmQwIBcNMjYxMTMwMTEwOTU3WhgPMjEyNjEx
MDYxMTA5NTdaMBYxFDASBgNVBAMMC3Rlc3Qgc2Vjb25kMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEeVSgVfZ+m8e397PUYOIW4F4sRwiiwmBW4clr7k2Y+N4Ut2C0
A/+Ok3z4jvMSI4ZL32eQCTm5kEbD1groiLkFZaNvMG0wHQYDVR0OBBYEFBNW3omg
VGqNZUHEkFGIo3NuYrwKMB8GA1UdIwQYMBaAFBNW3omgVGqNZUHEkFGIo3NuYrwK
MA8GA1UdEwEB/wQFMAMBAf8wGgYDVR0RBBMwEYcEfwAAAYIJbG9jYWxob3N0MAoG
CCqGSM49BAMCA0cAMEQCICK1lkPCICJtgidePZJUTlNCqiZtoNiXL8F5sNhslI3f
AiB4T+RImUbEfK7wtay5Euq353L1X8bBvToBd+WXUWGLHA==
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgOPtrkweBuzHplA6v
A3gNYzzhU9iHBkxBNT57wq8UOp6hRANCAAR5VKBV9n6bx7f3s9Rg4hbgXixHCKLC
YFbhyWvuTZj43hS3YLQD/46TfPiO8xIjhkvfZ5AJObmQRsPWCuiIuQVl
-----END PRIVATE KEY-----
"""


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
