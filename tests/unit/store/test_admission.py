import pytest

from protocol.errors import StoreError
from store.admission import SpaceNeed, check_space

NEED = SpaceNeed(container_bytes=100, file_bytes=110, staged_bytes=40)


def test_wheel_and_files_count_together_and_what_is_staged_does_not() -> None:
    assert NEED.peak_bytes == 170


def test_what_just_fits_is_admitted_and_one_byte_too_few_is_refused_with_the_numbers() -> None:
    check_space(NEED, free_bytes=220, reserve_bytes=50)
    with pytest.raises(StoreError) as refused:
        check_space(NEED, free_bytes=219, reserve_bytes=50)
    assert refused.value.code == "store.no_space"
    assert refused.value.details == {
        "needed_bytes": 170,
        "free_bytes": 219,
        "reserve_bytes": 50,
        "missing_bytes": 1,
    }


def test_more_staged_than_needed_is_no_gain() -> None:
    assert SpaceNeed(file_bytes=1, staged_bytes=5).peak_bytes == 0
