"""Which views there are: the five roots, and the details by kind of object."""

from collections.abc import Mapping
from typing import Final

from skulk_tui.screens.chat import ChatView
from skulk_tui.screens.cluster import ClusterView
from skulk_tui.screens.command_detail import CommandDetail
from skulk_tui.screens.diag import DiagView
from skulk_tui.screens.instance_detail import InstanceDetail
from skulk_tui.screens.model_detail import ModelDetail
from skulk_tui.screens.models import ModelsView
from skulk_tui.screens.node_detail import NodeDetail
from skulk_tui.screens.store import StoreView
from skulk_tui.screens.view_stack import DetailFactory, RootFactory

ROOT_VIEWS: Final[Mapping[str, RootFactory]] = {
    "cluster": ClusterView,
    "models": ModelsView,
    "chat": ChatView,
    "store": StoreView,
    "diag": DiagView,
}
DETAILS: Final[Mapping[str, DetailFactory]] = {
    "node": NodeDetail,
    "model": ModelDetail,
    "instance": InstanceDetail,
    "command": CommandDetail,
}
