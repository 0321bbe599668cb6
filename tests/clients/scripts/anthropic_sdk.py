# pyright: basic, reportMissingImports=false
# The client is installed in an environment of its own.

import anthropic
from seen import (
    ABSENT,
    CALLER,
    MORTAL,
    NODE,
    QUESTION,
    RESULT,
    SPEAKER,
    TOO_LONG,
    WEATHER,
    failure,
    show,
)

CLIENT = anthropic.Anthropic(base_url=NODE, api_key="none")
TOOLS = [
    {
        "name": WEATHER["name"],
        "description": WEATHER["description"],
        "input_schema": WEATHER["parameters"],
    }
]


def asked(text: str = QUESTION) -> list[dict]:
    return [{"role": "user", "content": text}]


def ask(model: str = SPEAKER, text: str = QUESTION, **fields):
    return CLIENT.messages.create(model=model, max_tokens=200, messages=asked(text), **fields)


def text_of(message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def used(usage) -> list[int]:
    return [usage.input_tokens, usage.output_tokens]


def whole() -> dict:
    message = ask()
    return {"text": text_of(message), "usage": used(message.usage)}


def streamed() -> dict:
    with CLIENT.messages.stream(model=SPEAKER, max_tokens=200, messages=asked()) as stream:
        pieces = list(stream.text_stream)
        usage = used(stream.get_final_message().usage)
    return {"text": "".join(pieces), "n_pieces": len(pieces), "usage": usage}


def tools() -> dict:
    return answered(ask(CALLER, tools=TOOLS))


def tools_streamed() -> dict:
    with CLIENT.messages.stream(
        model=CALLER, max_tokens=200, messages=asked(), tools=TOOLS
    ) as stream:
        return answered(stream.get_final_message())


def answered(message) -> dict:
    calls = [block for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT} for call in calls]
    messages = [
        *asked(),
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    last = CLIENT.messages.create(model=CALLER, max_tokens=200, messages=messages, tools=TOOLS)
    return {"calls": [[call.name, call.input] for call in calls], "text": text_of(last)}


def died() -> dict:
    pieces: list[str] = []

    def read() -> None:
        with CLIENT.messages.stream(model=MORTAL, max_tokens=200, messages=asked()) as stream:
            pieces.extend(stream.text_stream)
            stream.get_final_message()

    return {**failure(read), "text": "".join(pieces)}


show(
    version=anthropic.__version__,
    models=[model.id for model in CLIENT.models.list()],
    whole=whole(),
    streamed=streamed(),
    tools=tools(),
    tools_streamed=tools_streamed(),
    counted=CLIENT.messages.count_tokens(model=SPEAKER, messages=asked()).input_tokens,
    absent=failure(lambda: ask(ABSENT)),
    too_long=failure(lambda: ask(text=TOO_LONG)),
    died=died(),
)
