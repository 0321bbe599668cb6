"""Settings and identities as a node answers them."""

from protocol.admin_api import ConfigDocument, NodeConfig, RestartDocument, SettingView
from protocol.control_api import NodeIdentity
from protocol.drain_api import DrainDocument
from protocol.state import ClusterSettings
from tests.support.builders import a_cluster_id, a_node_id


def some_settings() -> ConfigDocument:
    """Give the settings of a node, one of which waits for its restart."""
    return ConfigDocument(
        node_id=a_node_id(),
        name="studio",
        node=NodeConfig(
            path="/home/op/.local/share/skulk/skulk.yaml",
            effective={
                "name": SettingView(value="studio", source="default"),
                "priority": SettingView(value=50, source="file"),
                "mdns": SettingView(value=True, source="flag"),
                "bind": SettingView(value=("eth0", "eth1"), source="environment"),
                "join_file": SettingView(value=None, source="default"),
            },
            file={"priority": 60},
            pending=("priority",),
        ),
        cluster=ClusterSettings(),
    )


def an_identity() -> NodeIdentity:
    """Give a node as it introduces itself."""
    return NodeIdentity(
        node_id=a_node_id(),
        name="studio",
        cluster_id=a_cluster_id(),
        boot_id="life-1",
        version="0.1.0",
    )


def a_drain() -> DrainDocument:
    """Say that a drain would stop nothing."""
    return DrainDocument(
        node_id=a_node_id(),
        name="studio",
        eligibility="eligible",
        deadline_s=60,
        is_applied=False,
        term=3,
        seq=42,
    )


def a_restart() -> RestartDocument:
    """Say that a restart would interrupt nothing."""
    return RestartDocument(
        node_id=a_node_id(), name="studio", boot_id="life-1", restarting=False, interrupted=()
    )
