"""The cluster itself: who is in it and how it is, inviting, joining, removing, handing over."""

from typing import final

from pydantic import ValidationError

from protocol.cluster_api import (
    HandoverBody,
    HandoverDone,
    InviteBody,
    JoinBody,
    PolicyBody,
)
from protocol.commands import ChangeSettings, Command, RemoveMember, RevokeJoinToken
from protocol.control_api import CommandAccepted
from protocol.errors import ClusterError, RequestError
from protocol.ids import NodeId, TokenId
from skulkd.api.cluster_views import nodes_document, token_list
from skulkd.api.control import mint, read_body
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Header, Reply, Request, json_reply
from skulkd.api.node_names import find_node, name_of
from skulkd.api.other_nodes import OtherNodes
from skulkd.api.views import state_document

_SECRET: Header = (b"cache-control", b"no-store")


@final
class ClusterRoutes:
    """The routes about the cluster itself.

    Args:
        deps: The rest of the daemon.
        others: Asks other nodes.
    """

    def __init__(self, deps: ApiDependencies, others: OtherNodes) -> None:
        self._deps = deps
        self._others = others

    async def show(self, request: Request) -> Answer:
        """`GET /v1/cluster`: as this node sees it."""
        del request
        return json_reply(self._deps.cluster.status())

    async def nodes(self, request: Request) -> Answer:
        """`GET /v1/nodes`: every member with its health and resources."""
        del request
        deps = self._deps
        cluster = deps.cluster.status()
        state = state_document(
            deps.state.state,
            deps.readings.readings,
            deps.health.node_health(),
            cluster,
            face=deps.face,
            now=deps.clock.monotonic_s(),
            is_reachable=deps.is_reachable,
        )
        return json_reply(nodes_document(cluster, state))

    # ---- Invitations ----

    async def invite(self, request: Request) -> Answer:
        """`POST /v1/cluster/invite`: an invitation by this node, which a closed one opens for."""
        body = await read_body(request, InviteBody, is_optional=True)
        if body.kind == "code" and body.uses != 1:
            raise RequestError(
                "request.invalid",
                f"a code serves one guest, not {body.uses}",
                remediation="Make a token for several: `skulk cluster invite --uses N`.",
                details={"param": "uses"},
            )
        invitation = await self._deps.cluster.invite(body.kind, uses=body.uses, ttl_s=body.ttl_s)
        return json_reply(invitation, status=201, headers=(_SECRET,))

    async def tokens(self, request: Request) -> Answer:
        """`GET /v1/cluster/tokens`: the invitations, without their secrets."""
        del request
        now_ms = self._deps.clock.wall_ms()
        return json_reply(token_list(self._deps.state.state, now_ms=now_ms))

    async def revoke_token(self, request: Request) -> Answer:
        """`DELETE /v1/cluster/tokens/{token_id}`."""
        token_id = TokenId(request.params["token_id"])
        # The master judges whether there is one: this node may not have heard of a new one yet.
        try:
            command = RevokeJoinToken(command_id=mint(self._deps, request), token_id=token_id)
        except ValidationError as error:
            raise RequestError(
                "request.not_found",
                f"{token_id[:40]!r} is no id of an invitation",
                remediation="See `skulk cluster tokens`.",
            ) from error
        return await self._submit(command, f"Nobody joins by {token_id} any more.")

    async def join(self, request: Request) -> Answer:
        """`POST /v1/cluster/join`: this node joins another cluster."""
        body = await read_body(request, JoinBody)
        if (body.token is None) == (body.code is None):
            raise RequestError(
                "request.invalid",
                "either a token or a code is needed, and not both",
                remediation="On a member: `skulk cluster invite`, with `--code` for six words.",
                details={"param": "token"},
            )
        return json_reply(await self._deps.cluster.join(body))

    # ---- Members and master ----

    async def remove(self, request: Request) -> Answer:
        """`DELETE /v1/cluster/members/{node}`: its key opens nothing any more."""
        state = self._deps.state.state
        node_id = find_node(state, request.params["node"])
        command = RemoveMember(command_id=mint(self._deps, request), node_id=node_id)
        return await self._submit(command, f"{name_of(state, node_id)} is a member no more.")

    async def set_policy(self, request: Request) -> Answer:
        """`PUT /v1/cluster/policy`."""
        body = await read_body(request, PolicyBody)
        settings = self._deps.state.state.settings.model_copy(update={"policy": body.policy})
        command = ChangeSettings(command_id=mint(self._deps, request), settings=settings)
        return await self._submit(command, f"The policy is {body.policy}.")

    async def handover(self, request: Request) -> Answer:
        """`POST /v1/cluster/handover`: the master, wherever it is, has another node elected."""
        deps, state = self._deps, self._deps.state.state
        cluster = deps.cluster.status()
        if cluster.role != "master":
            if cluster.master is None or request.asker is not None:
                raise _no_master(cluster.last_master)
            return await self._others.answer(cluster.master, request, changes_state=True)
        body = await read_body(request, HandoverBody, is_optional=True)
        node_id = None if body.node is None else find_node(state, body.node)
        own = deps.face
        if node_id == own.node_id:
            return json_reply(HandoverDone(master=own.node_id, name=own.name, term=cluster.term))
        pair = await deps.cluster.handover(node_id)
        done = HandoverDone(master=pair.master, name=name_of(state, pair.master), term=pair.number)
        return json_reply(done)

    async def _submit(self, command: Command, message: str) -> Reply:
        reply = await self._deps.gateway.submit(command)
        accepted = CommandAccepted(
            message=message,
            command_id=command.command_id,
            durable=reply.durable,
            term=reply.term,
            seq=reply.seq,
        )
        return json_reply(accepted)


def _no_master(last_master: NodeId | None) -> ClusterError:
    known = "" if last_master is None else f"; the last one was {last_master}"
    return ClusterError(
        "cluster.no_master",
        f"there is no master now{known}",
        remediation="Try again in some seconds; `skulk cluster status` shows who is heard.",
        retry_after_s=5,
    )
