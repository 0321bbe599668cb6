"""The links between nodes: what is known of them, and having measured what they carry."""

from typing import final

from protocol.errors import RequestError
from protocol.link_api import MAX_PROBE_PAIRS, ProbeLinksBody, ProbeView
from skulkd.api.control import read_body
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Request, json_reply
from skulkd.api.link_views import links_document, probe_view
from skulkd.api.node_names import find_node
from skulkd.core.link_probe import pairs_to_probe


@final
class LinkRoutes:
    """The routes about the links between nodes.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def show(self, request: Request) -> Answer:
        """`GET /v1/cluster/links`: between all members, as all of them tell."""
        del request
        deps = self._deps
        return json_reply(
            links_document(
                deps.face.node_id,
                deps.state.state,
                deps.cluster.look(),
                deps.readings.readings,
                deps.probes.last,
                now=deps.clock.monotonic_s(),
            )
        )

    async def probe(self, request: Request) -> Answer:
        """`POST /v1/cluster/links/probe`: measure what links carry, one pair after the other."""
        body, deps = await read_body(request, ProbeLinksBody, is_optional=True), self._deps
        named = tuple(find_node(deps.state.state, word) for word in body.nodes)
        alive = {one.node_id for one in deps.cluster.look().members if one.liveness == "alive"}
        # One that is named and away is tried all the same: its failure names the cause.
        pairs = pairs_to_probe(alive.union(named), named)
        if not pairs:
            raise RequestError(
                "request.invalid",
                "there is no link to measure: no two nodes are there",
                remediation="`skulk cluster members` shows who is heard.",
                details={"param": "nodes"},
            )
        if len(pairs) > MAX_PROBE_PAIRS:
            raise RequestError(
                "request.invalid",
                f"{len(pairs)} pairs are too many to measure at once, at most {MAX_PROBE_PAIRS}",
                remediation="Name the nodes whose links matter: `skulk probe links NODE NODE`.",
                details={"param": "nodes"},
            )
        if body.dry_run:
            return json_reply(ProbeView(state="planned", n_pairs=len(pairs)))
        run = await deps.probes.start(pairs, even_busy=body.even_busy)
        return json_reply(probe_view(run), status=202)
