"""Engines as processes of their own for tests: started as a launcher does, asked, and killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from engines.base import Engine, EngineClient, EngineStatistics, LaunchSpec, LoadSpec
from protocol.cards import ModelCard, ScriptedSection
from protocol.data_frames import Chunk, Failed, Finished, Frame
from protocol.nodes import EngineFacts
from protocol.tasks import ChatMessage, ChatTask, Sampling
from tests.support import llama_server_cli
from tests.support.builders import MODEL, a_card, a_command_id, a_scripted_card

WAIT_S: Final = 30.0
CONTEXT_TOKENS: Final = 2048
SLOTS: Final = 4
QUESTION: Final = "What is the capital of France? Answer in one sentence."
ANSWER: Final = "The capital of France is Paris."
LONG_TEXT: Final = "Tell a very long story about a fox. Begin with: Once upon a time"


@dataclass
class EngineProcess:
    engine: Engine
    spec: LoadSpec
    launch: LaunchSpec
    process: subprocess.Popen[bytes]
    log_path: Path

    @classmethod
    def start(cls, engine: Engine, spec: LoadSpec) -> "EngineProcess":
        """Do what a launcher does: a free path, a umask, a session, a scrubbed environment."""
        launch = engine.launch(spec)
        spec.socket_path.unlink(missing_ok=True)
        log_path = spec.socket_path.with_suffix(".log")
        # A program that is run from another tree than the one installed keeps to that tree.
        names = ("PATH", "PYTHONPATH")
        inherited = {name: os.environ[name] for name in names if name in os.environ}
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**inherited, **launch.environment},
                start_new_session=True,
                umask=0o077,
            )
        return cls(engine, spec, launch, process, log_path)

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[EngineClient]:
        client = self.engine.connect(self.spec, self.launch.endpoint)
        try:
            deadline = time.monotonic() + WAIT_S
            while not (await client.load_status()).loaded:
                assert self.process.poll() is None, self.log_path.read_text()
                assert time.monotonic() < deadline, self.log_path.read_text()
                await asyncio.sleep(0.01)
            yield client
        finally:
            await client.close()

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)


def a_spec(directory: Path, card: ModelCard, build: EngineFacts, entry: Path) -> LoadSpec:
    return LoadSpec(
        card=card,
        entry_path=entry,
        context_tokens=CONTEXT_TOKENS,
        slots=SLOTS,
        compute="cpu",
        n_threads=1,  # a second one would spin while other tests run
        socket_path=directory / f"{len(tuple(directory.iterdir()))}.sock",
        build=build,
    )


def a_scripted_spec(directory: Path, script: ScriptedSection) -> LoadSpec:
    build = EngineFacts(engine="scripted", provider="builtin", usable=True)
    return a_spec(directory, a_scripted_card(scripted=script), build, directory / "nothing")


def a_llama_spec(
    directory: Path, name: str, entry: Path, card: ModelCard | None = None
) -> LoadSpec:
    is_binary = name == "llama_server binary"
    build = EngineFacts(
        engine="llama_server",
        provider="binary" if is_binary else "hosted",
        path=str(llama_server_cli.install(directory)) if is_binary else sys.executable,
        usable=True,
    )
    return a_spec(directory, card or a_card(), build, entry)


def a_task(text: str = QUESTION, **fields: object) -> ChatTask:
    message = ChatMessage(role="user", content=text)
    defaults = {"sampling": Sampling(temperature=0, seed=1), "max_tokens": 40}
    identity = {"command_id": a_command_id(), "model_id": MODEL, "messages": (message,)}
    return ChatTask.model_validate({**identity, **defaults, **fields})


async def frames_of(client: EngineClient, task: ChatTask) -> list[Frame]:
    return [frame async for frame in client.chat(task)]


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, Chunk))


def finished(frames: list[Frame]) -> Finished:
    last = frames[-1]
    assert isinstance(last, Finished), last
    return last


def failed(frames: list[Frame]) -> Failed:
    last = frames[-1]
    assert isinstance(last, Failed), last
    return last


async def wait_for_statistics(
    client: EngineClient, holds: Callable[[EngineStatistics], bool]
) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds(await client.statistics()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def with_client(
    process: EngineProcess, story: Callable[[EngineClient], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        async with process.client() as client:
            await story(client)

    uvloop.run(run())


def asked(process: EngineProcess, *tasks: ChatTask) -> list[list[Frame]]:
    """Give the frames of each task, asked one after the other."""
    answers: list[list[Frame]] = []

    async def story(client: EngineClient) -> None:
        answers.extend([await frames_of(client, task) for task in tasks])

    with_client(process, story)
    return answers


async def nothing(_client: EngineClient) -> None:
    """Loading is the whole story."""


@contextlib.contextmanager
def short_directory() -> Generator[Path]:
    # pytest's own temporary directories are too deep for the 100 bytes of a socket's path.
    with tempfile.TemporaryDirectory(prefix="skulk-") as directory:
        yield Path(directory)
