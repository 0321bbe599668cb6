"""Running a node: its settings, those of the cluster, and starting it anew."""

from typing import final

from protocol.admin_api import (
    ConfigBody,
    ConfigDocument,
    InterruptedInstance,
    NodeConfig,
    RestartBody,
    RestartDocument,
)
from protocol.commands import ChangeSettings
from protocol.state import ClusterSettings
from skulkd.api.control import mint, read_body
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Request, json_reply
from skulkd.api.views import instance_view


@final
class AdminRoutes:
    """The routes about running a node.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def config(self, request: Request) -> Answer:
        """`GET /config`: what this node runs with, and what holds in the whole cluster."""
        del request
        node = await self._deps.admin.config()
        return json_reply(self._document(node, self._deps.state.state.settings))

    async def configure(self, request: Request) -> Answer:
        """`PUT /config`: change this node's settings file, and what holds in the whole cluster.

        The node's settings are checked first, and written last: a refusal changes nothing.
        """
        body, deps = await read_body(request, ConfigBody), self._deps
        before = deps.state.state.settings
        named = body.cluster.model_dump(exclude_none=True)
        wanted = ClusterSettings.model_validate({**before.model_dump(), **named})
        changes = {**body.settings, **dict.fromkeys(body.unset)}
        node = await deps.admin.configure(changes, dry_run=True)
        if not body.dry_run:
            if wanted != before:
                await deps.gateway.submit(
                    ChangeSettings(command_id=mint(deps, request), settings=wanted)
                )
            node = await deps.admin.configure(changes, dry_run=False)
        return json_reply(self._document(node, wanted))

    async def restart(self, request: Request) -> Answer:
        """`POST /admin/restart`: start this node anew; engines stop and come back with it."""
        body, deps = await read_body(request, RestartBody, is_optional=True), self._deps
        own_id = deps.face.node_id
        now, readings = deps.clock.monotonic_s(), deps.readings.readings
        views = [
            instance_view(instance, readings, now=now, is_reachable=deps.is_reachable)
            for instance in deps.state.state.instances.values()
            if any(shard.node_id == own_id for shard in instance.plan.shards)
        ]
        if not body.dry_run:
            deps.admin.restart()
        return json_reply(
            RestartDocument(
                node_id=own_id,
                name=deps.face.name,
                boot_id=deps.face.boot_id,
                restarting=not body.dry_run,
                interrupted=tuple(
                    InterruptedInstance(
                        instance_id=view.instance_id,
                        model_id=view.model_id,
                        phase=view.phase,
                        requests=None
                        if view.in_flight is None
                        else view.in_flight + (view.queued or 0),
                    )
                    for view in views
                ),
            )
        )

    def _document(self, node: NodeConfig, cluster: ClusterSettings) -> ConfigDocument:
        face = self._deps.face
        return ConfigDocument(node_id=face.node_id, name=face.name, node=node, cluster=cluster)
