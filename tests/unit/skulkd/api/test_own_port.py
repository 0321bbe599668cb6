import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from protocol.errors import ConfigError
from skulkd.api import own_port
from skulkd.runtime.clock import SystemClock

Answer = bytes | None


def with_server(answers: list[Answer], story: Callable[[int], Awaitable[None]]) -> None:
    """Serve the answers one after another, the last one for ever; None closes without one."""

    async def run() -> None:
        left = list(answers)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            answer = left.pop(0) if len(left) > 1 else left[0]
            if answer is not None:
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + answer)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            await story(server.sockets[0].getsockname()[1])

    asyncio.run(run())


async def wait(port: int) -> None:
    await own_port.wait_own_port("127.0.0.1", port, boot_id="me", clock=SystemClock())


def test_our_own_answer_ends_the_wait() -> None:
    with_server([b'{"status": "ok", "boot_id": "me"}'], wait)


def test_what_answers_late_or_wrongly_is_asked_again() -> None:
    with_server(
        [None, b"not json", b"[1]", b'{"boot_id": 7}', b"x" * 70_000, b'{"boot_id": "me"}'], wait
    )


def test_a_rival_on_our_port_is_named_and_never_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_port, "ANSWER_WITHIN_S", 0.3)

    async def story(port: int) -> None:
        with pytest.raises(ConfigError) as refused:
            await wait(port)
        assert refused.value.code == "config.port_busy"
        assert "boot id rival" in refused.value.message

    with_server([b'{"status": "ok", "boot_id": "rival"}'], story)


def test_silence_on_our_port_is_told_apart_from_a_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_port, "ANSWER_WITHIN_S", 0.3)

    async def story(port: int) -> None:
        with pytest.raises(ConfigError) as refused:
            await wait(port)
        assert "nobody" in refused.value.message

    with_server([None], story)
