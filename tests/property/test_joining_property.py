"""Payloads from guests, and from who answers them: none breaks a node or lets anybody in."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec import encode_values, pack
from protocol.errors import ProtocolError, SkulkError
from protocol.hello import OtherWire
from protocol.ids import node_id_of
from protocol.joining import (
    MAX_JOIN_BYTES,
    FellowMember,
    GuestProof,
    JoinRefusal,
    Welcome,
    read_guest,
    read_host,
)
from skulkd.cluster.curve_keys import key_pair_of
from skulkd.cluster.join_guest import JoinGuest
from skulkd.cluster.join_host import fitting
from tests.support.joins import CLUSTER, Stage, play, request_of

GUEST = key_pair_of(b"g" * 32)
_LEAVES = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=20)
_VALUES = st.recursive(
    _LEAVES | st.binary(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(max_size=12), inner)
    ),
    max_leaves=12,
)
_KNOWN = ("kind", "wire", "build", "public_key", "proof", "node_id", "name", "addresses", "members")
_SHAPED = st.dictionaries(
    st.sampled_from(_KNOWN),
    _VALUES
    | st.sampled_from(["guest_proof", "join_request", "welcome", "host_proof", "join_refusal"])
    | st.just("00" * 32)
    | st.just(bytes(32))
    | st.just(1),
)
_PAYLOADS = st.binary(max_size=200) | st.one_of(_VALUES, _SHAPED).map(encode_values)


@settings(max_examples=60)
@given(st.lists(_PAYLOADS, min_size=1, max_size=5))
def test_no_payload_of_a_guest_breaks_a_member_or_is_let_in(payloads: list[bytes]) -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        member.invite(GUEST)
        dialler = stage.network.guest_dialler(stage.guest_identity.node_id)
        for payload in payloads:
            data = await dialler.ask(
                member.address,
                server_key=member.identity.keys.public_key,
                guest=GUEST,
                payload=payload,
                timeout_s=5.0,
            )
            answer = read_host(data)
            assert isinstance(answer, JoinRefusal)
            assert len(data) < MAX_JOIN_BYTES
        assert member.admitted == []

    play(story, seeds=1)


@settings(max_examples=60)
@given(_PAYLOADS)
def test_no_answer_breaks_a_guest(answer: bytes) -> None:
    class Answers:
        async def ask(self, address: str, **_: object) -> bytes:
            return answer

    async def story(stage: Stage) -> None:
        member = stage.member(1)
        guest = JoinGuest(
            dialler=Answers(), clock=stage.clock, requests=stage.guest_host.own_requests
        )
        with pytest.raises(SkulkError):
            await guest.join_by_token(member.token(), request_of(stage.guest_identity))

    play(story, seeds=1)


@given(st.binary(max_size=300))
def test_every_frame_is_read_or_refused(data: bytes) -> None:
    for read in (read_guest, read_host):
        with contextlib.suppress(ProtocolError):
            message = read(data)
            assert isinstance(message, OtherWire) or read(pack(message)) == message


def test_a_frame_that_is_too_large_is_refused_unread() -> None:
    hello = GuestProof(build="b", public_key="00" * 32, proof=bytes(32))
    data = pack(hello) + bytes(MAX_JOIN_BYTES)
    for read in (read_guest, read_host):
        with pytest.raises(ProtocolError) as caught:
            read(data)
        assert caught.value.code == "protocol.too_large"


@given(st.integers(1, 256), st.integers(0, 255), st.integers(0, 255), st.integers(0, 16))
@settings(max_examples=40)
def test_a_welcome_fits_and_keeps_the_member_and_the_master(
    n_members: int, own: int, master: int, n_addresses: int
) -> None:
    own, master = own % n_members, master % n_members
    keys = [number.to_bytes(32, "big") for number in range(n_members)]
    members = tuple(
        FellowMember(
            node_id=node_id_of(key),
            public_key=key.hex(),
            name="n" * 63,
            addresses=tuple(f"{'h' * 60}.example:{port + 1}" for port in range(n_addresses)),
        )
        for key in keys
    )
    welcome = Welcome(
        build="b", cluster_id=CLUSTER, members=members, master=members[master].node_id
    )
    data = fitting(welcome, keys[own].hex())
    assert len(data) <= MAX_JOIN_BYTES
    kept = read_host(data)
    assert isinstance(kept, Welcome)
    assert {members[own].node_id, members[master].node_id} <= {one.node_id for one in kept.members}
    if n_members <= 30:
        assert set(kept.members) == set(members)
