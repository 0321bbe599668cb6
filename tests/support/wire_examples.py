"""One example of every frame that nodes send to each other, and the bytes it has always had.

The golden frames are a promise to nodes of the build before: they change only together with
`WIRE_VERSION`. A kind of frame that is new is added by

    python -m tests.support.wire_examples

which writes those that are missing and leaves the others as they are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol import data_wire, files_wire, frame_wire, joining, telemetry_wire, tunnel_wire
from protocol.base import FrozenModel
from protocol.codec import pack
from protocol.commands import CommandReply
from protocol.data_frames import (
    Chunk,
    Failed,
    Finished,
    Frame,
    Started,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from protocol.envelope import WIRE_VERSION
from protocol.hello import Hello, hello_frame
from protocol.ids import CommandId, InstanceId, ModelId
from protocol.peer_messages import (
    Answer,
    ApiAnswer,
    Ask,
    CallApi,
    Campaign,
    CancelTask,
    CommandAnswer,
    EventBatch,
    EventRange,
    Farewell,
    FetchEvents,
    FetchSnapshotChunk,
    Handover,
    Heartbeat,
    HoldProbe,
    Journalled,
    LinkMeasured,
    LogPosition,
    MeasureLink,
    OpenSnapshot,
    PeerAnswer,
    PeerRequest,
    ProbeHeld,
    Refused,
    SnapshotChunk,
    SnapshotOpened,
    SubmitCommand,
    TaskCancelled,
    Vote,
    pack_frame,
)
from protocol.readings import (
    AcceleratorReading,
    Holding,
    HoldingsReading,
    InstanceReading,
    LinkReading,
    LinksReading,
    NodeReading,
    PhaseProgress,
    Reading,
    TransferReading,
    WaitingTask,
)
from protocol.tasks import ChatMessage, ChatTask
from protocol.vectors import pack_vector
from tests.support import command_examples
from tests.support.builders import (
    MODEL,
    NOW_MS,
    a_cluster_id,
    a_command_id,
    a_digest,
    a_node_id,
    a_public_key,
    an_added_card,
    an_error,
    an_instance_id,
)
from tests.support.source_tree import ROOT

GOLDEN: Final = ROOT / "tests" / "unit" / "protocol" / "golden_frames.json"
NOW_S: Final = 100.0
"""When the readings are packed."""
CHAIN: Final = bytes(range(16))
BOOT_ID: Final = "00112233445566ff"


@dataclass(frozen=True, slots=True)
class Example:
    """A frame, and how it is packed now."""

    value: object
    packed: bytes


def _model(value: FrozenModel) -> Example:
    return Example(value, pack(value))


ELECTION: Final = (
    Heartbeat(
        boot_id=BOOT_ID,
        number=7,
        master=a_node_id(1),
        is_minority=False,
        position=LogPosition(7, 40, 7, 41),
        commit_seq=41,
        chain=CHAIN,
        unheard=(a_node_id(3),),
        is_lagging=False,
        hash_seq=40,
        state_hash=CHAIN,
    ),
    Campaign(number=8, is_trial=True, position=LogPosition(7, 40, 7, 41), is_handover=False),
    Vote(number=8, is_trial=True, denial="master", known_number=7),
    Handover(number=7),
    Farewell(number=7),
)
CONTROL: Final = (
    Ask(request_id=5, body=b"request"),
    Answer(request_id=5, body=b"answer"),
    Journalled(number=7, seq=41),
)
EVENTS: Final = (
    EventBatch(
        number=7,
        master=a_node_id(1),
        prev_seq=40,
        prev_chain=CHAIN,
        commit_seq=39,
        records=(b"record 41", b"record 42"),
    ),
)
REQUESTS: Final[tuple[PeerRequest, ...]] = (
    SubmitCommand(command=an_added_card()),
    FetchEvents(number=7, after_seq=40, after_chain=CHAIN),
    OpenSnapshot(number=7),
    FetchSnapshotChunk(snapshot_id=3, offset=262_144),
    CancelTask(command_id=a_command_id()),
    CallApi(method="POST", path="/v1/cluster/invite", query="a=b", body=b"{}"),
    HoldProbe(number=3),
    MeasureLink(peer=a_node_id(2), even_busy=True),
)
ANSWERS: Final[tuple[PeerAnswer, ...]] = (
    CommandAnswer(reply=CommandReply(command_id=a_command_id(), term=7, seq=41, durable="member")),
    EventRange(outcome="events", number=7, commit_seq=39, head_seq=42, records=(b"record 41",)),
    SnapshotOpened(
        snapshot_id=3,
        number=7,
        term=7,
        seq=40,
        at_ms=NOW_MS,
        chain=CHAIN,
        size_bytes=300_000,
        digest=a_digest("snapshot"),
    ),
    SnapshotChunk(data=b"piece"),
    TaskCancelled(was_known=True),
    ProbeHeld(),
    LinkMeasured(rate_bytes_s=112e6, n_bytes=1 << 20),
    ApiAnswer(status=200, body=b"{}"),
    Refused(error=an_error("cluster.no_master", "no master is known")),
)
TASK: Final = ChatTask(
    command_id=a_command_id(),
    model_id=MODEL,
    messages=(ChatMessage(role="user", content="hello"),),
)
DATA: Final[tuple[data_wire.DataMessage, ...]] = (
    data_wire.Request(
        9, CommandId(a_command_id()), InstanceId(an_instance_id()), 262_144, 4, b"", b"task"
    ),
    data_wire.Piece(9, 262_144, b"more"),
    data_wire.Cancel(9),
    data_wire.Credit(9, 524_288),
    data_wire.Pulse(((9, 524_288),)),
    data_wire.Frames(9, 0, (Started(12), Chunk("he"))),
    data_wire.Taken(9, 262_144),
    data_wire.PulseAnswer(((9, 3), (10, data_wire.UNKNOWN_STREAM))),
)
FRAMES: Final[Mapping[str, Frame]] = {
    "Started": Started(12),
    "Chunk": Chunk("hello"),
    "Chunk of all": Chunk(
        "a",
        "because",
        (ToolCallDelta(0, "call-1", "look", "{}"),),
        (TokenLogprob("a", -0.5, (("b", -1.5),)),),
    ),
    "Chunk of vectors": Chunk(vectors=(pack_vector((0.5, -1.0)), pack_vector((0.25, 2.0)))),
    "Finished": Finished("stop", Usage(12, 3, 4, 20.5, 100.25)),
    "FinishedByStop": Finished("stop", Usage(12, 3), "\n\n"),
    "Failed": Failed(an_error("engine.gone", "the engine is gone")),
}
FILES: Final[tuple[files_wire.FilesFrame, ...]] = (
    files_wire.OpenArtifact(5, a_digest("artifact")),
    files_wire.ReadRange(5, 0, 1_048_576, 262_144),
    files_wire.CloseArtifact(5),
    files_wire.ArtifactOpened(
        5, (files_wire.OfferedFile("model.gguf", 2_097_152, a_digest("file")),)
    ),
    files_wire.AskLater(5, "verifying", 2000, 1024, 2048),
    files_wire.TransferRefused(5, "unknown"),
    files_wire.RangeContent(5, 0, 1_048_576, memoryview(b"bytes of the file")),
    files_wire.ReadFilling(6, 0, 16_384, False),
    files_wire.CloseFilling(6),
    files_wire.FillingRefused(6, "serving"),
    files_wire.Filling(6, 0, 8),
    tunnel_wire.OpenTunnel(7, InstanceId(an_instance_id()), 2, 1),
    tunnel_wire.TunnelTaken(7, False, 262_144),
    tunnel_wire.TunnelMark(7, True, 1_048_576),
    tunnel_wire.TunnelEnded(7, True, 1_048_576),
    tunnel_wire.TunnelReset(7, False, "gone"),
    tunnel_wire.TunnelData(7, True, 1_048_570, memoryview(b"stream")),
)
READINGS: Final[tuple[Reading, ...]] = (
    NodeReading(
        node_id=a_node_id(1),
        at_s=98.5,
        memory_available_bytes=12 << 30,
        accelerators=(
            AcceleratorReading(
                free_bytes=8 << 30, busy_ratio=0.5, watts=212.5, celsius=61.0, mhz=2520.0
            ),
            AcceleratorReading(),
        ),
        disk_free_bytes=500 << 30,
        cpu_ratio=0.25,
        loop_lag_s=0.001,
        no_downloads="offline",
    ),
    PhaseProgress(
        instance_id=an_instance_id(),
        node_id=a_node_id(1),
        rank=0,
        attempt=1,
        phase="download",
        since_s=90.0,
        at_s=99.0,
        done_bytes=10,
        total_bytes=100,
        rate_bytes_s=2.5,
        eta_s=36.0,
        note="from a peer",
    ),
    TransferReading(
        node_id=a_node_id(1),
        model_id=ModelId(MODEL),
        at_s=99.0,
        phase="download",
        done_bytes=10,
        total_bytes=None,
        rate_bytes_s=None,
        eta_s=None,
        source="hub",
    ),
    InstanceReading(
        instance_id=an_instance_id(),
        node_id=a_node_id(1),
        at_s=99.5,
        in_flight=2,
        queued=1,
        slots=4,
        tokens_per_s=37.3,
        waiting=(WaitingTask(asker="loopback", waited_s=2.5, expected_s=None),),
        idle_since_s=None,
        answer_tokens_per_s=41.5,
    ),
    HoldingsReading(
        node_id=a_node_id(1),
        at_s=99.0,
        holdings=(Holding(model_id=MODEL, digest=a_digest("key"), size_bytes=1000),),
    ),
    LinksReading(
        node_id=a_node_id(1),
        at_s=98.0,
        links=(
            LinkReading(
                peer=a_node_id(2),
                state="up",
                interface="eth0",
                kind="ethernet",
                nominal_bits_s=1_000_000_000,
                rtt_median_ms=0.25,
                rtt_p99_ms=2.5,
                rate_bytes_s=112e6,
                rate_at_s=40.0,
            ),
            LinkReading(peer=a_node_id(3), state="silent"),
        ),
    ),
)
HELLO: Final = Hello(
    wire=WIRE_VERSION,
    build="0.1.0",
    node_id=a_node_id(1),
    boot_id=BOOT_ID,
    cluster_id=a_cluster_id(),
    base_port=12_416,
)
ECHO: Final = telemetry_wire.Echo(number=7, is_answer=True)
GUESTS: Final[tuple[joining.GuestMessage, ...]] = (
    joining.JoinQuestion(build="0.1.0", digest=CHAIN * 2),
    joining.GuestProof(build="0.1.0", public_key=a_public_key(2), proof=CHAIN * 2),
    joining.JoinRequest(
        build="0.1.0",
        cluster_id=a_cluster_id(),
        node_id=a_node_id(2),
        public_key=a_public_key(2),
        boot_id=BOOT_ID,
        name="box-2",
        addresses=("10.0.0.2:12416",),
        api_port=52_415,
    ),
)
HOSTS: Final[tuple[joining.HostMessage, ...]] = (
    joining.JoinConfirmed(build="0.1.0", digest=CHAIN * 2),
    joining.HostProof(build="0.1.0", proof=CHAIN * 2),
    joining.Welcome(
        build="0.1.0",
        cluster_id=a_cluster_id(),
        members=(
            joining.FellowMember(
                node_id=a_node_id(1),
                public_key=a_public_key(1),
                name="box-1",
                addresses=("10.0.0.1:12416",),
            ),
        ),
        master=a_node_id(1),
        term=7,
    ),
    joining.JoinRefusal(
        build="0.1.0", code="cluster.token_used", message="used up", remediation="a new one"
    ),
)


def examples() -> dict[str, Example]:
    """Give an example of each kind, by the plane and the name of its type."""
    found: dict[str, Example] = {"hello/Hello": Example(HELLO, hello_frame(HELLO))}
    for plane, frames in (("election", ELECTION), ("control", CONTROL), ("events", EVENTS)):
        found.update(
            {f"{plane}/{type(one).__name__}": Example(one, pack_frame(one)) for one in frames}
        )
    for room, models in (
        ("request", REQUESTS),
        ("answer", ANSWERS),
        ("guest", GUESTS),
        ("host", HOSTS),
        ("command", command_examples.COMMANDS),
        ("event", command_examples.EVENTS),
    ):
        found.update({f"{room}/{type(one).__name__}": _model(one) for one in models})
    found.update({f"data/{type(one).__name__}": Example(one, _data(one)) for one in DATA})
    found.update(
        {f"frame/{name}": Example(one, frame_wire.pack_frame(one)) for name, one in FRAMES.items()}
    )
    found["data/task"] = Example(TASK, data_wire.pack_task(TASK))
    found.update({f"files/{type(one).__name__}": Example(one, _files(one)) for one in FILES})
    found.update(
        {
            f"telemetry/{type(one).__name__}": Example(
                one, telemetry_wire.pack_reading(one, now=NOW_S)
            )
            for one in READINGS
        }
    )
    found["telemetry/Echo"] = Example(ECHO, telemetry_wire.pack_echo(ECHO))
    return found


def golden() -> dict[str, bytes]:
    """Read the bytes that each kind has always had."""
    kept: dict[str, str] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return {name: bytes.fromhex(text) for name, text in kept.items()}


def _data(message: data_wire.DataMessage) -> bytes:
    if isinstance(message, data_wire.Frames):
        packed = [*map(frame_wire.pack_frame, message.frames)]
        return data_wire.pack_frames(data_wire.frames_head(message.stream), message.number, packed)
    return data_wire.pack_message(message)


def _files(frame: files_wire.FilesFrame) -> bytes:
    if isinstance(frame, files_wire.Filling):
        return files_wire.pack_filling(*frame)
    if isinstance(frame, tunnel_wire.TunnelData):
        return tunnel_wire.pack_tunnel_data(
            frame.stream_id,
            by_opener=frame.by_opener,
            offset=frame.offset,
            content=frame.content,
        )
    if isinstance(frame, files_wire.RangeContent):
        return files_wire.pack_content(
            frame.request_id, frame.file_index, frame.offset, bytes(frame.content)
        )
    return files_wire.pack_files(frame)


def _add_missing() -> None:
    kept: dict[str, str] = {}
    if GOLDEN.exists():
        kept = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for name, example in examples().items():
        kept.setdefault(name, example.packed.hex())
    GOLDEN.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _add_missing()
