# pyright: basic, reportMissingImports=false
# The client is installed in an environment of its own.

import json

import openai
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

CLIENT = openai.OpenAI(base_url=f"{NODE}/v1", api_key="none")
TOOLS = [{"type": "function", "function": WEATHER}]


def asked(text: str = QUESTION) -> list[dict]:
    return [{"role": "user", "content": text}]


def chat(model: str = SPEAKER, text: str = QUESTION, **fields):
    return CLIENT.chat.completions.create(model=model, messages=asked(text), **fields)


def whole() -> dict:
    answer = chat()
    return {"text": answer.choices[0].message.content, "usage": used(answer.usage)}


def streamed() -> dict:
    frames = list(chat(stream=True, stream_options={"include_usage": True}))
    pieces = [frame.choices[0].delta.content for frame in frames if frame.choices]
    pieces = [piece for piece in pieces if piece]
    return {"text": "".join(pieces), "n_pieces": len(pieces), "usage": used(frames[-1].usage)}


def used(usage) -> list[int]:
    return [usage.prompt_tokens, usage.completion_tokens]


def tools() -> dict:
    messages = asked()
    message = (
        CLIENT.chat.completions.create(model=CALLER, messages=messages, tools=TOOLS)
        .choices[0]
        .message
    )
    return answered(messages, message)


def tools_streamed() -> dict:
    messages = asked()
    with CLIENT.chat.completions.stream(model=CALLER, messages=messages, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    return answered(messages, message)


def answered(messages: list[dict], message) -> dict:
    calls = message.tool_calls
    results = [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in calls]
    last = CLIENT.chat.completions.create(
        model=CALLER,
        messages=[*messages, message.model_dump(exclude_none=True), *results],
        tools=TOOLS,
    )
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
    answer = CLIENT.embeddings.create(model=EMBEDDER, input=TEXTS)
    return [item.embedding for item in answer.data]


show(
    version=openai.__version__,
    models=[model.id for model in CLIENT.models.list()],
    whole=whole(),
    streamed=streamed(),
    tools=tools(),
    tools_streamed=tools_streamed(),
    absent=failure(lambda: chat(ABSENT)),
    too_long=failure(lambda: chat(text=TOO_LONG)),
    died=died(),
    embedded=embedded(),
)
