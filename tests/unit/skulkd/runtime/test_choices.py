import asyncio
from functools import partial
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from skulkd.runtime.choices import Choices, ChoicesFile, KeptChoices
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.virtual_time import run_virtual

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


def test_changes_made_at_the_same_time_are_both_kept() -> None:
    async def main() -> None:
        disk = a_disk()
        file = ChoicesFile(disk, HOME / "choices.json")
        kept = KeptChoices(file, file.read())
        async with asyncio.TaskGroup() as group:
            group.create_task(kept.change(partial(_with, open_host="0.0.0.0")))
            group.create_task(kept.change(partial(_with, base_port=12416)))
        assert kept.now == file.read() == Choices(open_host="0.0.0.0", base_port=12416)

    run_virtual(main, seed=1)


def test_a_change_that_cannot_be_kept_is_not_in_force() -> None:
    async def main() -> None:
        disk = a_disk()
        file = ChoicesFile(disk, HOME / "choices.json")
        kept = KeptChoices(file, file.read())
        disk.capacity_bytes = 0
        with pytest.raises(ConfigError):
            await kept.change(partial(_with, cluster_open=True))
        assert kept.now == Choices()

    run_virtual(main, seed=1)


def _with(choices: Choices, **changes: object) -> Choices:
    return choices.model_copy(update=changes)
