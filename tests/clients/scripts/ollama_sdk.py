# pyright: basic, reportMissingImports=false
# The client is installed in an environment of its own.

from importlib.metadata import version

import ollama
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

CLIENT = ollama.Client(host=f"{NODE}/ollama")
TOOLS = [{"type": "function", "function": WEATHER}]


def asked(text: str = QUESTION) -> list[dict]:
    return [{"role": "user", "content": text}]


def used(answer) -> list[int]:
    return [answer.prompt_eval_count, answer.eval_count]


def whole() -> dict:
    answer = CLIENT.chat(model=SPEAKER, messages=asked())
    return {"text": answer.message.content, "usage": used(answer)}


def streamed() -> dict:
    lines = list(CLIENT.chat(model=SPEAKER, messages=asked(), stream=True))
    pieces = [line.message.content for line in lines if line.message.content]
    return {"text": "".join(pieces), "n_pieces": len(pieces), "usage": used(lines[-1])}


def tools() -> dict:
    message = CLIENT.chat(model=CALLER, messages=asked(), tools=TOOLS).message
    return answered(message, message.tool_calls)


def tools_streamed() -> dict:
    calls = []
    for line in CLIENT.chat(model=CALLER, messages=asked(), tools=TOOLS, stream=True):
        calls += line.message.tool_calls or ()
    return answered({"role": "assistant", "content": "", "tool_calls": calls}, calls)


def answered(message, calls) -> dict:
    results = [
        {"role": "tool", "tool_name": call.function.name, "content": RESULT} for call in calls
    ]
    last = CLIENT.chat(model=CALLER, messages=[*asked(), message, *results], tools=TOOLS)
    return {
        "calls": [[call.function.name, dict(call.function.arguments)] for call in calls],
        "text": last.message.content,
    }


def died() -> dict:
    pieces: list[str] = []

    def read() -> None:
        for line in CLIENT.chat(model=MORTAL, messages=asked(), stream=True):
            pieces.append(line.message.content or "")

    return {**failure(read), "text": "".join(pieces)}


def embedded() -> list[list[float]]:
    answer = CLIENT.embed(model=EMBEDDER, input=TEXTS)
    return [list(vector) for vector in answer.embeddings]


show(
    version=version("ollama"),
    models=[model.model for model in CLIENT.list().models],
    shown=CLIENT.show(CALLER).capabilities,
    running=[model.model for model in CLIENT.ps().models],
    whole=whole(),
    streamed=streamed(),
    tools=tools(),
    tools_streamed=tools_streamed(),
    absent=failure(lambda: CLIENT.chat(model=ABSENT, messages=asked())),
    too_long=failure(lambda: CLIENT.chat(model=SPEAKER, messages=asked(TOO_LONG))),
    died=died(),
    embedded=embedded(),
)
