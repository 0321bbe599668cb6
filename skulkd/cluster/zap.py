"""Answers ZeroMQ's question about each key that has been proved: may it connect, and as whom?

ZeroMQ asks in a handshake, over an endpoint inside the process (RFC 27, ZAP). Without this, CURVE
would encrypt for everybody.
"""

from collections.abc import Callable
from typing import Final, final

import zmq

from protocol.clock import Clock
from protocol.envelope import Port
from skulkd.cluster.admission import Verdict
from skulkd.cluster.stranger_list import StrangerList
from skulkd.cluster.zmq_sockets import NOBLOCK, Context, SocketReader, plain_host, zap_domain

ENDPOINT: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_N_FRAMES: Final = 7
_KEY_BYTES: Final = 32
_PER_TURN: Final = 64


@final
class ZapHandler:
    """The handler of one context; must exist before a socket of the context is bound.

    Args:
        context: Of the port.
        port: Whose domain is answered for.
        judge: Decides about a key.
        strangers: Where refusals are noted.
        clock: For their times.
    """

    def __init__(
        self,
        context: Context,
        port: Port,
        *,
        judge: Callable[[Port, bytes], Verdict],
        strangers: StrangerList,
        clock: Clock,
    ) -> None:
        self._port: Port = port
        self._domain = zap_domain(port)
        self._judge = judge
        self._strangers = strangers
        self._clock = clock
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ENDPOINT)
        self._reader = SocketReader(self._socket, self._answer_some)

    def close(self) -> None:
        """Answer no more; handshakes then fail."""
        self._reader.close()
        self._socket.close(0)

    def _answer_some(self) -> bool:
        for _ in range(_PER_TURN):
            try:
                frames = self._socket.recv_multipart(NOBLOCK)
            except zmq.Again:
                return False
            self._socket.send_multipart(self._answer(frames), NOBLOCK)
        return True

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        if len(frames) != _N_FRAMES or frames[0] != _VERSION:
            return [_VERSION, frames[1] if len(frames) > 1 else b"", b"500", b"version", b"", b""]
        _, request, domain, address, _, mechanism, key = frames
        if domain != self._domain or mechanism != b"CURVE" or len(key) != _KEY_BYTES:
            return [_VERSION, request, b"400", b"not admitted", b"", b""]
        verdict = self._judge(self._port, key)
        if verdict.user_id is None:
            host = plain_host(address.decode("ascii", "replace"))
            self._strangers.note(key, host, verdict.reason, now_s=self._clock.monotonic_s())
            # The reason stays here: a stranger learns nothing from it.
            return [_VERSION, request, b"400", b"not admitted", b"", b""]
        return [_VERSION, request, b"200", b"OK", verdict.user_id.encode(), b""]
