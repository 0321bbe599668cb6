"""Settings and restarts over HTTP."""

from protocol.admin_api import ConfigDocument, RestartDocument
from protocol.commands import ChangeSettings
from protocol.control_api import ErrorDocument, read_answer
from protocol.errors import ConfigError
from protocol.state import ClusterSettings
from tests.support.api_harness import Api, with_api
from tests.support.fake_ports import NODE, FakeDaemon
from tests.support.two_nodes import TwoNodes


def test_settings_are_shown_with_those_of_the_cluster() -> None:
    async def story(api: Api) -> None:
        shown = read_answer(ConfigDocument, (await api.client.get("/config")).content)
        assert (shown.node_id, shown.name) == (NODE, "alpha")
        assert shown.node.effective["name"].source == "file"
        assert shown.cluster == ClusterSettings()

    with_api(story)


def test_what_is_left_out_stays() -> None:
    daemon = FakeDaemon()

    async def story(api: Api) -> None:
        body = {"settings": {"priority": 60}, "cluster": {"loopback": "keyed"}}
        answer = await api.client.put("/config", json=body)
        shown = read_answer(ConfigDocument, answer.content)
        assert shown.node.file == {"name": "alpha", "priority": 60}
        assert shown.node.pending == ("priority",)
        assert shown.cluster == ClusterSettings(policy="availability", loopback="keyed")
        (command,) = daemon.gateway.submitted
        assert isinstance(command, ChangeSettings)
        assert command.settings == shown.cluster

    with_api(story, daemon)


def test_settings_of_one_node_are_no_matter_of_the_cluster() -> None:
    daemon = FakeDaemon()

    async def story(api: Api) -> None:
        answer = await api.client.put("/config", json={"settings": {"priority": 60}})
        assert answer.is_success
        assert daemon.gateway.submitted == []

    with_api(story, daemon)


def test_a_dry_run_changes_neither() -> None:
    daemon = FakeDaemon()

    async def story(api: Api) -> None:
        body = {"settings": {"priority": 60}, "cluster": {"policy": "quorum"}, "dry_run": True}
        shown = read_answer(ConfigDocument, (await api.client.put("/config", json=body)).content)
        assert shown.cluster.policy == "quorum"
        assert daemon.admin.settings == {"name": "alpha"}
        assert daemon.gateway.submitted == []

    with_api(story, daemon)


def test_a_refused_setting_keeps_the_cluster_as_it_was() -> None:
    daemon = FakeDaemon()
    daemon.admin.refusal = ConfigError("config.unknown_key", "unknown key `nmae`")

    async def story(api: Api) -> None:
        body = {"settings": {"nmae": "x"}, "cluster": {"policy": "quorum"}}
        answer = await api.client.put("/config", json=body)
        assert answer.status_code == 400
        assert read_answer(ErrorDocument, answer.content).error.skulk_code == "config.unknown_key"
        assert daemon.gateway.submitted == []

    with_api(story, daemon)


def test_settings_are_bounded() -> None:
    async def story(api: Api) -> None:
        for settings in (
            {f"key_{'a' * n}": 1 for n in range(1, 66)},
            {"name": "x" * 5000},
            {"Name!": "x"},
            {"name": {"a": 1}},
        ):
            answer = await api.client.put("/config", json={"settings": settings})
            assert answer.status_code == 400, settings

    with_api(story)


def test_a_restart_shows_what_it_interrupts_and_is_refused_while_one_is_pending() -> None:
    daemon = FakeDaemon()

    async def story(api: Api) -> None:
        answer = await api.client.post("/admin/restart", json={"dry_run": True})
        shown = read_answer(RestartDocument, answer.content)
        assert (shown.name, shown.boot_id, shown.restarting) == (
            "alpha",
            daemon.face.boot_id,
            False,
        )
        assert [one.model_id for one in shown.interrupted] == ["test/scripted"]
        assert daemon.admin.n_restarts == 0
        answer = await api.client.post("/admin/restart")
        assert read_answer(RestartDocument, answer.content).restarting
        again = await api.client.post("/admin/restart")
        assert again.status_code == 409
        error = read_answer(ErrorDocument, again.content).error
        assert error.skulk_code == "cluster.restart_pending"
        assert daemon.admin.n_restarts == 1

    with_api(story, daemon)


def test_another_node_is_configured_and_restarted_through_this_one() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        answer = await api.client.put("/config?node=beta", json={"settings": {"priority": 60}})
        assert answer.is_success, answer.text
        assert nodes.beta.admin.settings["priority"] == 60
        assert "priority" not in nodes.alpha.admin.settings
        assert (await api.client.post("/admin/restart?node=beta")).is_success
        assert (nodes.alpha.admin.n_restarts, nodes.beta.admin.n_restarts) == (0, 1)

    with_api(story, nodes.alpha)
