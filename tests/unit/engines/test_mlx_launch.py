from dataclasses import replace
from pathlib import Path

import pytest

from engines.base import Group, LayerRange, LoadSpec
from engines.mlx.engine import MlxEngine
from protocol.errors import EngineError
from tests.support.builders import a_card, an_engine

SPEC = LoadSpec(
    card=a_card(),
    entry_path=Path("/models/a"),
    context_tokens=4096,
    slots=8,
    compute="cpu",
    n_threads=3,
    socket_path=Path("/run/x.sock"),
    build=an_engine().model_copy(update={"engine": "mlx"}),
)


def test_a_model_alone_is_served_by_a_runner() -> None:
    assert "skulkd.runner" in MlxEngine().launch(SPEC).argv


def test_a_rank_of_a_group_is_refused_and_never_runs_the_whole_model() -> None:
    group = Group(rank=1, layers=(LayerRange(0, 15), LayerRange(15, 30)), ports=(20001, 20002))
    with pytest.raises(EngineError, match="one node alone") as caught:
        MlxEngine().launch(replace(SPEC, group=group))
    assert caught.value.code == "engine.unsupported"
