"""A bare ZeroMQ end that speaks with any key: strangers, guests at the wrong port, broken members.

What it sends is chosen by the test, byte by byte; what becomes of its connection is read from the
socket's monitor.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self, final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from protocol.envelope import WIRE_VERSION, Port
from protocol.hello import Hello, hello_frame
from protocol.ids import ClusterId, node_id_of
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.lanes import port_number
from skulkd.runtime.identity import KeyPair

HOST: Final = "127.0.0.1"
_POLL_MS: Final = 20


def key_of(home: Path) -> KeyPair:
    """Read the key of a daemon's home."""
    kept = json.loads((home / "identity.json").read_text())
    return KeyPair(
        public_key=bytes.fromhex(kept["public_key"]), secret_key=bytes.fromhex(kept["secret_key"])
    )


@final
class RawPeer:
    """Dials the ports of one node; a context manager.

    Args:
        server_key: The node's public key.
        base_port: The first of its ports.
        keys: As whom; a key that nobody knows by default.
    """

    def __init__(self, server_key: bytes, base_port: int, keys: KeyPair | None = None) -> None:
        self.keys = keys or make_key_pair()
        self._server_key = server_key
        self._base_port = base_port
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._links: list[RawLink] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        self._context.destroy(linger=0)

    def dial(self, port: Port, *, is_plain: bool = False) -> "RawLink":
        """Connect to a port; `is_plain` is without any encryption."""
        socket = self._context.socket(zmq.DEALER)
        if not is_plain:
            socket.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(self._server_key))
            socket.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(self.keys.public_key))
            socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(self.keys.secret_key))
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.SNDTIMEO, 2000)
        link = RawLink(socket)
        self._links.append(link)
        socket.connect(f"tcp://{HOST}:{port_number(self._base_port, port)}")
        return link

    def hello(self, cluster_id: str, *, boot_id: str = "b1", base_port: int = 1) -> bytes:
        """Write a hello in the name of the own key."""
        return hello_frame(
            Hello(
                wire=WIRE_VERSION,
                build="test",
                node_id=node_id_of(self.keys.public_key),
                boot_id=boot_id,
                cluster_id=ClusterId(cluster_id),
                base_port=base_port,
            )
        )


@final
class RawLink:
    """One connection, and what became of it."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._monitor = socket.get_monitor_socket()
        self.events: list[int] = []

    def close(self) -> None:
        """Drop the connection and what waits in it."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def send(self, *frames: bytes) -> bool:
        """Send one message; says whether there was a connection that took it."""
        try:
            self._socket.send_multipart(frames)
        except zmq.Again:
            return False
        return True

    def wait_for(self, events: Sequence[int], *, timeout_s: float) -> int | None:
        """Wait for one of these events of the connection; None when none came in time."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if self._monitor.poll(_POLL_MS):
                parsed = parse_monitor_message(self._monitor.recv_multipart())
                self.events.append(int(parsed["event"]))
                if self.events[-1] in events:
                    return self.events[-1]
        return None
