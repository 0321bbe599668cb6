"""The environment an engine sees: a short list of inherited names and what its launch adds."""

from collections.abc import Mapping
from typing import Final

LAUNCH_ID_VARIABLE: Final = "SKULK_LAUNCH_ID"
"""Marks a process and all its children as started by one launch; not a secret."""

INHERITED: Final = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "TMPDIR",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_HOME",
        "CUDA_PATH",
        "NVIDIA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HSA_OVERRIDE_GFX_VERSION",
        "GGML_VK_VISIBLE_DEVICES",
        "VK_DRIVER_FILES",
        "VK_ICD_FILENAMES",
        "XDG_RUNTIME_DIR",
    }
)
"""Where programs and their libraries lie, and which devices they may use. Tokens, proxies and our
own settings are not here: an engine has no business with them."""


def scrubbed(
    inherited: Mapping[str, str], added: Mapping[str, str], launch_id: str
) -> dict[str, str]:
    """Make an engine's environment; what the launch adds wins over what is inherited."""
    kept = {name: value for name, value in inherited.items() if name in INHERITED}
    return {**kept, **added, LAUNCH_ID_VARIABLE: launch_id}
