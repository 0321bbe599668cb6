"""The cluster over HTTP: its document, invitations, joining, removing, policy, handing over."""

import pytest

from protocol.cluster_api import (
    ClusterDocument,
    HandoverDone,
    Invitation,
    JoinBody,
    Joined,
    NodesDocument,
    TokenList,
)
from protocol.commands import ChangeSettings, RemoveMember, RevokeJoinToken
from protocol.control_api import StateDocument, read_answer
from protocol.errors import ClusterError
from protocol.ids import ClusterId, TokenId
from protocol.state import JoinToken
from skulkd.cluster.guests import join_failed
from tests.support.api_harness import Api, with_api
from tests.support.fake_ports import NODE, FakeDaemon, make_state
from tests.support.two_nodes import BETA, TwoNodes

TOKEN = JoinToken(
    token_id=TokenId("join-aaaaaaaa"),
    public_key="ab" * 32,
    inviter=NODE,
    kind="token",
    created_at_ms=1,
    expires_at_ms=2,
    uses_left=1,
)


def test_the_cluster_is_shown_with_every_member() -> None:
    async def story(api: Api) -> None:
        shown = read_answer(ClusterDocument, (await api.client.get("/v1/cluster")).content)
        assert [member.name for member in shown.members] == ["alpha", "beta"]
        assert (shown.role, shown.master, shown.quorum.voters) == ("master", NODE, 2)

    with_api(story, TwoNodes().alpha)


def test_nodes_come_with_health_and_resources() -> None:
    async def story(api: Api) -> None:
        nodes = read_answer(NodesDocument, (await api.client.get("/v1/nodes")).content)
        alpha, beta = nodes.items
        assert alpha.health is not None
        assert alpha.health.level == "ok"
        assert beta.resources is not None
        assert beta.resources.name == "beta"

    with_api(story, TwoNodes().alpha)


@pytest.mark.parametrize("liveness", ["suspect", "lost", "left", "joining"])
def test_a_member_that_is_not_alive_is_never_in_the_topology(liveness: str) -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        state = read_answer(StateDocument, (await api.client.get("/state")).content)
        assert set(state.topology.nodes) == {NODE, BETA}
        assert [link.target for link in state.topology.links] == [BETA]
        nodes.alpha.cluster.liveness[BETA] = liveness  # pyright: ignore[reportArgumentType] - parametrized
        nodes.alpha.state.state = nodes.state.model_copy(update={"seq": 6})
        state = read_answer(StateDocument, (await api.client.get("/state")).content)
        assert state.topology.nodes == (NODE,)
        assert state.topology.links == ()
        assert state.liveness == {NODE: "alive", BETA: liveness}
        assert BETA in state.members

    with_api(story, nodes.alpha)


# ---- Invitations -------------------------------------------------------------------------------


def test_an_invitation_is_shown_once_and_kept_by_no_cache() -> None:
    async def story(api: Api) -> None:
        made = await api.client.post("/v1/cluster/invite", json={"uses": 3, "ttl_s": 600})
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        invitation = read_answer(Invitation, made.content)
        assert invitation.token is not None
        assert invitation.code is None
        coded = await api.client.post("/v1/cluster/invite", json={"kind": "code"})
        assert len((read_answer(Invitation, coded.content).code or "").split()) == 6
        plain = await api.client.post("/v1/cluster/invite")
        assert plain.status_code == 201
        assert api.daemon.cluster.invited == [
            ("token", 3, 600), ("code", 1, None), ("token", 1, None),
        ]  # fmt: skip

    with_api(story)


@pytest.mark.parametrize(
    "body",
    [
        {"uses": 0},
        {"uses": 1001},
        {"ttl_s": 1},
        {"kind": "letter"},
        {"kind": "code", "uses": 2},
        {"typo": 1},
    ],
)
def test_an_invitation_out_of_bounds_is_refused(body: dict[str, object]) -> None:
    async def story(api: Api) -> None:
        refused = await api.client.post("/v1/cluster/invite", json=body)
        assert refused.status_code == 400
        assert api.daemon.cluster.invited == []

    with_api(story)


def test_invitations_are_listed_without_secrets_and_can_be_revoked() -> None:
    daemon = FakeDaemon()
    daemon.state.state = make_state(join_tokens={TOKEN.token_id: TOKEN})

    async def story(api: Api) -> None:
        answer = await api.client.get("/v1/cluster/tokens")
        (listed,) = read_answer(TokenList, answer.content).items
        assert (listed.inviter_name, listed.uses_left, listed.is_valid) == ("alpha", 1, False)
        assert TOKEN.public_key not in answer.text
        revoked = await api.client.delete(f"/v1/cluster/tokens/{TOKEN.token_id}")
        assert revoked.status_code == 200
        command = api.daemon.gateway.submitted[0]
        assert isinstance(command, RevokeJoinToken)
        assert command.token_id == TOKEN.token_id
        garbled = await api.client.delete("/v1/cluster/tokens/JOIN-1")
        assert garbled.status_code == 404
        assert len(api.daemon.gateway.submitted) == 1

    with_api(story, daemon)


def test_an_invitation_that_this_node_has_yet_to_hear_of_is_revoked_by_the_master() -> None:
    async def story(api: Api) -> None:
        path = f"/v1/cluster/tokens/{TOKEN.token_id}"
        assert (await api.client.delete(path)).status_code == 200
        api.daemon.gateway.refusal = ClusterError(
            "cluster.token_unknown", "this cluster knows no such invitation", remediation=""
        )
        assert (await api.client.delete(path)).status_code == 404

    with_api(story)


# ---- Joining -----------------------------------------------------------------------------------


def test_joining_takes_a_token_or_a_code_with_peers() -> None:
    async def story(api: Api) -> None:
        joined = await api.client.post("/v1/cluster/join", json={"token": "skulk1-x"})
        assert read_answer(Joined, joined.content).address == "192.0.2.2:12416"
        body = {"code": "a b c d e f", "peers": ["192.0.2.2:12416"], "discard": True}
        assert (await api.client.post("/v1/cluster/join", json=body)).status_code == 200
        first, second = api.daemon.cluster.joined
        assert (first.token, first.discard) == ("skulk1-x", False)
        assert (second.code, second.peers, second.discard) == (
            "a b c d e f",
            ("192.0.2.2:12416",),
            True,
        )

    with_api(story)


@pytest.mark.parametrize(
    "body", [{}, {"token": "a", "code": "b"}, {"token": ""}, {"token": "x" * 5000}]
)
def test_joining_without_exactly_one_invitation_is_refused(body: dict[str, object]) -> None:
    async def story(api: Api) -> None:
        assert (await api.client.post("/v1/cluster/join", json=body)).status_code == 400
        assert api.daemon.cluster.joined == []

    with_api(story)


def test_no_invitation_shows_its_secret_where_it_is_shown_as_a_whole() -> None:
    made = Invitation(
        token_id=TokenId("join-aaaaaaaa"),
        kind="token",
        token="word",
        code="word",
        uses=1,
        expires_at_ms=1,
        cluster_id=ClusterId("k" + "a" * 16),
        inviter=NODE,
    )
    for shown in (made, JoinBody(token="word"), JoinBody(code="word")):
        assert "word" not in f"{shown} {shown!r}"


def test_a_failed_join_says_direction_port_and_the_firewalls_line() -> None:
    daemon = FakeDaemon()
    daemon.cluster.refusal = join_failed("no_route", "192.0.2.2", 12416)

    async def story(api: Api) -> None:
        failed = await api.client.post("/v1/cluster/join", json={"token": "skulk1-x"})
        assert failed.status_code == 502
        error = failed.json()["error"]
        assert error["skulk_code"] == "cluster.join_failed"
        assert "outgoing" in error["message"]
        assert "12416" in error["message"]
        assert "ufw allow 12416:12418/tcp" in error["remediation"]

    with_api(story, daemon)


# ---- Members and master ------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["beta", "BETA", BETA])
def test_a_member_is_removed_by_name_or_id(word: str) -> None:
    async def story(api: Api) -> None:
        assert (await api.client.delete(f"/v1/cluster/members/{word}")).status_code == 200
        (command,) = api.daemon.gateway.submitted
        assert isinstance(command, RemoveMember)
        assert command.node_id == BETA

    with_api(story, TwoNodes().alpha)


def test_an_unknown_member_is_refused_with_the_nearest_name() -> None:
    async def story(api: Api) -> None:
        refused = await api.client.delete("/v1/cluster/members/betta")
        assert refused.status_code == 404
        assert refused.json()["error"]["skulk_code"] == "request.node_not_found"
        assert "'beta'" in refused.json()["error"]["remediation"]
        assert api.daemon.gateway.submitted == []

    with_api(story, TwoNodes().alpha)


def test_the_policy_changes_and_other_settings_stay() -> None:
    daemon = FakeDaemon()
    keyed = daemon.state.state.settings.model_copy(update={"loopback": "open"})
    daemon.state.state = make_state(settings=keyed)

    async def story(api: Api) -> None:
        changed = await api.client.put("/v1/cluster/policy", json={"policy": "quorum"})
        assert changed.status_code == 200
        assert changed.headers["x-skulk-command-id"]
        (command,) = api.daemon.gateway.submitted
        assert isinstance(command, ChangeSettings)
        assert command.settings == keyed.model_copy(update={"policy": "quorum"})
        wrong = await api.client.put("/v1/cluster/policy", json={"policy": "pinned"})
        assert wrong.status_code == 400

    with_api(story, daemon)


def test_the_master_hands_over_to_whom_is_named_or_to_whom_it_chooses() -> None:
    async def story(api: Api) -> None:
        done = await api.client.post("/v1/cluster/handover", json={"node": "beta"})
        assert read_answer(HandoverDone, done.content) == HandoverDone(
            master=BETA, name="beta", term=2
        )
        assert (await api.client.post("/v1/cluster/handover")).status_code == 200
        assert api.daemon.cluster.handed_over == [BETA, None]
        itself = await api.client.post("/v1/cluster/handover", json={"node": "alpha"})
        assert read_answer(HandoverDone, itself.content).master == NODE
        assert len(api.daemon.cluster.handed_over) == 2

    with_api(story, TwoNodes().alpha)


def test_a_handover_reaches_the_master_through_any_node() -> None:
    nodes = TwoNodes()
    for daemon in (nodes.alpha, nodes.beta):
        daemon.state.state = nodes.state.model_copy(update={"master": BETA})

    async def story(api: Api) -> None:
        done = await api.client.post("/v1/cluster/handover", json={"node": "alpha"})
        assert read_answer(HandoverDone, done.content).master == NODE
        assert nodes.beta.cluster.handed_over == [NODE]
        assert nodes.alpha.cluster.handed_over == []

    with_api(story, nodes.alpha)


def test_a_handover_without_a_master_says_so_and_when_to_ask_again() -> None:
    nodes = TwoNodes()
    nodes.alpha.state.state = nodes.state.model_copy(update={"master": None})

    async def story(api: Api) -> None:
        refused = await api.client.post("/v1/cluster/handover")
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert refused.json()["error"]["skulk_code"] == "cluster.no_master"

    with_api(story, nodes.alpha)


def test_a_command_that_no_master_takes_is_answered_as_the_gateway_says() -> None:
    daemon = FakeDaemon()
    daemon.gateway.refusal = ClusterError("cluster.no_master", "none", retry_after_s=2)

    async def story(api: Api) -> None:
        refused = await api.client.put("/v1/cluster/policy", json={"policy": "quorum"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")

    with_api(story, daemon)
