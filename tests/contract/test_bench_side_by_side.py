"""Fair turns, and which values are compared with which."""

import sys

import pytest

from bench.load import Job
from bench.side_by_side import (
    FLOOR,
    N_ROUNDS,
    OURS,
    PEER_FLOOR,
    Side,
    Turns,
    added,
    counted,
    in_turn,
    ratios,
    result,
)
from bench.sides import Ask, LoadGenerator
from bench.tcp_engines import on_port


def a_side(name: str, floor: str = "") -> Side:
    def job(model_id: str, ask: Ask) -> Job:
        raise AssertionError(model_id, ask)

    return Side(name=name, generator=LoadGenerator(), job=job, floor=floor)


def a_field() -> tuple[Side, ...]:
    return (
        a_side(FLOOR),
        a_side(OURS, FLOOR),
        a_side(PEER_FLOOR),
        a_side("other", PEER_FLOOR),
    )


def test_every_other_round_runs_backwards_and_peers_take_part_in_every_third() -> None:
    order: list[str] = []

    def measure(side: Side) -> float:
        order.append(side.name)
        return 1.0

    turns = in_turn(a_field(), measure)

    assert order[:6] == [FLOOR, OURS, PEER_FLOOR, "other", OURS, FLOOR]
    assert len(turns.values(OURS)) == N_ROUNDS
    assert list(turns.by_side["other"]) == [0, 3, 6]


def test_a_peer_that_fails_leaves_the_others_their_rounds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(side: Side) -> float:
        if side.name == "other":
            raise RuntimeError("HTTP/1.1 500")
        return 2.0

    sides = a_field()
    turns = in_turn(sides, measure)

    assert "other failed: HTTP/1.1 500" in capsys.readouterr().out
    assert added(sides, turns) == {OURS: [0.0] * N_ROUNDS}
    assert counted(sides, turns) == {OURS: [2.0] * N_ROUNDS}


@pytest.mark.parametrize("name", [FLOOR, OURS, PEER_FLOOR])
def test_a_failure_of_ours_or_of_an_engine_is_raised(name: str) -> None:
    def measure(side: Side) -> float:
        if side.name == name:
            raise RuntimeError("broken")
        return 1.0

    with pytest.raises(RuntimeError, match="broken"):
        in_turn(a_field(), measure)


def test_a_side_is_compared_with_its_own_floor_of_the_same_round() -> None:
    turns = Turns(
        {
            FLOOR: {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0},
            OURS: {0: 2.0, 1: 4.0, 2: 6.0, 3: 8.0},
            PEER_FLOOR: {0: 10.0, 3: 20.0},
            "other": {0: 40.0, 3: 60.0},
        }
    )

    assert added(a_field(), turns) == {OURS: [1.0, 2.0, 3.0, 4.0], "other": [30.0, 40.0]}
    assert ratios(a_field(), turns) == {OURS: [2.0] * 4, "other": [4.0, 3.0]}


def test_a_row_judges_ours_and_shows_the_others() -> None:
    row = result(
        "P1 p50", "added", "ms", (0.5, 0.2), {OURS: [0.4, 0.3, 0.5], "other": [3.0]}, "how"
    )

    assert (row.seen, row.verdict) == (0.4, "gate")
    assert row.sides == {OURS: 0.4, "other": 3.0}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["llama-server", "--host", "/run/engine.sock", "--ctx-size", "8"],
            ["llama-server", "--host", "127.0.0.1", "--ctx-size", "8", "--port", "7000"],
        ),
        (
            [sys.executable, '{"socket": "/run/engine.sock", "script": {}}'],
            [sys.executable, '{"script": {}, "port": 7000}'],
        ),
        (
            [sys.executable, '{"socket_path": "/run/engine.sock", "n_ctx": 8}'],
            [sys.executable, '{"socket_path": "127.0.0.1", "n_ctx": 8, "port": 7000}'],
        ),
    ],
)
def test_an_engine_of_a_unix_socket_is_run_on_a_port(
    command: list[str], expected: list[str]
) -> None:
    assert on_port(command, 7000) == expected
