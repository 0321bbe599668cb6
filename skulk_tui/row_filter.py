"""What an operator types after `/`: text, `!` inverse, `~` fuzzy, `key:value` facets.

Terms are parted by blanks and must all hold. A facet compares sizes and numbers where its value
begins with `<`, `>`, `<=` or `>=` (`size:<20G`), and otherwise asks whether the row's facet
contains the value.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

FILTER_MAX_CHARS: Final = 200
FacetValue = str | float | None
_NUMBER: Final = re.compile(r"^(<=|>=|<|>)(\d+(?:\.\d+)?)([kmgtKMGT]?)i?[bB]?$")
_SCALE: Final[Mapping[str, int]] = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One condition."""

    kind: Literal["text", "fuzzy", "facet"]
    text: str
    """Lower-case."""
    facet: str = ""
    is_inverse: bool = False

    def holds(self, text: str, facets: Mapping[str, FacetValue]) -> bool:
        """Ask it of a row: its text in lower case, and its facets."""
        if self.kind == "text":
            found = self.text in text
        elif self.kind == "fuzzy":
            found = _has_in_order(self.text, text)
        else:
            found = _compare(self.text, facets.get(self.facet))
        return found is not self.is_inverse


@final
class RowFilter:
    """A parsed filter; an empty one lets every row through.

    Args:
        text: As typed; no text is wrong, since what is no facet is looked for as text.
        facets: The facets that rows have.
    """

    def __init__(self, text: str = "", facets: frozenset[str] = frozenset()) -> None:
        self.text = text[:FILTER_MAX_CHARS].strip()
        self.terms = tuple(_term(word, facets) for word in self.text.lower().split())

    def __bool__(self) -> bool:
        return bool(self.terms)

    def lets_through(self, text: str, facets: Mapping[str, FacetValue]) -> bool:
        """Whether a row stays: all terms hold."""
        if not self.terms:
            return True
        lowered = text.lower()
        return all(term.holds(lowered, facets) for term in self.terms)


def _term(word: str, facets: frozenset[str]) -> Term:
    is_inverse = len(word) > 1 and word.startswith("!")
    if is_inverse:
        word = word[1:]
    key, colon, value = word.partition(":")
    if colon and value and key in facets:
        return Term(kind="facet", facet=key, text=value, is_inverse=is_inverse)
    if len(word) > 1 and word.startswith("~"):
        return Term(kind="fuzzy", text=word[1:], is_inverse=is_inverse)
    return Term(kind="text", text=word, is_inverse=is_inverse)


def _has_in_order(letters: str, text: str) -> bool:
    rest = iter(text)
    return all(letter in rest for letter in letters)


def _compare(wanted: str, value: FacetValue) -> bool:
    if value is None:
        return False
    match = _NUMBER.match(wanted)
    if match is None or isinstance(value, str):
        return wanted in str(value).lower()
    sign, number, unit = match.groups()
    limit = float(number) * _SCALE[unit.upper()]
    if sign == "<":
        return value < limit
    if sign == "<=":
        return value <= limit
    return value > limit if sign == ">" else value >= limit
