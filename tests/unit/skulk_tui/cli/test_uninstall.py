import json
import pwd
from pathlib import Path
from typing import Any

from skulk_tui.cli.service_files import ServiceSpec
from skulk_tui.cli.service_plans import Account
from skulk_tui.cli.uninstall import bytes_in, folders_of_service
from tests.support.command_line import skulk


def listed(home: Path, **variables: str) -> dict[str, dict[str, Any]]:
    ran = skulk("uninstall", "--dry-run", "--json", environment={"HOME": str(home), **variables})
    assert ran.code == 0, ran.err
    return {item["what"]: item for item in json.loads(ran.out)["items"]}


def test_what_is_kept_is_listed_with_its_bytes_and_nothing_goes(tmp_path: Path) -> None:
    share = tmp_path / ".local" / "share"
    (share / "skulk" / "logs").mkdir(parents=True)
    (share / "skulk" / "logs" / "a").write_bytes(b"x" * 100)
    (share / "skulk-models").mkdir()
    (share / "skulk-models" / "m.gguf").write_bytes(b"x" * 5000)
    found = listed(tmp_path)
    assert (found["home"]["size_bytes"], found["home"]["outcome"]) == (100, "kept")
    assert (found["models"]["size_bytes"], found["models"]["outcome"]) == (5000, "kept")
    assert found["configuration"]["outcome"] == "absent"
    assert found["configuration"]["size_bytes"] is None
    assert (share / "skulk-models" / "m.gguf").exists()


def test_models_are_looked_for_where_the_settings_have_them(tmp_path: Path) -> None:
    home, models = tmp_path / "den", tmp_path / "big"
    home.mkdir()
    models.mkdir()
    (home / "skulk.yaml").write_text(f"models_dir: {models}  # the big disk\n")
    found = listed(tmp_path, SKULK_HOME=str(home))
    assert found["home"]["path"] == str(home)
    assert found["models"]["path"] == str(models)


def test_links_are_not_followed(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * 10_000)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(big)
    assert bytes_in(folder) < 1000


# ---- The folders of a service of the machine -----------------------------------------------------

ME = Account(name="root", uid=0, home=Path("/root"), config=Path("/root/.config"))
PROGRAM = Path("/opt/skulk/bin/skulkd")


def folders(spec: ServiceSpec | None, states: Path) -> tuple[str, ...]:
    found = folders_of_service("systemd-system", ME, spec, states=states)
    return tuple(str(path) for path in found.values())


def test_a_service_with_a_user_of_its_own_keeps_its_state_after_it_went(tmp_path: Path) -> None:
    assert folders(None, tmp_path) == ()
    state = tmp_path / "skulk"
    state.mkdir()
    expected = (str(state / "skulk"), str(state / "skulk-models"))
    assert folders(None, tmp_path) == expected
    assert folders(ServiceSpec(program=PROGRAM), tmp_path) == expected


def test_a_service_of_another_user_has_its_folders_there(tmp_path: Path) -> None:
    spec = ServiceSpec(program=PROGRAM, run_as="daemon")
    base = Path(pwd.getpwnam("daemon").pw_dir) / ".local" / "share"
    assert folders(spec, tmp_path) == (str(base / "skulk"), str(base / "skulk-models"))


def test_a_service_of_a_user_that_has_gone_has_no_folders(tmp_path: Path) -> None:
    assert folders(ServiceSpec(program=PROGRAM, run_as="nobody-of-that-name"), tmp_path) == ()


def test_a_service_with_a_home_of_its_own_has_the_models_that_are_set_there(tmp_path: Path) -> None:
    home = tmp_path / "den"
    home.mkdir()
    (home / "skulk.yaml").write_text("models_dir: /srv/big\n")
    spec = ServiceSpec(program=PROGRAM, home=home, run_as="root")
    assert folders(spec, tmp_path) == (str(home), "/srv/big")
