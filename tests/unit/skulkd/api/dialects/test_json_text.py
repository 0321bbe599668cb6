import json

from skulkd.api.dialects.json_text import written


def test_an_answer_is_written_compactly_and_as_text() -> None:
    document = {"a": ["é\u2028", 1 << 80, -0.5, True, None, {"b": 'x"\n'}]}
    assert (
        written(document)
        == json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    )


def test_half_a_surrogate_pair_costs_its_character_and_not_the_answer() -> None:
    assert json.loads(written({"text": "a\ud800b"})) == {"text": "a?b"}
