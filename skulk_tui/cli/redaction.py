"""What is taken out of a document before it leaves the machines it speaks of. Pure.

Better too much than too little: a field is judged by its name, a text by what stands in it.
"""

import re
from collections import Counter
from typing import Final, cast, final

_SECRET_FIELDS: Final = frozenset({
    "api_key", "apikey", "authorization", "code", "hf_token", "key_secret", "password", "secret",
    "secret_sha256", "token",
})  # fmt: skip
_PROMPT_FIELDS: Final = frozenset({
    "arguments", "completion", "content", "messages", "prompt", "reasoning", "system", "text",
})  # fmt: skip
_SECRETS: Final = re.compile(
    r"skulk1-[A-Za-z0-9_-]{8,}"  # an invitation
    r"|skulk-[a-z0-9]{8}-[A-Za-z0-9]{16,}"  # an API key
    r"|\b(?:hf|sk|ghp)[_-][A-Za-z0-9_-]{8,}"  # of others
    r"|(?i:\bbearer\s+)\S+"
)
_PROMPT: Final = re.compile(
    r"(?i)[\"']?\b(?:prompt|messages|content|completion)\b[\"']?\s*[:=]\s*[\"'\[{].*"
)
_HOME: Final = re.compile(r"(?:/home/|/Users/)[^/\s\"':,;]+|/root(?=[/\s\"':,;]|$)")
_DEPTH: Final = 64


@final
class Redactor:
    """Takes secrets, prompts and home folders out, and counts what it took."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def value(self, value: object, depth: int = 0) -> object:
        """Give a JSON value without what must not leave."""
        if depth > _DEPTH:
            self.counts["too deep"] += 1
            return "(removed: too deep)"
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            fields = cast("dict[str, object]", value)
            return {
                self.text(name): self._field(name, inner, depth) for name, inner in fields.items()
            }
        if isinstance(value, list):
            return [self.value(inner, depth + 1) for inner in cast("list[object]", value)]
        return value

    def text(self, text: str) -> str:
        """Give a text without what must not leave."""
        for kind, pattern, instead in (
            ("secret", _SECRETS, "(removed: secret)"),
            ("prompt", _PROMPT, "(removed: prompt)"),
            ("home", _HOME, "~"),
        ):
            text, n_found = pattern.subn(instead, text)
            self.counts[kind] += n_found
        return text

    def _field(self, name: str, value: object, depth: int) -> object:
        plain = name.lower()
        for kind, names in (("secret", _SECRET_FIELDS), ("prompt", _PROMPT_FIELDS)):
            # An error's code is no secret, and a number or nothing cannot be one.
            if plain in names and (isinstance(value, dict | list) or _is_long(plain, value)):
                self.counts[kind] += 1
                return f"(removed: {kind})"
        return self.value(value, depth + 1)


def _is_long(name: str, value: object) -> bool:
    return isinstance(value, str) and bool(value) and not (name == "code" and "." in value)
