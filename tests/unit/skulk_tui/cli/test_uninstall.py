import json
from pathlib import Path
from typing import Any

from skulk_tui.cli.uninstall import bytes_in
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
