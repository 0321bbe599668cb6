"""The places that requests take: of all together, and of each API key; and keys that are revoked.

A place is taken before a byte of the body is read, by the node that the client has asked. What that
node has others do for it takes none of a key there: it is counted once.
"""

from typing import Final, Protocol, final

from protocol.clock import Clock
from protocol.errors import RequestError, SkulkError
from protocol.events import SequencedEvent
from protocol.ids import CommandId, KeyId
from protocol.state import ClusterState, KeyLimits
from skulkd.api.http import Header, Request
from skulkd.api.routes import RouteSpec
from skulkd.core.key_decisions import MAX_API_KEYS
from skulkd.core.key_limits import KeyLimiter, KeyUse, RateStanding
from skulkd.eventlog.gateway import StateView

_MAX_KNOWN: Final = 2 * MAX_API_KEYS
"""Keys of which something is known, before those are forgotten that are valid no more."""
_CONTROL_PLACES: Final = 128
"""Of their own, so that clients of models cannot keep an operator out."""


class Interrupt(Protocol):
    """Ends what a command id names, if it is under way."""

    def __call__(self, command_id: CommandId, reason: SkulkError) -> None:
        """End it with this error."""
        ...


@final
class Place:
    """What one request holds; `free` is called once, when it has ended."""

    __slots__ = ("_places", "is_heavy", "key_id", "refusal", "request", "use")

    def __init__(self, places: "Places", request: Request, *, is_heavy: bool) -> None:
        self._places = places
        self.request: Final = request
        self.is_heavy: Final = is_heavy
        self.key_id: KeyId | None = None
        self.use: KeyUse | None = None
        self.refusal: SkulkError | None = None
        """Why it is void: its key was revoked."""

    def check(self) -> None:
        """Refuse what was asked for with a key that was revoked meanwhile.

        Raises:
            RequestError: `request.unauthenticated`.
        """
        if self.refusal is not None:
            raise self.refusal

    def free(self) -> None:
        """Give it back."""
        self._places.give_back(self)

    def headers(self) -> tuple[Header, ...]:
        """Say how far its key's requests a minute are used up, as OpenAI's clients read it."""
        return () if self.key_id is None else self._places.standing_of(self.key_id)


@final
class Places:
    """Bounds what is served at a time.

    Args:
        max_heavy: Requests that may stay open for minutes.
        limiter: Of the keys.
        view: Holds the keys.
        clock: For what is counted a minute.
        interrupt: Ends what a key has open that is revoked.
    """

    def __init__(
        self,
        max_heavy: int,
        limiter: KeyLimiter,
        view: StateView,
        clock: Clock,
        interrupt: Interrupt,
    ) -> None:
        self._max_heavy = max_heavy
        self._limiter = limiter
        self._view = view
        self._clock = clock
        self._interrupt = interrupt
        self._n_heavy = 0
        self._n_light = 0
        self._of_keys: set[Place] = set()
        self._unsubscribe = _nothing

    @property
    def n_open(self) -> int:
        """How many are taken."""
        return self._n_heavy + self._n_light

    def take(self, route: RouteSpec, request: Request) -> Place:
        """Take a place.

        Raises:
            RequestError: `request.overloaded`, `request.rate_limited`,
                `request.concurrency_limited`.
        """
        if route.is_heavy and self._n_heavy >= self._max_heavy:
            raise _overloaded(self._max_heavy)
        if not route.is_heavy and self._n_light >= _CONTROL_PLACES:
            raise _overloaded(_CONTROL_PLACES)
        place = Place(self, request, is_heavy=route.is_heavy)
        if route.is_metered:
            self._take_of_key(place)
        if route.is_heavy:
            self._n_heavy += 1
        else:
            self._n_light += 1
        return place

    def give_back(self, place: Place) -> None:
        """See `Place.free`."""
        if place.is_heavy:
            self._n_heavy -= 1
        else:
            self._n_light -= 1
        if place.use is not None:
            self._limiter.give_back(place.use)
            self._of_keys.remove(place)
            if not self._of_keys:
                self._unsubscribe()

    def standing_of(self, key_id: KeyId) -> tuple[Header, ...]:
        """See `Place.headers`."""
        limits = self._limits(key_id)
        if limits is None or limits.requests_per_minute is None:
            return ()
        standing = self._limiter.standing(key_id, limits, self._clock.monotonic_s())
        return () if standing is None else _standing_headers(standing)

    def _take_of_key(self, place: Place) -> None:
        key_id = KeyId(place.request.principal.name)
        limits = self._limits(key_id)
        if limits is None:
            return  # no key has asked: this machine, or a node for its client
        if self._limiter.n_known > _MAX_KNOWN:
            self._limiter.keep(frozenset(self._view.state.api_keys))
        place.use = self._limiter.take(key_id, limits, self._clock.monotonic_s())
        place.key_id = key_id
        if not self._of_keys:
            self._unsubscribe = self._view.subscribe(self._on_event, self._end_revoked)
        self._of_keys.add(place)

    def _limits(self, key_id: KeyId) -> KeyLimits | None:
        key = self._view.state.api_keys.get(key_id)
        return None if key is None else key.limits

    # ---- Keys that are revoked ----

    def _on_event(self, sequenced: SequencedEvent, state: ClusterState) -> None:
        if sequenced.event.kind == "api_key_revoked":
            self._end_revoked(state)

    def _end_revoked(self, state: ClusterState) -> None:
        for place in tuple(self._of_keys):
            if place.key_id in state.api_keys:
                continue
            place.refusal = _revoked(place.key_id)
            if place.request.command_id is not None:
                self._interrupt(place.request.command_id, place.refusal)


def _nothing() -> None:
    """Nobody follows the keys."""


def _standing_headers(standing: RateStanding) -> tuple[Header, ...]:
    return (
        (b"x-ratelimit-limit-requests", b"%d" % standing.limit),
        (b"x-ratelimit-remaining-requests", b"%d" % standing.remaining),
        (b"x-ratelimit-reset-requests", b"%ds" % standing.reset_s),
    )


def _revoked(key_id: KeyId | None) -> RequestError:
    return RequestError(
        "request.unauthenticated",
        f"the key {key_id} was revoked while this was under way",
        remediation="Ask again with a key that is valid.",
    )


def _overloaded(places: int) -> RequestError:
    return RequestError(
        "request.overloaded",
        f"{places} requests are being served already",
        remediation="Try again shortly, or raise the setting `max_concurrent_requests`.",
        details={"max_concurrent_requests": places},
        retry_after_s=1,
    )
