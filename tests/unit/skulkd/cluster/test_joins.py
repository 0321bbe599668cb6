"""Both sides of a join, on a simulated network."""

import asyncio
import hashlib
import itertools
from collections.abc import Mapping

import pytest

from protocol.codec import encode_values, pack
from protocol.envelope import WIRE_VERSION
from protocol.errors import ClusterError, SkulkError
from protocol.ids import TokenId, cluster_id_of, token_id_of
from protocol.joining import GuestProof, HostProof, JoinRefusal, JoinRequest, Welcome, read_host
from skulkd.cluster import join_guest
from skulkd.cluster.addresses import PeerAddress
from skulkd.cluster.code_keys import CodeKeys, derive, prove
from skulkd.cluster.curve_keys import key_pair_of
from skulkd.cluster.discovery import Sighting
from skulkd.cluster.guests import OnGuest, Stranger, join_failed
from skulkd.cluster.join_guest import HostCandidate, candidates_of
from skulkd.cluster.join_host import ADMIT_S, MAX_ADMISSIONS, JoinHost
from skulkd.core.invitations import CODE_TRIES, CODE_VALID_S
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import sleep
from tests.support.joins import EPOCH_MS, HOUR_MS, Member, Stage, identity_of, play, request_of

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


async def _ask_raw(stage: Stage, member: Member, guest: KeyPair, payload: bytes) -> bytes:
    dialler = stage.network.guest_dialler(stage.guest_identity.node_id)
    return await dialler.ask(
        member.address,
        server_key=member.identity.keys.public_key,
        guest=guest,
        payload=payload,
        timeout_s=60.0,
    )


async def _ask(stage: Stage, member: Member, guest: KeyPair, payload: bytes) -> object:
    return read_host(await _ask_raw(stage, member, guest, payload))


class Dialled:
    """A way out on which everybody answers the same, and some do not answer at all."""

    def __init__(self, answer: bytes, silent_at: set[str] | None = None) -> None:
        self.addresses: list[str] = []
        self._answer = answer
        self._silent_at = silent_at or set[str]()

    async def ask(self, address: str, **_: object) -> bytes:
        self.addresses.append(address)
        if address in self._silent_at:
            raise join_failed("no_route", address.partition(":")[0], 12416)
        return self._answer


# ---- Tokens ----


def test_a_guest_is_let_in_by_a_token() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        token = member.token()
        admission = await stage.guest.join_by_token(token, request_of(stage.guest_identity))
        assert admission.welcome == member.welcome()
        assert admission.host_key == member.identity.keys.public_key
        assert admission.address == member.address
        ((request, token_id),) = member.admitted
        assert request.cluster_id == member.identity.cluster_id
        assert (request.name, token_id) == ("attic", next(iter(member.tokens)))

    play(story)


def test_the_addresses_of_a_token_are_tried_until_one_answers() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        other = stage.member(2)
        token = member.token("10.9.9.9:12416", other.address, member.address)
        admission = await stage.guest.join_by_token(token, request_of(stage.guest_identity))
        assert admission.address == member.address
        assert other.admitted == []

    play(story)


def test_an_address_that_does_not_answer_holds_up_nobody() -> None:
    async def story(stage: Stage) -> None:
        member, silent = stage.member(1), stage.member(2)
        stage.network.cut(stage.guest_identity.node_id, silent.identity.node_id)
        token = member.token(silent.address, member.address)
        began_s = asyncio.get_running_loop().time()
        await stage.guest.join_by_token(token, request_of(stage.guest_identity))
        assert asyncio.get_running_loop().time() - began_s < 3.0

    play(story)


def test_peers_that_are_named_are_tried_first_unless_their_key_is_another() -> None:
    async def story(stage: Stage) -> None:
        member, other = stage.member(1), stage.member(2)
        token = member.token("10.9.9.9:12416")
        peers = [
            PeerAddress(public_key=other.identity.keys.public_key, address=other.address),
            PeerAddress(public_key=member.identity.keys.public_key, address="10.9.9.8:12416"),
            PeerAddress(public_key=None, address=member.address),
        ]
        dialler = Dialled(pack(member.welcome()), silent_at={"10.9.9.8:12416"})
        guest = join_guest.JoinGuest(dialler=dialler, clock=stage.clock)
        admission = await guest.join_by_token(token, request_of(stage.guest_identity), peers=peers)
        assert admission.address == member.address
        assert dialler.addresses == ["10.9.9.8:12416", member.address]

    play(story, seeds=1)


def test_a_welcome_to_another_cluster_or_by_somebody_outside_it_is_not_taken() -> None:
    async def story(stage: Stage) -> None:
        member, other = stage.member(1), stage.member(2)
        token = member.token()
        elsewhere = member.welcome().model_copy(update={"cluster_id": cluster_id_of(b"e" * 16)})
        stranger = other.welcome()
        for welcome, what in ((elsewhere, "and not to"), (stranger, "no member of the cluster")):
            guest = join_guest.JoinGuest(dialler=Dialled(pack(welcome)), clock=stage.clock)
            with pytest.raises(ClusterError) as caught:
                await guest.join_by_token(token, request_of(stage.guest_identity))
            assert caught.value.code == "cluster.join_failed"
            assert what in caught.value.message

    play(story, seeds=1)


def test_a_token_that_leads_nowhere_says_direction_port_and_what_opens_it() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        stage.network.cut(stage.guest_identity.node_id, member.identity.node_id)
        token = member.token(member.address)
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(token, request_of(stage.guest_identity))
        error = caught.value
        assert error.code == "cluster.join_failed"
        assert error.details["stage"] == "no_route"
        assert "outgoing" in error.message
        assert "12416" in error.message
        for line in (
            "ufw allow 12416:12418/tcp",
            "firewall-cmd --add-port=12416-12418/tcp",
            "nft add rule inet filter input tcp dport 12416-12418 accept",
        ):
            assert line in error.remediation

    play(story)


def test_several_addresses_that_lead_nowhere_are_all_told() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        addresses = tuple(f"10.9.9.{number}:12416" for number in range(1, 7))
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(
                member.token(*addresses), request_of(stage.guest_identity)
            )
        assert caught.value.code == "cluster.join_failed"
        assert "10.9.9.1 port 12416" in caught.value.message
        assert "and 2 more" in caught.value.message
        assert caught.value.details["addresses"] == 6

    play(story)


def test_a_key_that_is_refused_is_told_as_expired_when_the_token_has() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        token = member.token()
        member.host.set_tokens({})
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(token, request_of(stage.guest_identity))
        assert caught.value.code == "cluster.join_failed"
        assert caught.value.details["stage"] == "key_refused"
        await sleep(HOUR_MS / 1000 + 1)
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(token, request_of(stage.guest_identity))
        assert caught.value.code == "cluster.token_expired"
        assert stage.clock.wall_ms() > EPOCH_MS + HOUR_MS

    play(story, seeds=1)


def test_a_token_of_another_member_opens_nothing_here() -> None:
    async def story(stage: Stage) -> None:
        member, other = stage.member(1), stage.member(2)
        token = member.token()
        other.host.set_tokens(member.tokens)
        with pytest.raises(ClusterError) as caught:
            await _ask(
                stage, other, key_pair_of(token.secret), pack(request_of(stage.guest_identity))
            )
        assert caught.value.details["stage"] == "key_refused"

    play(story)


@pytest.mark.parametrize(
    "error",
    [
        ClusterError("cluster.token_used", "it is used up", remediation="Make a new one."),
        ClusterError("cluster.token_expired", "it expired 5 s ago", remediation="Make a new one."),
        ClusterError("cluster.full", "there are 256 members", remediation="Remove one."),
        ClusterError("cluster.no_master", "there is no master", remediation="Try again."),
    ],
)
def test_what_the_cluster_refuses_with_is_what_the_guest_is_told(error: ClusterError) -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        member.refuse_with = error
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(member.token(), request_of(stage.guest_identity))
        assert caught.value.code == error.code
        assert error.message in caught.value.message
        assert member.address in caught.value.message
        assert caught.value.remediation == error.remediation

    play(story, seeds=1)


def test_a_token_for_another_cluster_is_refused_naming_both() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1, cluster_id=cluster_id_of(b"d" * 16))
        token = member.token()
        asked_for = cluster_id_of(b"e" * 16)
        request = request_of(stage.guest_identity, cluster_id=asked_for)
        answer = await _ask(stage, member, key_pair_of(token.secret), pack(request))
        assert isinstance(answer, JoinRefusal)
        assert answer.code == "cluster.join_refused"
        assert asked_for in answer.message
        assert member.identity.cluster_id in answer.message
        assert member.admitted == []

    play(story, seeds=1)


def test_a_guest_with_the_members_own_key_is_refused_as_a_copy() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(member.token(), request_of(member.identity))
        assert caught.value.code == "cluster.join_refused"
        assert "copied" in caught.value.remediation

    play(story, seeds=1)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"node_id": identity_of(7).node_id}, "another node's"),
        ({"addresses": ("10.0.0.2:99999",)}, "99999"),
        ({"addresses": ("a;b:1",)}, "a;b:1"),
    ],
)
def test_a_request_that_no_state_can_make_good_is_refused(
    changes: dict[str, object], what: str
) -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(
                member.token(), request_of(stage.guest_identity, **changes)
            )
        assert caught.value.code == "cluster.join_refused"
        assert what in caught.value.message
        assert member.admitted == []

    play(story, seeds=1)


def test_a_guest_whom_nobody_can_dial_back_is_told_so_with_the_line_for_its_firewall() -> None:
    dialled: list[tuple[str, ...]] = []

    async def nobody(addresses: tuple[str, ...]) -> str:
        dialled.append(addresses)
        return "no connection to port 12416 within 2 s"

    async def story(stage: Stage) -> None:
        member = stage.member(1, reach_back=nobody)
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(member.token(), request_of(stage.guest_identity))
        assert caught.value.code == "cluster.join_refused"
        assert "incoming" in caught.value.message
        assert "10.0.0.2:12416" in caught.value.message
        assert caught.value.details["direction"] == "incoming"
        assert "ufw allow 12416:12418/tcp" in caught.value.remediation
        assert member.admitted == []

    play(story, seeds=1)
    assert dialled == [("10.0.0.2:12416",)]


def test_builds_that_cannot_understand_each_other_name_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        token = member.token()
        future = encode_values({"wire": 99, "build": "later\nbuild", "shape": "unknown"})
        answer = await _ask(stage, member, key_pair_of(token.secret), future)
        assert isinstance(answer, JoinRefusal)
        assert "wire version 99 (build ?)" in answer.message
        assert f"{WIRE_VERSION} (build host-build)" in answer.message

        def other_wire(*_: object, **__: object) -> bytes:
            return encode_values({"wire": 99, "build": "later", "shape": "unknown"})

        monkeypatch.setattr("skulkd.cluster.join_host.fitting", other_wire)
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(token, request_of(stage.guest_identity))
        assert caught.value.code == "cluster.join_refused"
        assert "wire version 99 (build later)" in caught.value.message

    play(story, seeds=1)


def test_a_decision_that_does_not_come_is_refused_in_time() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        member.delay_s = 1000.0
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(member.token(), request_of(stage.guest_identity))
        assert "did not decide" in caught.value.message
        assert asyncio.get_running_loop().time() - began_s < ADMIT_S + 1

    play(story, seeds=1)


def test_a_bug_of_the_member_is_answered_and_not_told_in_detail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        member.refuse_with = KeyError("secret detail")
        with pytest.raises(SkulkError) as caught:
            await stage.guest.join_by_token(member.token(), request_of(stage.guest_identity))
        assert caught.value.code == "internal.bug"
        assert "secret detail" not in caught.value.message

    play(story, seeds=1)
    assert "secret detail" in caplog.text


def test_a_crowd_of_guests_is_asked_to_come_again() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        member.delay_s = 5.0
        token = member.token()
        guest = key_pair_of(token.secret)
        payload = pack(request_of(stage.guest_identity))
        asking = [
            stage.tasks.start(_ask(stage, member, guest, payload), name="ask", essential=False)
            for _ in range(MAX_ADMISSIONS + 3)
        ]
        answers = [await one for one in asking]
        refusals = [answer for answer in answers if isinstance(answer, JoinRefusal)]
        assert len(refusals) == 3
        assert "16 other nodes" in refusals[0].message
        member.delay_s = 0.0
        assert not isinstance(await _ask(stage, member, guest, payload), JoinRefusal)

    play(story, seeds=1)


def test_a_closed_member_lets_nobody_in() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        token = member.token()
        member.host.close()
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(token, request_of(stage.guest_identity))
        assert caught.value.details["stage"] == "key_refused"

    play(story, seeds=1)


# ---- Codes ----


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
            reply(pack(JoinRefusal(build="x", code="later.code", message="no\x1b[2J", details={})))

        door.on_guest(answer)
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_code(
                CODE, [_candidate(pretender)], request_of(stage.guest_identity)
            )
        assert caught.value.code == "cluster.join_refused"
        assert caught.value.details["code"] == "later.code"
        assert "\x1b" not in caught.value.message

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
        answer = await _ask_raw(stage, member, KEYS.guest, pack(hello))
        assert isinstance(read_host(answer), HostProof)
        guest = join_guest.JoinGuest(dialler=Dialled(answer), clock=stage.clock)
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
        answer = await _ask(stage, member, KEYS.guest, pack(request_of(stage.guest_identity)))
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
                await _ask(stage, member, key_pair_of(bytes([number + 1]) * 32), b"x")
        hello = GuestProof(build="b", public_key="00" * 32, proof=bytes(32))
        answer = await _ask(stage, member, KEYS.guest, pack(hello))
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
            answer = await _ask(stage, member, KEYS.guest, hello)
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
