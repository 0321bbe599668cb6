"""JSON from strangers (F24)."""

import asyncio
import json
import time

import pytest

from protocol.errors import RequestError
from skulkd.api.json_body import (
    MAX_DEPTH,
    MAX_VALUES,
    OFF_LOOP_BYTES,
    TOKEN,
    decode,
    decode_object,
)


def refusal_of(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(body)
    assert caught.value.code == "request.invalid"
    return caught.value


HOSTILE = {
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep and closed": b"[" * 65 + b"]" * 65,
    "a million digits": b"[" + b"9" * 1_000_000 + b"]",
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "lone surrogate": b'{"a": "\\ud800"}',
    "not UTF-8": b'{"a": "\xff"}',
    "trailing": b"{} {}",
    "cut short": b'{"a": [1, 2',
    "comment": b'{"a": 1 /* x */}',
    "single quotes": b"{'a': 1}",
    "a million values": b"[" + b"1," * 1_000_000 + b"1]",
    "a million empty objects": b"[" + b"{}," * 1_000_000 + b"{}]",
    "8 MiB of escaped quotes": b'{"a": "' + b'\\"' * (4 << 20),
    "8 MiB of escaped quotes and brackets": b'{"a": "' + b'[\\",' * (2 << 20) + b"\\",
    "8 MiB of quotes": b'"' * (8 << 20),
    "8 MiB of brackets in pairs": b"[]" * (4 << 20),
    "control character": b'{"a": "\x01"}',
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused(name: str) -> None:
    refusal_of(HOSTILE[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_no_hostile_text_takes_long(name: str) -> None:
    # Generous, for busy machines: what it must catch is quadratic, and would take minutes.
    began = time.perf_counter()
    refusal_of(HOSTILE[name])
    assert time.perf_counter() - began < 2


def test_the_loop_goes_on_while_a_large_body_is_decoded() -> None:
    async def story() -> float:
        longest_s = 0.0

        async def watch() -> None:
            nonlocal longest_s
            last = time.perf_counter()
            while True:
                await asyncio.sleep(0.001)
                now = time.perf_counter()
                longest_s = max(longest_s, now - last)
                last = now

        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0.01)
        escapes = b'{"a": "' + b"\\n[," * (2 << 20)
        for body in (b"[" + b"1," * 3_000_000 + b"1]", b"[]" * (4 << 20), escapes):
            with pytest.raises(RequestError):
                await decode_object(body)
        watching.cancel()
        return longest_s

    # The gate is 50 ms on an idle machine; a busy one may take the watcher off the CPU meanwhile.
    assert asyncio.run(story()) < 0.25


@pytest.mark.parametrize("end", ["", '\\"', "\\\\"])
def test_a_string_of_many_escapes_is_looked_at_in_pieces_and_stays_one_string(end: str) -> None:
    text = '{"a": "' + '[,\\n"'.replace('"', '\\"') * 50_000 + end + '"}'
    pieces = list(TOKEN.finditer(text.encode()))
    assert max(len(piece[0]) for piece in pieces) < len(text) / 10  # each holds the interpreter
    assert decode(text.encode()) == json.loads(text)


@pytest.mark.parametrize("depth", [1, MAX_DEPTH])
def test_nesting_up_to_the_bound_is_read(depth: int) -> None:
    text = "[" * depth + "]" * depth
    assert str(decode(text.encode())) == text


def test_brackets_in_strings_do_not_count() -> None:
    text = "[{" * 1000 + '\\"' + "]" * 3
    assert decode(json.dumps({"a": text, "b": [text]}).encode()) == {"a": text, "b": [text]}


def test_values_up_to_the_bound_are_read() -> None:
    assert decode(b"[" + b"1," * (MAX_VALUES - 2) + b"1]") == [1] * (MAX_VALUES - 1)
    assert "100000 values" in refusal_of(b"[" + b"1," * MAX_VALUES + b"1]").message


def test_the_last_of_duplicate_keys_wins() -> None:
    assert decode(b'{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"x"', b"true", b"1.5"])
def test_only_objects_are_bodies(body: bytes) -> None:
    with pytest.raises(RequestError, match="not an object"):
        asyncio.run(decode_object(body))


def test_large_body_is_decoded_off_the_loop_with_the_same_result() -> None:
    document = {"a": "x" * (OFF_LOOP_BYTES + 1)}
    assert asyncio.run(decode_object(json.dumps(document).encode())) == document
