"""`skulk chat --session FILE`: a conversation in a file, gone on with by the next command.

The file is the operator's: JSON with `model` and `messages`, as the API takes them.
"""

import json
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.errors import ClientError
from skulk_tui.cli.chat_attachments import Turn
from skulk_tui.own_files import read_text, replace_file

MAX_BYTES: Final = 8 << 20
"""As much as a node takes in one request."""


class _Message(FrozenModel):
    role: Literal["system", "user", "assistant"]
    content: str | tuple[dict[str, object], ...]


class _History(FrozenModel):
    model: str
    messages: tuple[_Message, ...] = ()


def read_history(path: Path) -> list[Turn]:
    """Read the turns so far; none where there is no file yet.

    Raises:
        ClientError: `client.usage`: it is no conversation, or too large.
    """
    text = read_text(path, max_bytes=MAX_BYTES)
    if text is None or not text.strip():
        return []
    try:
        history = _History.model_validate_json(text, extra="ignore")
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ClientError(
            "client.usage",
            f"{path} holds no conversation: {where}: {first['msg']}",
            remediation="Name another file; it is made when the first answer is there.",
        ) from wrong
    return [
        {
            "role": one.role,
            "content": one.content if isinstance(one.content, str) else [*one.content],
        }
        for one in history.messages
        if one.role != "system"  # `--system` gives it anew
    ]


def write_history(path: Path, model_id: str, turns: list[Turn]) -> None:
    """Replace the file by the turns there are now; only its owner can read it.

    Raises:
        ClientError: `client.usage`: the disk does not allow it.
    """
    document = {"model": model_id, "messages": turns}
    replace_file(path, json.dumps(document, ensure_ascii=False, indent=2) + "\n")
