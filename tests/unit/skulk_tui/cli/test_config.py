import pytest

from protocol.admin_api import ConfigDocument
from tests.support.command_line import skulk
from tests.support.config_documents import some_settings
from tests.support.fake_node import FakeNode, refusal


def test_settings_are_shown_with_their_source_and_what_waits(node: FakeNode) -> None:
    ran = skulk("config", "get", node=node.url)
    assert ran.code == 0, ran.err
    rows = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines()}
    assert rows["priority"] == ["50", "file", "60", "after", "a", "restart"]
    assert rows["bind"] == ["eth0,eth1", "environment", "-"]
    assert rows["cluster.policy"][:2] == ["availability", "cluster"]
    assert "skulk node restart studio" in ran.err


def test_a_key_that_is_none_is_answered_with_the_nearest(node: FakeNode) -> None:
    ran = skulk("config", "get", "priorty", node=node.url)
    assert ran.code == 2
    assert "Did you mean 'priority'?" in ran.err


def test_changes_are_sent_as_they_were_given(node: FakeNode) -> None:
    ran = skulk(
        "config", "set", "priority=60", "join_file=a=b", "cluster.policy=quorum", "--unset", "bind",
        "--on", "studio", "--dry-run", node=node.url,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    (seen,) = node.asked("PUT", "/config")
    assert seen.query == {"node": ["studio"]}
    assert seen.body == {
        "settings": {"priority": "60", "join_file": "a=b"},
        "unset": ["bind"],
        "cluster": {"policy": "quorum"},
        "dry_run": True,
    }


@pytest.mark.parametrize(
    "arguments", [(), ("priority",), ("=1",), ("cluster.nothing=1",), ("Name!=x",)]
)
def test_what_is_no_change_is_refused_before_a_node_is_asked(
    node: FakeNode, arguments: tuple[str, ...]
) -> None:
    ran = skulk("config", "set", *arguments, node=node.url)
    assert ran.code == 2
    assert node.seen == []


def test_a_setting_that_the_node_refuses_ends_with_2(node: FakeNode) -> None:
    node.on("PUT", "/config", refusal("config.invalid", "priority: too large"))
    ran = skulk("config", "set", "priority=900", node=node.url)
    assert ran.code == 2
    assert ran.err.startswith("error: priority: too large")


def test_the_document_of_the_fake_node_is_one() -> None:
    document = some_settings()
    assert ConfigDocument.model_validate_json(document.model_dump_json()) == document
