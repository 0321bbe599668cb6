"""The cluster around a node, as the API sees it: set by a test, remembering what was asked."""

from collections.abc import Mapping
from typing import Final, final

from protocol.admin_api import NodeConfig, SettingValue, SettingView
from protocol.cluster_api import (
    ClusterDocument,
    Invitation,
    InvitationKind,
    JoinBody,
    Joined,
    Liveness,
    LogLineView,
    LogsDocument,
    MemberView,
    QuorumView,
)
from protocol.errors import ClusterError, SkulkError
from protocol.ids import ClusterId, InstanceId, NodeId, TokenId
from protocol.peer_messages import ApiAnswer, CallApi, TermPair
from skulkd.api.cluster_look import ClusterLook, MemberLook
from skulkd.api.peer_api import PeerApiServer
from skulkd.api.ports import LogMark, LogQuery
from skulkd.core.drain_decisions import eligibility_of
from skulkd.eventlog.gateway import StateView

TOKEN: Final = "skulk1-" + "a" * 40
CODE: Final = "amber brick cedar delta eagle flint"
OWN: Final = NodeId("naaaaaaaaaaaaaaaa")
MINUTE_MS: Final = 60_000


@final
class FakeCluster:
    """Shows the state's members as alive, unless a test says otherwise."""

    def __init__(self, state: StateView, own: NodeId = OWN) -> None:
        self._state = state
        self._own = own
        self.liveness: dict[NodeId, Liveness] = {}
        self.document: ClusterDocument | None = None
        """Shown in place of what follows from the state."""
        self.invited: list[tuple[InvitationKind, int, int | None]] = []
        self.joined: list[JoinBody] = []
        self.handed_over: list[NodeId | None] = []
        self.refusal: SkulkError | None = None

    def look(self) -> ClusterLook:
        shown = self.status()
        return ClusterLook(
            shown.master,
            tuple(
                MemberLook(
                    one.node_id, one.liveness, one.is_self, one.link, one.dialled, one.silent_s
                )
                for one in shown.members
            ),
        )

    def status(self) -> ClusterDocument:
        if self.document is not None:
            return self.document
        state = self._state.state
        members = tuple(self._member(node_id) for node_id in sorted(state.members))
        n_alive = sum(1 for member in members if member.liveness == "alive")
        return ClusterDocument(
            node_id=self._own,
            name="alpha",
            cluster_id=state.cluster_id,
            is_open=len(members) > 1,
            base_port=12416 if len(members) > 1 else None,
            role="master" if state.master == self._own else "member",
            master=state.master,
            last_master=state.master,
            term=state.term,
            policy=state.settings.policy,
            quorum=QuorumView(
                voters=len(members), alive=n_alive, is_majority=2 * n_alive > len(members)
            ),
            commit_seq=state.seq,
            appended_seq=state.seq,
            members=members,
        )

    def _member(self, node_id: NodeId) -> MemberView:
        state = self._state.state
        member = state.members[node_id]
        is_self = node_id == self._own
        return MemberView(
            node_id=node_id,
            name=member.name,
            role=member.role,
            presence=member.presence,
            since_ms=member.since_ms,
            eligibility=eligibility_of(state, node_id),
            liveness=self.liveness.get(node_id, "alive"),
            is_self=is_self,
            is_master=node_id == state.master,
            silent_s=None if is_self else 0.3,
            link=None if is_self else "up",
            addresses=member.addresses,
            api_port=52415,
            build="0.1.0",
            public_key=member.public_key,
        )

    async def invite(self, kind: InvitationKind, *, uses: int, ttl_s: int | None) -> Invitation:
        self._refuse()
        self.invited.append((kind, uses, ttl_s))
        return Invitation(
            token_id=TokenId("join-aaaaaaaa"),
            kind=kind,
            token=TOKEN if kind == "token" else None,
            code=CODE if kind == "code" else None,
            uses=uses,
            expires_at_ms=MINUTE_MS,
            cluster_id=self._state.state.cluster_id,
            inviter=self._own,
            addresses=("192.0.2.1:12416",),
            was_opened=True,
        )

    async def join(self, wish: JoinBody) -> Joined:
        self._refuse()
        self.joined.append(wish)
        return Joined(
            cluster_id=ClusterId("kbbbbbbbbbbbbbbbb"),
            inviter=NodeId("nbbbbbbbbbbbbbbbb"),
            address="192.0.2.2:12416",
        )

    async def handover(self, node_id: NodeId | None) -> TermPair:
        self._refuse()
        self.handed_over.append(node_id)
        others = [one for one in sorted(self._state.state.members) if one != self._own]
        successor = node_id or (others[0] if others else None)
        if successor is None:
            raise ClusterError(
                "cluster.handover_failed",
                "no other member is alive and caught up",
                remediation="`skulk cluster members` shows who is there.",
            )
        return TermPair(self._state.state.term + 1, successor)

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal


@final
class FakeAdmin:
    """Settings that are only kept in memory, and a restart that is only noted."""

    def __init__(self) -> None:
        self.settings: dict[str, SettingValue | None] = {"name": "alpha"}
        self.n_restarts = 0
        self.n_tries = 0
        self.refusal: SkulkError | None = None

    async def config(self) -> NodeConfig:
        return self._shown(self.settings)

    async def configure(
        self, changes: Mapping[str, SettingValue | None], *, dry_run: bool
    ) -> NodeConfig:
        if self.refusal is not None:
            raise self.refusal
        after = {**self.settings, **changes}
        if dry_run:
            self.n_tries += 1
        else:
            self.settings = after
        return self._shown(after)

    def restart(self) -> None:
        if self.n_restarts:
            raise ClusterError("cluster.restart_pending", "this node is restarting already")
        self.n_restarts += 1

    def _shown(self, settings: Mapping[str, SettingValue | None]) -> NodeConfig:
        return NodeConfig(
            path="/home/op/skulk.yaml",
            effective={"name": SettingView(value="alpha", source="file")},
            file=dict(settings),
            pending=tuple(key for key in settings if key != "name"),
        )


@final
class FakeLogs:
    """Numbered lines, more of which a test may write; a position is the number of the next line."""

    def __init__(self, node_id: NodeId = OWN) -> None:
        self._node_id = node_id
        self.lines: dict[InstanceId | None, list[str]] = {None: ["first", "second", "third"]}
        self.asked: list[LogQuery] = []
        self.n_looks = 0
        self.refusal: SkulkError | None = None

    async def mark(self, query: LogQuery) -> LogMark:
        self.n_looks += 1
        if self.refusal is not None:
            raise self.refusal
        return ((0, len(self.lines.get(query.instance_id, []))),)

    async def read(self, query: LogQuery) -> LogsDocument:
        self.asked.append(query)
        if self.refusal is not None:
            raise self.refusal
        lines = self.lines.get(query.instance_id, [])
        start = max(0, len(lines) - query.limit) if query.after is None else int(query.after)
        page = lines[start : start + query.limit]
        end = start + len(page)
        return LogsDocument(
            node_id=self._node_id,
            name="alpha",
            instance_id=query.instance_id,
            lines=tuple(LogLineView(message=line, level="info") for line in page),
            next_after=str(end),
            has_more=end < len(lines),
        )


@final
class FakePeers:
    """Other nodes: each an API of its own, or an error."""

    def __init__(self) -> None:
        self.servers: dict[NodeId, PeerApiServer | SkulkError] = {}
        self.asker = OWN
        self.calls: list[tuple[NodeId, CallApi]] = []
        self.answers: dict[NodeId, ApiAnswer] = {}
        """Given in place of what a server would answer."""

    async def call(self, node_id: NodeId, request: CallApi, *, timeout_s: float) -> ApiAnswer:
        assert timeout_s > 0
        self.calls.append((node_id, request))
        if node_id in self.answers:
            return self.answers[node_id]
        server = self.servers[node_id]
        if isinstance(server, SkulkError):
            raise server
        # As it would cross the wire.
        return await server.handle(self.asker, CallApi.model_validate(request.model_dump()))
