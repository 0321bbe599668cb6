from protocol.envelope import MAX_PAYLOAD_BYTES, PLANE_MARK, PLANE_PORT, PORTS
from skulkd.cluster.lanes import (
    LANES,
    MARKED_PLANES,
    MAX_FRAME_BYTES,
    PLANE_LANE,
    port_number,
)
from skulkd.cluster.zmq_sockets import SILENCE_S


def test_every_plane_has_one_lane_on_its_port_and_every_port_a_lane_of_its_name() -> None:
    assert PLANE_LANE.keys() == PLANE_MARK.keys()
    for plane, lane in PLANE_LANE.items():
        assert LANES[lane].port == PLANE_PORT[plane]
    assert set(PORTS) < set(LANES)
    for port in PORTS:
        assert LANES[port].port == port


def test_a_frame_of_any_plane_fits_its_port() -> None:
    for plane, mark in PLANE_MARK.items():
        port = PLANE_PORT[plane]
        assert MARKED_PLANES[port][mark] == plane
        assert MAX_PAYLOAD_BYTES[plane] + 1 <= MAX_FRAME_BYTES[port]


def test_ports_are_three_in_a_row() -> None:
    assert [port_number(12416, port) for port in PORTS] == [12416, 12417, 12418]


def test_one_lane_of_a_link_asks_whether_the_other_end_lives_and_not_too_seldom() -> None:
    asking = {lane: rules.heartbeat_s for lane, rules in LANES.items() if rules.heartbeat_s}
    assert asking.keys() == {"election"}
    assert asking["election"] + SILENCE_S <= 8
