"""The files plane of one node: which frames are for files, link probes or tunnels."""

import logging
from typing import Final, final

from protocol.errors import ProtocolError
from protocol.files_wire import (
    CloseArtifact,
    CloseFilling,
    FilesFrame,
    Filling,
    FillingRefused,
    OpenArtifact,
    ReadFilling,
    ReadRange,
    unpack_files,
)
from protocol.ids import NodeId
from protocol.tunnel_wire import TunnelFrame
from skulkd.cluster.file_client import FileClient
from skulkd.cluster.file_server import FileServer
from skulkd.cluster.link_probes import LinkProbes
from skulkd.cluster.transport import Transport
from skulkd.cluster.tunnels import Tunnels

_log = logging.getLogger(__name__)

_TELL_EVERY: Final = 1000
"""Of so many bad frames of a peer one is logged, and the first."""


@final
class FilePlane:
    """Receives the plane's payloads.

    Args:
        transport: Whose `files` plane.
        server: Gets questions.
        client: Gets answers.
        probes: Gets what links are measured by; a plane without drops it.
        tunnels: Gets the streams of engines; a plane without drops them.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        server: FileServer,
        client: FileClient,
        probes: LinkProbes | None = None,
        tunnels: Tunnels | None = None,
    ) -> None:
        self._server = server
        self._client = client
        self._probes = probes
        self._tunnels = tunnels
        self._n_bad: dict[NodeId, int] = {}
        transport.on_receive("files", self._on_payload)

    def n_bad_frames(self, peer: NodeId) -> int:
        """Count the payloads of a peer that were none."""
        return self._n_bad.get(peer, 0)

    def _on_payload(self, sender: NodeId, payload: bytes) -> None:
        try:
            frame: FilesFrame = unpack_files(payload)
        except ProtocolError as error:
            count = self._n_bad[sender] = self._n_bad.get(sender, 0) + 1
            if count % _TELL_EVERY == 1:
                _log.warning("bad frame %d of node %s: %s", count, sender, error.message)
            return
        if isinstance(frame, TunnelFrame):
            if self._tunnels is not None:
                self._tunnels.on_frame(sender, frame)
        elif isinstance(frame, OpenArtifact | ReadRange | CloseArtifact):
            self._server.on_request(sender, frame)
        elif isinstance(frame, ReadFilling | CloseFilling | Filling | FillingRefused):
            if self._probes is not None:
                self._probes.on_frame(sender, frame)
        else:
            self._client.on_answer(sender, frame)
