# pyright: basic, reportMissingImports=false
# The client is installed in an environment of its own.

from importlib.metadata import version

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
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
    failure,
    show,
)


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"{RESULT} in {city}"


def model(name: str = SPEAKER) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=f"{NODE}/v1", api_key="none", stream_usage=True)


def used(usage) -> list[int]:
    return [usage["input_tokens"], usage["output_tokens"]]


def whole() -> dict:
    answer = model().invoke(QUESTION)
    return {"text": answer.content, "usage": used(answer.usage_metadata)}


def gathered(name: str, asks=None):
    frames = list((asks or model(name)).stream(QUESTION))
    answer = frames[0]
    for frame in frames[1:]:
        answer += frame
    return answer, [frame.content for frame in frames if frame.content]


def streamed() -> dict:
    answer, pieces = gathered(SPEAKER)
    usage = used(answer.usage_metadata)
    return {"text": answer.content, "n_pieces": len(pieces), "usage": usage}


def tools() -> dict:
    return answered(model(CALLER).bind_tools([weather]).invoke(QUESTION))


def tools_streamed() -> dict:
    return answered(gathered(CALLER, model(CALLER).bind_tools([weather]))[0])


def answered(message) -> dict:
    calls = message.tool_calls
    results = [ToolMessage(RESULT, tool_call_id=call["id"]) for call in calls]
    last = model(CALLER).bind_tools([weather]).invoke([HumanMessage(QUESTION), message, *results])
    return {"calls": [[call["name"], call["args"]] for call in calls], "text": last.content}


def died() -> dict:
    pieces: list[str] = []

    def read() -> None:
        pieces.extend(frame.content for frame in model(MORTAL).stream(QUESTION))

    return {**failure(read), "text": "".join(pieces)}


def embedded() -> list[list[float]]:
    # Otherwise it fetches a file of the tokenizer of OpenAI's models.
    embeddings = OpenAIEmbeddings(
        model=EMBEDDER,
        base_url=f"{NODE}/v1",
        api_key="none",
        check_embedding_ctx_length=False,
    )
    return embeddings.embed_documents(TEXTS)


show(
    version=version("langchain-openai"),
    whole=whole(),
    streamed=streamed(),
    tools=tools(),
    tools_streamed=tools_streamed(),
    absent=failure(lambda: model(ABSENT).invoke(QUESTION)),
    too_long=failure(lambda: model().invoke(TOO_LONG)),
    died=died(),
    embedded=embedded(),
)
