# pyright: basic, reportMissingImports=false
# The client is installed in an environment of its own.

import json
import os
import sys
from importlib.metadata import version

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
from seen import (
    ABSENT,
    CALLER,
    EMBEDDER,
    MORTAL,
    NODE,
    QUESTION,
    RESULT,
    SPEAKER,
    TEXTS,
    TOO_LONG,
    WEATHER,
    failure,
    show,
)

ROUTE = sys.argv[2]
BASE = {"openai": f"{NODE}/v1", "anthropic": NODE, "ollama_chat": f"{NODE}/ollama"}[ROUTE]
# It takes models of Ollama for ones without tools unless it is told.
litellm.register_model(
    {f"ollama/{CALLER}": {"litellm_provider": "ollama", "supports_function_calling": True}}
)
TOOLS = [{"type": "function", "function": WEATHER}]


def asked(text: str = QUESTION) -> list[dict]:
    return [{"role": "user", "content": text}]


def chat(model: str = SPEAKER, messages: list | None = None, **fields):
    return litellm.completion(
        model=f"{ROUTE}/{model}",
        api_base=BASE,
        api_key="none",
        messages=messages or asked(),
        **fields,
    )


def used(usage) -> list[int]:
    return [usage.prompt_tokens, usage.completion_tokens]


def whole() -> dict:
    answer = chat()
    return {"text": answer.choices[0].message.content, "usage": used(answer.usage)}


def streamed() -> dict:
    frames = list(chat(stream=True, stream_options={"include_usage": True}))
    pieces = [frame.choices[0].delta.content for frame in frames if frame.choices]
    pieces = [piece for piece in pieces if piece]
    usages = [frame.usage for frame in frames if getattr(frame, "usage", None)]
    return {"text": "".join(pieces), "n_pieces": len(pieces), "usage": used(usages[-1])}


def tools() -> dict:
    return answered(chat(CALLER, tools=TOOLS).choices[0].message)


def tools_streamed() -> dict:
    frames = list(chat(CALLER, tools=TOOLS, stream=True))
    return answered(litellm.stream_chunk_builder(frames).choices[0].message)


def answered(message) -> dict:
    calls = message.tool_calls
    results = [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in calls]
    last = chat(CALLER, [*asked(), message, *results], tools=TOOLS)
    return {
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
        "text": last.choices[0].message.content,
    }


def died() -> dict:
    pieces: list[str] = []

    def read() -> None:
        for frame in chat(MORTAL, stream=True):
            pieces.append(frame.choices[0].delta.content or "")

    return {**failure(read), "text": "".join(pieces)}


def embedded() -> list[list[float]]:
    answer = litellm.embedding(
        model=f"openai/{EMBEDDER}",
        api_base=f"{NODE}/v1",
        api_key="none",
        input=TEXTS,
    )
    return [item["embedding"] for item in answer.data]


show(
    version=version("litellm"),
    whole=whole(),
    streamed=streamed(),
    tools=tools(),
    tools_streamed=tools_streamed(),
    absent=failure(lambda: chat(ABSENT)),
    too_long=failure(lambda: chat(messages=asked(TOO_LONG))),
    died=died(),
    embedded=embedded(),
)
