from pathlib import Path

import pytest

from protocol.errors import ConfigError
from skulkd.runtime.choices import Choices, ChoicesFile
from skulkd.runtime.simulated_disk import SimulatedDisk

HOME = Path("/home")


def a_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_private_directory(HOME)
    return disk


def test_nothing_is_chosen_where_there_is_no_file() -> None:
    assert ChoicesFile(a_disk(), HOME / "choices.json").read() == Choices()


def test_a_choice_survives_a_crash() -> None:
    disk = a_disk()
    file = ChoicesFile(disk, HOME / "choices.json")
    file.write(Choices(open_host="0.0.0.0"))
    disk.crash()
    assert file.read() == Choices(open_host="0.0.0.0")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"open_host": 7}', b'{"other": 1}'])
def test_a_damaged_file_is_refused_with_a_remedy(content: bytes) -> None:
    disk = a_disk()
    disk.replace(HOME / "choices.json", content)
    with pytest.raises(ConfigError) as refused:
        ChoicesFile(disk, HOME / "choices.json").read()
    assert refused.value.code == "config.invalid"
    assert refused.value.remediation


def test_a_choice_that_cannot_be_kept_says_so_and_leaves_the_earlier_one() -> None:
    disk = a_disk()
    file = ChoicesFile(disk, HOME / "choices.json")
    file.write(Choices(open_host="10.0.0.7"))
    disk.capacity_bytes = 0
    with pytest.raises(ConfigError) as refused:
        file.write(Choices(open_host="0.0.0.0"))
    assert refused.value.code == "config.home_unusable"
    assert file.read() == Choices(open_host="10.0.0.7")
