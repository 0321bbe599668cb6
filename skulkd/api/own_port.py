"""Whether our own port answers as us: engines are started only after that.

A bind that succeeded is not enough: a rival daemon may hold the port on the other address family,
and its `/health` answers just as well. Only our own boot id proves that clients reach this process.
"""

import asyncio
import contextlib
import json
from typing import Final, cast

from protocol.clock import Clock
from protocol.errors import ConfigError
from skulkd.runtime.tasks import sleep, timeout

ANSWER_WITHIN_S: Final = 60.0
_INTERVAL_S: Final = 0.1
_TRY_S: Final = 2.0
_MAX_ANSWER_BYTES: Final = 65536


async def wait_own_port(host: str, port: int, *, boot_id: str, clock: Clock) -> None:
    """Wait until `/health` at an address is answered by this process.

    Raises:
        ConfigError: `config.port_busy`; somebody else answers there, or nobody does in 60 s.
    """
    give_up_s = clock.monotonic_s() + ANSWER_WITHIN_S
    seen = ""
    while True:
        with contextlib.suppress(OSError, ValueError, TypeError):
            async with timeout(_TRY_S):
                seen = await _boot_id_at(host, port)
            if seen == boot_id:
                return
        if clock.monotonic_s() > give_up_s:
            who = f"another daemon (boot id {seen[:40]})" if seen else "nobody"
            raise ConfigError(
                "config.port_busy",
                f"{host} port {port} is answered by {who} instead of this process",
                remediation="Stop what answers there, or set another port: skulkd --api PORT",
                details={"host": host, "port": port},
            )
        await sleep(_INTERVAL_S)


async def _boot_id_at(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        name = f"[{host}]" if ":" in host else host
        writer.write(
            f"GET /health HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read(_MAX_ANSWER_BYTES)
        while piece := await reader.read(_MAX_ANSWER_BYTES):
            answer += piece
            if len(answer) > _MAX_ANSWER_BYTES:
                message = "the answer is too long"
                raise ValueError(message)
    finally:
        writer.close()
    document: object = json.loads(answer.partition(b"\r\n\r\n")[2])
    if not isinstance(document, dict):
        message = "the answer is no object"
        raise TypeError(message)
    return str(cast("dict[str, object]", document).get("boot_id", ""))
