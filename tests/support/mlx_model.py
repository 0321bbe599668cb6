"""The demo model as MLX takes it, converted once from the GGUF file and then shared."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from engines.base import LoadSpec
from protocol.cards import ModelCard
from protocol.nodes import EngineFacts
from tests.support.builders import a_card
from tests.support.demo_model import demo_model_path, demo_models_dir
from tests.support.engine_process import a_spec

CONVERT_S: Final = 100.0


def mlx_model_path() -> Path:
    """Give the folder; another one for each version of the program that converts."""
    program = Path(__file__).parents[2] / "engines/mlx/convert.py"
    version = hashlib.sha256(program.read_bytes()).hexdigest()[:12]
    folder = demo_models_dir().parent / "mlx" / version
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        made = Path(place) / "made"
        made.mkdir()
        argv = (sys.executable, "-P", "-m", "engines.mlx.convert", demo_model_path(), made)
        subprocess.run(argv, check=True, timeout=CONVERT_S)
        for old in folder.parent.iterdir():
            if old.name != Path(place).name:
                shutil.rmtree(old)
        made.rename(folder)
    return folder


def an_mlx_spec(directory: Path, entry: Path, card: ModelCard | None = None) -> LoadSpec:
    """Say how a test loads it."""
    build = EngineFacts(engine="mlx", provider="hosted", path=sys.executable, usable=True)
    return a_spec(directory, card or a_card(), build, entry)
