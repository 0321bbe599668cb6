import pytest

from protocol.errors import ClusterError
from protocol.ids import ClusterId
from skulkd.core.invitations import (
    MAX_ADDRESSES,
    OpenToken,
    make_code,
    read_code,
    read_token,
    token_expired,
    write_code,
    write_token,
)

WORDS = ("able", "about", "act", "action", "absolute", "abstract", "zebra", "zero")
TOKEN = OpenToken(
    cluster_id=ClusterId("kabcdefghijklm234"),
    inviter_key=bytes(range(32)),
    addresses=("192.0.2.7:12416", "[2001:db8::7]:12416", "den.example:9000", "[fe80::7%eth0]:1"),
    expires_at_ms=1_800_000_000_000,
    secret=bytes(range(100, 132)),
)
TEXT = write_token(TOKEN)


def _refusal(text: str) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        read_token(text)
    error = caught.value
    assert error.code == "cluster.token_invalid"
    assert "skulk cluster invite" in error.remediation or "same build" in error.remediation
    assert len(str(error)) < 200
    return error


def test_a_token_is_one_line_and_is_read_back() -> None:
    assert TEXT.startswith("skulk1-")
    assert TEXT.split() == [TEXT]
    assert TEXT.lower() == TEXT
    assert read_token(TEXT) == TOKEN


def test_a_token_with_two_addresses_is_short_enough_for_a_line_of_chat() -> None:
    short = OpenToken(
        cluster_id=TOKEN.cluster_id,
        inviter_key=TOKEN.inviter_key,
        addresses=TOKEN.addresses[:2],
        expires_at_ms=TOKEN.expires_at_ms,
        secret=TOKEN.secret,
    )
    assert len(write_token(short)) < 200


def test_what_pasting_does_to_a_token_does_not_matter() -> None:
    wrapped = "\n".join(TEXT[at : at + 60] for at in range(0, len(TEXT), 60))
    assert read_token(f"  {wrapped}\r\n") == TOKEN
    assert read_token(TEXT.upper()) == TOKEN


def test_every_single_wrong_missing_or_added_character_is_found() -> None:
    for at in range(len("skulk1-"), len(TEXT)):
        for other in "abz27":
            if other != TEXT[at]:
                _refusal(TEXT[:at] + other + TEXT[at + 1 :])
            _refusal(TEXT[:at] + other + TEXT[at:])
        _refusal(TEXT[:at] + TEXT[at + 1 :])


def test_a_token_that_is_cut_short_is_refused_with_how_much_has_arrived() -> None:
    for n_chars in range(len("skulk1-"), len(TEXT)):
        assert str(n_chars) in _refusal(TEXT[:n_chars]).message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "begin with skulk1-"),
        ("hello", "begin with skulk1-"),
        ("skulk-abc", "begin with skulk1-"),
        (TEXT.removeprefix("skulk1-"), "begin with skulk1-"),
        ("skulk2-" + TEXT[7:], "skulk2-, and this build reads skulk1-"),
        ("skulk01-" + TEXT[7:], "skulk01-"),
        ("skulk1-", "wrong or missing"),
        (TEXT[:20] + "1" + TEXT[21:], "character 21"),
        (TEXT[:20] + "é" + TEXT[21:], "character 21"),
        (TEXT + "=", f"character {len(TEXT) + 1}"),
        ("x" * 5000, "5000 characters"),
    ],
)
def test_what_is_wrong_with_a_token_is_said(text: str, what: str) -> None:
    assert what in _refusal(text).message


def test_a_token_of_another_making_is_refused() -> None:
    import base64
    import zlib

    def sealed(body: bytes) -> str:
        data = body + zlib.crc32(body).to_bytes(4, "big")
        return "skulk1-" + base64.b32encode(data).decode().rstrip("=").lower()

    head = bytes([1]) + bytes(10) + bytes(32) + bytes(32) + bytes(6)
    good = head + bytes([1, 4, 192, 0, 2, 7, 0x30, 0x80])
    assert read_token(sealed(good)).addresses == ("192.0.2.7:12416",)
    for body in (
        bytes([1]),
        head,
        head + b"\0",  # no address
        bytes([2]) + good[1:],
        good + b"\0",
        head + bytes([2]) + good[len(head) + 1 :],  # one of two addresses
        head + bytes([1, 4, 192, 0, 2, 7, 0, 0]),  # port 0
        head + bytes([1, 9, 0, 0]),
        head + bytes([1, 0, 0, 0, 1]),  # a name without letters
        head + bytes([1, 0, 3]) + b"a;b" + bytes([0, 1]),
        head + bytes([1, 0, 2]) + b"\xc3\xa9" + bytes([0, 1]),
        head + bytes([9]) + good[len(head) + 1 :] * 9,
    ):
        assert "something else" in _refusal(sealed(body)).message


def test_a_token_without_addresses_is_not_written() -> None:
    for addresses in ((), ("den:1",) * (MAX_ADDRESSES + 1), ("den",), (":1",), ("a b:1",)):
        with pytest.raises(ValueError, match=r"address|invalid literal"):
            write_token(
                OpenToken(
                    cluster_id=TOKEN.cluster_id,
                    inviter_key=TOKEN.inviter_key,
                    addresses=addresses,
                    expires_at_ms=0,
                    secret=TOKEN.secret,
                )
            )


def test_no_secret_is_shown_by_a_token_or_its_errors() -> None:
    damaged = TEXT[:-1] + ("a" if TEXT[-1] != "a" else "b")
    for text in (repr(TOKEN), str(_refusal(damaged)), str(token_expired(TOKEN, now_ms=0))):
        assert TOKEN.secret.hex() not in text
        assert str(TOKEN.secret) not in text
        assert damaged[20:40] not in text


def test_an_expired_token_is_told_by_how_much_and_by_whose_clock() -> None:
    error = token_expired(TOKEN, now_ms=TOKEN.expires_at_ms + 90_000)
    assert error.code == "cluster.token_expired"
    assert "90 s ago by this machine's clock" in error.message


def test_a_code_has_six_words_and_every_word_is_drawn() -> None:
    code = make_code(bytes(range(16)), WORDS)
    assert len(code) == 6
    assert set(code) <= set(WORDS)
    drawn = {
        word for number in range(64) for word in make_code(number.to_bytes(8, "big") * 2, WORDS)
    }
    assert drawn == set(WORDS)
    with pytest.raises(ValueError, match="16 random bytes"):
        make_code(bytes(15), WORDS)


CODE = ("able", "act", "action", "absolute", "zebra", "zero")


@pytest.mark.parametrize(
    "typed",
    [
        "able-act-action-absolute-zebra-zero",
        "able act action absolute zebra zero",
        "  ABLE, Act; action.absolute_zebra\nzero ",
        "able act acti abso zebr zero",
        "1 able 2 act 3 action 4 absolute 5 zebra 6 zero",
    ],
)
def test_a_code_is_read_however_people_type_it(typed: str) -> None:
    assert read_code(typed, WORDS) == CODE
    assert read_code(write_code(CODE), WORDS) == CODE


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        ("", "it has 0 words"),
        ("able act action absolute zebra", "it has 5 words, and a code has 6"),
        ("able act action absolute zebra zero zero", "it has 7 words"),
        (
            "able act action absolute zebrra zero",
            "word 5 is not one that codes have; is it `zebra`",
        ),
        ("able act abs absolute zebra zero", "word 3"),
        ("qqqq act action absolute zebra zero", "word 1"),
        ("able act action absolute zebraq zero", "word 5"),
        ("a " * 500, "1000 characters"),
    ],
)
def test_what_is_wrong_with_a_code_is_said_without_repeating_it(typed: str, what: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read_code(typed, WORDS)
    assert caught.value.code == "cluster.token_invalid"
    assert what in caught.value.message
    assert "qqqq" not in str(caught.value)
    assert "zebrra" not in str(caught.value)
