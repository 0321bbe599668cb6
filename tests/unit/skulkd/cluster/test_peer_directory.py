from collections.abc import Mapping

from protocol.ids import NodeId, node_id_of
from protocol.nodes import Member
from protocol.state import ClusterState, RemovedMember
from skulkd.cluster.discovery import Sighting
from skulkd.cluster.peer_directory import GOING_S, MAX_ADDRESSES, PeerDirectory
from skulkd.cluster.transport import Peer
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_cluster_id

KEYS = [bytes([number]) * 32 for number in range(1, 5)]
IDS = [node_id_of(key) for key in KEYS]
ME, OTHER, THIRD = IDS[0], IDS[1], IDS[2]


class Recorder:
    """Sockets that remember what they were told."""

    node_id = ME

    def __init__(self) -> None:
        self.told_peers: list[Mapping[NodeId, Peer]] = []

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        self.told_peers.append(peers)


def a_state(*members: int) -> ClusterState:
    return ClusterState(
        cluster_id=a_cluster_id(),
        members={
            IDS[index]: Member(
                node_id=IDS[index],
                name=f"n{index}",
                public_key=KEYS[index].hex(),
                addresses=(f"10.0.0.{index}:12416",),
            )
            for index in members
        },
    )


def a_sighting(index: int, *addresses: str, key: bytes | None = None) -> Sighting:
    return Sighting(
        node_id=IDS[index],
        public_key=key or KEYS[index],
        cluster_hash="a" * 16,
        addresses=addresses,
        wire=1,
        seen_s=1.0,
    )


def test_members_are_dialled_at_their_addresses_and_the_node_itself_is_not() -> None:
    sockets = Recorder()
    state = a_state(0, 1, 2)
    directory = PeerDirectory(sockets, appended=lambda: state)
    directory.refresh()
    assert sockets.told_peers == [
        {
            OTHER: Peer(node_id=OTHER, public_key=KEYS[1], addresses=("10.0.0.1:12416",)),
            THIRD: Peer(node_id=THIRD, public_key=KEYS[2], addresses=("10.0.0.2:12416",)),
        }
    ]


def test_nothing_is_told_twice() -> None:
    sockets = Recorder()
    state = a_state(0, 1)
    directory = PeerDirectory(sockets, appended=lambda: state)
    directory.refresh()
    directory.refresh()
    assert len(sockets.told_peers) == 1


def test_seeds_serve_until_the_state_knows_this_node() -> None:
    sockets = Recorder()
    states = [a_state()]
    seed = Peer(node_id=IDS[3], public_key=KEYS[3], addresses=("10.0.0.9:12416",))
    directory = PeerDirectory(sockets, appended=lambda: states[-1], seeds=(seed,))
    directory.refresh()
    states.append(a_state(0, 1))
    directory.refresh()
    assert [set(told) for told in sockets.told_peers] == [{IDS[3]}, {OTHER}]


def test_a_neighbour_adds_an_address_behind_those_the_member_gave() -> None:
    sockets = Recorder()
    state = a_state(0, 1)
    directory = PeerDirectory(sockets, appended=lambda: state, operator_addresses=("vpn:12416",))
    directory.refresh()
    directory.sight(a_sighting(1, "10.9.9.9:12416"))
    assert sockets.told_peers[-1][OTHER].addresses == (
        "10.0.0.1:12416",
        "10.9.9.9:12416",
        "vpn:12416",
    )


def test_a_neighbour_that_is_no_member_or_shows_another_key_changes_nothing() -> None:
    sockets = Recorder()
    state = a_state(0, 1)
    directory = PeerDirectory(sockets, appended=lambda: state)
    directory.refresh()
    directory.sight(a_sighting(2, "10.9.9.9:12416"))
    directory.sight(a_sighting(1, "10.9.9.9:12416", key=bytes(32)))
    assert len(sockets.told_peers) == 1


def test_addresses_of_a_peer_are_bounded() -> None:
    sockets = Recorder()
    state = a_state(0, 1)
    many = tuple(f"10.1.0.{number}:12416" for number in range(50))
    directory = PeerDirectory(sockets, appended=lambda: state, operator_addresses=many)
    directory.refresh()
    assert len(sockets.told_peers[-1][OTHER].addresses) == MAX_ADDRESSES


def test_a_removed_node_is_still_sent_to_for_a_moment_and_then_no_more() -> None:
    async def main() -> None:
        sockets = Recorder()
        states = [a_state(0, 1, 2)]
        directory = PeerDirectory(sockets, appended=lambda: states[-1])
        directory.refresh()
        states.append(without(states[0], OTHER))
        directory.refresh()
        assert OTHER in sockets.told_peers[-1]
        await sleep(GOING_S + 0.1)
        assert set(sockets.told_peers[-1]) == {THIRD}
        directory.refresh()
        assert set(sockets.told_peers[-1]) == {THIRD}

    run_virtual(main, seed=1)


def test_a_removed_node_that_is_admitted_again_is_a_peer_again() -> None:
    async def main() -> None:
        sockets = Recorder()
        states = [a_state(0, 1)]
        directory = PeerDirectory(sockets, appended=lambda: states[-1])
        directory.refresh()
        states.append(without(states[0], OTHER))
        directory.refresh()
        states.append(states[0])
        directory.refresh()
        await sleep(GOING_S + 0.1)
        assert set(sockets.told_peers[-1]) == {OTHER}

    run_virtual(main, seed=1)


def without(state: ClusterState, node_id: NodeId) -> ClusterState:
    member = state.members[node_id]
    removed = RemovedMember(
        node_id=node_id, public_key=member.public_key, name=member.name, at_ms=1
    )
    members = {known: item for known, item in state.members.items() if known != node_id}
    return state.model_copy(update={"members": members, "removed": {node_id: removed}})
