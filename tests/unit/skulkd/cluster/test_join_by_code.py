"""Both sides of a join by code, on a simulated network."""

import hashlib
import itertools
from collections.abc import Mapping

import pytest

from protocol.codec import pack
from protocol.envelope import WIRE_VERSION
from protocol.errors import ClusterError, SkulkError
from protocol.ids import TokenId, token_id_of
from protocol.joining import GuestProof, HostProof, JoinRefusal, JoinRequest, Welcome, read_host
from skulkd.cluster import join_guest
from skulkd.cluster.addresses import PeerAddress
from skulkd.cluster.code_keys import CodeKeys, derive, prove
from skulkd.cluster.curve_keys import key_pair_of
from skulkd.cluster.discovery import Sighting
from skulkd.cluster.guests import OnGuest, Stranger
from skulkd.cluster.join_guest import HostCandidate, candidates_of
from skulkd.cluster.join_host import JoinHost
from skulkd.core.invitations import CODE_TRIES, CODE_VALID_S
from skulkd.runtime.tasks import sleep
from tests.support.joins import Dialled, Member, Stage, identity_of, play, request_of, way_back

CODE = ("abandon", "ability", "able", "about", "above", "absent")
KEYS = derive(CODE)
OTHER_CODE = (*CODE[:5], "absorb")


# ruff: ignore[pytest-fixture-autouse]  no story here is about the stretching itself
@pytest.fixture(autouse=True)
def _stretched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each story the 0.1 s that a code takes."""

    def look_up(code: tuple[str, ...]) -> CodeKeys:
        secret = hashlib.sha256(" ".join(code).encode()).digest()
        return KEYS if code == CODE else CodeKeys(guest=key_pair_of(secret), mac_key=secret)

    monkeypatch.setattr(join_guest, "derive", look_up)


def _candidate(member: Member) -> HostCandidate:
    return HostCandidate(public_key=member.identity.keys.public_key, address=member.address)


def test_a_guest_is_let_in_by_a_code_and_finds_its_member_among_others() -> None:
    async def story(stage: Stage) -> None:
        members = [stage.member(number) for number in range(1, 6)]
        token_id = members[3].open_code(KEYS)
        admission = await stage.guest.join_by_code(
            CODE, [_candidate(member) for member in members], request_of(stage.guest_identity)
        )
        assert admission.address == members[3].address
        assert [len(member.admitted) for member in members] == [0, 0, 0, 1, 0]
        assert members[3].admitted[0][1] == token_id
        assert members[3].admitted[0][0].cluster_id is None
        assert members[3].host.tries_left(token_id) == CODE_TRIES

    play(story)


def test_nothing_is_said_about_a_guest_before_the_member_has_proven_the_code() -> None:
    heard: list[bytes] = []

    async def story(stage: Stage) -> None:
        pretender = stage.member(1)
        door = stage.network.attach(pretender.identity.node_id, public_key=b"\1" * 32)
        door.set_guest_keys({KEYS.guest.public_key: "anything"})

        def answer(name: str, host: str, payload: bytes, reply: object) -> None:
            heard.append(payload)
            assert callable(reply)
            reply(
                pack(
                    JoinRefusal(
                        build="x",
                        code="later.code",
                        message="no\x1b[2J",
                        details={"a": "b\x1b[2J", "n": 1},
                    )
                )
            )

        door.on_guest(answer)
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_code(
                CODE, [_candidate(pretender)], request_of(stage.guest_identity)
            )
        assert caught.value.code == "cluster.join_refused"
        assert caught.value.details["code"] == "later.code"
        assert "\x1b" not in caught.value.message
        assert (caught.value.details["a"], caught.value.details["n"]) == ("b [2J", 1)

    play(story, seeds=1)
    for payload in heard:
        for said in (b"attic", b"10.0.0.2", b"join_request", CODE[0].encode()):
            assert said not in payload


def test_a_member_that_cannot_prove_the_code_is_not_asked() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        # Its key is right and its proof is not: it knows the guest's key and not the code.
        member.host.open_code(member.open_code(KEYS), b"x" * 32)
        proof = prove(
            b"x" * 32,
            "guest",
            guest_key=stage.guest_identity.keys.public_key,
            host_key=member.identity.keys.public_key,
        )
        hello = GuestProof(
            build="b", public_key=stage.guest_identity.keys.public_key.hex(), proof=proof
        )
        answer = await stage.ask_raw(member, KEYS.guest, pack(hello))
        assert isinstance(read_host(answer), HostProof)
        guest = join_guest.JoinGuest(
            dialler=Dialled(answer), clock=stage.clock, requests=stage.guest_host.own_requests
        )
        with pytest.raises(ClusterError) as caught:
            await guest.join_by_code(CODE, [_candidate(member)], request_of(stage.guest_identity))
        assert caught.value.code == "cluster.join_refused"
        assert "does not know the code" in caught.value.message
        assert member.admitted == []

    play(story, seeds=1)


def test_a_guest_by_code_that_has_proven_nothing_is_refused() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        member.open_code(KEYS)
        answer = await stage.ask(member, KEYS.guest, pack(request_of(stage.guest_identity)))
        assert isinstance(answer, JoinRefusal)
        assert "not proven" in answer.message
        assert member.admitted == []

    play(story, seeds=1)


def test_five_wrong_codes_spend_a_code_and_old_strangers_do_not_count() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        candidate = [_candidate(member)]
        request = request_of(stage.guest_identity)

        async def try_code(code: tuple[str, ...]) -> SkulkError:
            with pytest.raises(ClusterError) as caught:
                await stage.guest.join_by_code(code, candidate, request)
            return caught.value

        old = (*CODE[:5], "old")
        await try_code(old)
        await sleep(1.0)
        token_id = member.open_code(KEYS)
        assert member.host.tries_left(token_id) == CODE_TRIES
        await try_code(old)
        for number in range(CODE_TRIES - 1):
            error = await try_code((*CODE[:5], f"wrong{number}"))
            await try_code((*CODE[:5], f"wrong{number}"))
            assert error.details["stage"] == "key_refused"
        assert member.host.tries_left(token_id) == 1
        assert member.spent == []
        await try_code(OTHER_CODE)
        await sleep(1.5)
        assert member.spent == [token_id]
        assert member.host.tries_left(token_id) == 0
        refused = await try_code(CODE)
        assert refused.details["stage"] == "key_refused"
        assert member.admitted == []

    play(story)


class DoorWithStrangers:
    """A door that nobody comes through."""

    def __init__(self, *strangers: Stranger) -> None:
        self._strangers = strangers

    def set_guest_keys(self, keys: Mapping[bytes, str]) -> None: ...

    def on_guest(self, receiver: OnGuest) -> None: ...

    def strangers(self) -> tuple[Stranger, ...]:
        return self._strangers


async def _nobody(request: JoinRequest, token_id: TokenId) -> Welcome:
    raise AssertionError(request, token_id)


def _stranger(key: bytes, address: str, first_s: float) -> Stranger:
    return Stranger(
        public_key=key,
        address=address,
        reason="its key is unknown",
        first_s=first_s,
        last_s=first_s,
        n_tries=1,
    )


def test_a_key_counts_once_and_not_when_it_knocked_before_the_code_was_made() -> None:
    old = (_stranger(b"o" * 32, "10.0.0.8", 1.0), _stranger(b"o" * 32, "10.0.0.9", 9.0))
    new = (_stranger(b"n" * 32, "10.0.0.8", 9.0), _stranger(b"n" * 32, "10.0.0.9", 9.5))

    async def story(stage: Stage) -> None:
        await sleep(5.0)
        for strangers in itertools.permutations(old + new):
            host = JoinHost(
                door=DoorWithStrangers(*strangers),
                identity=identity_of(1),
                build="b",
                clock=stage.clock,
                tasks=stage.tasks,
                admit=_nobody,
                prover=way_back(stage.network, identity_of(1)),
            )
            token_id = token_id_of(b"t" * 8)
            host.open_code(token_id, KEYS.mac_key)
            assert host.tries_left(token_id) == CODE_TRIES - 1

    play(story, seeds=1)


def test_a_right_code_that_comes_right_behind_five_wrong_ones_is_refused_with_the_reason() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        token_id = member.open_code(KEYS)
        for number in range(CODE_TRIES):
            with pytest.raises(ClusterError):
                await stage.ask(member, key_pair_of(bytes([number + 1]) * 32), b"x")
        hello = GuestProof(build="b", public_key="00" * 32, proof=bytes(32))
        answer = await stage.ask(member, KEYS.guest, pack(hello))
        assert isinstance(answer, JoinRefusal)
        assert "5 times" in answer.message
        assert "token" in answer.remediation
        assert member.spent == [token_id]

    play(story, seeds=1)


def test_wrong_proofs_count_as_tries() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        token_id = member.open_code(KEYS)
        hello = pack(GuestProof(build="b", public_key="00" * 32, proof=bytes(32)))
        for left in range(CODE_TRIES - 1, -1, -1):
            answer = await stage.ask(member, KEYS.guest, hello)
            assert isinstance(answer, JoinRefusal)
            assert "does not fit" in answer.message
            assert member.host.tries_left(token_id) == left
        assert member.spent == [token_id]

    play(story, seeds=1)


def test_a_code_lives_for_ten_minutes_and_not_over_a_restart_of_its_member() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        token_id = member.open_code(KEYS)
        await sleep(CODE_VALID_S + 2)
        assert member.host.tries_left(token_id) == 0
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_code(
                CODE, [_candidate(member)], request_of(stage.guest_identity)
            )
        assert caught.value.code == "cluster.join_refused"
        assert "expired" in caught.value.message

    play(story, seeds=1)


def test_without_anybody_to_ask_the_guest_says_what_to_do() -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_code(CODE, [], request_of(stage.guest_identity))
        assert caught.value.code == "cluster.join_failed"
        assert "--peer KEY@HOST:PORT" in caught.value.remediation

    play(story, seeds=1)


def test_a_code_that_nobody_knows_is_told_from_a_member_that_cannot_be_reached() -> None:
    async def story(stage: Stage) -> None:
        members = [stage.member(1), stage.member(2)]
        candidates = [_candidate(member) for member in members]
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_code(CODE, candidates, request_of(stage.guest_identity))
        assert "(2 asked)" in caught.value.message
        assert "Compare the six words" in caught.value.remediation
        stage.network.cut(stage.guest_identity.node_id, members[0].identity.node_id)
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_code(CODE, candidates, request_of(stage.guest_identity))
        assert "outgoing" in caught.value.message
        assert "was not found" in caught.value.message

    play(story, seeds=1)


def test_who_is_named_is_asked_before_who_was_seen_and_each_once() -> None:
    key, other = b"k" * 32, b"o" * 32
    sighting = Sighting(
        node_id=identity_of(1).node_id,
        public_key=key,
        cluster_hash="a" * 16,
        addresses=("192.0.2.1:12416", "192.0.2.2:12416"),
        wire=WIRE_VERSION,
        seen_s=0.0,
    )
    peers = [
        PeerAddress(public_key=None, address="192.0.2.2:12416"),
        PeerAddress(public_key=None, address="192.0.2.9:12416"),
        PeerAddress(public_key=other, address="192.0.2.2:12416"),
    ]
    assert candidates_of(peers, [sighting, sighting]) == (
        HostCandidate(public_key=key, address="192.0.2.2:12416"),
        HostCandidate(public_key=other, address="192.0.2.2:12416"),
        HostCandidate(public_key=key, address="192.0.2.1:12416"),
    )
