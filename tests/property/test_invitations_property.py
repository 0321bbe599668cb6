"""Tokens and codes: what is written is read back, and no damage passes for something else."""

import contextlib
import string

from hypothesis import assume, given
from hypothesis import strategies as st

from protocol.errors import ClusterError
from protocol.ids import cluster_id_of
from skulkd.cluster.code_keys import code_words
from skulkd.core.invitations import (
    OpenToken,
    make_code,
    read_code,
    read_token,
    write_code,
    write_token,
)

_PORTS = st.integers(1, 65535)
_ADDRESSES = st.one_of(
    st.builds("{}:{}".format, st.ip_addresses(v=4), _PORTS),
    st.builds("[{}]:{}".format, st.ip_addresses(v=6), _PORTS),
    st.builds(
        "{}:{}".format,
        st.text(string.ascii_letters + string.digits + "-", min_size=1, max_size=40).filter(
            lambda name: not name.isdigit()
        ),
        _PORTS,
    ),
)
_KEYS = st.binary(min_size=32, max_size=32)
_TOKENS = st.builds(
    OpenToken,
    cluster_id=st.binary(min_size=16, max_size=16).map(cluster_id_of),
    inviter_key=_KEYS,
    addresses=st.lists(_ADDRESSES, min_size=1, max_size=8).map(tuple),
    expires_at_ms=st.integers(0, (1 << 48) - 1),
    secret=_KEYS,
)


def _is_refused(text: str) -> bool:
    try:
        read_token(text)
    except ClusterError as error:
        return error.code == "cluster.token_invalid"
    return False


@given(_TOKENS)
def test_a_token_is_read_back(token: OpenToken) -> None:
    assert read_token(write_token(token)) == token


@given(_TOKENS, st.data())
def test_a_token_with_one_wrong_character_is_refused(token: OpenToken, data: st.DataObject) -> None:
    text = write_token(token)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="utf-8"))
    assume(other.lower() != text[at])
    damaged = text[:at] + other + text[at + 1 :]
    assume("".join(damaged.split()).lower() != text)
    assert _is_refused(damaged)


@given(_TOKENS, st.data())
def test_a_token_with_a_part_missing_or_twice_is_refused(
    token: OpenToken, data: st.DataObject
) -> None:
    text = write_token(token)
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, len(text)))
    for damaged in (text[:first] + text[last:], text[:last] + text[first:]):
        assert damaged == text or _is_refused(damaged)


@given(st.text(max_size=300))
def test_no_text_breaks_the_reading_of_tokens(text: str) -> None:
    assert _is_refused(text)
    assert _is_refused("skulk1-" + text)


@given(st.binary(min_size=16, max_size=16), st.data())
def test_a_code_is_read_back_with_its_words_cut_after_four_letters(
    entropy: bytes, data: st.DataObject
) -> None:
    code = make_code(entropy, code_words())
    assert read_code(write_code(code), code_words()) == code
    cut = [word[: data.draw(st.integers(min(4, len(word)), len(word)))] for word in code]
    # A word of three letters may begin another one; cut words never do.
    assert read_code(" ".join(cut).upper(), code_words()) == code


@given(st.text(max_size=200))
def test_no_text_breaks_the_reading_of_codes(text: str) -> None:
    with contextlib.suppress(ClusterError):
        assert len(read_code(text, code_words())) == 6
