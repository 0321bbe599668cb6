from collections.abc import Iterator

import pytest

from protocol.errors import ConfigError
from skulkd.runtime import failpoints

pytestmark = pytest.mark.usefixtures("disarmed")


@pytest.fixture
def disarmed() -> Iterator[None]:
    failpoints.disarm_all()
    yield
    failpoints.disarm_all()


def test_an_armed_point_and_no_other_acts_at_each_pass_or_at_the_nth() -> None:
    seen: list[str] = []
    failpoints.arm("a.each", lambda: seen.append("each"))
    failpoints.arm("a.third", lambda: seen.append("third"), nth=3)
    for _ in range(4):
        failpoints.hit("a.each")
        failpoints.hit("a.third")
        failpoints.hit("a.other")
    assert seen == ["each", "each", "each", "third", "each"]


def test_text_arms_points() -> None:
    failpoints.arm_from_text("a.b=error@2, c.d=delay:0.001,")
    failpoints.hit("c.d")
    failpoints.hit("a.b")
    with pytest.raises(OSError, match="fail point"):
        failpoints.hit("a.b")


@pytest.mark.parametrize("text", ["a.b", "a=kill", "a.b=explode", "a.b=kill@0", "a.b=delay"])
def test_text_that_does_not_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        failpoints.arm_from_text(text)
    assert caught.value.code == "config.invalid"
    assert "SKULK_FAILPOINTS" in caught.value.message
