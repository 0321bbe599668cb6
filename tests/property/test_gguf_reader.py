"""A header is a stranger's claim: whatever stands in it, the answer is a header or a StoreError."""

import resource
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.errors import StoreError
from store.weights_meta import cache_geometry, read_gguf_header
from tests.support.gguf_builder import GgufBuilder

WHOLE = GgufBuilder().build()
HEADER_BYTES = len(WHOLE) - 2 * 512

# 64 MiB in the unit of getrusage, which differs.
GROWTH = 64 * 1024 * (1024 if sys.platform == "darwin" else 1)

Edit = tuple[int, bytes]
edits = st.lists(
    st.tuples(
        st.integers(0, HEADER_BYTES - 1),
        st.one_of(
            st.binary(min_size=1, max_size=12),
            # What breaks readers: counts and lengths at the edges.
            st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]).map(
                lambda number: number.to_bytes(8, "little")
            ),
        ),
    ),
    min_size=1,
    max_size=6,
)

once = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.gguf"


def read_bounded(path: Path) -> None:
    code = "none"
    started = time.process_time()
    try:
        cache_geometry(read_gguf_header(path))
    except StoreError as error:
        code = error.code
    assert code in {"none", "store.gguf_invalid", "store.gguf_truncated"}
    assert time.process_time() - started < 2


@once
@given(changes=edits, cut=st.integers(0, len(WHOLE)) | st.none())
def test_a_damaged_header_is_a_header_or_a_named_error(
    path: Path, changes: list[Edit], cut: int | None
) -> None:
    content = bytearray(WHOLE)
    for at, piece in changes:
        content[at : at + len(piece)] = piece
    path.write_bytes(content[:cut])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_bounded(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH


@once
@given(content=st.binary(max_size=512), version=st.sampled_from([2, 3]))
def test_noise_after_a_true_beginning_is_a_named_error(
    path: Path, content: bytes, version: int
) -> None:
    path.write_bytes(b"GGUF" + version.to_bytes(4, "little") + content)
    read_bounded(path)
