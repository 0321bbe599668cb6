"""Opens and closes the API beyond loopback, as the API itself is asked to, and says where it is."""

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Final, final

from protocol.clock import Clock
from protocol.errors import ConfigError, RequestError
from skulkd.api.auth import is_loopback
from skulkd.api.base_urls import Surroundings, base_urls
from skulkd.api.server import ApiServer
from skulkd.eventlog.gateway import StateView
from skulkd.runtime.tasks import Tasks

LOOK_AGAIN_S: Final = 60.0
"""How soon a tailnet that has come up since is noticed, once somebody uses its name."""

Persist = Callable[[str | None], Awaitable[None]]
"""Keeps the address to open again after a restart; None forgets it."""
LookAround = Callable[[], Awaitable[Surroundings]]
"""Looks where this machine is; takes seconds at most, and does not fail."""


@final
class ApiListeners:
    """Implements `Listeners`.

    Args:
        server: The listeners.
        view: Says whether there is an API key.
        persist: Keeps the choice over a restart.
        look_around: Asked when the API is opened, and when an unknown name is used afterwards.
        tasks: For that look.
        clock: For when it was last taken.
    """

    def __init__(
        self,
        server: ApiServer,
        view: StateView,
        persist: Persist,
        *,
        look_around: LookAround,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._server = server
        self._view = view
        self._persist = persist
        self._look_around = look_around
        self._tasks = tasks
        self._clock = clock
        self._around = Surroundings()
        self._looked_at_s: float | None = None

    async def open_api(self, host: str, *, persist: bool) -> tuple[str, ...]:
        """Listen on a further address; returns the URLs now served.

        Raises:
            ConfigError: `config.port_busy`, `config.invalid`.
            RequestError: `request.forbidden` while State holds no API key.
        """
        if not _is_address(host):
            # Binding would ask the name service, and the loop would wait for its answer.
            raise ConfigError(
                "config.invalid",
                f"{host[:100]!r} is not an IP address",
                remediation="Name an address of this machine, or 0.0.0.0 for all.",
            )
        if not is_loopback(host) and not self._view.state.api_keys:
            raise RequestError(
                "request.forbidden",
                f"listening on {host} needs an API key, and there is none",
                remediation="Make one first: skulk keys create NAME",
                details={"reason": "api.no_key"},
            )
        await self._server.open(host)
        await self._look()
        if persist:
            await self._persist(host)
        return self._server.urls()

    async def close_api(self) -> tuple[str, ...]:
        """Listen on loopback only again; returns the URLs now served."""
        await self._server.close_beyond_loopback()
        await self._persist(None)
        return self._server.urls()

    def urls(self) -> tuple[str, ...]:
        """Where this node is served now."""
        return self._server.urls()

    def base_urls(self) -> tuple[str, ...]:
        """What works from another machine, the best first, as the last look found."""
        scheme = self._server.scheme_beyond_loopback
        return base_urls(self._server.hosts, self._around, scheme=scheme, port=self._server.port)

    def certificate_left_s(self) -> float | None:
        """How long the certificate is valid still, once it should have been renewed."""
        return self._server.certificate_left_s()

    def names(self) -> frozenset[str]:
        """Names of this node besides the machine's own, in lower case.

        Asked when none of the others fits: a tailnet may have come up since the last look, so that
        another one is taken then, without waiting for it.
        """
        if self._is_open and self._is_look_due():
            self._looked_at_s = self._clock.monotonic_s()
            self._tasks.start(self._look(), name="look around", essential=False)
        return self._around.names

    async def on_opened(self) -> None:
        """Look around once, where the API is open from the start."""
        if self._looked_at_s is None:
            await self._look()

    @property
    def _is_open(self) -> bool:
        return any(not is_loopback(host) for host in self._server.hosts)

    def _is_look_due(self) -> bool:
        last_s = self._looked_at_s
        return last_s is None or self._clock.monotonic_s() - last_s >= LOOK_AGAIN_S

    async def _look(self) -> None:
        self._looked_at_s = self._clock.monotonic_s()
        self._around = await self._look_around()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
