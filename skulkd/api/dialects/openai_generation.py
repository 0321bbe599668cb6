"""What requests of OpenAI's dialect say alike about how to generate. Pure."""

from typing import Any, Final, cast

from protocol.tasks import ResponseFormat, Sampling
from skulkd.api.dialects.fields import (
    Fields,
    read_flag,
    read_integer,
    read_number,
    stop_texts,
    wrong,
)

_SAMPLING_FIELDS: Final = frozenset({
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "repetition_context_size",
})  # fmt: skip
_DEFAULT_SAMPLING: Final = Sampling()


def read_sampling(body: Fields) -> Sampling:
    """Read how tokens are chosen, with what other servers call the same.

    Raises:
        RequestError: `request.invalid`.
    """
    if _SAMPLING_FIELDS.isdisjoint(body):
        return _DEFAULT_SAMPLING
    top_p = read_number(body, "top_p", 0, 1)
    if top_p == 0:
        top_p = 1e-6  # OpenAI takes 0 for "the likeliest alone"
    repetition_penalty = read_number(body, "repetition_penalty", 0, 10)
    if repetition_penalty == 0:
        wrong("repetition_penalty", "a number above 0, up to 10", 0)
    top_k = read_integer(body, "top_k", -1, 1 << 20)
    return Sampling(
        temperature=read_number(body, "temperature", 0, 100),
        top_p=top_p,
        top_k=0 if top_k == -1 else top_k,  # -1 is how some servers write "all"
        min_p=read_number(body, "min_p", 0, 1),
        seed=_seed(body),
        frequency_penalty=read_number(body, "frequency_penalty", -2, 2),
        presence_penalty=read_number(body, "presence_penalty", -2, 2),
        repetition_penalty=repetition_penalty,
        repetition_context_size=read_integer(body, "repetition_context_size", 0, 1 << 20),
    )


def read_stop(body: Fields) -> tuple[str, ...]:
    """Read `stop`, a string or several.

    Raises:
        RequestError: `request.invalid`.
    """
    value = body.get("stop")
    if value is None:
        return ()
    return stop_texts("stop", cast("list[object]", value) if isinstance(value, list) else [value])


def read_include_usage(body: Fields) -> bool:
    """Read whether a stream is to end with its token counts.

    Raises:
        RequestError: `request.invalid`.
    """
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        wrong("stream_options", "an object", options)
    return read_flag(cast("Fields", options), "include_usage") or False


def read_format(
    value: object, place: str, described_by: str | None = None
) -> ResponseFormat | None:
    """Read the form that an answer is to have; None where it may have any.

    Args:
        value: What describes it.
        place: Where in the request it stands.
        described_by: The member that holds the schema and its name; None for the value itself.

    Raises:
        RequestError: `request.invalid`.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        wrong(place, "an object", value)
    wanted = cast("Fields", value)
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat(kind="json_object")
    if kind != "json_schema":
        wrong(f"{place}.type", "text, json_object or json_schema", kind)
    if described_by is not None:
        place = f"{place}.{described_by}"
        described = wanted.get(described_by)
        if not isinstance(described, dict):
            wrong(place, "an object with a `schema`", described)
        wanted = cast("Fields", described)
    schema = wanted.get("schema")
    if not isinstance(schema, dict):
        wrong(f"{place}.schema", "a JSON schema", schema)
    return ResponseFormat(kind="json_schema", json_schema=cast("dict[str, Any]", schema))


def _seed(body: Fields) -> int | None:
    seed = read_integer(body, "seed", -(1 << 63), (1 << 63) - 1)
    if seed is None or seed == -1:  # -1 is how llama.cpp writes "any"
        return None
    return seed & 0xFFFFFFFF
