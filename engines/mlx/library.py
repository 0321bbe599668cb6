"""The one place that loads MLX; its modules have no types, so what comes out of them is checked."""

import importlib
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An `mlx.core.array`; where it matters its shape stands beside it."""
Model: TypeAlias = Any
"""A model of mlx-lm."""
Tokenizer: TypeAlias = Any
"""A `tokenizers.Tokenizer`."""
Sampler: TypeAlias = Any
"""Chooses tokens: `(batch, vocabulary)` of log-probabilities to `(batch,)`."""
Response: TypeAlias = Any
"""What one step of mlx-lm's `BatchGenerator` says of one sequence."""

mx: Any = importlib.import_module("mlx.core")
caches: Any = importlib.import_module("mlx_lm.models.cache")
generate: Any = importlib.import_module("mlx_lm.generate")
sample_utils: Any = importlib.import_module("mlx_lm.sample_utils")
tokenizers: Any = importlib.import_module("tokenizers")
utils: Any = importlib.import_module("mlx_lm.utils")
mlx_utils: Any = importlib.import_module("mlx.utils")
