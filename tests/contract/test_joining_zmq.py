"""Joining over real sockets: a member with its ports open, and a guest that dials it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from protocol.errors import ClusterError
from protocol.ids import TokenId, node_id_of
from protocol.joining import JoinRequest, Welcome
from skulkd.cluster.code_keys import code_words, derive
from skulkd.cluster.curve_keys import make_key_pair, public_key_of
from skulkd.cluster.join_guest import HostCandidate, JoinGuest
from skulkd.cluster.join_host import JoinHost
from skulkd.cluster.reach import WayBack
from skulkd.cluster.zmq_guest_dialler import ZmqGuestDialler
from skulkd.core.invitations import CODE_TRIES, make_code, read_token, write_token
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.identity import Identity, KeyPair
from skulkd.runtime.tasks import Tasks
from tests.support.joins import Member, request_of
from tests.support.real_transports import CLUSTER, RealNode, introduce, real_nodes, until_up

NOBODY = "127.0.0.1:9"


@dataclass
class Meeting:
    """A member, and a guest whose ports are open too."""

    member: Member
    guest: JoinGuest
    request: JoinRequest
    victim: RealNode
    """A member beside the one that is asked."""

    @property
    def candidate(self) -> HostCandidate:
        return HostCandidate(
            public_key=self.member.identity.keys.public_key, address=self.member.address
        )


def _identity(keys: KeyPair) -> Identity:
    return Identity(node_id=node_id_of(keys.public_key), cluster_id=CLUSTER, keys=keys)


def _way_back(identity: Identity) -> WayBack:
    return WayBack(
        make_dialler=ZmqGuestDialler,
        keys=identity.keys,
        build="host-build",
        is_neighbour=lambda host: host.startswith("127."),
    )


async def _nobody(request: JoinRequest, token_id: TokenId) -> Welcome:
    message = f"{request.node_id} came by {token_id} to one that invites nobody"
    raise AssertionError(message)


def _meet(story: Callable[[Meeting], Awaitable[None]]) -> None:
    async def main() -> None:
        async with real_nodes() as nodes:
            host_node, guest_node, victim = nodes.make(), nodes.make(), nodes.make()
            for node in (host_node, guest_node, victim):
                await node.open()
            introduce(host_node, victim)
            await until_up(host_node, victim)
            clock, tasks = (
                SystemClock(),
                Tasks("joins", on_death=lambda story, _: pytest.fail(story)),
            )

            async def admit(request: JoinRequest, token_id: TokenId) -> Welcome:
                member.admitted.append((request, token_id))
                return member.welcome()

            identity = _identity(host_node.keys)
            spent: list[TokenId] = []
            host = JoinHost(
                door=host_node.transport,
                identity=identity,
                build="host-build",
                clock=clock,
                tasks=tasks,
                admit=admit,
                prover=_way_back(identity),
                on_spent=spent.append,
            )
            member = Member(identity, host, host_node.address(), spent=spent)
            guest_identity = _identity(guest_node.keys)
            request = request_of(guest_identity, addresses=(guest_node.address(),))
            guest_host = JoinHost(
                door=guest_node.transport,
                identity=guest_identity,
                build="guest-build",
                clock=clock,
                tasks=tasks,
                admit=admit,
                prover=_way_back(guest_identity),
            )
            guest = JoinGuest(
                dialler=ZmqGuestDialler(), clock=clock, requests=guest_host.own_requests
            )
            async with asyncio.timeout(60):
                await story(Meeting(member, guest, request, victim))
            assert await tasks.close(1.0) == ()

    asyncio.run(main())


def test_a_guest_is_let_in_by_a_token_that_was_written_and_read() -> None:
    async def story(meeting: Meeting) -> None:
        member = meeting.member
        token = read_token(write_token(member.token(NOBODY, member.address)))
        admission = await meeting.guest.join_by_token(token, meeting.request)
        assert admission.address == member.address
        assert admission.welcome == member.welcome()
        assert [request.node_id for request, _ in member.admitted] == [meeting.request.node_id]

    _meet(story)


def test_a_guest_is_let_in_by_a_code_and_wrong_ones_spend_it() -> None:
    async def story(meeting: Meeting) -> None:
        member, guest = meeting.member, meeting.guest
        code = make_code(bytes(range(16)), code_words())
        token_id = member.open_code(derive(code))
        stranger = HostCandidate(public_key=make_key_pair().public_key, address=member.address)
        admission = await guest.join_by_code(code, [stranger, meeting.candidate], meeting.request)
        assert admission.host_key == member.identity.keys.public_key
        assert member.admitted[0][1] == token_id
        for number in range(CODE_TRIES):
            wrong = make_code(bytes([number]) * 16, code_words())
            with pytest.raises(ClusterError) as caught:
                await guest.join_by_code(wrong, [meeting.candidate], meeting.request)
            assert caught.value.details["stage"] == "key_refused"
        async with asyncio.timeout(5):
            while member.spent != [token_id]:
                await asyncio.sleep(0.02)
        with pytest.raises(ClusterError) as caught:
            await guest.join_by_code(code, [meeting.candidate], meeting.request)
        assert caught.value.details["stage"] == "key_refused"
        assert len(member.admitted) == 1

    _meet(story)


def test_who_names_a_members_key_is_not_let_in_wherever_it_has_itself_dialled_back() -> None:
    async def story(meeting: Meeting) -> None:
        member, victim = meeting.member, meeting.victim
        token = member.token()
        for address, stage in (
            (victim.address(), "no_answer"),
            (meeting.request.addresses[0], "not_the_server"),
        ):
            request = request_of(_identity(victim.keys), addresses=(address,))
            with pytest.raises(ClusterError) as caught:
                await meeting.guest.join_by_token(token, request)
            assert caught.value.code == "cluster.join_refused"
            assert caught.value.details["stage"] == stage
            assert address.replace(":", " port ") in caught.value.message
        assert member.admitted == []
        # The member that was named is a member as before, and nothing has cut its connections.
        assert member.identity.node_id in victim.transport.peers()
        await meeting.guest.join_by_token(token, meeting.request)
        assert [request.node_id for request, _ in member.admitted] == [meeting.request.node_id]

    _meet(story)


def test_a_member_that_is_asked_to_let_its_fellow_in_anew_can_dial_it_back() -> None:
    async def story(meeting: Meeting) -> None:
        member, victim = meeting.member, meeting.victim
        identity = _identity(victim.keys)
        tasks = Tasks("fellow", on_death=lambda story, _: pytest.fail(story))
        host = JoinHost(
            door=victim.transport,
            identity=identity,
            build="guest-build",
            clock=SystemClock(),
            tasks=tasks,
            admit=_nobody,
            prover=_way_back(identity),
        )
        guest = JoinGuest(
            dialler=ZmqGuestDialler(), clock=SystemClock(), requests=host.own_requests
        )
        request = request_of(identity, addresses=(victim.address(),))
        await guest.join_by_token(member.token(), request)
        assert [one.node_id for one, _ in member.admitted] == [identity.node_id]
        assert await tasks.close(1.0) == ()

    _meet(story)


def test_each_way_that_is_shut_is_told_by_its_direction() -> None:
    async def story(meeting: Meeting) -> None:
        member, guest = meeting.member, meeting.guest
        token = member.token()
        shut = meeting.request.model_copy(update={"addresses": (NOBODY,)})
        with pytest.raises(ClusterError) as caught:
            await guest.join_by_token(token, shut)
        assert caught.value.code == "cluster.join_refused"
        assert caught.value.details["direction"] == "incoming"
        with pytest.raises(ClusterError) as caught:
            await guest.join_by_token(member.token(NOBODY), meeting.request)
        assert caught.value.code == "cluster.join_failed"
        assert "outgoing" in caught.value.message
        assert member.admitted == []
        assert member.tokens.popitem()[1].public_key == public_key_of(token.secret).hex()

    _meet(story)
