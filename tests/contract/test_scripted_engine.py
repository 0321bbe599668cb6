"""What the scripted engine does on demand: real deaths, stalls, loads and cut characters."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest
import uvloop

from engines.base import EngineClient
from engines.registry import engine_of
from protocol.cards import ScriptedSection
from tests.support.engine_process import (
    ANSWER,
    WAIT_S,
    EngineProcess,
    a_scripted_spec,
    a_task,
    asked,
    failed,
    nothing,
    short_directory,
    text_of,
    wait_for_statistics,
    with_client,
)


@pytest.fixture(name="directory")
def _directory() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


def test_a_death_in_mid_stream_is_engine_gone(directory: Path) -> None:
    script = ScriptedSection(reply=ANSWER, exit_after_tokens=3)
    process = EngineProcess.start(engine_of("scripted"), a_scripted_spec(directory, script))
    try:
        (frames,) = asked(process, a_task())
        assert text_of(frames) == "The capital of"
        assert failed(frames).error.code == "engine.gone"
        assert process.process.wait(WAIT_S) == -signal.SIGKILL
    finally:
        process.stop()


def test_a_scripted_load_fails_as_its_script_says(directory: Path) -> None:
    script = ScriptedSection(load_delay_ms=20, load_exit_code=3, load_stderr="no such device")
    process = EngineProcess.start(engine_of("scripted"), a_scripted_spec(directory, script))
    try:
        assert process.process.wait(WAIT_S) == 3
        assert process.log_path.read_text().splitlines()[-1] == "no such device"
    finally:
        process.stop()


def test_a_script_takes_the_memory_that_it_says(directory: Path) -> None:
    n_bytes = 64 << 20
    script = ScriptedSection(memory_bytes=n_bytes)
    process = EngineProcess.start(engine_of("scripted"), a_scripted_spec(directory, script))
    try:
        with_client(process, nothing)
        resident = psutil.Process(process.process.pid).memory_info().rss
        assert n_bytes < resident < n_bytes + process.engine.describe().overhead_bytes * 2
    finally:
        process.stop()


def test_a_script_stalls_until_its_client_goes(directory: Path) -> None:
    script = ScriptedSection(reply=ANSWER, stall_after_tokens=2)
    process = EngineProcess.start(engine_of("scripted"), a_scripted_spec(directory, script))

    async def story(client: EngineClient) -> None:
        async with aclosing(client.chat(a_task())) as frames:
            seen = [await anext(frames) for _ in range(3)]
            assert text_of(seen) == "The capital"
            assert (await client.statistics()).slots_busy == 1
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await anext(frames)
        await wait_for_statistics(client, lambda seen: seen.slots_busy == 0)

    try:
        with_client(process, story)
    finally:
        process.stop()


def test_a_script_can_withstand_sigterm_and_die_of_a_signal(directory: Path) -> None:
    deaf = ScriptedSection(ignore_sigterm=True)
    process = EngineProcess.start(engine_of("scripted"), a_scripted_spec(directory, deaf))
    try:
        with_client(process, nothing)
        process.process.terminate()
        with_client(process, nothing)
        assert process.process.poll() is None
    finally:
        process.stop()
    killed = ScriptedSection(load_signal=signal.SIGILL)
    process = EngineProcess.start(engine_of("scripted"), a_scripted_spec(directory, killed))
    try:
        assert process.process.wait(WAIT_S) == -signal.SIGILL
    finally:
        process.stop()


def test_a_load_tells_its_progress(directory: Path) -> None:
    script = ScriptedSection(load_delay_ms=500, load_progress_every_ms=20)
    process = EngineProcess.start(engine_of("scripted"), a_scripted_spec(directory, script))

    async def story() -> None:
        client = process.engine.connect(process.spec, process.launch.endpoint)
        seen: list[float] = []
        while not (status := await client.load_status()).loaded:
            if status.done_ratio is not None:
                seen.append(status.done_ratio)
            await asyncio.sleep(0.02)
        await client.close()
        assert len(seen) > 2
        assert seen == sorted(seen)
        assert 0 <= seen[0] < seen[-1] <= 1

    try:
        uvloop.run(story())
    finally:
        process.stop()


@pytest.mark.parametrize("n_tokens", range(12))
def test_bytes_that_make_no_whole_character_are_dropped(directory: Path, n_tokens: int) -> None:
    reply = "a\N{PARTY POPPER} \N{EURO SIGN}"
    script = ScriptedSection(reply=reply, split_utf8=True)
    process = EngineProcess.start(engine_of("scripted"), a_scripted_spec(directory, script))
    try:
        (frames,) = asked(process, a_task(max_tokens=n_tokens + 1))
    finally:
        process.stop()
    assert text_of(frames) == reply.encode()[: n_tokens + 1].decode("utf-8", "ignore")
