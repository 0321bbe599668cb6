"""A conversation as the templates of models take it. Pure.

Many templates know one system message, at the front, and demand that user and assistant alternate;
clients send instructions anywhere, and several messages in a row.
"""

from itertools import pairwise, starmap

from protocol.tasks import ChatMessage, TaskImage

_BREAK = "\n\n"


def in_turns(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """Put what the system says together at the front, and join what one side says in a row.

    Nothing is lost and nothing changes its place among the turns of its side. A turn that calls
    tools stays by itself, as its results follow it; and so do turns of users with several names.
    """
    if _is_in_turns(messages):
        return messages
    told: list[str] = []
    turns: list[list[ChatMessage]] = []
    for message in messages:
        if message.role == "system":
            told.append(message.content)
        elif turns and _belong(turns[-1][-1], message):
            turns[-1].append(message)
        else:
            turns.append([message])
    system = ChatMessage(role="system", content=_BREAK.join(text for text in told if text))
    return (*((system,) if told else ()), *map(_joined, turns))


def _is_in_turns(messages: tuple[ChatMessage, ...]) -> bool:
    has_late_system = any(message.role == "system" for message in messages[1:])
    return not has_late_system and not any(starmap(_belong, pairwise(messages)))


def _belong(first: ChatMessage, second: ChatMessage) -> bool:
    """Say whether the second goes on with the turn of the first."""
    if first.role != second.role or first.role not in {"user", "assistant"}:
        return False
    return first.name == second.name and not first.tool_calls and not second.tool_calls


def _joined(turn: list[ChatMessage]) -> ChatMessage:
    if len(turn) == 1:
        return turn[0]
    thoughts = _BREAK.join(message.reasoning for message in turn if message.reasoning)
    return turn[0].model_copy(update={**joined_content(turn), "reasoning": thoughts or None})


def joined_content(turns: list[ChatMessage]) -> dict[str, object]:
    """Give the fields of one turn that says and shows what these do."""
    texts: list[str] = []
    images: list[TaskImage] = []
    n_before = 0
    for message in turns:
        if not message.content and not message.images:
            continue
        if texts:
            n_before += len(_BREAK)
        images += [image.changed({"at": image.at + n_before}) for image in message.images]
        texts.append(message.content)
        n_before += len(message.content)
    return {"content": _BREAK.join(texts), "images": tuple(images)}
