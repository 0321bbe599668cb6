from protocol.ids import Digest, ModelId
from protocol.readings import (
    Holding,
    HoldingsReading,
    InstanceReading,
    LinkReading,
    LinksReading,
    PhaseProgress,
    Reading,
    ReadingKey,
    TransferReading,
)
from skulkd.cluster.readings_table import ReadingsTable
from tests.support.builders import a_node_id, an_instance_id


def _progress(number: int, *, at_s: float = 0.0) -> PhaseProgress:
    return PhaseProgress(
        instance_id=an_instance_id(number),
        node_id=a_node_id(),
        rank=0,
        attempt=1,
        phase="load",
        since_s=0.0,
        at_s=at_s,
    )


def test_the_last_write_wins_and_a_snapshot_stays_as_it_was() -> None:
    table = ReadingsTable()
    older, newer = _progress(1, at_s=1.0), _progress(1, at_s=2.0)
    table.put_progress(older)
    before = table.readings
    table.put_progress(newer)
    assert before.progress == {(an_instance_id(1), 0): older}
    assert table.readings.progress == {(an_instance_id(1), 0): newer}


def test_what_is_gone_is_forgotten() -> None:
    table = ReadingsTable()
    table.put_progress(_progress(1))
    table.put_instance(
        InstanceReading(
            instance_id=an_instance_id(1),
            node_id=a_node_id(),
            at_s=0.0,
            in_flight=1,
            queued=0,
            slots=1,
        )
    )
    table.drop_runner(a_node_id(), an_instance_id(1), 0)
    assert table.readings.progress == {}
    assert table.readings.instances == {}


def test_the_table_is_bounded_and_drops_the_stalest() -> None:
    table = ReadingsTable(max_keys=3)
    for number in (0, 1, 2, 0, 3):
        table.put_progress(_progress(number))
    kept = [instance_id for instance_id, _ in table.readings.progress]
    assert kept == [an_instance_id(2), an_instance_id(0), an_instance_id(3)]


def _transfer(at_s: float = 0.0) -> TransferReading:
    return TransferReading(
        node_id=a_node_id(),
        model_id=ModelId("a/model"),
        at_s=at_s,
        phase="download",
        done_bytes=1,
        total_bytes=2,
        rate_bytes_s=None,
        eta_s=None,
        source="hub",
    )


def _holdings() -> HoldingsReading:
    held = Holding(model_id=ModelId("a/model"), digest=Digest("0" * 64), size_bytes=5)
    return HoldingsReading(node_id=a_node_id(), at_s=0.0, holdings=(held,))


def test_a_runner_that_goes_takes_nothing_of_another_node_along() -> None:
    table = ReadingsTable()
    table.put_progress(_progress(1))
    table.drop_runner(a_node_id(2), an_instance_id(1), 0)
    assert len(table.readings.progress) == 1


def test_every_write_is_told_with_its_key_and_every_drop_once() -> None:
    table = ReadingsTable()
    told: list[tuple[ReadingKey, Reading | None]] = []
    end = table.subscribe(lambda _, key, reading: told.append((key, reading)))
    table.put(_transfer())
    table.put(_holdings())
    table.drop_transfer(a_node_id(), ModelId("a/model"))
    table.drop_transfer(a_node_id(), ModelId("a/model"))
    end()
    table.put(_transfer())
    assert told == [
        (("transfer", "a/model", 0), _transfer()),
        (("holdings", "", 0), _holdings()),
        (("transfer", "a/model", 0), None),
    ]


def test_links_that_a_node_no_longer_tells_of_are_forgotten() -> None:
    table = ReadingsTable()
    link = LinkReading(peer=a_node_id(2), state="up")
    reading = LinksReading(node_id=a_node_id(), at_s=0.0, links=(link,))
    table.put(reading)
    assert table.readings.links == {a_node_id(): reading}
    assert table.of_node(a_node_id()) == (reading,)
    table.drop(a_node_id(2), ("links", "", 0))
    assert table.readings.links == {a_node_id(): reading}
    table.drop(a_node_id(), ("links", "", 0))
    assert table.readings.links == {}


def test_a_node_is_listed_with_all_that_it_has_put() -> None:
    table = ReadingsTable()
    for reading in (_transfer(), _holdings(), _progress(1)):
        table.put(reading)
    assert set(table.of_node(a_node_id())) == {_transfer(), _holdings(), _progress(1)}
    assert table.of_node(a_node_id(2)) == ()
