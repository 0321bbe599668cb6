from collections.abc import Mapping
from pathlib import Path

import pytest

from protocol.admin_api import SettingValue
from protocol.errors import ConfigError
from skulkd.config import SETTINGS_FILE_MAX_BYTES
from skulkd.runtime.settings_file import edited, read_settings_file

PATH = Path("/home/op/skulk.yaml")
FILE = """\
# The box under the stairs.
name: attic   # not cellar

peers:        # by hand
  - 192.0.2.7:12416
  # the second one
  - 192.0.2.8:12416

# Loopback is enough.
api: 52415
"""


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ({"name": "cellar"}, FILE.replace("attic", '"cellar"')),
        ({"api": "0.0.0.0:80"}, FILE.replace("52415", '"0.0.0.0:80"')),
        ({"worker": False}, FILE + "worker: false\n"),
        ({"max_output_tokens": 100}, FILE + "max_output_tokens: 100\n"),
        ({"bind": ("eth0", "no")}, FILE + 'bind: ["eth0", "no"]\n'),
        ({"offline": None}, FILE),
        ({"api": None}, FILE.removesuffix("api: 52415\n")),
        (
            {"peers": ()},
            FILE.replace(
                "peers:        # by hand\n  - 192.0.2.7:12416\n"
                "  # the second one\n  - 192.0.2.8:12416\n",
                "peers: []\n",
            ),
        ),
    ],
)
def test_a_key_is_changed_and_every_other_line_stays(
    changes: Mapping[str, SettingValue | None], after: str
) -> None:
    assert edited(FILE, changes, PATH) == after


def test_a_file_that_was_not_there_gets_what_is_set() -> None:
    assert edited("", {"name": "attic", "mdns": None}, PATH) == 'name: "attic"\n'


def test_a_list_that_is_not_indented_goes_whole() -> None:
    text = "peers:\n- a:1\n- b:2\nname: attic\n"
    assert edited(text, {"peers": None}, PATH) == "name: attic\n"


def test_what_the_original_program_wrote_stays_secrets_too() -> None:
    text = "hf_token: hf_secret\ntelemetry:\n  enabled: false\nname: attic\n"
    assert edited(text, {"name": "cellar"}, PATH) == text.replace("attic", '"cellar"')


@pytest.mark.parametrize(
    "text", ["{name: attic, mdns: false}\n", 'name: "attic\n  two"\nname: x\n']
)
def test_a_file_that_cannot_be_changed_by_lines_is_left_alone(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        edited(text, {"name": "cellar"}, PATH)
    assert caught.value.code == "config.invalid"
    assert "by hand" in caught.value.remediation


def test_a_file_does_not_grow_beyond_what_is_read_again() -> None:
    with pytest.raises(ConfigError, match="longer than"):
        edited(f"# {'x' * SETTINGS_FILE_MAX_BYTES}\n", {"name": "attic"}, PATH)


def test_a_home_without_a_file_and_a_home_that_is_none_read_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert read_settings_file(tmp_path) is None
    assert read_settings_file(tmp_path / "file") is None


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "skulk.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings_file(tmp_path)
