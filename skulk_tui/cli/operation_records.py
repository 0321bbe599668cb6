"""What `--json` gives of running a node: its service, its settings, what was collected of it.

These fields are an interface, as those of records.py are.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of installing or removing the service."""

    step: str
    done: bool
    """Whether it was taken; not with `--dry-run`."""
    content: str | None
    """Of a file that is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """The service of this machine or user, as its manager has it."""

    manager: str
    unit: str
    installed: bool
    enabled: bool | None
    state: str
    """`active`, `failed` and so on, as the manager says; `absent` where it has none."""
    status: str | None
    """What the daemon says of itself."""
    pid: int | None
    restarts: int | None
    lingering: bool | None
    """Whether it runs while its user is logged in nowhere; null where it always does."""
