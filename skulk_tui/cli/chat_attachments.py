"""`skulk chat -f FILE`: files that go along with a question, checked before anything is asked."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.errors import ClientError, RequestError
from skulk_tui.formatting import format_bytes

FILES_MAX: Final = 32
TEXT_MAX_BYTES: Final = 1 << 20
"""Of one file of text: no model's window holds more."""
TOTAL_MAX_BYTES: Final = 5 << 20
"""Of all files: a node takes a body of 8 MiB, and an image grows by a third in it."""
_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_RIFF: Final = b"RIFF"
_WEBP: Final = b"WEBP"

Part = dict[str, object]
Content = str | list[Part]
"""Of a message: text, or parts of text and images."""
Turn = dict[str, Content]
"""A message of a conversation, as the API takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that was read."""

    name: str
    text: str = ""
    image: bytes = b""
    media_type: str = ""
    """Empty for text."""


def read_attachments(paths: list[str]) -> tuple[Attachment, ...]:
    """Read files of text in UTF-8, and images by what they hold, not by their names.

    Raises:
        ClientError: `client.usage`: one cannot be read, is of another kind, or too large.
    """
    if len(paths) > FILES_MAX:
        raise ClientError(
            "client.usage",
            f"{len(paths)} files are more than the {FILES_MAX} that go along with a question",
            remediation="Put them into fewer files.",
        )
    left_bytes = TOTAL_MAX_BYTES
    read: list[Attachment] = []
    for path in paths:
        raw = _read(Path(path).expanduser(), left_bytes)
        left_bytes -= len(raw)
        read.append(_attachment(path, raw))
    return tuple(read)


def _read(path: Path, left_bytes: int) -> bytes:
    try:
        if not path.is_file():
            # Reading a pipe or a device could take for ever.
            raise _unusable(path, "it is no file" if path.exists() else "there is no such file")
        with path.open("rb") as file:
            raw = file.read(left_bytes + 1)
    except OSError as wrong:
        raise _unusable(path, wrong.strerror or str(wrong)) from wrong
    if len(raw) > left_bytes:
        fault = f"with it the files are larger than {format_bytes(TOTAL_MAX_BYTES)}"
        raise _unusable(path, fault)
    return raw


def _attachment(path: str, raw: bytes) -> Attachment:
    name = Path(path).name
    media_type = _media_type(raw)
    if media_type:
        return Attachment(name=name, image=raw, media_type=media_type)
    if len(raw) > TEXT_MAX_BYTES:
        fault = f"its text is larger than {format_bytes(TEXT_MAX_BYTES)}"
        raise _unusable(Path(path), fault)
    try:
        text = raw.decode()
    except UnicodeDecodeError as wrong:
        fault = f"it is neither an image nor text in UTF-8 (byte {wrong.start})"
        raise _unusable(Path(path), fault) from wrong
    if "\0" in text:
        raise _unusable(Path(path), "it is neither an image nor text")
    return Attachment(name=name, text=text)


def _media_type(raw: bytes) -> str:
    if raw[:4] == _RIFF and raw[8:12] == _WEBP:
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if raw.startswith(magic)), "")


def _unusable(path: Path, fault: str) -> ClientError:
    return ClientError(
        "client.usage",
        f"{path} cannot go along with the question: {fault}",
        remediation="Attach text in UTF-8, or PNG, JPEG, GIF or WebP for a model that sees.",
    )


def no_sight(model_id: str, name: str) -> RequestError:
    """Refuse an image for a model that takes text only."""
    return RequestError(
        "request.unsupported_field",
        f"{name} is an image, and {model_id} has no vision: it takes text",
        remediation="Choose a model whose capabilities have vision: `skulk models list -o wide`.",
    )


def with_attachments(question: str, attachments: tuple[Attachment, ...]) -> Content:
    """Make the content of a message: the files in order, each under its name, then the question."""
    texts = [_as_text(one) for one in attachments if not one.media_type]
    text = "\n\n".join([*texts, question])
    images = [one for one in attachments if one.media_type]
    if not images:
        return text
    parts: list[Part] = [{"type": "text", "text": text}]
    for one in images:
        data = base64.b64encode(one.image).decode()
        parts.append(
            {"type": "image_url", "image_url": {"url": f"data:{one.media_type};base64,{data}"}}
        )
    return parts


def _as_text(one: Attachment) -> str:
    """Write a file of text between fences that do not occur in it."""
    fence = "```"
    while fence in one.text:
        fence += "`"
    return f"{one.name}:\n{fence}\n{one.text.rstrip()}\n{fence}"
