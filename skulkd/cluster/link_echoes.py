"""Measures how long a word takes to each peer and back, on the plane of the readings.

That plane shares a connection with the tokens of answers, and gives way to them: what is measured
is what they would take. A few peers are asked at a time, so that their answers do not wait for each
other, and each of them every `ECHO_S`.
"""

import asyncio
from typing import Final, final

from protocol.clock import Clock
from protocol.ids import NodeId
from protocol.telemetry_wire import Echo, pack_echo, unpack_echo
from skulkd.cluster.transport import LinkState, Transport
from skulkd.core.link_rtt import LinkRtt, LinkRtts

ECHO_S: Final = 20.0
AT_A_TIME: Final = 8


@final
class LinkEchoes:
    """Asks and answers; `hear` is called by who has the telemetry plane.

    Args:
        transport: The way to the peers.
        clock: Of what is measured.
    """

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._rtts = LinkRtts()
        self._waiting: tuple[NodeId, ...] = ()
        """Who is still to be asked in this round."""
        self._pause_s = ECHO_S
        self._is_closed = False
        transport.on_link(self._on_link)
        self._timer = asyncio.get_running_loop().call_later(ECHO_S, self._tick)

    def rtt(self, peer: NodeId) -> LinkRtt | None:
        """Say how long the way there and back is; None while that is not known."""
        return self._rtts.of(peer)

    def hear(self, peer: NodeId, payload: bytes) -> None:
        """Take a peer's question or answer.

        Raises:
            ProtocolError: `protocol.bad_frame`, `protocol.too_large`.
        """
        echo, now = unpack_echo(payload), self._clock.monotonic_s()
        if echo.is_answer:
            self._rtts.answer(peer, echo.number, now=now)
            return
        self._say(peer, Echo(echo.number, is_answer=True))
        # The way there may have been open before the way back, so that no answer could come.
        if self._rtts.is_wanted(peer, now=now):
            self._ask(peer)

    def close(self) -> None:
        """Ask nobody any more; idempotent."""
        self._is_closed = True
        self._timer.cancel()

    def _tick(self) -> None:
        if not self._waiting:
            self._waiting = self._transport.peers()
            self._rtts.keep(frozenset(self._waiting))
            self._pause_s = ECHO_S / max(1, -(-len(self._waiting) // AT_A_TIME))
        asked, self._waiting = self._waiting[:AT_A_TIME], self._waiting[AT_A_TIME:]
        for peer in asked:
            self._ask(peer)
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._tick)

    def _ask(self, peer: NodeId) -> None:
        number = self._rtts.ask(peer, now=self._clock.monotonic_s())
        self._say(peer, Echo(number, is_answer=False))

    def _say(self, peer: NodeId, echo: Echo) -> None:
        # Refused is as good as lost: it is asked again.
        key = "echo answer" if echo.is_answer else "echo"
        self._transport.send(peer, "telemetry", pack_echo(echo), key=key)

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        if self._is_closed:
            return
        if state == "up":
            self._ask(peer)
        else:
            self._rtts.forget(peer)
