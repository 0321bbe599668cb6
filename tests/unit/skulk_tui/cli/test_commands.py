"""What holds for every verb: JSON of its record, help, no daemon, no terminal."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from protocol.errors import ErrorCode
from protocol.session import TimelineEntry
from skulk_tui.cli import bench_figures, cluster_records, link_tables, operation_records, records
from tests.support.builders import MODEL, NOW_MS, a_command_id, an_instance_id
from tests.support.cluster_documents import SIX_WORDS, TOKEN_ID
from tests.support.command_line import skulk, unread_pipe
from tests.support.fake_node import FakeNode, a_state_document, a_view, refusal
from tests.support.json_document import KINDS
from tests.support.scripted_session import ScriptedSession
from tests.support.session_answers import refusal as scripted_refusal
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.usefixtures("somewhere")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One verb, as it is called, and what its JSON holds."""

    arguments: tuple[str, ...]
    kind: str
    record: type
    asks_a_node: bool = True
    code: int = 0
    over_session: bool = False
    """Asks over a session, not by HTTP."""


CASES = [
    Case(arguments=("status",), kind="status", record=records.StatusRecord),
    Case(arguments=("nodes",), kind="nodes", record=records.NodeRecord),
    Case(arguments=("cluster", "status"), kind="cluster", record=cluster_records.ClusterRecord),
    Case(arguments=("cluster", "members"), kind="members", record=cluster_records.MemberRecord),
    Case(
        arguments=("cluster", "invite"),
        kind="invitations",
        record=cluster_records.InvitationRecord,
    ),
    Case(
        arguments=("cluster", "join", "--code", SIX_WORDS),
        kind="joined",
        record=cluster_records.JoinRecord,
    ),
    Case(
        arguments=("cluster", "remove", "node-2", "--yes"),
        kind="outcomes",
        record=records.OutcomeRecord,
    ),
    Case(
        arguments=("cluster", "policy", "quorum"),
        kind="policy",
        record=cluster_records.PolicyRecord,
    ),
    Case(arguments=("cluster", "handover"), kind="master", record=cluster_records.MasterRecord),
    Case(
        arguments=("cluster", "tokens"),
        kind="invitations",
        record=cluster_records.InvitationRecord,
    ),
    Case(arguments=("cluster", "revoke", TOKEN_ID), kind="outcomes", record=records.OutcomeRecord),
    Case(
        arguments=("cluster", "strangers"),
        kind="strangers",
        record=cluster_records.StrangerRecord,
    ),
    Case(arguments=("logs",), kind="logs", record=cluster_records.LogLineRecord),
    Case(arguments=("events",), kind="events", record=cluster_records.EventRecord),
    Case(
        arguments=("timeline", a_command_id()),
        kind="timeline",
        record=cluster_records.TimelineRecord,
        over_session=True,
    ),
    Case(arguments=("top",), kind="top", record=records.StatusRecord),
    Case(arguments=("doctor",), kind="checks", record=records.CheckRecord, code=6),
    Case(arguments=("wait", MODEL), kind="outcomes", record=records.OutcomeRecord),
    Case(arguments=("ps",), kind="instances", record=records.InstanceRecord),
    Case(arguments=("place", MODEL), kind="instances", record=records.InstanceRecord),
    Case(
        arguments=("place", MODEL, "--dry-run"), kind="candidates", record=records.CandidateRecord
    ),
    Case(arguments=("move", MODEL, "--no-wait"), kind="instances", record=records.InstanceRecord),
    Case(arguments=("move", MODEL, "--dry-run"), kind="moves", record=operation_records.MoveRecord),
    Case(arguments=("stop", MODEL), kind="outcomes", record=records.OutcomeRecord),
    Case(arguments=("retry", an_instance_id()), kind="instances", record=records.InstanceRecord),
    Case(arguments=("instance", "show", MODEL), kind="instances", record=records.InstanceRecord),
    Case(
        arguments=("instance", "clear-breaker", MODEL),
        kind="outcomes",
        record=records.OutcomeRecord,
    ),
    Case(arguments=("pin", MODEL), kind="outcomes", record=records.OutcomeRecord),
    Case(arguments=("unpin", MODEL), kind="outcomes", record=records.OutcomeRecord),
    Case(arguments=("models", "list"), kind="models", record=records.ModelRecord),
    Case(arguments=("models", "show", MODEL), kind="models", record=records.ModelRecord),
    Case(arguments=("models", "import", "/m/a.gguf"), kind="imports", record=records.ImportRecord),
    Case(arguments=("models", "pull", MODEL), kind="transfers", record=records.TransferRecord),
    Case(arguments=("models", "rm", MODEL, "--yes"), kind="outcomes", record=records.OutcomeRecord),
    Case(
        arguments=("store", "verify", MODEL),
        kind="verified",
        record=operation_records.VerifiedRecord,
    ),
    Case(arguments=("store", "resume", MODEL), kind="outcomes", record=records.OutcomeRecord),
    Case(arguments=("models", "files"), kind="files", record=records.FileRecord),
    Case(arguments=("chat", MODEL, "hello"), kind="chat", record=records.ChatRecord),
    Case(arguments=("bench", MODEL, "-n", "1"), kind="bench", record=bench_figures.BenchRecord),
    Case(arguments=("keys", "create", "laptop"), kind="keys", record=records.KeyRecord),
    Case(arguments=("keys", "list"), kind="keys", record=records.KeyRecord),
    Case(
        arguments=("keys", "revoke", "laptop", "--yes"),
        kind="outcomes",
        record=records.OutcomeRecord,
    ),
    Case(arguments=("api", "open"), kind="listeners", record=records.ListenersRecord),
    Case(arguments=("api", "close"), kind="listeners", record=records.ListenersRecord),
    Case(arguments=("api", "status"), kind="listeners", record=records.ListenersRecord),
    Case(
        arguments=("connect", "codex"),
        kind="connections",
        record=operation_records.ConnectionRecord,
    ),
    Case(
        arguments=("connect",),
        kind="tools",
        record=operation_records.ToolRecord,
        asks_a_node=False,
    ),
    Case(arguments=("config", "get"), kind="settings", record=operation_records.SettingRecord),
    Case(
        arguments=("config", "set", "priority=60"),
        kind="settings",
        record=operation_records.SettingRecord,
    ),
    Case(
        arguments=("node", "restart", "studio", "--dry-run"),
        kind="restarts",
        record=operation_records.RestartRecord,
    ),
    Case(
        arguments=("node", "drain", "studio", "--dry-run"),
        kind="drains",
        record=operation_records.DrainRecord,
    ),
    Case(arguments=("cluster", "links"), kind="links", record=link_tables.LinkRecord),
    Case(arguments=("probe", "links"), kind="links", record=link_tables.LinkRecord),
    Case(arguments=("node", "undrain", "node-1"), kind="outcomes", record=records.OutcomeRecord),
    Case(arguments=("diag", "bundle"), kind="bundle", record=operation_records.BundleRecord),
    Case(arguments=("bundle",), kind="bundle", record=operation_records.BundleRecord),
    Case(
        arguments=("uninstall", "--dry-run"),
        kind="leftovers",
        record=operation_records.LeftoverRecord,
        asks_a_node=False,
    ),
    Case(
        arguments=("service", "install", "--dry-run"),
        kind="steps",
        record=operation_records.StepRecord,
        asks_a_node=False,
    ),
    Case(
        arguments=("service", "status"),
        kind="service",
        record=operation_records.ServiceRecord,
        asks_a_node=False,
    ),
    Case(
        arguments=("completion", "bash"),
        kind="completion",
        record=records.CompletionRecord,
        asks_a_node=False,
    ),
    Case(arguments=("info",), kind="info", record=records.InfoRecord, asks_a_node=False),
    Case(arguments=("version",), kind="version", record=records.VersionRecord, asks_a_node=False),
    Case(
        arguments=("help", "exit-codes"),
        kind="exit_codes",
        record=records.TopicRecord,
        asks_a_node=False,
    ),
    Case(arguments=("help",), kind="topics", record=records.TopicRecord, asks_a_node=False),
    Case(
        arguments=("help", "output"),
        kind="output",
        record=records.TopicRecord,
        asks_a_node=False,
    ),
    Case(arguments=("help", "man"), kind="man", record=records.TopicRecord, asks_a_node=False),
    Case(
        arguments=("help", "environment"),
        kind="environment",
        record=records.TopicRecord,
        asks_a_node=False,
    ),
]
FULL_SCREEN = {"tui"}
"""Has no output to read; tests/tui is about it."""
ALL = pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.arguments[:2]))
ASKING = pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.asks_a_node],
    ids=lambda case: " ".join(case.arguments[:2]),
)


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some verbs write a file where they are called."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    """The instance is there when it is first asked for, and gone afterwards."""
    path = f"/instance/{an_instance_id()}"
    node.on("GET", path, a_view(), refusal("request.not_found", status=404))
    return node


@pytest.fixture
def url(request: pytest.FixtureRequest, node: FakeNode) -> Iterator[str]:
    """Give the node that the case asks."""
    case: Case = request.getfixturevalue("case")
    if not case.over_session:
        yield node.url
        return
    with ScriptedSession() as scripted:
        entry = TimelineEntry(at_ms=NOW_MS, source="event", kind="ModelPlaced", text="on node-1")
        scripted.lines("command", [entry])
        yield scripted.url


@pytest.fixture
def dead_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@ALL
def test_json_holds_whole_records_and_nothing_else(case: Case, url: str) -> None:
    ran = skulk(*case.arguments, "--json", node=url)
    assert ran.code == case.code, ran.err
    document = json.loads(ran.out)
    assert list(document) == ["kind", "seq", "items"]
    assert document["kind"] == case.kind
    assert document["items"]
    reader: TypeAdapter[object] = TypeAdapter(case.record)
    for item in document["items"]:
        assert list(item) == [field.name for field in fields(case.record)]
        reader.validate_json(json.dumps(item), strict=True)
    assert not any(key != key.lower() for item in document["items"] for key in item)


@ALL
def test_yaml_holds_what_json_holds(case: Case, url: str) -> None:
    ran = skulk(*case.arguments, "-o", "yaml", node=url)
    assert ran.code == case.code, ran.err
    document = yaml.safe_load(ran.out)
    assert list(document) == ["kind", "seq", "items"]
    assert (document["kind"], bool(document["items"])) == (case.kind, True)


@ALL
def test_lines_of_json_are_lines_of_json(case: Case, url: str) -> None:
    ran = skulk("-o", "jsonl", *case.arguments, node=url)
    assert ran.code == case.code
    assert [json.loads(line) for line in ran.out.splitlines()]


@ALL
def test_without_a_terminal_there_is_no_escape_sequence_anywhere(case: Case, url: str) -> None:
    ran = skulk(*case.arguments, node=url)
    assert ran.code == case.code
    assert "\x1b" not in ran.out + ran.err
    assert "\r" not in ran.out + ran.err
    assert ran.out


@ALL
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_reader_that_has_gone_is_no_error_of_any_verb(case: Case, url: str, form: str) -> None:
    with unread_pipe() as stdout:
        ran = skulk(*case.arguments, "-o", form, node=url, stdout=stdout)
    assert ran.code in {0, case.code}, ran.err
    assert "error" not in ran.err


@ASKING
def test_without_a_daemon_the_command_ends_with_3_and_says_what_to_do(
    case: Case, dead_url: str
) -> None:
    ran = skulk(*case.arguments, node=dead_url)
    assert (ran.code, ran.out) == (3, "")
    error, at, remedy = ran.err.splitlines()
    assert error.startswith("error: no node answers at")
    assert at == f"  at: {dead_url}"
    assert "systemctl --user status skulkd" in remedy


@ASKING
def test_without_a_daemon_machines_get_an_object(case: Case, dead_url: str) -> None:
    ran = skulk(*case.arguments, "--json", node=dead_url)
    assert (ran.code, ran.out) == (3, "")
    error = json.loads(ran.err)["error"]
    assert (error["code"], error["exit"]) == ("client.unreachable", 3)
    assert error["retryable"] is True


@ALL
def test_help_has_two_examples(case: Case) -> None:
    verb = [word for word in case.arguments[:2] if "/" not in word and len(word) <= 13]
    groups = {
        "instance",
        "models",
        "keys",
        "api",
        "cluster",
        "service",
        "config",
        "node",
        "diag",
        "store",
        "probe",
    }
    path = verb[:2] if verb[0] in groups else verb[:1]
    ran = skulk(*path, "--help")
    assert ran.code == 0
    _, _, examples = ran.out.partition("Examples:\n")
    shown = [
        line for line in examples.split("\n\n")[0].splitlines() if line.startswith("    skulk")
    ]
    assert len(shown) == 2
    assert all(line.strip().startswith(f"skulk {' '.join(path)}") for line in shown)


@ASKING
def test_a_bug_of_the_node_ends_with_1(case: Case, node: FakeNode) -> None:
    if case.over_session:
        with ScriptedSession() as scripted:
            scripted.upgrade_refusal = scripted_refusal("internal.bug", "a bug", status=500)
            ran = skulk(*case.arguments, node=scripted.url)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith("error: a bug\n")
        return
    for method in ("GET", "POST", "PUT", "DELETE"):
        for path in _routes():
            node.on(method, path, refusal("internal.bug", "a bug", status=500))
    ran = skulk(*case.arguments, node=node.url)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: a bug\n")


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("cluster.peer_unreachable", 502, 3),
        ("request.forbidden", 403, 4),
        ("placement.busy", 409, 5),
    ],
)
@ASKING
def test_a_refusal_ends_every_verb_with_the_code_of_its_error(
    case: Case, node: FakeNode, code: ErrorCode, status: int, exit_code: int
) -> None:
    if case.over_session:
        with ScriptedSession() as scripted:
            scripted.upgrade_refusal = scripted_refusal(code, "it is refused", status=status)
            ran = skulk(*case.arguments, node=scripted.url)
    else:
        for method in ("GET", "POST", "PUT", "DELETE"):
            for path in _routes():
                node.on(method, path, refusal(code, "it is refused", status=status))
        ran = skulk(*case.arguments, node=node.url)
    assert (ran.code, ran.out) == (exit_code, "")
    error, *more = ran.err.splitlines()
    assert error == "error: it is refused"
    assert [line.split()[0] for line in more] in (["at:", "remedy:"], ["remedy:"])


@ALL
def test_a_wrong_option_ends_every_verb_with_2_and_names_its_help(case: Case, url: str) -> None:
    ran = skulk(*case.arguments, "--no-such-option", node=url)
    assert (ran.code, ran.out) == (2, "")
    error, remedy = ran.err.splitlines()
    assert error.startswith("error: No such option: --no-such-option")
    assert remedy.startswith(f"  remedy: See `skulk {case.arguments[0]}")
    assert remedy.endswith(" --help`.")


@ASKING
def test_a_spent_budget_ends_every_verb_with_124(case: Case, node: FakeNode) -> None:
    if case.over_session:
        with ScriptedSession() as scripted:
            ran = skulk(*case.arguments, "--timeout", "1ms", node=scripted.url)
    else:
        ran = skulk(*case.arguments, "--timeout", "0.001ms", node=node.url)
    assert ran.code == 124
    assert len(ran.err.splitlines()) <= 3
    assert ran.err.startswith("error: the time given by --timeout ran out")


def _routes() -> list[str]:
    instance = an_instance_id()
    return [
        "/state",
        "/node/identity",
        "/v1/models",
        f"/v1/models/{MODEL}",
        "/models/found",
        "/models/import",
        "/place_instance",
        "/instance/previews",
        f"/instance/{instance}",
        f"/instance/{instance}/retry",
        f"/instance/{instance}/move",
        f"/instance/{instance}/clear-breaker",
        f"/instance/{instance}/pin",
        f"/store/models/{MODEL}/download",
        f"/store/models/{MODEL}",
        "/v1/keys",
        "/v1/api/open",
        "/v1/api/close",
        "/v1/chat/completions",
        "/v1/nodes",
        "/v1/cluster",
        "/v1/cluster/invite",
        "/v1/cluster/join",
        "/v1/cluster/tokens",
        "/v1/cluster/links",
        "/v1/cluster/links/probe",
        "/v1/cluster/handover",
        "/v1/logs",
        "/store/storage",
        "/events",
        "/config",
        "/admin/restart",
        "/v1/nodes/studio/drain",
    ]


def test_every_verb_of_the_command_is_in_the_table() -> None:
    ran = skulk("--help")
    _, _, listed = ran.out.partition("Commands:\n")
    verbs = {line.split()[0] for line in listed.split("\n\n")[0].splitlines()}
    assert verbs == {case.arguments[0] for case in CASES} | FULL_SCREEN


def test_options_may_stand_before_and_after_the_verb(node: FakeNode) -> None:
    before = skulk("--json", "--node", node.url, "ps")
    after = skulk("ps", "--node", node.url, "-o", "json")
    between = skulk("models", "--node", node.url, "list", "-o", "name")
    assert before.out == after.out
    assert json.loads(before.out)["kind"] == "instances"
    assert between.out == f"{MODEL}\n"


def test_columns_are_chosen_of_any_listing(node: FakeNode) -> None:
    ran = skulk("ps", "--columns", "model,phase", "--no-headers", node=node.url)
    assert (ran.code, ran.out) == (0, f"{MODEL}  ready\n")
    ran = skulk("--columns", "phsae", "ps", node=node.url)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "  remedy: Did you mean 'phase'?")


def test_columns_of_what_is_no_table_are_refused_before_anything_is_asked(node: FakeNode) -> None:
    ran = skulk("ps", "--columns", "model", "--json", node=node.url)
    assert (ran.code, node.seen) == (2, [])
    assert "the output is json" in json.loads(ran.err)["error"]["message"]


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_usual_option_shows_the_version(option: str) -> None:
    assert skulk(option) == skulk("version")
    assert json.loads(skulk(option, "--json").out)["kind"] == "version"


def test_a_mistyped_verb_names_the_nearest() -> None:
    ran = skulk("stauts")
    assert ran.code == 2
    assert "'status'" in ran.err


def test_a_mistyped_value_names_the_nearest_in_json_too() -> None:
    ran = skulk("ps", "-o", "tabel")
    assert (ran.code, ran.err.splitlines()[1]) == (2, "  remedy: Did you mean 'table'?")
    ran = skulk("ps", "--color", "alwys", "--json")
    assert ran.code == 2
    assert json.loads(ran.err)["error"]["remediation"] == "Did you mean 'always'?"


def test_usage_errors_are_objects_in_json_mode() -> None:
    ran = skulk("place", "--json")
    assert ran.code == 2
    assert json.loads(ran.err)["error"]["code"] == "client.usage"


def test_called_with_nothing_it_shows_its_help() -> None:
    ran = skulk()
    assert (ran.code, ran.err) == (0, "")
    assert "Commands:" in ran.out


def test_a_bug_is_told_in_one_line_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        message = "boom"
        raise RuntimeError(message)

    monkeypatch.setattr("skulk_tui.cli.program.own_version", broken)
    ran = skulk("version")
    assert ran.code == 1
    assert ran.err.startswith("error: skulk itself failed: RuntimeError: boom\n")
    assert "Traceback" not in ran.err
    assert "Traceback" in skulk("version", environment={"SKULK_DEBUG": "1"}).err


def test_a_terminal_gets_color_unless_told_otherwise(node: FakeNode) -> None:
    terminal = frozenset({"stdout"})
    assert "\x1b[1m" in skulk("ps", node=node.url, terminals=terminal).out
    plain = {"NO_COLOR": "1"}
    assert "\x1b" not in skulk("ps", node=node.url, terminals=terminal, environment=plain).out
    assert "\x1b" in skulk("ps", "--color", "always", node=node.url).out


def test_a_key_is_asked_for_only_at_a_terminal(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.on("GET", "/state", refusal("request.unauthenticated", status=401), a_state_document())
    asked: list[str] = []

    def getpass(prompt: str, stream: object) -> str:
        asked.append(prompt)
        return "skulk-key"

    monkeypatch.setattr("getpass.getpass", getpass)
    ran = skulk("ps", "-o", "name", node=node.url, terminals=frozenset({"stdin", "stderr"}))
    assert ran.code == 0
    assert len(asked) == 1
    assert node.seen[-1].headers["authorization"] == "Bearer skulk-key"
    node.on("GET", "/state", refusal("request.unauthenticated", status=401))
    assert skulk("ps", node=node.url).code == 4
    assert len(asked) == 1


def test_info_tells_that_no_node_answers_and_is_no_failure(dead_url: str) -> None:
    ran = skulk("info", "--json", node=dead_url)
    (info,) = json.loads(ran.out)["items"]
    assert (ran.code, info["reachable"], info["node_rule"]) == (0, False, "SKULK_NODE")
    assert "no node answers" in info["problem"]


def test_a_key_is_refused_the_open_network_before_anything_is_sent() -> None:
    ran = skulk("ps", "--node", "192.0.2.1", environment={"SKULK_API_KEY": "skulk-secret"})
    assert ran.code == 4
    assert "ssh -L" in ran.err
    assert "skulk-secret" not in ran.err


def test_there_is_no_option_that_takes_a_key() -> None:
    shown = skulk("ps", "--help").out
    assert "key" not in shown.replace("Allow an API key over plain HTTP to another machine", "")


def test_a_bad_address_is_one_line_and_a_remedy() -> None:
    ran = skulk("ps", "--node", "http://a:b@c")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 2


def test_the_records_of_every_kind_are_documented() -> None:
    assert {case.kind: case.record for case in CASES}.items() <= KINDS.items()


def test_the_manual_names_every_verb_and_every_kind() -> None:
    manual = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [case.kind for case in CASES if f"`{case.kind}`" not in manual] == []
    assert [case.arguments[0] for case in CASES if f"`{case.arguments[0]}" not in manual] == []
