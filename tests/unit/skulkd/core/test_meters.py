import pytest

from protocol.ids import ModelId
from skulkd.core.meters import MAX_MODELS, OTHER_MODELS, ByModel, Histogram


def test_a_bound_belongs_to_the_values_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == pytest.approx(14.0)


def test_each_model_has_a_meter_of_its_own_up_to_a_bound() -> None:
    meters = ByModel(lambda: Histogram((1.0,)))
    for number in range(MAX_MODELS + 50):
        meters.of(ModelId(f"a/m{number}")).observe(0.5)
    counted = {name: sum(meter.counts) for name, meter in meters.items()}
    assert len(counted) == MAX_MODELS + 1
    assert counted.pop(OTHER_MODELS) == 50
    assert set(counted.values()) == {1}
    assert meters.of(ModelId("a/m3")) is meters.of(ModelId("a/m3"))
