"""Fields of a query string that are not plain text."""

from collections.abc import Set as AbstractSet
from typing import Final

from protocol.errors import RequestError
from skulkd.api.http import Request

MAX_DIGITS: Final = 18


def whole_number(request: Request, name: str, default: int) -> int:
    """Read a whole number, at least 0.

    Raises:
        RequestError: `request.invalid`.
    """
    text = request.query(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_DIGITS:
        raise RequestError(
            "request.invalid",
            f"`{name}` must be a whole number",
            remediation="See docs/api.md.",
            details={"param": name},
        )
    return int(text)


def refuse_unknown(request: Request, known: AbstractSet[str]) -> None:
    """Refuse fields that a route does not know.

    Raises:
        RequestError: `request.invalid`, with those that it does.
    """
    for name in request.query_names() - known:
        raise RequestError(
            "request.invalid",
            f"the query field {name[:40]!r} is not known here",
            remediation=f"Known: {', '.join(sorted(known))}.",
        )
