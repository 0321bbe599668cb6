"""One table of actions: keys without clashes, scopes, commands, help."""

import pytest

from protocol.errors import ClientError
from skulk_tui.actions.all_actions import ALL_ACTIONS
from skulk_tui.registry import (
    SAFE_KEYS,
    Action,
    Registry,
    Situation,
    form_of,
    is_allowed,
    parse_command,
)
from skulk_tui.screens.help import help_lines
from skulk_tui.table_model import Ref

_REGISTRY = Registry(ALL_ACTIONS)
_NODE = Ref(kind="node", id="n" + "a" * 16, name="den-01")


def test_ids_and_command_names_are_unique() -> None:
    ids = [action.id for action in ALL_ACTIONS]
    commands = [action.command for action in ALL_ACTIONS if action.command]
    assert len(ids) == len(set(ids))
    assert len(commands) == len(set(commands))


def test_no_key_has_two_meanings_in_one_pane() -> None:
    assert _REGISTRY.clashes() == ()


@pytest.mark.parametrize("action", ALL_ACTIONS, ids=lambda action: action.id)
def test_an_action_has_safe_keys_a_title_an_effect_and_a_way_in(action: Action) -> None:
    assert set(action.keys) <= SAFE_KEYS
    assert action.title
    assert action.effect.endswith(".")
    assert action.keys or action.command
    assert action.cli.startswith("skulk ") or not action.mutates or action.id == "view.undo"


def test_a_destructive_key_is_a_plain_letter_that_only_some_panes_know() -> None:
    for action in ALL_ACTIONS:
        if action.mutates and action.keys:
            # Placing destroys nothing, and Enter shows its dialog, in which Enter cancels.
            is_plain = all(len(key) == 1 for key in action.keys)
            assert is_plain or action.id == "placement.place", action.id
            assert action.views or action.id == "view.undo", action.id


@pytest.mark.parametrize("scope", ["read", "infer", None])
def test_a_key_that_may_not_change_sees_no_changing_action(scope: str | None) -> None:
    situation = Situation(view="cluster", pane="nodes", selection=(_NODE,), scope=scope)  # type: ignore[arg-type]
    commands = _REGISTRY.commands(situation)
    hints = dict(_REGISTRY.hints(situation))
    assert not [action for action in commands if action.mutates]
    assert "remove" not in hints.values()
    assert _REGISTRY.for_key("x", situation) is None
    lines, ids = help_lines(_REGISTRY, situation)
    assert len(lines) == len(ids)
    assert not [name for name in ids if name and _REGISTRY.get(name).mutates]


def test_what_changes_needs_the_link_and_what_is_local_does_not() -> None:
    situation = Situation(view="cluster", pane="nodes", selection=(_NODE,), is_linked=False)
    assert _REGISTRY.for_key("x", situation) is None
    found = _REGISTRY.for_key("slash", situation)
    assert found is not None
    assert found.id == "prompt.filter"


def test_a_panes_key_comes_before_the_one_that_works_everywhere() -> None:
    registry = Registry((
        Action(id="a", title="a", effect="A.", topic="view", keys=("p",)),
        Action(id="b", title="b", effect="B.", topic="store", keys=("p",), views=("store",)),
        Action(id="c", title="c", effect="C.", topic="store", keys=("p",),
               views=("store.transfers",)),
    ))  # fmt: skip
    places = {("store", "transfers"): "c", ("store", "disk"): "b", ("diag", "logs"): "a"}
    for (view, pane), expected in places.items():
        found = registry.for_key("p", Situation(view=view, pane=pane))
        assert found is not None
        assert found.id == expected


def test_the_keymap_file_rebinds_by_id_and_clashes_are_found() -> None:
    registry = Registry(ALL_ACTIONS, {"go.cluster": ("C",), "nobody": ("x",)})
    assert registry.keys_of(registry.get("go.cluster")) == ("C",)
    clashing = Registry(ALL_ACTIONS, {"go.cluster": ("2",)})
    assert [clash.key for clash in clashing.clashes()] == ["2"]
    faults = Registry(ALL_ACTIONS, {"go.cluster": ("2",), "go.nowhere": ("x",)}).keymap_faults()
    assert faults == (
        "there is no action 'go.nowhere'",
        "the key 2 means both go.cluster and go.models",
    )


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("", "nothing was typed"),
        ("clutser", "there is no command"),
        ("node", "needs NODE"),
        ("cluster of mine", "takes no 'of'"),
        ("theme pink", "theme is one of"),
    ],
)
def test_what_is_wrong_with_a_command_is_said_with_its_form(typed: str, problem: str) -> None:
    with pytest.raises(ClientError, match=problem) as caught:
        parse_command(typed, _REGISTRY)
    assert caught.value.remediation


def test_a_command_is_read_with_its_arguments() -> None:
    call = parse_command("remove den-01", _REGISTRY)
    assert (call.action.id, dict(call.values)) == ("cluster.remove", {"node": "den-01"})
    assert form_of(call.action) == "remove [NODE]"
    assert parse_command("filter size:<2G !x", _REGISTRY).values == {"text": "size:<2G !x"}


def test_the_scope_of_a_change_is_that_of_its_route() -> None:
    remove = _REGISTRY.get("cluster.remove")
    assert is_allowed(remove, Situation(view="", pane="", scope="admin"))
    assert not is_allowed(remove, Situation(view="", pane="", scope="operate"))
    assert not is_allowed(remove, Situation(view="", pane="", is_readonly=True))
