"""Real clients against a real node. `make test-clients` runs them where no network is.

Elsewhere they are not collected: they need environments, which are fetched first.
"""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.client_environments import HAS_NODE
from tests.support.client_node import ClientNode, running_client_node
from tests.support.library_clients import CLIENTS

IS_ASKED: Final = "SKULK_TEST_CLIENTS" in os.environ
"""Set by `make test-clients`."""

collect_ignore_glob = [] if IS_ASKED else ["test_*.py"]
if not HAS_NODE:
    collect_ignore_glob += ["test_agents.py"]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientNode]:
    """Give a node with the models that the clients are run against."""
    with running_client_node(
        tmp_path_factory.mktemp("clients"), (client.name for client in CLIENTS)
    ) as made:
        yield made
