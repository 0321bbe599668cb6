"""What a node sees of its cluster, as a document."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from protocol.cluster_api import ClusterDocument, DivergenceView, MdnsView
from protocol.ids import NodeId
from protocol.nodes import Member, Presence
from protocol.peer_messages import TermPair
from skulkd.api.cluster_views import OwnSight, cluster_document, topology
from skulkd.cluster.guests import Stranger
from skulkd.cluster.link_views import Duplicate, PeerInfo
from skulkd.core.link_rtt import LinkRtt
from tests.support.fake_ports import NODE, make_state

B = NodeId("nbbbbbbbbbbbbbbbb")
C = NodeId("ncccccccccccccccc")


@final
@dataclass
class SeenMaster:
    """A MasterView as a test sets it."""

    term: TermPair | None = field(default_factory=lambda: TermPair(4, NODE))
    last_master: NodeId | None = NODE
    is_master: bool = True
    silent: dict[NodeId, float | None] = field(default_factory=dict[NodeId, float | None])

    def is_alive(self, node_id: NodeId) -> bool:
        silent_s = self.silent.get(node_id, 0.1)
        return silent_s is not None and silent_s < 2

    def silent_s(self, node_id: NodeId) -> float | None:
        return self.silent.get(node_id, 0.1)

    def is_reachable(self, node_id: NodeId) -> bool:
        return self.is_alive(node_id)

    def on_change(self, watcher: Callable[[], None]) -> None:
        del watcher


@final
class SeenLinks:
    """A LinkViews with one link that is down."""

    def peer_info(self, peer: NodeId) -> PeerInfo | None:
        if peer == C:
            return PeerInfo(node_id=C, link="silent", reason="nothing heard", dialled="192.0.2.3:1")
        return PeerInfo(node_id=peer, link="up", build="0.1.0")

    def duplicates(self) -> tuple[Duplicate, ...]:
        return ()


def member(node_id: NodeId, name: str, presence: Presence = "present") -> Member:
    return Member(node_id=node_id, name=name, public_key="ab" * 32, presence=presence)


def seen(
    master: SeenMaster | None = None, c: Presence = "present", **changes: object
) -> ClusterDocument:
    state = make_state(
        members={NODE: member(NODE, "a"), B: member(B, "b"), C: member(C, "c", c)}, term=4
    )
    fields: dict[str, object] = {
        "node_id": NODE, "name": "a", "base_port": 12416, "commit_seq": 9, "appended_seq": 10,
        "build": "0.1.0",
    }  # fmt: skip
    sight = OwnSight(**(fields | changes))  # pyright: ignore[reportArgumentType] - by name
    return cluster_document(state, sight, master or SeenMaster(), SeenLinks(), now_s=100.0)


def test_the_master_sees_itself_as_master_and_everybody_alive() -> None:
    document = seen()
    assert (document.role, document.master, document.term) == ("master", NODE, 4)
    assert [one.liveness for one in document.members] == ["alive"] * 3
    assert [one.is_master for one in document.members] == [True, False, False]
    assert (document.quorum.voters, document.quorum.alive) == (3, 3)
    assert (document.commit_seq, document.appended_seq, document.is_open) == (9, 10, True)


def test_how_long_a_word_takes_is_shown_of_peers_and_null_where_it_is_not_known() -> None:
    def rtt_of(node_id: NodeId) -> LinkRtt | None:
        return None if node_id == C else LinkRtt(median_ms=0.25, last_ms=1.0)

    found = [(one.rtt_median_ms, one.rtt_last_ms) for one in seen(rtt_of=rtt_of).members]
    assert found == [(None, None), (0.25, 1.0), (None, None)]


def test_between_terms_there_is_no_master_but_the_last_one_is_named() -> None:
    document = seen(SeenMaster(term=None, is_master=False, last_master=B))
    assert (document.role, document.master, document.last_master) == ("none", None, B)
    assert not any(one.is_master for one in document.members)


def test_a_fenced_master_is_not_shown_as_one_that_decides() -> None:
    assert seen(SeenMaster(is_master=False)).role == "member"


def test_a_present_member_that_is_not_heard_is_suspect_and_says_why() -> None:
    document = seen(SeenMaster(silent={C: 3.5}))
    c = document.members[2]
    assert (c.liveness, c.silent_s, c.link, c.link_reason) == (
        "suspect", 3.5, "silent", "nothing heard",
    )  # fmt: skip
    assert (document.quorum.alive, document.quorum.is_majority) == (2, True)
    assert topology(document).nodes == (NODE, B)


def test_a_lost_member_is_lost_even_while_it_is_heard_again() -> None:
    assert seen(c="lost").members[2].liveness == "lost"


def test_who_has_left_or_not_arrived_is_no_voter() -> None:
    assert seen(c="left").quorum.voters == 2
    joining = seen(SeenMaster(silent={C: None}), c="joining")
    assert (joining.quorum.voters, joining.members[2].silent_s) == (2, None)


def test_a_drained_member_says_so_and_the_others_take_models() -> None:
    drained = member(B, "b").model_copy(update={"drain_since_ms": 5})
    state = make_state(members={NODE: member(NODE, "a"), B: drained})
    sight = OwnSight(node_id=NODE, name="a", base_port=12416, commit_seq=9, appended_seq=9)
    document = cluster_document(state, sight, SeenMaster(), SeenLinks(), now_s=100.0)
    assert [one.eligibility for one in document.members] == ["eligible", "drained"]


def test_half_of_the_voters_is_no_majority() -> None:
    document = seen(SeenMaster(silent={B: 9.0}), c="left")
    assert (document.quorum.voters, document.quorum.alive) == (2, 1)
    assert not document.quorum.is_majority


def test_a_closed_node_has_no_ports() -> None:
    document = seen(base_port=None)
    assert (document.is_open, document.base_port) == (False, None)


def test_strangers_duplicates_and_a_divergence_are_told_with_their_age() -> None:
    stranger = Stranger(
        public_key=b"\x01" * 32, address="192.0.2.9", reason="no member", first_s=10.0,
        last_s=90.0, n_tries=7,
    )  # fmt: skip
    twin = Duplicate(
        node_id=B, boot_ids=("1", "2"), addresses=("192.0.2.2", "192.0.2.8"), last_seen_s=99.0
    )
    lost = DivergenceView(at_ms=1, term=3, seq=8, discarded=2)
    document = seen(
        strangers=(stranger,), duplicates=(twin,), divergence=lost,
        mdns=MdnsView(status="failed", reason="no socket"),
    )  # fmt: skip
    (shown,) = document.strangers
    assert (shown.first_ago_s, shown.last_ago_s, shown.tries) == (90.0, 10.0, 7)
    assert shown.public_key == "01" * 32
    (double,) = document.duplicates
    assert (double.name, double.addresses) == ("b", ("192.0.2.2", "192.0.2.8"))
    assert document.divergence == lost
    assert document.mdns.reason == "no socket"
