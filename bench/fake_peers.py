"""Many peers in one process: to the daemon that is measured they are the rest of its cluster.

`python -m bench.fake_peers` reads lines of JSON: `{"token": …, "count": N}` lets N more of them
join by that token, and is answered with a line once all of them are members; `{}` has all say again
that they are there; the end of standard input ends them. Each has a key, ports, CURVE connections
both ways, heartbeats, hellos and readings of its own, as a node has; none of them has a log, a
worker or an API. They vote for whoever asks, follow whoever claims to be master, and say that they
have journalled whatever they are sent.
"""

import asyncio
import json
import logging
import os
import random
import sys
from collections.abc import Coroutine
from typing import Any, Final, final

from protocol.codec import pack
from protocol.commands import AdmitMember, Command, ReportFacts
from protocol.errors import ProtocolError, SkulkError
from protocol.ids import NodeId, command_id_of, node_id_of
from protocol.joining import JoinQuestion, JoinRequest, read_guest
from protocol.nodes import NodeCapabilities
from protocol.peer_messages import (
    Campaign,
    ElectionMessage,
    Heartbeat,
    Journalled,
    LogPosition,
    SubmitCommand,
    Vote,
    pack_frame,
    unpack_election,
    unpack_events,
)
from protocol.readings import HoldingsReading, NodeReading, Reading, key_of
from protocol.telemetry_wire import is_echo, pack_reading, transport_key
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.guests import GuestReply
from skulkd.cluster.join_guest import JoinGuest
from skulkd.cluster.link_echoes import LinkEchoes
from skulkd.cluster.own_requests import OwnRequests
from skulkd.cluster.peer_calls import ControlCalls
from skulkd.cluster.telemetry import REFRESH_S
from skulkd.cluster.transport import Peer
from skulkd.cluster.zmq_guest_dialler import ZmqGuestDialler
from skulkd.cluster.zmq_transport import ZmqTransport
from skulkd.core.election import BEAT_GRACE_S, HEARTBEAT_S
from skulkd.core.invitations import OpenToken, read_token
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.tasks import Tasks
from tests.support.builders import some_facts

_HOST: Final = "127.0.0.1"
_JOIN_PAUSE_S: Final = 0.5
_JOINING: Final = 4
"""Joins at a time."""
_TIMEOUT_S: Final = 60.0
_ANSWER_S: Final = 5.0
_POLL_S: Final = 0.02
_RETRIES: Final = 20
_FACTS: Final = some_facts()
_NOT_YET: Final = frozenset(
    {"cluster.no_master", "cluster.peer_timeout", "cluster.peer_unreachable"}
)


@final
class _FakePeer:
    """One of them; its one peer is the daemon."""

    def __init__(self, number: int, token: OpenToken, tasks: Tasks, clock: SystemClock) -> None:
        self._number = number
        self._token = token
        self._tasks = tasks
        self._clock = clock
        self._keys = make_key_pair()
        self._boot_id = f"{number + 1:016x}"
        self._rng = random.Random(number)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  spreads pauses
        self._transport = ZmqTransport(
            self._keys,
            boot_id=self._boot_id,
            build="bench",
            cluster_id=lambda: token.cluster_id,
            clock=clock,
            rng=self._rng,
            on_death=_die,
        )
        self._calls = ControlCalls(self._transport, rng=self._rng, tasks=tasks)
        self._requests = OwnRequests(build="bench", on_change=self._let_in)
        self._daemon = Peer(
            node_id=node_id_of(token.inviter_key),
            public_key=token.inviter_key,
            addresses=token.addresses,
        )
        self._heartbeat = Heartbeat(
            boot_id=self._boot_id,
            number=0,
            master=None,
            is_minority=False,
            position=LogPosition(0, 0, 0, 0),
            commit_seq=0,
            chain=bytes(16),
            unheard=(),
            is_lagging=False,
            hash_seq=0,
            state_hash=b"",
        )
        self._beaten_s = clock.monotonic_s()
        self._told_s = self._beaten_s - self._rng.uniform(0, REFRESH_S)
        self._n_told = 0
        self._echoes = LinkEchoes(self._transport, clock)
        self._transport.on_receive("telemetry", self._on_telemetry)
        self._transport.on_guest(self._on_guest)
        self._transport.on_receive("election", self._on_election)
        self._transport.on_receive("events", self._on_events)

    async def join(self) -> None:
        """Become a member, and go on as one."""
        node_id, name = self._transport.node_id, f"fake-{self._number}"
        port = await self._transport.open([_HOST], 0)
        request = JoinRequest(
            build="bench",
            node_id=node_id,
            public_key=self._keys.public_key.hex(),
            boot_id=self._boot_id,
            name=name,
            addresses=(f"{_HOST}:{port}",),
        )
        # A member hears so many guests of one host in a second, and all of these are of one.
        await asyncio.sleep(_JOIN_PAUSE_S)
        guest = JoinGuest(dialler=ZmqGuestDialler(), clock=self._clock, requests=self._requests)
        await guest.join_by_token(self._token, request)
        self._transport.set_peers({self._daemon.node_id: self._daemon})
        async with asyncio.timeout(_TIMEOUT_S):
            while self._transport.link(self._daemon.node_id) != "up":
                await asyncio.sleep(_POLL_S)
        self._beat()
        self._tasks.start(self._keep_beating(), name=f"heartbeats of {name}")
        await self.renew()
        await self._submit(
            ReportFacts(
                command_id=command_id_of(node_id, os.urandom(20)),
                node_id=node_id,
                facts=_FACTS,
                capabilities=NodeCapabilities(backends=("llama_server-cpu",)),
            )
        )

    async def close(self) -> None:
        """Hang up."""
        self._echoes.close()
        await self._transport.close()

    async def renew(self) -> None:
        """Say that it is there, as a node does after its arrival and after its loss."""
        node_id = self._transport.node_id
        await self._submit(
            AdmitMember(
                command_id=command_id_of(node_id, os.urandom(20)),
                node_id=node_id,
                name=f"fake-{self._number}",
                public_key=self._keys.public_key.hex(),
                addresses=(f"{_HOST}:{self._transport.base_port}",),
            )
        )

    def _is_own_loss(self, body: bytes) -> bool:
        return b"member_lost" in body and self._transport.node_id.encode() in body

    async def _submit(self, command: Command) -> None:
        for number in range(_RETRIES):
            try:
                request = SubmitCommand(command=command)
                await self._calls.ask(self._daemon.node_id, request, timeout_s=_ANSWER_S)
            except SkulkError as error:
                if error.code not in _NOT_YET or number == _RETRIES - 1:
                    raise
                await asyncio.sleep(_ANSWER_S / _RETRIES)
            else:
                return

    def _beat(self) -> None:
        self._beaten_s = self._clock.monotonic_s()
        self._say(self._heartbeat)
        if self._beaten_s - self._told_s >= REFRESH_S:
            self._told_s = self._beaten_s
            self._tell_readings()

    async def _keep_beating(self) -> None:
        """Say its heartbeat when the master's does not come, as a member does."""
        due_s = HEARTBEAT_S + BEAT_GRACE_S
        while True:
            silent_s = self._clock.monotonic_s() - self._beaten_s
            if silent_s >= due_s:
                self._beat()
            else:
                await asyncio.sleep(due_s - silent_s)

    def _tell_readings(self) -> None:
        """Say what a node at rest does: its readings move too little to be told before that."""
        self._tell(self._reading(self._n_told))
        self._tell(HoldingsReading(node_id=self._transport.node_id, at_s=self._told_s))
        self._n_told += 1

    def _reading(self, number: int) -> NodeReading:
        return NodeReading(
            node_id=self._transport.node_id,
            at_s=self._clock.monotonic_s(),
            memory_available_bytes=(8 << 30) + number,
            disk_free_bytes=(100 << 30) + number,
            cpu_ratio=0.01,
            loop_lag_s=0.001,
        )

    def _tell(self, reading: Reading) -> None:
        payload = pack_reading(reading, now=self._clock.monotonic_s())
        name = transport_key(key_of(reading))
        self._transport.send(self._daemon.node_id, "telemetry", payload, key=name)

    def _say(self, message: ElectionMessage) -> None:
        key = type(message).__name__
        self._transport.send(self._daemon.node_id, "election", pack_frame(message), key=key)

    def _let_in(self) -> None:
        self._transport.set_guest_keys(self._requests.keys())

    def _on_guest(self, name: str, host: str, payload: bytes, reply: GuestReply) -> None:
        del host
        try:
            message = read_guest(payload)
        except ProtocolError:
            return  # the hello of a member that dials while its question is still open
        if isinstance(message, JoinQuestion):
            reply(pack(self._requests.confirm(name, message)))

    def _on_election(self, sender: NodeId, payload: bytes) -> None:
        message = unpack_election(payload)
        if isinstance(message, Heartbeat) and message.master == sender:
            # Whose log ends where the master's does, with the same chain, has all of it.
            self._heartbeat = message._replace(
                boot_id=self._boot_id, unheard=(), is_lagging=False, hash_seq=0, state_hash=b""
            )
            if self._clock.monotonic_s() - self._beaten_s > HEARTBEAT_S / 2:
                self._beat()
        elif isinstance(message, Campaign):
            number = message.number
            self._say(Vote(number, is_trial=message.is_trial, denial="", known_number=number))

    def _on_telemetry(self, sender: NodeId, payload: bytes) -> None:
        if is_echo(payload):
            self._echoes.hear(sender, payload)

    def _on_events(self, sender: NodeId, payload: bytes) -> None:
        batch = unpack_events(payload)
        if any(self._is_own_loss(body) for body in batch.records):
            self._tasks.start(self.renew(), name="return", essential=False)
        if batch.records:
            said = Journalled(batch.number, batch.prev_seq + len(batch.records))
            self._transport.send(sender, "control", pack_frame(said))


async def _main() -> None:
    loop = asyncio.get_running_loop()
    tasks, clock = Tasks("fake peers", on_death=_die), SystemClock()
    peers: list[_FakePeer] = []
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked: dict[str, Any] = json.loads(line)
        room = asyncio.Semaphore(_JOINING)

        async def one_of_few(what: Coroutine[None, None, None], room: asyncio.Semaphore) -> None:
            async with room:
                await what

        if "token" not in asked:
            await asyncio.gather(*(one_of_few(peer.renew(), room) for peer in peers))
            continue
        token = read_token(asked["token"])
        begun = len(peers)
        peers += [_FakePeer(begun + n, token, tasks, clock) for n in range(asked["count"])]
        await asyncio.gather(*(one_of_few(peer.join(), room) for peer in peers[begun:]))
        sys.stdout.write(json.dumps({"count": len(peers)}) + "\n")
        sys.stdout.flush()
    await tasks.close(1)
    await asyncio.gather(*(peer.close() for peer in peers))


def _die(story: str, error: BaseException) -> None:
    sys.stderr.write(f"{story}\n")
    raise SystemExit(1) from error


if __name__ == "__main__":
    # Each refuses the daemon once, before it knows it: so does every node that joins.
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(_main())
