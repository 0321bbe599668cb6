"""Both sides of a join by token, on a simulated network."""

import asyncio

import pytest

from protocol.codec import encode_values, pack
from protocol.envelope import WIRE_VERSION
from protocol.errors import ClusterError, SkulkError
from protocol.ids import cluster_id_of
from protocol.joining import JoinQuestion, JoinRefusal
from skulkd.cluster import join_guest
from skulkd.cluster.addresses import PeerAddress
from skulkd.cluster.curve_keys import key_pair_of
from skulkd.cluster.join_host import ADMIT_S, MAX_ADMISSIONS, MAX_SAID
from skulkd.runtime.tasks import sleep
from tests.support.joins import (
    EPOCH_MS,
    GUEST_ADDRESS,
    HOUR_MS,
    Dialled,
    Stage,
    identity_of,
    play,
    request_of,
)


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
        guest = join_guest.JoinGuest(
            dialler=dialler, clock=stage.clock, requests=stage.guest_host.own_requests
        )
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
            guest = join_guest.JoinGuest(
                dialler=Dialled(pack(welcome)),
                clock=stage.clock,
                requests=stage.guest_host.own_requests,
            )
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
            await stage.ask(
                other, key_pair_of(token.secret), pack(request_of(stage.guest_identity))
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
        answer = await stage.ask(member, key_pair_of(token.secret), pack(request))
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
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        request = request_of(stage.guest_identity, addresses=("10.0.0.99:12416",))
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(member.token(), request)
        error = caught.value
        assert error.code == "cluster.join_refused"
        assert "incoming" in error.message
        assert "nobody listens at 10.0.0.99 port 12416" in error.message
        assert (error.details["direction"], error.details["stage"]) == (
            "incoming",
            "nobody_listens",
        )
        assert (error.details["host"], error.details["port"]) == ("10.0.0.99", 12416)
        assert "ufw allow 12416:12418/tcp" in error.remediation
        assert member.admitted == []

    play(story, seeds=1)


def test_another_node_at_a_guests_address_is_told_from_a_closed_port() -> None:
    async def story(stage: Stage) -> None:
        member, other = stage.member(1), stage.member(2)
        request = request_of(stage.guest_identity, addresses=(other.address,))
        with pytest.raises(ClusterError) as caught:
            await stage.guest.join_by_token(member.token(), request)
        assert caught.value.details["stage"] == "not_the_server"
        assert f"{other.address.replace(':', ' port ')} does not have the guest's key" in str(
            caught.value
        )
        assert "--advertise" in caught.value.remediation
        assert member.admitted == []

    play(story, seeds=1)


def test_a_guest_that_names_another_nodes_key_is_refused_and_changes_nothing() -> None:
    """It knows the public key and the address of a member, as every guest does."""

    async def story(stage: Stage) -> None:
        member, victim = stage.member(1), stage.member(2)
        for addresses in ((victim.address,), (GUEST_ADDRESS,), (GUEST_ADDRESS, victim.address)):
            with pytest.raises(ClusterError) as caught:
                await stage.guest.join_by_token(
                    member.token(), request_of(victim.identity, addresses=addresses)
                )
            assert caught.value.code == "cluster.join_refused"
            assert caught.value.details["direction"] == "incoming"
        assert "public key" in caught.value.remediation
        assert member.admitted == victim.admitted == []
        assert next(iter(member.tokens.values())).uses_left == 1

    play(story, seeds=1)


def test_who_is_joining_confirms_its_own_words_and_only_to_the_member_it_has_asked() -> None:
    async def story(stage: Stage) -> None:
        member, other = stage.member(1), stage.member(2)
        request = request_of(stage.guest_identity, cluster_id=member.identity.cluster_id)
        payload, renamed = pack(request), pack(request.model_copy(update={"name": "evil"}))
        guest = key_pair_of(member.token().secret)
        with stage.guest_host.own_requests.asking(member.identity.keys.public_key, payload):
            answer = await stage.ask(member, guest, renamed)
            assert isinstance(answer, JoinRefusal)
            assert answer.details["stage"] == "not_confirmed"
            answer = await stage.ask(other, key_pair_of(other.token().secret), payload)
            assert isinstance(answer, JoinRefusal)
            assert answer.details["stage"] == "key_refused"
            assert not isinstance(await stage.ask(member, guest, payload), JoinRefusal)
        answer = await stage.ask(member, guest, payload)
        assert isinstance(answer, JoinRefusal), "once it has its answer it confirms nothing"
        assert [one.name for one, _ in member.admitted] == [request.name]
        assert other.admitted == []

    play(story, seeds=1)


def test_a_guest_of_an_invitation_cannot_ask_what_only_members_ask() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        guest = key_pair_of(member.token().secret)
        answer = await stage.ask(member, guest, pack(JoinQuestion(build="b", digest=bytes(32))))
        assert isinstance(answer, JoinRefusal)
        assert answer.code == "cluster.join_refused"

    play(story, seeds=1)


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"uses_left": 0}, "cluster.token_used"),
        ({"expires_at_ms": EPOCH_MS}, "cluster.token_expired"),
    ],
)
def test_nobody_has_a_member_dial_about_by_an_invitation_that_is_over(
    over: dict[str, int], code: str
) -> None:
    async def story(stage: Stage) -> None:
        member, other = stage.member(1), stage.member(2)
        token = member.token()
        member.tokens = {
            token_id: one.model_copy(update=over) for token_id, one in member.tokens.items()
        }
        member.host.set_tokens(member.tokens)
        for elsewhere in ("10.0.0.99:22", other.address):
            request = request_of(stage.guest_identity, addresses=(elsewhere,))
            with pytest.raises(ClusterError) as caught:
                await stage.guest.join_by_token(token, request)
            assert caught.value.code == code, "what was found there is not told"
            assert member.admitted == []
        # Whether it was let in before and asks again is decided where everything is.
        await stage.guest.join_by_token(token, request_of(stage.guest_identity))
        assert len(member.admitted) == 1

    play(story, seeds=1)


def test_a_guest_that_says_too_much_at_once_is_not_heard_for_the_rest_of_the_second() -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        guest = key_pair_of(member.token().secret)
        asked = [
            asyncio.ensure_future(stage.ask(member, guest, b"\xc0")) for _ in range(MAX_SAID + 5)
        ]
        done, pending = await asyncio.wait(asked, timeout=1.0)
        assert (len(done), len(pending), member.host.n_unheard) == (MAX_SAID, 5, 5)
        for one in pending:
            one.cancel()
        await asyncio.wait(pending)
        assert isinstance(await stage.ask(member, guest, b"\xc0"), JoinRefusal)

    play(story, seeds=1)


def test_builds_that_cannot_understand_each_other_name_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(stage: Stage) -> None:
        member = stage.member(1)
        token = member.token()
        future = encode_values({"wire": 99, "build": "later\nbuild", "shape": "unknown"})
        answer = await stage.ask(member, key_pair_of(token.secret), future)
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
        with stage.guest_host.own_requests.asking(member.identity.keys.public_key, payload):
            asking = [
                stage.tasks.start(stage.ask(member, guest, payload), name="ask", essential=False)
                for _ in range(MAX_ADMISSIONS + 3)
            ]
            answers = [await one for one in asking]
            refusals = [answer for answer in answers if isinstance(answer, JoinRefusal)]
            assert len(refusals) == 3
            assert "16 other nodes" in refusals[0].message
            member.delay_s = 0.0
            assert not isinstance(await stage.ask(member, guest, payload), JoinRefusal)

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
