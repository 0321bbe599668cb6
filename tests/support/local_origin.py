"""An HTTP server on loopback in a thread of its own, for tests that fetch something."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """Answers one request a connection, and keeps no log."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.close_connection = True
        self.respond()

    def respond(self) -> None:
        raise NotImplementedError

    # ruff: ignore[builtin-argument-shadowing]  the base class's name
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def handle_error(self, request: object, client_address: object) -> None:
        del request, client_address  # A client that left in the middle is what is tested.


@contextmanager
def serving_by(handler: type[QuietHandler], released: threading.Event) -> Generator[str]:
    """Serve until the block ends; then every connection is let go.

    Args:
        handler: Answers requests.
        released: Set at the end; answers that stall wait for it.

    Yields:
        The origin, as `http://127.0.0.1:PORT`.
    """
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        released.set()
        server.shutdown()
        server.server_close()
        thread.join()
