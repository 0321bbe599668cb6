"""Two nodes of one cluster: alpha over HTTP, beta behind it as another node of the cluster."""

from typing import Final, final

from protocol.ids import NodeId
from protocol.nodes import Member
from skulkd.api.app import ApiApp, create_app
from skulkd.api.dependencies import NodeFace
from skulkd.runtime.tasks import Tasks
from tests.support.fake_cluster import FakeCluster, FakeLogs
from tests.support.fake_ports import NODE, FakeDaemon, make_instance, make_state

BETA: Final = NodeId("nbbbbbbbbbbbbbbbb")


@final
class TwoNodes:
    """Their state is one; alpha is master."""

    def __init__(self) -> None:
        members = {
            NODE: Member(node_id=NODE, name="alpha", public_key="aa" * 32),
            BETA: Member(
                node_id=BETA, name="beta", public_key="bb" * 32, addresses=("192.0.2.2:1",)
            ),
        }
        self.state = make_state(make_instance(), members=members)
        self.alpha = FakeDaemon()
        self.alpha.state.state = self.state
        self.beta = FakeDaemon()
        self.beta.state.state = self.state
        self.beta.face = NodeFace(
            node_id=BETA, name="beta", hostname="beta.lan", boot_id="boot2", version="0.1.0"
        )
        self.beta.models.node_id = BETA
        self.beta.cluster = FakeCluster(self.beta.state, BETA)
        self.beta.logs = FakeLogs(BETA)
        self.beta.logs.lines[None] = ["of beta"]
        self.beta_app: ApiApp = create_app(
            self.beta.dependencies(Tasks("beta", on_death=lambda _, error: None))
        )
        self.alpha.peers.servers[BETA] = self.beta_app.peers
