"""Bodies of the control API about running a node: its settings, and starting it anew.

As in protocol/control_api.py; all of these are snake_case on the wire.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from protocol.control_api import ControlModel
from protocol.ids import InstanceIdField, ModelIdField, NodeIdField
from protocol.instances import Phase, TtlSeconds
from protocol.state import ClusterSettings, Policy

SettingKey = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,64}$")]
SettingText = Annotated[str, StringConstraints(max_length=4096)]
SettingValue = bool | int | SettingText | Annotated[tuple[SettingText, ...], Field(max_length=64)]
SettingSource = Literal["default", "file", "environment", "flag"]
"""Where a setting comes from; of several the later one counts."""


class SettingView(ControlModel):
    """One setting that the node runs with."""

    value: SettingValue | None
    source: SettingSource


class NodeConfig(ControlModel):
    """The settings of one node. None of them is a secret."""

    path: str
    """Of its settings file, on its own machine."""
    effective: dict[str, SettingView]
    """What it runs with, and why."""
    file: dict[str, SettingValue | None] = Field(default_factory=dict)
    """What its settings file says now."""
    pending: tuple[str, ...] = ()
    """Settings that a restart would change: they are taken up when the node starts."""
    has_hf_token: bool = False
    """Whether a token for a model hub is set; it is never shown."""


class ConfigDocument(ControlModel):
    """`GET /config` and `PUT /config`."""

    node_id: NodeIdField
    name: str
    node: NodeConfig
    cluster: ClusterSettings
    """Valid on all nodes."""


class ClusterSettingsBody(ControlModel):
    """Settings of the whole cluster to change; what is left out stays."""

    policy: Policy | None = None
    loopback: Literal["open", "keyed"] | None = None
    on_demand_ttl_s: TtlSeconds | None = None


class ConfigBody(ControlModel):
    """Body of `PUT /config`: what is left out stays as it is."""

    settings: Annotated[dict[SettingKey, SettingValue], Field(max_length=64)] = Field(
        default_factory=dict
    )
    """Of the node that answers; a text is read as a variable of the environment would be."""
    unset: Annotated[tuple[SettingKey, ...], Field(max_length=64)] = ()
    """Settings that its file shall say nothing of."""
    cluster: ClusterSettingsBody = ClusterSettingsBody()
    dry_run: bool = False
    """Check, and show what would hold, without changing anything."""


class RestartBody(ControlModel):
    """Body of `POST /admin/restart`."""

    dry_run: bool = False
    """Only show what it would interrupt."""


class InterruptedInstance(ControlModel):
    """An instance that has a part on the node; it comes back with it."""

    instance_id: InstanceIdField
    model_id: ModelIdField
    phase: Phase
    requests: int | None = None
    """Being answered or waiting; None is unknown."""


class RestartDocument(ControlModel):
    """What a restart interrupts; the node ends its rooms right after the answer has left."""

    node_id: NodeIdField
    name: str
    boot_id: str
    """Of the life that ends: another one in `/health` is the new life."""
    restarting: bool
    interrupted: tuple[InterruptedInstance, ...] = ()
