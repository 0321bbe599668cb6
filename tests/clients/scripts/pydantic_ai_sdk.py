# pyright: basic, reportMissingImports=false
# The client is installed in an environment of its own.

import asyncio
from importlib.metadata import version

from pydantic_ai import Agent
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from seen import (
    ABSENT,
    CALLER,
    MORTAL,
    NODE,
    QUESTION,
    RESULT,
    SPEAKER,
    TOO_LONG,
    failure,
    show,
)

PROVIDER = OpenAIProvider(base_url=f"{NODE}/v1", api_key="none")


def agent(name: str = SPEAKER) -> Agent:
    return Agent(OpenAIChatModel(name, provider=PROVIDER))


def with_tool() -> Agent:
    made = agent(CALLER)

    @made.tool_plain
    def weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"{RESULT} in {city}"

    return made


def used(usage) -> list[int]:
    return [usage.input_tokens, usage.output_tokens]


def usage_of(run) -> list[int]:
    return used(run.usage() if callable(run.usage) else run.usage)


def calls_of(messages) -> list:
    parts = [part for message in messages for part in message.parts]
    return [[p.tool_name, p.args_as_dict()] for p in parts if isinstance(p, ToolCallPart)]


async def gathered(made: Agent) -> dict:
    async with made.run_stream(QUESTION) as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    return {
        "text": "".join(pieces),
        "n_pieces": len(pieces),
        "usage": usage_of(run),
        "calls": calls_of(run.all_messages()),
    }


def whole() -> dict:
    run = agent().run_sync(QUESTION)
    return {"text": run.output, "usage": usage_of(run)}


def tools() -> dict:
    run = with_tool().run_sync(QUESTION)
    return {"calls": calls_of(run.all_messages()), "text": run.output}


def died() -> dict:
    pieces: list[str] = []

    async def read() -> None:
        async with agent(MORTAL).run_stream(QUESTION) as run:
            async for piece in run.stream_text(delta=True, debounce_by=None):
                pieces.append(piece)

    return {**failure(lambda: asyncio.run(read())), "text": "".join(pieces)}


show(
    version=version("pydantic-ai-slim"),
    whole=whole(),
    streamed=asyncio.run(gathered(agent())),
    tools=tools(),
    tools_streamed=asyncio.run(gathered(with_tool())),
    absent=failure(lambda: agent(ABSENT).run_sync(QUESTION)),
    too_long=failure(lambda: agent().run_sync(TOO_LONG)),
    died=died(),
)
