from protocol.keys_api import KeyList, KeyView
from skulk_tui.cli.main import build_app
from skulk_tui.cli.manual import command_of, verbs_of
from tests.support.builders import NOW_MS, a_key_id
from tests.support.command_line import skulk
from tests.support.fake_node import KEY, FakeNode


def test_a_new_key_stands_alone_on_stdout(node: FakeNode) -> None:
    ran = skulk("keys", "create", "laptop", node=node.url)
    assert (ran.code, ran.out) == (0, f"{KEY}\n")
    assert "not shown again" in ran.err
    assert KEY not in ran.err


def test_scope_and_life_are_asked_for(node: FakeNode) -> None:
    skulk("keys", "create", "ci", "--scope", "operate", "--expires", "30d", node=node.url)
    (asked,) = node.asked("POST", "/v1/keys")
    assert asked.body == {
        "name": "ci",
        "scope": "operate",
        "expires_in_s": 30 * 86400,
        "limits": {},
    }


def test_a_key_is_made_with_limits(node: FakeNode) -> None:
    line = ("keys", "create", "guests", "--rate", "60/min", "--concurrent", "4")
    assert skulk(*line, node=node.url).code == 0
    (asked,) = node.asked("POST", "/v1/keys")
    assert asked.body == {
        "name": "guests",
        "scope": "infer",
        "limits": {"requests_per_minute": 60, "concurrent_requests": 4},
    }


def test_only_what_is_named_of_a_key_is_changed(node: FakeNode) -> None:
    for options in (
        ("--rate", "90"),
        ("--rate", "none", "--expires", "never"),
        ("--expires", "2d"),
    ):
        assert skulk("keys", "set", "laptop", *options, node=node.url).code == 0
    path = f"/v1/keys/{a_key_id()}"
    assert [asked.body for asked in node.asked("PUT", path)] == [
        {"limits": {"requests_per_minute": 90}, "unset": []},
        {"limits": {}, "unset": ["requests_per_minute", "expires"]},
        {"expires_in_s": 2 * 86400, "limits": {}, "unset": []},
    ]
    assert skulk("keys", "set", "laptop", node=node.url).code == 2


def test_a_new_secret_stands_alone_on_stdout(node: FakeNode) -> None:
    ran = skulk("keys", "rotate", "laptop", "--overlap", "1d", node=node.url)
    assert (ran.code, ran.out) == (0, f"{KEY}\n")
    assert "The secret before works for 1d." in ran.err
    skulk("keys", "rotate", "laptop", "--overlap", "0", node=node.url)
    asked = node.asked("POST", f"/v1/keys/{a_key_id()}/rotate")
    assert [one.body for one in asked] == [{"overlap_s": 86400}, {"overlap_s": 0}]


def test_senseless_limits_are_refused_before_a_node_is_asked(node: FakeNode) -> None:
    for option, word in (
        ("--rate", "0"),
        ("--rate", "60/hour"),
        ("--rate", "100001"),
        ("--concurrent", "-1"),
        ("--concurrent", "many"),
        ("--expires", "5s"),
    ):
        ran = skulk("keys", "set", "laptop", option, word, node=node.url)
        assert (ran.code, option in ran.err) == (2, True), word
    assert skulk("keys", "rotate", "laptop", "--overlap", "31d", node=node.url).code == 2
    assert node.seen == []


def test_senseless_keys_are_refused_before_a_node_is_asked(node: FakeNode) -> None:
    ran = skulk("keys", "create", "ci", "--scope", "amdin", node=node.url)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "  remedy: Did you mean 'admin'?")
    assert skulk("keys", "create", "ci", "--expires", "5s", node=node.url).code == 2
    assert skulk("keys", "create", "x" * 101, node=node.url).code == 2
    assert node.seen == []


def test_a_key_is_revoked_by_id_or_name_after_a_yes(node: FakeNode) -> None:
    assert skulk("keys", "revoke", "laptop", node=node.url).code == 2
    for word in ("laptop", a_key_id()):
        assert skulk("keys", "revoke", word, "--yes", node=node.url).code == 0
    assert len(node.asked("DELETE", f"/v1/keys/{a_key_id()}")) == 2


def test_a_name_that_several_keys_have_revokes_none(node: FakeNode) -> None:
    keys = tuple(
        KeyView(key_id=a_key_id(number), name="laptop", scope="infer", created_at_ms=NOW_MS)
        for number in (1, 2)
    )
    node.on("GET", "/v1/keys", KeyList(items=keys))
    ran = skulk("keys", "revoke", "laptop", "--yes", node=node.url)
    assert ran.code == 2
    assert a_key_id(2) in ran.err


def test_opening_the_api_says_from_where_it_is_reached(node: FakeNode) -> None:
    ran = skulk("api", "open", "--host", "192.168.1.5", "--no-persist", node=node.url)
    assert "the network, with an API key" in ran.out
    assert "http://studio.tailnet.example:52415/v1" in ran.out
    assert node.asked("POST", "/v1/api/open")[0].body == {"host": "192.168.1.5", "persist": False}


def test_s07_no_option_takes_a_key_that_others_could_read_in_the_list_of_processes() -> None:
    root = command_of(build_app())
    taking = [
        option
        for command in (root, *(command for _, command in verbs_of(root)))
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.is_flag
        for option in parameter.opts
        if any(word in option for word in ("key", "secret", "password"))
    ]
    assert taking == []
