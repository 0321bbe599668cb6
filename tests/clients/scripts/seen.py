"""What every script here needs: where the node is, what its models are, and how to tell."""

import json
import sys
from collections.abc import Callable
from typing import Any, Final

_GIVEN: Final = json.loads(sys.argv[1])
NODE: Final[str] = _GIVEN["node"]
"""Of the node's API, without a path."""
SPEAKER: Final[str] = _GIVEN["speaker"]
CALLER: Final[str] = _GIVEN["caller"]
"""Calls `weather` for Paris, and answers its result."""
MORTAL: Final[str] = _GIVEN["mortal"]
"""Dies after a few words."""
EMBEDDER: Final[str] = _GIVEN["embedder"]
ABSENT: Final = "scripted/absent"

QUESTION: Final = "What is the capital of France?"
TEXTS: Final = ["a fox", "the sea", "a fox"]
TOO_LONG: Final = "word " * 2000
WEATHER: Final[dict[str, Any]] = {
    "name": "weather",
    "description": "Tell the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
RESULT: Final = "sunny"


def failure(ask: Callable[[], object]) -> dict[str, Any]:
    """Ask for something that fails, and tell how the client says so."""
    try:
        answer = ask()
    # ruff: ignore[blind-except]  which one is raised is what the test wants to know
    except Exception as error:
        status = getattr(error, "status_code", None)
        return {"raised": type(error).__name__, "status": status, "message": str(error)}
    return {"raised": None, "answer": str(answer)}


def show(**seen: object) -> None:
    """Tell what was seen."""
    sys.stdout.write(json.dumps(seen) + "\n")
