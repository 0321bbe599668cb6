"""The state as bytes says what the document says, and says anew what has changed."""

import json
from dataclasses import replace
from typing import Any, Final, cast

from protocol.ids import NodeId
from protocol.nodes import HealthReason, NodeHealth
from protocol.readings import (
    AcceleratorReading,
    NodeReading,
    PhaseProgress,
    Readings,
    TransferReading,
)
from protocol.state import ClusterState, DownloadOutcome
from skulkd.api.cluster_look import look_at
from skulkd.api.cluster_views import OwnSight, cluster_document
from skulkd.api.dependencies import NodeFace
from skulkd.api.state_writer import StateWriter
from skulkd.api.views import state_document
from skulkd.cluster.link_views import Duplicate, PeerInfo
from skulkd.core.link_rtt import LinkRtt
from tests.support.builders import (
    MODEL,
    a_card,
    a_failure,
    a_member,
    a_node_id,
    a_reading,
    a_state,
    an_instance,
    an_instance_id,
    some_readings,
)
from tests.unit.skulkd.api.test_cluster_views import SeenMaster

OWN: Final = a_node_id(1)
FACE: Final = NodeFace(node_id=OWN, name="node-1", hostname="h", boot_id="boot", version="0")
WELL: Final = NodeHealth(level="ok")
ILL: Final = NodeHealth(
    level="warning",
    reasons=(
        HealthReason(code="disk.low", level="warning", message='"1 GB" left', remediation="Clean."),
    ),
)


class Dialled:
    """Links that are up, and where they lead."""

    def peer_info(self, peer: NodeId) -> PeerInfo | None:
        return PeerInfo(node_id=peer, link="up", dialled='[fe80::1%"eth0]:12416')

    def duplicates(self) -> tuple[Duplicate, ...]:
        return ()


def _rtt_of(node_id: NodeId) -> LinkRtt | None:
    return LinkRtt(median_ms=0.31249, last_ms=0.5) if node_id == a_node_id(2) else None


class Story:
    """One node's states, written by one writer and compared with the document each time."""

    def __init__(self) -> None:
        self.writer = StateWriter(FACE)
        self.state: ClusterState = a_state(
            members=(a_member(1), a_member(2), a_member(3, has_facts=False)),
            instances=(an_instance(),),
        )
        self.readings: Readings = some_readings(a_reading(1), a_reading(2))
        self.health: dict[NodeId, NodeHealth] = dict.fromkeys(self.state.members, WELL)
        self.master = SeenMaster(last_master=OWN)
        self.now = 12.0

    def written(self) -> dict[str, Any]:
        look = look_at(self.state, OWN, self.master, Dialled(), _rtt_of)
        text = self.writer.write(
            self.state,
            self.readings,
            self.health,
            look,
            now=self.now,
            is_reachable=lambda node_id: node_id == OWN,
        )
        return json.loads(text)

    def check(self) -> dict[str, Any]:
        sight = OwnSight(
            node_id=OWN,
            name="node-1",
            base_port=1,
            commit_seq=9,
            appended_seq=9,
            build="0",
            rtt_of=_rtt_of,
        )
        cluster = cluster_document(self.state, sight, self.master, Dialled(), now_s=self.now)
        document = state_document(
            self.state,
            self.readings,
            self.health,
            cluster,
            face=FACE,
            now=self.now,
            is_reachable=lambda node_id: node_id == OWN,
        )
        written = self.written()
        assert written == json.loads(document.model_dump_json(by_alias=True))
        return written

    def change(self, **changes: object) -> None:
        changed = {"seq": self.state.seq + 1, **changes}
        self.state = self.state.model_copy(update=changed)


def test_it_is_the_document_field_for_field() -> None:
    story = Story()
    written = story.check()
    assert written["topology"]["links"][0]["address"] == '[fe80::1%"eth0]:12416'
    first, second = written["topology"]["links"][:2]
    assert (first["rttMedianMs"], first["rttLastMs"]) == (0.312, 0.5)
    assert (second["rttMedianMs"], second["rttLastMs"]) == (None, None)
    assert written["nodeResources"][a_node_id(2)]["readingAgeS"] is not None
    assert written["nodeResources"][a_node_id(3)]["readingAgeS"] is None


def test_every_change_of_the_state_is_told_and_what_is_gone_is_gone() -> None:
    story = Story()
    story.check()
    card = a_card()
    story.change(cards={card.model_id: card})
    assert story.check()["customModels"] == [card.model_id]
    story.change(failures=(a_failure(),))
    outcome = DownloadOutcome(node_id=OWN, model_id=MODEL, at_ms=1, size_bytes=2)
    story.change(downloads={f"{OWN}/{MODEL}": outcome})
    story.check()
    renamed = story.state.members[a_node_id(2)].model_copy(update={"name": 'a "b" ü'})
    story.change(members={**story.state.members, renamed.node_id: renamed})
    assert story.check()["nodeResources"][renamed.node_id]["name"] == renamed.name
    story.change(members={OWN: story.state.members[OWN]}, instances={})
    story.health = {OWN: WELL}
    assert list(story.check()["members"]) == [OWN]


def test_a_state_of_the_same_position_that_replaced_the_other_is_told() -> None:
    story = Story()
    story.check()
    story.change(seq=story.state.seq, at_ms=story.state.at_ms + 5, members={OWN: a_member(1)})
    story.health = {OWN: WELL}
    assert list(story.check()["members"]) == [OWN]


def test_what_moves_is_told_anew_each_time() -> None:
    story = Story()
    first = story.check()
    story.now += 1.5
    story.master.silent[a_node_id(2)] = 9.0
    story.health[a_node_id(2)] = ILL
    story.readings = some_readings(
        replace(
            a_reading(1),
            cpu_ratio=float("nan"),
            accelerators=(
                AcceleratorReading(free_bytes=1, watts=float("inf")),
                AcceleratorReading(),
            ),
        ),
        replace(a_reading(2), memory_available_bytes=None, loop_lag_s=0.25),
    )
    second = story.check()
    assert first["liveness"][a_node_id(2)] == "alive"
    assert second["liveness"][a_node_id(2)] == "suspect"
    assert second["nodeHealth"][a_node_id(2)]["level"] == "warn"
    story.master.term = None
    assert story.check()["master"] is None


def test_progress_and_transfers_are_in_it() -> None:
    story = Story()
    progress = PhaseProgress(
        instance_id=an_instance_id(), node_id=OWN, rank=0, attempt=1, phase="load", since_s=1.0,
        at_s=2.0, done_bytes=5,
    )  # fmt: skip
    transfer = TransferReading(
        node_id=OWN, model_id=MODEL, at_s=1.0, phase="fetch", done_bytes=1, total_bytes=None,
        rate_bytes_s=2.5, eta_s=None, source="hub",
    )  # fmt: skip
    story.readings = Readings(
        progress={(an_instance_id(), 0): progress}, transfers={(OWN, MODEL): transfer}
    )
    assert len(story.check()["transfers"]) == 1


def test_a_member_that_has_not_changed_is_not_written_anew() -> None:
    story = Story()
    story.check()
    # Changed in place, which nobody may do: only a member written anew would show it.
    cast("dict[str, object]", vars(story.state.members[OWN]))["name"] = "changed in place"
    story.change(at_ms=99)
    assert story.written()["members"][OWN]["name"] != "changed in place"


def test_a_reading_of_nobody_is_not_shown() -> None:
    story = Story()
    stranger = a_node_id(9)
    reading = NodeReading(node_id=stranger, at_s=1.0, memory_available_bytes=1)
    story.readings = Readings(nodes={stranger: reading})
    assert stranger not in story.check()["nodeResources"]
