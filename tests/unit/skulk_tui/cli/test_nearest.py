import pytest

from skulk_tui.cli.nearest import nearest, unknown_value

MODELS = ["HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen3-8B", "Qwen/Qwen3-4B"]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("huggingfacetb/smollm2-135m", MODELS[0]),
        ("HuggingFaceTB/SmolLM2-135", MODELS[0]),
        ("smollm2", MODELS[0]),
        ("qwen3", None),
        ("zzz", None),
        ("", None),
    ],
)
def test_the_nearest_is_named_only_when_there_is_one(word: str, found: str | None) -> None:
    assert nearest(word, MODELS) == found


def test_a_short_list_is_shown_whole_and_a_long_one_by_its_command() -> None:
    assert unknown_value("a thing", "x", ["aa", "bb"]).remediation == "Known: aa, bb."
    assert unknown_value("a thing", "x", MODELS, see="skulk models list").remediation == (
        "See `skulk models list`."
    )
    many = [f"t{number:02}" for number in range(20)]
    assert unknown_value("a thing", "x", many).remediation.endswith(", t15 and 4 more.")
