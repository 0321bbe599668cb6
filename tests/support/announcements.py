"""Announcements of nodes that are made up, each number another node."""

from protocol.ids import node_id_of
from skulkd.cluster.discovery import Announcement


def announcement_of(
    number: int = 1, *, base_port: int = 12416, cluster_hash: str = "a" * 16
) -> Announcement:
    """Make the announcement of node `number`."""
    key = number.to_bytes(32, "big")
    return Announcement(
        node_id=node_id_of(key), public_key=key, cluster_hash=cluster_hash, base_port=base_port
    )
