from pathlib import Path

import pytest

from protocol.errors import ConfigError
from skulkd.config import ORIGINAL_KEYS, LoadedSettings, default_home, load_settings

HOME = Path("/srv/skulk")


def load(
    file_text: str | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> LoadedSettings:
    return load_settings(
        home=HOME,
        file_text=file_text,
        environment={"HOME": "/home/op"} | (environment or {}),
        flags=flags or {},
    )


def test_no_file_no_environment_and_no_flags_give_the_defaults() -> None:
    loaded = load()
    assert loaded.settings.api_address() == (None, 52415)
    assert loaded.settings.models_dir == Path("/home/op/.local/share/skulk-models")
    assert loaded.settings.worker
    assert loaded.warnings == ()


def test_the_environment_wins_over_the_file_and_flags_win_over_both() -> None:
    text = "name: from-file\nmax_output_tokens: 1024\noffline: true\n"
    environment = {"SKULK_NAME": "from-environment", "SKULK_MAX_OUTPUT_TOKENS": "2048"}
    settings = load(text, environment, {"name": "from-flag", "offline": None}).settings
    assert (settings.name, settings.max_output_tokens, settings.offline) == (
        "from-flag",
        2048,
        True,
    )


def test_an_unknown_key_is_refused_naming_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError) as refused:
        load("model_dir: /big\n")
    assert refused.value.code == "config.unknown_key"
    assert "model_dir" in refused.value.message
    assert "models_dir" in refused.value.remediation


@pytest.mark.parametrize("key", sorted(ORIGINAL_KEYS))
def test_a_key_of_the_original_is_ignored_with_a_warning(key: str) -> None:
    loaded = load(f"{key}: {{anything: [1, 2]}}\n")
    assert len(loaded.warnings) == 1
    assert key in loaded.warnings[0]


def test_an_unknown_variable_is_warned_about_with_the_nearest_setting() -> None:
    (warning,) = load(environment={"SKULK_MODEL_DIR": "/big"}).warnings
    assert "SKULK_MODELS_DIR" in warning


def test_the_clients_variables_are_not_the_daemons_business() -> None:
    assert load(environment={"SKULK_API_KEY": "secret", "SKULK_NODE": "x"}).warnings == ()


def test_an_old_variable_still_works_and_says_its_new_name() -> None:
    loaded = load(environment={"SKULK_MAX_TOKENS": "77"})
    assert loaded.settings.max_output_tokens == 77
    assert "SKULK_MAX_OUTPUT_TOKENS" in loaded.warnings[0]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("max_output_tokens: 0\n", "max_output_tokens"),
        ("transfer_rate_mb_s: 0\n", "transfer_rate_mb_s"),
        ("transfer_rate_mb_s: 100001\n", "transfer_rate_mb_s"),
        ("log_level: loud\n", "log_level"),
        ("name: ''\n", "name"),
        ("backends: [tpu-v9]\n", "backends"),
        ("api: 99999\n", "api"),
        ("worker: maybe\n", "worker"),
    ],
)
def test_a_bad_value_names_its_key(text: str, where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(text)
    assert refused.value.code == "config.invalid"
    assert where in refused.value.message


@pytest.mark.parametrize(
    "text", ["[1, 2]", "key: [", "just words", "&a [*a, *a", "!!python/name:os.x"]
)
def test_a_file_that_holds_no_mapping_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(text)
    assert refused.value.code in {"config.invalid", "config.unknown_key"}
    assert refused.value.remediation


def test_lists_come_from_the_environment_separated_by_commas() -> None:
    settings = load(environment={"SKULK_ALLOWED_HOSTS": "den.lan,10.0.0.7"}).settings
    assert settings.allowed_hosts == ("den.lan", "10.0.0.7")


@pytest.mark.parametrize(
    ("api", "expected"),
    [
        (8080, (None, 8080)),
        ("0.0.0.0:52415", ("0.0.0.0", 52415)),
        ("[::1]:7", ("::1", 7)),
        ("den.lan:7", ("den.lan", 7)),
    ],
)
def test_the_listening_address_is_a_port_or_host_and_port(
    api: object, expected: tuple[str | None, int]
) -> None:
    assert load(flags={"api": api}).settings.api_address() == expected


def test_the_home_is_in_the_xdg_data_directory_unless_chosen() -> None:
    assert default_home({"HOME": "/h"}) == Path("/h/.local/share/skulk")
    assert default_home({"HOME": "/h", "XDG_DATA_HOME": "/d"}) == Path("/d/skulk")
    assert default_home({"HOME": "/h", "XDG_DATA_HOME": "relative"}) == Path(
        "/h/.local/share/skulk"
    )
    assert default_home({"HOME": "/h", "SKULK_HOME": "/elsewhere"}) == Path("/elsewhere")


@pytest.mark.parametrize(
    ("key", "value", "longest"),
    [
        ("cluster_address", "h", 300),
        ("peers", ["h"], 400),
        ("allowed_hosts", ["h"], 253),
    ],
)
def test_texts_are_taken_up_to_their_length_and_not_beyond(
    key: str, value: str | list[str], longest: int
) -> None:
    def loaded(length: int) -> LoadedSettings:
        text = "h" * length
        return load(f"{key}: {text if isinstance(value, str) else [text]}\n")

    assert getattr(loaded(longest).settings, key)
    with pytest.raises(ConfigError):
        loaded(longest + 1)
    with pytest.raises(ConfigError):
        load(f"{key}: {' a b' if isinstance(value, str) else ['a b']}\n")
