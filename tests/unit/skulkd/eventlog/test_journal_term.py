import errno
from pathlib import Path

import pytest

from protocol.errors import ClusterError
from protocol.ids import node_id_of
from skulkd.core.voting import TermVote
from skulkd.eventlog.journal_term import TermFile
from skulkd.runtime.simulated_disk import SimulatedDisk

PATH = Path("/home/term")
ANN, BOB = node_id_of(b"a" * 32), node_id_of(b"b" * 32)


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_private_directory(PATH.parent)
    return disk


def test_nothing_was_promised_before_the_first_write(disk: SimulatedDisk) -> None:
    assert TermFile(disk, PATH).read() == TermVote(term=0, voted_for=None)


def test_a_promise_survives_a_crash(disk: SimulatedDisk) -> None:
    vote = TermVote(term=7, voted_for=ANN)
    TermFile(disk, PATH).write(vote)
    TermFile(disk, PATH).write(vote)
    disk.crash()
    assert TermFile(disk, PATH).read() == vote


def test_a_promise_is_not_taken_back(disk: SimulatedDisk) -> None:
    file = TermFile(disk, PATH)
    file.write(TermVote(term=7))
    file.write(TermVote(term=7, voted_for=ANN))
    for vote in (
        TermVote(term=6, voted_for=ANN),
        TermVote(term=7, voted_for=BOB),
        TermVote(term=7),
    ):
        with pytest.raises(ValueError, match="takes"):
            file.write(vote)
    file.write(TermVote(term=8, voted_for=BOB))
    assert file.read() == TermVote(term=8, voted_for=BOB)


def test_a_disk_that_fails_leaves_the_earlier_promise(disk: SimulatedDisk) -> None:
    file = TermFile(disk, PATH)
    file.write(TermVote(term=1, voted_for=ANN))
    disk.sync_error = OSError(errno.EIO, "bad sector")
    with pytest.raises(OSError, match="bad sector"):
        file.write(TermVote(term=2, voted_for=BOB))
    assert file.read() == TermVote(term=1, voted_for=ANN)


def test_a_file_damaged_at_any_byte_is_refused_by_name(disk: SimulatedDisk) -> None:
    TermFile(disk, PATH).write(TermVote(term=7, voted_for=ANN))
    good = disk.read(PATH, max_bytes=1000)
    damaged = [good[:cut] for cut in range(len(good))]
    damaged += [good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :] for i in range(len(good))]
    for data in damaged:
        disk.replace(PATH, data)
        with pytest.raises(ClusterError) as caught:
            TermFile(disk, PATH).read()
        assert caught.value.code == "cluster.journal_corrupt"


def test_a_damaged_file_is_written_anew_by_whoever_knows_what_it_cannot_have_said(
    disk: SimulatedDisk,
) -> None:
    disk.replace(PATH, b"damaged")
    with pytest.raises(ClusterError):
        TermFile(disk, PATH).write(TermVote(term=8, voted_for=BOB))
    TermFile(disk, PATH).write_anew(TermVote(term=8, voted_for=BOB))
    disk.crash()
    assert TermFile(disk, PATH).read() == TermVote(term=8, voted_for=BOB)
