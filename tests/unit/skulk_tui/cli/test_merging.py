"""Our settings in somebody's file: what is theirs stays, to the byte."""

import json
import tomllib

import pytest
import yaml

from skulk_tui.cli.merge_json import json_text, merge_json, restore_json
from skulk_tui.cli.merge_toml import merge_toml, take_out_toml, toml_text
from skulk_tui.cli.merge_yaml import Entry, merge_yaml

TABLE = ("providers", "ours")
TOP = {"model": "a/b", "window": 4096}
ENTRY = {"url": "http://127.0.0.1:52415/v1"}
SUFFIX = " (ours)"
ENTRIES: list[Entry] = [{"name": "m (ours)", "options": {"n": 4096}}, {"name": "k (ours)"}]


def toml(before: str) -> str | None:
    return merge_toml(before, top=TOP, table=TABLE, entry=ENTRY)


def listed(before: str) -> str | None:
    return merge_yaml(before, key="models", entries=ENTRIES, suffix=SUFFIX)


# ---- TOML ----------------------------------------------------------------------------------------


def test_a_new_toml_file_says_what_was_given() -> None:
    document = tomllib.loads(toml_text(TOP, TABLE, ENTRY))
    assert document == {**TOP, "providers": {"ours": ENTRY}}


def test_in_toml_own_keys_are_replaced_and_all_else_stays() -> None:
    before = (
        "# mine\n"
        'model = "gpt"  # the old one\n'
        'notify = [\n  "say",\n]\n'
        "\n"
        "# of the server\n"
        "[servers.x]\n"
        'command = "run"\n'
        "\n"
        "[providers.ours]\n"
        'url = "http://old"\n'
        'extra = "gone"\n'
        "\n"
        "# below\n"
        "[providers.other]\n"
        'url = "http://theirs"\n'
    )
    assert toml(before) == (
        "# mine\n"
        'model = "a/b"\n'
        'notify = [\n  "say",\n]\n'
        "window = 4096\n"
        "\n"
        "# of the server\n"
        "[servers.x]\n"
        'command = "run"\n'
        "\n"
        "[providers.ours]\n"
        'url = "http://127.0.0.1:52415/v1"\n'
        "\n"
        "# below\n"
        "[providers.other]\n"
        'url = "http://theirs"\n'
    )


def test_a_table_that_is_missing_comes_last() -> None:
    merged = toml("[a]\nb = 1")
    assert merged == (
        'model = "a/b"\nwindow = 4096\n\n[a]\nb = 1\n\n'
        '[providers.ours]\nurl = "http://127.0.0.1:52415/v1"\n'
    )


def test_ends_of_lines_stay_as_they_are() -> None:
    merged = toml('model = "x"\r\n[a]\r\nb = 1\r\n')
    assert merged is not None
    assert merged.count("\n") == merged.count("\r\n")


@pytest.mark.parametrize(
    "before",
    [
        "model = ",
        'providers = { ours = { url = "http://old" } }\n',
        'providers = "none"\n',
        "[providers]\nours.url = 'http://old'\n",
        'text = """\n[not a table]\nmodel = "in a text"\n"""\n',
        "deep = " + "[" * 5000 + "]" * 5000,
    ],
)
def test_toml_in_a_form_that_lines_cannot_change_is_left_alone(before: str) -> None:
    assert toml(before) is None


def test_merging_toml_twice_changes_nothing_more() -> None:
    once = toml("[a]\nb = 1\n\n\n")
    assert once is not None
    assert toml(once) == once


@pytest.mark.parametrize(
    "before",
    ["", "[a]\nb = 1\n", 'x = 1\n\n[providers.other]\nurl = "u"\n\n# end\n', "# alone\n"],
)
def test_what_is_taken_out_of_toml_leaves_what_was_there(before: str) -> None:
    merged = toml(before)
    assert merged is not None
    edited = f"{merged}\n[more]\nx = 1\n"
    left = take_out_toml(edited, top=dict.fromkeys(TOP), table=TABLE)
    assert left is not None
    assert tomllib.loads(left) == {**tomllib.loads(before), "more": {"x": 1}}
    assert [line for line in before.splitlines() if line not in left.splitlines()] == []


def test_a_key_of_the_root_gets_back_its_value() -> None:
    merged = toml('model = "gpt"\n')
    assert merged is not None
    left = take_out_toml(merged, top={"model": "gpt", "window": None}, table=TABLE)
    assert left == 'model = "gpt"\n'


def test_toml_in_a_form_that_lines_cannot_change_gives_nothing_out() -> None:
    for text in ('providers = { ours = { url = "u" } }\n', "[providers.ours.inner]\na = 1\n", "="):
        assert take_out_toml(text, top={}, table=TABLE) is None


# ---- JSON ----------------------------------------------------------------------------------------


def test_a_new_json_file_holds_the_values_at_their_paths() -> None:
    document = json.loads(json_text({("a", "b"): "1", ("a", "c"): 2, ("d",): {"e": []}}))
    assert document == {"a": {"b": "1", "c": 2}, "d": {"e": []}}


def test_in_json_own_members_are_replaced_and_all_else_stays() -> None:
    before = '{\n    "theme":   "dark",\n    "env": {\n        "A": "old", "B" : "theirs"\n    }\n}'
    merged = merge_json(before, {("env", "A"): "new", ("env", "C"): "more", ("p", "o"): {"q": 1}})
    assert merged == (
        '{\n    "theme":   "dark",\n    "env": {\n        "A": "new", "B" : "theirs", "C": "more"'
        '\n    },\n    "p": {\n      "o": {\n        "q": 1\n      }\n    }\n}'
    )


@pytest.mark.parametrize("before", ["{}", " {\n}\n", '{"a": {}}', '{"a": {"b": 0}, "c": [1, {}]}'])
def test_json_of_any_layout_is_merged_and_twice_is_once(before: str) -> None:
    changes = {("a", "b"): "x", ("model",): "y"}
    once = merge_json(before, changes)
    assert once is not None
    document = json.loads(once)
    assert (document["a"]["b"], document["model"]) == ("x", "y")
    assert merge_json(once, changes) == once


@pytest.mark.parametrize(
    "before",
    [
        "",
        "[]",
        "null",
        '{"a": 1} more',
        '{"a": null}',
        '// c\n{"a": {}}',
        '{"a": {},}',
        "[" * 99999,
    ],
)
def test_what_is_no_plain_json_object_is_left_alone(before: str) -> None:
    assert merge_json(before, {("a", "b"): "x"}) is None


def test_of_a_name_that_is_there_twice_the_one_that_counts_is_changed() -> None:
    assert merge_json('{"a": 1, "a": 2}', {("a",): 3}) == '{"a": 1, "a": 3}'


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"a": 1, "b": 2}', '{"b": 2}'),
        ('{\n  "b": 2,\n  "a": 1\n}\n', '{\n  "b": 2\n}\n'),
        ('{ "a": {"x": 1} }', "{}"),
        ('{"b": 2, "a": [1, 2], "c": 3}', '{"b": 2, "c": 3}'),
        ('{"b": 2}', '{"b": 2}'),
    ],
)
def test_a_member_is_taken_out_with_its_comma(text: str, left: str) -> None:
    assert restore_json(text, "", [("a",)]) == left


def test_a_member_gets_back_what_it_was() -> None:
    text = '{"env": {"A": "ours", "B": "ours", "C": 1}, "new": true}'
    before = '{"env": {"A": "theirs"}}'
    left = restore_json(text, before, [("env", "A"), ("env", "B"), ("env", "D", "x")])
    assert left == '{"env": {"A": "theirs", "C": 1}, "new": true}'


def test_of_what_is_no_json_nothing_is_taken_out() -> None:
    assert restore_json("// c\n{}", "", [("a",)]) is None
    assert restore_json('{"a": 1}', "// c\n{}", [("a",)]) is None
    assert restore_json('{"a": 1, "a": 2}', "", [("a",)]) is None


# ---- YAML ----------------------------------------------------------------------------------------

YAML = """\
name: mine  # do not touch
models:
  - name: theirs
    model: x
  - name: old (ours)
    options:
      n: 1

  # about the last
  - name: last
    model: z

context:
  - provider: code
"""


def test_in_yaml_own_entries_are_replaced_where_they_stand() -> None:
    merged = listed(YAML)
    new = '  - name: "m (ours)"\n    options: {"n": 4096}\n  - name: "k (ours)"\n'
    assert merged == YAML.replace("  - name: old (ours)\n    options:\n      n: 1\n", new)


@pytest.mark.parametrize(
    "before",
    [
        "name: x\n",
        "models: []\n",
        "models: []  # none yet\nname: x",
        "models:\n- name: a\n  model: b",
        "models:\n- name: a\n  model: b\n\n# end\nrules: []\n",
        "models:\r\n  - name: a\r\n",
    ],
)
def test_entries_are_added_to_any_list_and_twice_is_once(before: str) -> None:
    once = listed(before)
    assert once is not None
    kept: list[object] = yaml.safe_load(before).get("models", [])
    assert yaml.safe_load(once)["models"] == kept + ENTRIES
    assert listed(once) == once


@pytest.mark.parametrize(
    "before",
    [
        "models: {a: 1}\n",
        'models: [{name: "a"}]\n',
        "- a\n",
        "a: b: c\n",
        "models: &m\n  - name: old (ours)\nother: *m\n",
        "---\na: 1\n---\nb: 2\n",
        "[" * 5000,
    ],
)
def test_yaml_in_another_form_is_left_alone(before: str) -> None:
    assert listed(before) is None
