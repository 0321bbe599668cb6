"""Reading the fields of a request that somebody else's library wrote. Pure.

Null means absent everywhere: client libraries send both. What is wrong is told by the field's name
and the kind of what came; the client's own text is never repeated.
"""

from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast

from protocol.errors import RequestError
from protocol.ids import ModelId, parse_model_id
from protocol.tasks import ToolDefinition

Fields = Mapping[str, Any]

MAX_MESSAGES: Final = 4_096
"""Reading so many takes the loop 41 ms at worst, on a 2-core x86_64 virtual machine."""
MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 1_000
MAX_TOOLS: Final = 256
MAX_NAME_CHARS: Final = 256
MAX_TOKENS: Final = 1 << 24
_HUGE: Final = 1e300


def wrong(param: str, wanted: str, value: object) -> NoReturn:
    """Refuse a value by its kind.

    Raises:
        RequestError: `request.invalid`.
    """
    refuse(param, f"must be {wanted}, not {kind_of(value)}", "See docs/api.md for this route.")


def refuse(param: str, reason: str, remediation: str) -> NoReturn:
    """Refuse a value for a reason that is its own.

    Raises:
        RequestError: `request.invalid`.
    """
    raise RequestError(
        "request.invalid",
        f"`{param}` {reason}",
        remediation=remediation,
        details={"param": param},
    )


def unsupported(param: str, reason: str, remediation: str) -> NoReturn:
    """Refuse what the dialect knows and nothing here serves.

    Raises:
        RequestError: `request.unsupported_field`.
    """
    raise RequestError(
        "request.unsupported_field",
        f"`{param}` {reason}",
        remediation=remediation,
        details={"param": param},
    )


def kind_of(value: object) -> str:
    """Say what a value is, without showing more of it than a number."""
    if value is None:
        return "absent or null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        # An integer of JSON may be larger than any float, and cannot be shown as one.
        return f"{value:.6g}" if -_HUGE < value < _HUGE else "a number of hundreds of digits"
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    return "an array" if isinstance(value, list) else "an object"


def model_id_of(body: Fields) -> ModelId:
    """Read `model`.

    Raises:
        RequestError: `request.invalid`; `request.model_not_found` for what no model can be called.
    """
    text = body.get("model")
    if not isinstance(text, str) or not text:
        wrong("model", "a string", text)
    try:
        return parse_model_id(text)
    except RequestError as error:
        raise RequestError(
            "request.model_not_found",
            f"No instance found for model {text[:64]!r}, which is not a model id",
            remediation=error.remediation,
            details={"param": "model"},
        ) from error


# What follows raises `request.invalid`, naming the field.


def read_flag(body: Fields, name: str) -> bool | None:
    """Read a boolean."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    wrong(name, "a boolean", value)


def read_text(body: Fields, name: str) -> str | None:
    """Read a string."""
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    wrong(name, "a string", value)


def read_number(body: Fields, name: str, low: float, high: float) -> float | None:
    """Read a number within bounds."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        wrong(name, f"a number from {low:g} to {high:g}", value)
    return float(value)


def read_integer(body: Fields, name: str, low: int, high: int) -> int | None:
    """Read an integer within bounds."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JavaScript and some YAML front ends write 5.0
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        wrong(name, f"an integer from {low} to {high}", value)
    return value


def short_name(value: object, place: str) -> str:
    """Read the name of a function."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        wrong(place, f"a string of 1 to {MAX_NAME_CHARS} characters", value)
    return value


def stop_texts(param: str, listed: list[object]) -> tuple[str, ...]:
    """Read stop strings; empty ones count for nothing."""
    if len(listed) > MAX_STOPS:
        wrong(param, f"at most {MAX_STOPS} strings", listed)
    stops: list[str] = []
    for index, item in enumerate(listed):
        if not isinstance(item, str) or len(item) > MAX_STOP_CHARS:
            wrong(f"{param}[{index}]", f"a string of at most {MAX_STOP_CHARS} characters", item)
        if item:
            stops.append(item)
    return tuple(stops)


def listed_tools(value: object) -> list[tuple[Fields, str]]:
    """Read `tools` as definitions, each with its place in the request."""
    if value is None:
        return []
    if not isinstance(value, list):
        wrong("tools", "an array", value)
    listed = cast("list[object]", value)
    if len(listed) > MAX_TOOLS:
        wrong("tools", f"at most {MAX_TOOLS} definitions", listed)
    tools: list[tuple[Fields, str]] = []
    for index, item in enumerate(listed):
        if not isinstance(item, dict):
            wrong(f"tools[{index}]", "an object", item)
        tools.append((cast("Fields", item), f"tools[{index}]"))
    return tools


def function_tool(tool: Fields, place: str) -> ToolDefinition:
    """Read a definition of OpenAI's form.

    Raises:
        RequestError: `request.invalid`; `request.unsupported_field` for what is no function.
    """
    if tool.get("type", "function") != "function":
        unsupported(f"{place}.type", "must be function", "Offer function tools only.")
    function = tool.get("function")
    if not isinstance(function, dict):
        wrong(f"{place}.function", "an object", function)
    named = cast("Fields", function)
    parameters = named.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        wrong(f"{place}.function.parameters", "a JSON schema", parameters)
    description = named.get("description")
    return ToolDefinition(
        name=short_name(named.get("name"), f"{place}.function.name"),
        description=description if isinstance(description, str) else "",
        parameters=cast("dict[str, Any]", parameters) if parameters else {},
    )


def listed_messages(value: object) -> list[object]:
    """Read `messages` as a list of a bearable length that is not empty."""
    if not isinstance(value, list):
        wrong("messages", "an array of messages", value)
    listed = cast("list[object]", value)
    if not listed:
        refuse("messages", "is empty", "Send at least one message.")
    if len(listed) > MAX_MESSAGES:
        count = f"has {len(listed)} messages, at most {MAX_MESSAGES} are read"
        refuse("messages", count, "Drop old turns.")
    return listed
