"""Tests on networks of their own. `make test-net` runs them in a network and mount namespace.

Elsewhere they are not collected: the bridge would be the machine's.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.network_namespaces import Machine, NodeOnMachine, small_network

IS_PRIVATE: Final = "SKULK_TEST_NETWORKS" in os.environ
"""Set by `make test-net`."""

collect_ignore_glob = [] if IS_PRIVATE else ["test_*.py"]

MakeNode = Callable[..., NodeOnMachine]


@pytest.fixture
def machines() -> Iterator[tuple[Machine, ...]]:
    """Give three machines on one bridge."""
    with small_network(3) as made:
        yield made


@pytest.fixture
def make_node(tmp_path: Path, machines: object) -> Iterator[MakeNode]:
    """Give a factory of started nodes; gone before their machines are."""
    del machines
    made: list[NodeOnMachine] = []

    def make(machine: Machine, *, arguments: Sequence[str] = ()) -> NodeOnMachine:
        node = NodeOnMachine(machine, tmp_path / machine.name, arguments=arguments)
        made.append(node)
        node.start()
        return node

    yield make
    for node in made:
        node.kill()
        # ruff: ignore[print]  pytest shows it when the test fails
        print(f"---- {node.machine.name}\n{node.log_tail()}")
