"""What the kernel tells of mappings: weights apart from the rest."""

import mmap
import os
import sys
from pathlib import Path

import pytest

from skulkd.worker.launchers.mappings import process_memory, told_apart

SMAPS = """\
7f00-7f10 r--s 00000000 fe:01 12 /models/a b/model-00001-of-00002.gguf
Size:              94000 kB
Rss:               50000 kB
Pss:               25000 kB
Anonymous:            40 kB
7f10-7f20 r--s 00000000 fe:01 13 /models/a b/model-00002-of-00002.gguf
Size:               6000 kB
Pss:                3000 kB
Anonymous:             0 kB
7f20-7f30 r-xp 00000000 fe:01 14 /models/a bc/other.so
Size:               9000 kB
Pss:                 700 kB
Anonymous:           100 kB
7f30-7f40 rw-p 00000000 00:00 0
Size:            1000000 kB
Rss:                3000 kB
Pss:                3000 kB
Anonymous:          3000 kB
7f40-7f50 rw-p 00000000 00:00 0                          [heap]
Pss:                 200 kB
VmFlags: rd wr mr
"""


def test_all_parts_of_the_model_count_as_mapped_and_the_rest_as_resident() -> None:
    mapped, private = told_apart(SMAPS.splitlines(keepends=True), Path("/models/a b"))
    assert mapped == 100_000 * 1024
    assert private == (40 + 700 + 3000 + 200) * 1024


def test_lines_that_are_no_numbers_are_passed_over() -> None:
    assert told_apart(["Pss: none kB\n", "\n", "Pss: 5 kB\n"], Path("/")) == (0, 5 * 1024)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_this_process_is_told_apart(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(bytes(3 << 20))
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        held = process_memory(os.getpid(), model)
    assert held is not None
    assert held.mapped_bytes == 3 << 20
    assert held.private_bytes > 1 << 20


def test_a_process_that_is_gone_is_unknown(tmp_path: Path) -> None:
    assert process_memory((1 << 22) - 1, tmp_path) is None
