"""Reading the texts of requests for vectors. Pure."""

from typing import NoReturn, cast

from protocol.tasks import MAX_TEXTS
from skulkd.api.dialects.fields import refuse, unsupported, wrong


def text_that_says_something(place: str, value: object) -> str:
    """Read a text that is not empty: of nothing there is no vector.

    Raises:
        RequestError: `request.invalid`, or `request.unsupported_field` for token ids.
    """
    if isinstance(value, int | list) and not isinstance(value, bool):
        _refuse_tokens(place)
    if not isinstance(value, str):
        wrong(place, "a text", value)
    if not value:
        refuse(place, "is an empty text", "Leave it out, or send a text.")
    return value


def listed_texts(name: str, value: object) -> tuple[str, ...]:
    """Read an array of texts.

    Raises:
        RequestError: As `text_that_says_something`.
    """
    if not isinstance(value, list):
        wrong(name, "a text or an array of texts", value)
    items = cast("list[object]", value)
    if not items:
        refuse(name, "is an empty array", "Send at least one text.")
    if len(items) > MAX_TEXTS:
        refuse(
            name,
            f"has {len(items)} texts, at most {MAX_TEXTS} are read",
            "Send them in several requests.",
        )
    return tuple(
        text_that_says_something(f"{name}[{index}]", item) for index, item in enumerate(items)
    )


def _refuse_tokens(place: str) -> NoReturn:
    unsupported(
        place,
        "holds token ids, and only text is read: the ids of one tokenizer mean nothing to another",
        "Send text. LangChain's OpenAIEmbeddings does so with check_embedding_ctx_length=False.",
    )
