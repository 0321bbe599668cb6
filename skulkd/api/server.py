"""The listeners: sockets bound by us, connections by uvicorn's protocol, an orderly end.

uvicorn's own `Server` is left out: it takes over signals, wakes ten times a second for ever, and
knows one set of sockets from start to end, where ours open and close while the node runs.
"""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal, cast, final

from uvicorn.config import Config

from protocol.clock import Clock
from protocol.errors import ConfigError
from skulkd.api.app import ApiApp
from skulkd.api.auth import is_loopback
from skulkd.api.certificate import ServedCertificate
from skulkd.api.connection import ConnectionLimits, GuardedHttp, SharedState
from skulkd.api.http import UpgradedProtocol
from skulkd.api.tls_listener import TlsListener
from skulkd.runtime.port_holder import holder_of
from skulkd.runtime.tasks import Tasks, run_blocking, sleep

_log = logging.getLogger(__name__)

_BACKLOG: Final = 512
_SPARE_DESCRIPTORS: Final = 256
"""For journal, engines and peers, whatever clients do."""
_POLL_S: Final = 0.02
_FREE_WITHIN_S: Final = 1.0
_CANCEL_S: Final = 1.0


@final
class ApiServer:
    """The HTTP listeners of this node.

    Args:
        clock: For Date headers and the grace period.
        limits: Bounds of each connection.
        certificate: With one, TLS is spoken, and plain HTTP with this machine alone.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        limits: ConnectionLimits | None = None,
        certificate: ServedCertificate | None = None,
    ) -> None:
        self._clock = clock
        self._certificate = certificate
        self._tasks = Tasks("listeners", on_death=_log_death)
        self._limits = _within_descriptors(limits or ConnectionLimits())
        self._shared = SharedState()
        self._app: ApiApp | None = None
        self._connect: Callable[[], GuardedHttp] = _not_started
        self._refuse: Callable[[], GuardedHttp] = _not_started
        self._listening: dict[str, asyncio.Server | TlsListener] = {}
        """By host."""
        self._port = 0

    @property
    def port(self) -> int:
        """The port of every listener; 0 until started."""
        return self._port

    async def start(self, app: ApiApp, *, port: int, host: str | None = None) -> None:
        """Listen on loopback, both families, or on one address instead.

        Args:
            app: What serves the requests.
            port: 0 lets the system choose; IPv6 then takes the port that IPv4 got.
            host: None for loopback.

        Raises:
            ConfigError: `config.port_busy`, `config.invalid`.
        """
        self._app = app
        config = Config(
            app,
            http=GuardedHttp,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",  # it warns of each request that is no HTTP: strangers could fill us
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=self._limits.keep_alive_s,
        )
        config.load()
        parts = (config, self._shared, self._limits, self._clock)
        self._connect = lambda: GuardedHttp(*parts)
        self._refuse = lambda: GuardedHttp(*parts, must_be_tls=True)
        self._port = port
        if host is not None:
            await self._listen(host)
            return
        await self._listen("127.0.0.1")
        try:
            await self._listen("::1")
        except ConfigError:
            await self.stop_listening()
            raise
        except OSError as error:
            _log.warning("not listening on ::1: %s; IPv4 alone serves", error.strerror)

    async def open(self, host: str) -> None:
        """Listen on a further address; `0.0.0.0` stands for all IPv4 ones. Idempotent.

        Raises:
            ConfigError: `config.port_busy`, `config.invalid`; what was served before still is.
        """
        if host in self._listening:
            return
        replaced = [name for name in self._listening if _covers(host, name)]
        for name in replaced:
            self._listening.pop(name).close()  # a wildcard cannot be bound beside its own address
        try:
            await self._listen_after(host, is_waiting=bool(replaced))
        except OSError as error:
            raise ConfigError(
                "config.invalid",
                f"cannot listen on {host}: {error.strerror}",
                remediation="Name an address of this machine.",
            ) from error
        finally:
            if host not in self._listening:
                for name in replaced:
                    await self._listen_after(name, is_waiting=True)

    async def close_beyond_loopback(self) -> None:
        """Listen on loopback only again; connections from beyond it are closed."""
        for name in [name for name in self._listening if not is_loopback(name)]:
            self._listening.pop(name).close()
        if "127.0.0.1" not in self._listening:
            await self._listen_after("127.0.0.1", is_waiting=True)
        for connection in self.connections():
            if connection.client is not None and not is_loopback(connection.client[0]):
                connection.shutdown()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses that are listened on now, sorted; wildcards as they are."""
        return tuple(sorted(self._listening))

    def urls(self) -> tuple[str, ...]:
        """Where this node is served now."""
        return tuple(
            f"{'http' if is_loopback(host) else self.scheme_beyond_loopback}"
            f"://{_in_url(host)}:{self._port}"
            for host in self.hosts
        )

    def certificate_left_s(self) -> float | None:
        """How long the certificate is valid still, once it should have been renewed."""
        return None if self._certificate is None else self._certificate.left_s()

    @property
    def scheme_beyond_loopback(self) -> Literal["http", "https"]:
        """What other machines speak with this node; on loopback both are understood."""
        return "http" if self._certificate is None else "https"

    async def stop_listening(self) -> None:
        """Take no new connection; open ones go on."""
        for server in self._listening.values():
            server.close()
        self._listening.clear()

    async def close(self, grace_s: float = 10.0) -> None:
        """Stop listening, end what is open with an error that says so, and close all connections.

        Streams get their error as the last event. What has not ended after `grace_s` is cut.
        """
        await self.stop_listening()
        if self._app is not None:
            self._app.stop()
        for connection in self.connections():
            connection.shutdown()  # the idle ones at once, the others after their response
        deadline = self._clock.monotonic_s() + grace_s
        while self._shared.connections and self._clock.monotonic_s() < deadline:
            await sleep(_POLL_S)
        cut = self.connections()
        for connection in cut:
            connection.abort()
        if cut:
            _log.warning("%d connections were cut after %g s", len(cut), grace_s)
        await self._tasks.close(_CANCEL_S)
        tasks = list(self._shared.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_CANCEL_S)
            if late:
                _log.error("%d requests ignore their cancellation", len(late))

    def connections(self) -> list[GuardedHttp | UpgradedProtocol]:
        """Give the connections that are open now."""
        return list(cast("set[GuardedHttp | UpgradedProtocol]", self._shared.connections))

    # ---- Sockets ----

    async def _listen(self, host: str) -> None:
        listener = await self._bind(host)
        if self._certificate is None:
            self._listening[host] = await asyncio.get_running_loop().create_server(
                self._connect, sock=listener, backlog=_BACKLOG
            )
        else:
            listener.settimeout(0)
            self._listening[host] = TlsListener(
                listener,
                certificate=self._certificate,
                connect=self._connect,
                refuse=self._refuse,
                n_open=lambda: len(self._shared.connections),
                limits=self._limits,
                tasks=self._tasks,
            )
        self._port = listener.getsockname()[1]

    async def _listen_after(self, host: str, *, is_waiting: bool) -> None:
        """Listen; where our own listener has just been closed, its port is free a moment later."""
        deadline = self._clock.monotonic_s() + _FREE_WITHIN_S
        while True:
            try:
                await self._listen(host)
            except ConfigError:
                if not is_waiting or self._clock.monotonic_s() > deadline:
                    raise
                await sleep(_POLL_S)
            else:
                return

    async def _bind(self, host: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # The protocol is named because asyncio sets TCP_NODELAY only on sockets that say TCP;
        # without it, head and body of each answer are 40 ms apart.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((host, self._port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                raise await self._busy(host) from error
            raise
        return listener

    async def _busy(self, host: str) -> ConfigError:
        holder = await run_blocking(holder_of, host, self._port)
        return ConfigError(
            "config.port_busy",
            f"port {self._port} on {host} is taken" + (f" by {holder}" if holder else ""),
            remediation="Stop what holds it, or set another port: skulkd --api PORT",
            details={"port": self._port, "host": host, "holder": holder or None},
        )


def _log_death(story: str, _error: BaseException) -> None:
    _log.critical("%s", story)  # none of them is essential, so that this is never called


def _not_started() -> GuardedHttp:
    message = "the server has not been started"
    raise RuntimeError(message)


def _within_descriptors(limits: ConnectionLimits) -> ConnectionLimits:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits
    allowed = max(64, soft - _SPARE_DESCRIPTORS)
    if allowed >= limits.max_connections:
        return limits
    return replace(limits, max_connections=allowed)


def _covers(host: str, other: str) -> bool:
    return (host == "0.0.0.0" and ":" not in other) or (host == "::" and ":" in other)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
