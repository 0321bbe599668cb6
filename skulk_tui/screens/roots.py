"""Which views there are: the five roots, and the details by kind of object.

Each is loaded when it is first shown: what the first paint does not need would only hold it up.
"""

from collections.abc import Mapping
from typing import Final

from skulk_tui.screens.cluster import ClusterView
from skulk_tui.screens.view import View
from skulk_tui.screens.view_stack import DetailFactory, RootFactory
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref


def _models(seat: Seat) -> View:
    from skulk_tui.screens.models import ModelsView

    return ModelsView(seat)


def _chat(seat: Seat) -> View:
    from skulk_tui.screens.chat import ChatView

    return ChatView(seat)


def _store(seat: Seat) -> View:
    from skulk_tui.screens.store import StoreView

    return StoreView(seat)


def _diag(seat: Seat) -> View:
    from skulk_tui.screens.diag import DiagView

    return DiagView(seat)


def _node(seat: Seat, ref: Ref) -> View:
    from skulk_tui.screens.node_detail import NodeDetail

    return NodeDetail(seat, ref)


def _command(seat: Seat, ref: Ref) -> View:
    from skulk_tui.screens.command_detail import CommandDetail

    return CommandDetail(seat, ref)


def _model(seat: Seat, ref: Ref) -> View:
    from skulk_tui.screens.model_detail import ModelDetail

    return ModelDetail(seat, ref)


def _instance(seat: Seat, ref: Ref) -> View:
    from skulk_tui.screens.instance_detail import InstanceDetail

    return InstanceDetail(seat, ref)


def _settings(seat: Seat, ref: Ref) -> View:
    from skulk_tui.screens.settings_detail import SettingsDetail

    return SettingsDetail(seat, ref)


ROOT_VIEWS: Final[Mapping[str, RootFactory]] = {
    "cluster": ClusterView,
    "models": _models,
    "chat": _chat,
    "store": _store,
    "diag": _diag,
}
DETAILS: Final[Mapping[str, DetailFactory]] = {
    "node": _node,
    "command": _command,
    "model": _model,
    "instance": _instance,
    "settings": _settings,
}
