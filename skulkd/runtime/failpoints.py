"""Named points on each side of a durable step, where a test can make the process die.

Set by the environment variable SKULK_FAILPOINTS only, such as
`journal.before_sync=kill@3,term.after_write=error,journal.after_sync=delay:0.2`: the action is
taken at the third pass, or at each. Unset, a point costs one look at an empty dictionary.
"""

import errno
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigError

ENVIRONMENT_VARIABLE: Final = "SKULK_FAILPOINTS"

_SETTING: Final = re.compile(
    r"(?P<name>[a-z_]+(\.[a-z_]+)+)=(?P<action>kill|error|delay:(?P<seconds>\d+(\.\d+)?))"
    r"(@(?P<nth>[1-9]\d*))?"
)


@dataclass(slots=True, kw_only=True)
class _Armed:
    action: Callable[[], None]
    nth: int | None
    n_passes: int = 0


_armed: dict[str, _Armed] = {}


def hit(name: str) -> None:
    """Pass a point; whoever armed it decides what happens.

    Raises:
        OSError: The point is armed with `error`.
    """
    if _armed:
        _act(name)


def _act(name: str) -> None:
    armed = _armed.get(name)
    if armed is None:
        return
    armed.n_passes += 1
    if armed.nth is None or armed.n_passes == armed.nth:
        armed.action()


def arm(name: str, action: Callable[[], None], *, nth: int | None = None) -> None:
    """Let a point call `action`, at the `nth` pass (from 1) or at each."""
    _armed[name] = _Armed(action=action, nth=nth)


def disarm_all() -> None:
    """Let every point do nothing."""
    _armed.clear()


def arm_from_text(text: str) -> None:
    """Arm the points that the environment variable names.

    Raises:
        ConfigError: `config.invalid`; the text does not read as the module says.
    """
    for setting in filter(None, (part.strip() for part in text.split(","))):
        match = _SETTING.fullmatch(setting)
        if match is None:
            raise ConfigError(
                "config.invalid",
                f"{ENVIRONMENT_VARIABLE} holds {setting[:100]!r}, which is no fail point setting",
                remediation=f"Unset {ENVIRONMENT_VARIABLE}; it is for tests only.",
            )
        nth = match["nth"]
        arm(match["name"], _action_of(match), nth=None if nth is None else int(nth))


def _action_of(match: re.Match[str]) -> Callable[[], None]:
    seconds: str | None = match["seconds"]
    if seconds is not None:
        return lambda: _delay(float(seconds))
    return {"kill": _kill, "error": _error}[match["action"]]


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _error() -> None:
    raise OSError(errno.EIO, "fail point")


def _delay(seconds: float) -> None:
    # ruff: ignore[banned-api]  durable steps run in threads, and a slow one is what is asked for
    time.sleep(seconds)


arm_from_text(os.environ.get(ENVIRONMENT_VARIABLE, ""))
