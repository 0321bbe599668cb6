"""Tool calls and reasoning in a model's text: how the text is cut into tokens changes nothing."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.output.markup import MARKUPS, MarkupName
from tests.support.markup_corpus import SAMPLES, Sample, pieces_of, split, splitter_of

NAMES = [sample.name for sample in SAMPLES]
ALL_MARKS = sorted(MARKUPS["any"].marks)
JUNK = st.lists(
    st.one_of(
        st.sampled_from(ALL_MARKS),
        st.sampled_from([mark[:size] for mark in ALL_MARKS for size in (1, 3, len(mark) - 1)]),
        st.sampled_from([
            "{", "}", "[", "]", '"', "\\", ":", ",", ";", "`", " ", "\n", ">", "weather", "name",
            '{"name": "weather", "arguments": {}}', "call:weather", "to=functions.weather", "1",
            "assistant", "analysis", "thought\n", "city", '" string="true">', "word", "é", "[ARGS]",
        ]),
    ),
    max_size=24,
)  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_a_text_is_split_into_what_is_in_it(sample: Sample) -> None:
    assert split(sample, [sample.raw]) == sample.pieces
    assert split(sample, list(sample.raw)) == sample.pieces


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_every_single_split_point_gives_the_same(sample: Sample) -> None:
    for at in range(len(sample.raw) + 1):
        assert split(sample, [sample.raw[:at], sample.raw[at:]]) == sample.pieces, at


@given(st.sampled_from(SAMPLES), st.lists(st.integers(0, 999), max_size=8))
def test_many_cuts_at_once_give_the_same(sample: Sample, places: list[int]) -> None:
    assert split(sample, _cut(sample.raw, places)) == sample.pieces


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_a_model_of_unknown_family_is_understood_too(sample: Sample) -> None:
    assert split(sample, [sample.raw], "any") == sample.pieces


@given(JUNK, st.sampled_from(sorted(MARKUPS)), st.booleans(), st.lists(st.integers(0, 999)))
def test_junk_never_raises_and_is_split_alike_wherever_it_is_cut(
    junk: list[str], markup: MarkupName, has_tools: bool, places: list[int]
) -> None:
    sample = Sample(name="junk", markup=markup, raw="".join(junk), pieces=(), has_tools=has_tools)
    whole = split(sample, [sample.raw])
    assert split(sample, list(sample.raw)) == whole
    assert split(sample, _cut(sample.raw, places)) == whole


@given(st.text(), st.sampled_from(sorted(MARKUPS)))
def test_any_text_is_taken(text: str, markup: MarkupName) -> None:
    sample = Sample(name="text", markup=markup, raw=text, pieces=())
    assert split(sample, list(text)) == split(sample, [text])


@given(
    st.lists(st.one_of(st.sampled_from(ALL_MARKS), st.just(""), st.sampled_from(["{", '"', "}"]))),
    st.sampled_from(sorted(MARKUPS)),
    st.booleans(),
)
def test_no_mark_leaks_and_no_word_is_lost_or_repeated(
    between: list[str], markup: MarkupName, has_tools: bool
) -> None:
    """Words between whole marks come out once and in order, as whatever they are taken for."""
    words = [f"w{number}_ " for number in range(len(between))]
    raw = "".join(word + part for word, part in zip(words, between, strict=True))
    sample = Sample(name="words", markup=markup, raw=raw, pieces=(), has_tools=has_tools)
    said = "".join(text for _, text in split(sample, list(raw)))
    for mark in MARKUPS[markup].marks:
        assert mark not in said
    assert re.findall(r"w[0-9]+_", said) == [word.strip() for word in words]


@given(st.lists(st.text(alphabet="ab <[\n", max_size=6)))
def test_no_more_is_held_back_than_could_become_a_mark(tokens: list[str]) -> None:
    sample = Sample(name="held", markup="any", raw="", pieces=(), has_tools=False)
    splitter = splitter_of(sample)
    seen, said = "", ""
    for token in tokens:
        seen += token
        said += "".join(text for _, text in pieces_of(splitter.feed(token)))
        held = seen[len(said) :]
        assert not held.strip() or held.lstrip() in MARKUPS["any"].beginnings


def _cut(text: str, places: list[int]) -> list[str]:
    borders = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]
