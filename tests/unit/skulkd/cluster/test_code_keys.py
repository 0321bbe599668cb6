import itertools

import pytest

from skulkd.cluster import code_keys
from skulkd.cluster.code_keys import code_words, derive, is_proof, prove
from skulkd.cluster.curve_keys import make_key_pair, public_key_of

CODE = ("abandon", "ability", "able", "about", "above", "absent")
MAC_KEY, GUEST, HOST, OTHER = (bytes([number]) * 32 for number in (1, 2, 3, 4))


def test_codes_are_drawn_from_2048_words_that_differ_in_four_letters() -> None:
    words = code_words()
    assert len(words) == len(set(words)) == 2048
    assert len({word[:4] for word in words}) == 2048
    assert all(word.isascii() and word.islower() and 3 <= len(word) <= 8 for word in words)
    assert list(words) == sorted(words)


def test_a_secret_key_has_one_public_key() -> None:
    pair = make_key_pair()
    assert public_key_of(pair.secret_key) == pair.public_key


def test_a_code_gives_the_same_keys_on_every_machine() -> None:
    keys = derive(CODE)
    assert keys.guest.public_key == public_key_of(keys.guest.secret_key)
    assert keys.guest.secret_key != keys.mac_key
    assert (
        keys.guest.public_key.hex()
        == "655a5d092e349a2a106b38362c978a36203a65b885cfe0c1c6c1788ca16fd308"
    )
    assert keys.mac_key.hex() == "3660fd25f58019e5b201788030d27f863fac52357bf6467300bca3fb0ff6d557"
    assert keys.mac_key.hex() not in repr(keys)
    assert keys.guest.secret_key.hex() not in repr(keys)


def test_another_code_gives_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_keys, "_COST", 2)  # the rule is about words, not about time
    codes = [CODE, CODE[1:] + CODE[:1], (*CODE[:5], "absorb")]
    assert len({derive(code).mac_key for code in codes}) == 3


def test_a_proof_holds_for_its_role_keys_and_code_alone() -> None:
    proof = prove(MAC_KEY, "guest", guest_key=GUEST, host_key=HOST)
    assert is_proof(proof, MAC_KEY, "guest", guest_key=GUEST, host_key=HOST)
    assert not is_proof(proof, MAC_KEY, "host", guest_key=GUEST, host_key=HOST)
    assert not is_proof(proof, OTHER, "guest", guest_key=GUEST, host_key=HOST)
    for guest_key, host_key in itertools.permutations((GUEST, HOST, OTHER), 2):
        if (guest_key, host_key) != (GUEST, HOST):
            assert not is_proof(proof, MAC_KEY, "guest", guest_key=guest_key, host_key=host_key)
    for wrong in (b"", proof[:-1], proof + b"\0", bytes(32)):
        assert not is_proof(wrong, MAC_KEY, "guest", guest_key=GUEST, host_key=HOST)
