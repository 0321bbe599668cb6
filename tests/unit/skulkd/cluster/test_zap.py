"""The handler, asked as ZeroMQ asks it."""

import asyncio
from itertools import starmap

import pytest
import zmq

from protocol.ids import node_id_of
from skulkd.cluster.admission import Admission
from skulkd.cluster.stranger_list import StrangerList
from skulkd.cluster.transport import Peer
from skulkd.cluster.zap import ENDPOINT, ZapHandler
from skulkd.cluster.zmq_sockets import make_context, zap_domain
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.tasks import run_blocking

OWN, MEMBER, NOBODY = (bytes([number]) * 32 for number in range(3))
GOOD = [b"1.0", b"7", zap_domain("cluster"), b"10.0.0.1", b"", b"CURVE", MEMBER]


def _changed(**fields: bytes) -> list[bytes]:
    names = ("version", "request", "domain", "address", "routing", "mechanism", "key")
    return list(starmap(fields.get, zip(names, GOOD, strict=True)))


def _ask(questions: list[list[bytes]]) -> tuple[list[list[bytes]], StrangerList]:
    strangers = StrangerList()
    admission = Admission(OWN)
    admission.set_members([Peer(node_id=node_id_of(MEMBER), public_key=MEMBER)])
    context = make_context()

    def ask_all() -> list[list[bytes]]:
        asker = context.socket(zmq.REQ)
        asker.connect(ENDPOINT)
        asker.setsockopt(zmq.RCVTIMEO, 5000)
        answers: list[list[bytes]] = []
        for question in questions:
            asker.send_multipart(question)
            answers.append(asker.recv_multipart())
        asker.close(0)
        return answers

    async def main() -> list[list[bytes]]:
        handler = ZapHandler(
            context, "cluster", judge=admission.judge, strangers=strangers, clock=SystemClock()
        )
        try:
            return await run_blocking(ask_all)
        finally:
            handler.close()
            await run_blocking(context.term)

    return asyncio.run(main()), strangers


def test_a_member_is_named_by_its_id_and_a_stranger_is_told_nothing() -> None:
    answers, strangers = _ask([GOOD, _changed(request=b"8", key=NOBODY)])
    assert answers[0] == [b"1.0", b"7", b"200", b"OK", node_id_of(MEMBER).encode(), b""]
    assert answers[1] == [b"1.0", b"8", b"400", b"not admitted", b"", b""]
    (stranger,) = strangers.listed(SystemClock().monotonic_s())
    assert (stranger.public_key, stranger.address) == (NOBODY, "10.0.0.1")


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (_changed(version=b"2.0"), b"500"),
        (GOOD[:6], b"500"),
        ([*GOOD, b"more"], b"500"),
        ([b"1.0"], b"500"),
        (_changed(domain=zap_domain("bulk")), b"400"),
        (_changed(domain=b""), b"400"),
        (_changed(mechanism=b"NULL"), b"400"),
        (_changed(key=b"short"), b"400"),
    ],
)
def test_any_question_is_answered_and_one_out_of_form_with_a_refusal(
    question: list[bytes], status: bytes
) -> None:
    answers, strangers = _ask([question, GOOD])
    assert answers[0][2] == status
    assert answers[0][4] == b""
    assert answers[1][2] == b"200", "and the next one is answered, too"
    assert strangers.n_refused == 0


def test_an_address_in_ipv6_dress_is_listed_as_it_is() -> None:
    _, strangers = _ask([_changed(key=NOBODY, address=b"::ffff:10.0.0.2")])
    (stranger,) = strangers.listed(SystemClock().monotonic_s())
    assert stranger.address == "10.0.0.2"
