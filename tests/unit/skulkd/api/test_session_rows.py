"""The rows of each topic, and that a row without news stays as it is."""

from protocol.cluster_api import ClusterDocument, NodeView, StrangerView
from protocol.control_api import StateDocument, TransferStatus
from protocol.errors import ErrorBody
from protocol.ids import ModelId
from protocol.session import ClusterHead
from protocol.state import DownloadOutcome
from skulkd.api.cluster_views import nodes_document
from skulkd.api.session_rows import cluster_head, cluster_rows, placement_rows, transfer_rows
from skulkd.api.views import state_document
from tests.support.fake_ports import NODE, FakeDaemon, make_instance
from tests.support.two_nodes import BETA, TwoNodes


def documents(daemon: FakeDaemon) -> tuple[ClusterDocument, StateDocument]:
    cluster = daemon.cluster.status()
    state = state_document(
        daemon.state.state,
        daemon.readings.readings,
        daemon.health.node_health(),
        cluster,
        face=daemon.face,
        now=0.0,
        is_reachable=lambda _: True,
    )
    return cluster, state


def test_the_cluster_is_its_head_its_nodes_and_the_ways_between_them() -> None:
    cluster, state = documents(TwoNodes().alpha)
    rows = cluster_rows(cluster, state)
    assert set(rows) == {"cluster", f"node/{NODE}", f"node/{BETA}", f"link/{NODE}/{BETA}"}
    head = rows["cluster"]
    assert isinstance(head, ClusterHead)
    assert (head.master, head.voters, head.alive, head.ready) == (NODE, 2, 2, 1)


def test_the_head_counts_instances_and_what_is_wrong() -> None:
    daemon = FakeDaemon(
        make_instance(number=1), make_instance("load", number=2), make_instance("failed", number=3)
    )
    head = cluster_head(*documents(daemon))
    assert (head.ready, head.loading, head.failed, head.alerts) == (1, 1, 1, 1)


def test_ages_that_say_nothing_are_no_news() -> None:
    cluster, state = documents(TwoNodes().alpha)

    def silent(seconds: float) -> ClusterDocument:
        members = tuple(
            member.model_copy(update={"silent_s": seconds}) for member in cluster.members
        )
        stranger = StrangerView(
            public_key="ab" * 32,
            address="192.0.2.9:1",
            reason="no member",
            first_ago_s=100 + seconds,
            last_ago_s=seconds,
            tries=1,
        )
        return cluster.model_copy(update={"members": members, "strangers": (stranger,)})

    assert cluster_rows(silent(0.2), state) == cluster_rows(silent(1.9), state)
    assert cluster_rows(silent(0.2), state) != cluster_rows(silent(3.2), state)
    view = cluster_rows(silent(3.2), state)[f"node/{BETA}"]
    assert isinstance(view, NodeView)
    assert str(view.member.silent_s) == "3.0"
    assert f"stranger/{'ab' * 32}" in cluster_rows(silent(0.2), state)
    assert nodes_document(silent(3.2), state).items, "the HTTP documents are as they were"


def test_a_transfer_is_under_way_or_how_the_last_one_ended() -> None:
    _, state = documents(FakeDaemon())
    model = ModelId("a/b")
    outcome = DownloadOutcome(node_id=NODE, model_id=model, at_ms=1, size_bytes=9)
    failed = outcome.model_copy(
        update={
            "model_id": ModelId("a/c"),
            "error": ErrorBody(code="store.offline", message="offline"),
        }
    )
    running = TransferStatus(model_id=model, node_id=NODE, state="running", done_bytes=4)
    ended = state.model_copy(update={"downloads": {"x": outcome, "y": failed}})
    rows = transfer_rows(ended)
    states = {key: row.state for key, row in rows.items() if isinstance(row, TransferStatus)}
    assert states == {f"transfer/{NODE}/a/b": "complete", f"transfer/{NODE}/a/c": "failed"}
    again = transfer_rows(ended.model_copy(update={"transfers": (running,)}))
    assert again[f"transfer/{NODE}/a/b"] == running


def test_an_instance_and_its_failure_are_rows_of_their_own() -> None:
    instance = make_instance("failed")
    daemon = FakeDaemon(instance)
    failure = instance.failure
    assert failure is not None
    daemon.state.state = daemon.state.state.model_copy(update={"failures": (failure,)})
    _, state = documents(daemon)
    assert set(placement_rows(state)) == {
        f"instance/{instance.instance_id}",
        f"failure/{instance.instance_id}",
    }
