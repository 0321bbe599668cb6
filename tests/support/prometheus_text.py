"""Reads the text format of Prometheus, as strictly as its documentation is written."""

import re
from dataclasses import dataclass, field
from typing import Final

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\["\\n])*)"(?:,|$)')
_SUFFIXES: Final = ("_bucket", "_sum", "_count")

Labels = tuple[tuple[str, str], ...]


@dataclass
class ReadFamily:
    """One metric as it was read."""

    kind: str
    help: str
    samples: dict[tuple[str, Labels], float] = field(
        default_factory=dict[tuple[str, Labels], float]
    )

    def value(self, suffix: str = "", **labels: str) -> float:
        """Give the value of the one series that has these labels."""
        found = [
            value
            for (name, pairs), value in self.samples.items()
            if name == suffix and labels.items() <= dict(pairs).items()
        ]
        assert len(found) == 1, (suffix, labels, self.samples)
        return found[0]

    def labels(self, name: str) -> set[str]:
        """Give all values of one label."""
        return {dict(pairs)[name] for _, pairs in self.samples}


def read_metrics(text: str) -> dict[str, ReadFamily]:
    """Read a whole answer; what breaks a rule of the format fails an assertion."""
    assert text.endswith("\n")
    families: dict[str, ReadFamily] = {}
    helps: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, meaning = line.removeprefix("# HELP ").partition(" ")
            assert name not in helps, f"{name} is there twice"
            helps[name] = meaning
        elif line.startswith("# TYPE "):
            current, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert current not in families
            families[current] = ReadFamily(kind, helps[current])
        else:
            _read_sample(line, current, families[current])
    for name, family in families.items():
        if family.kind == "histogram":
            _check_histogram(name, family)
        else:
            assert family.kind in {"counter", "gauge"}
            assert name.endswith("_total") == (family.kind == "counter"), name
    return families


def _read_sample(line: str, current: str, family: ReadFamily) -> None:
    match = _SAMPLE.fullmatch(line)
    assert match is not None, line
    name, inside, value = match.groups()
    suffix = name.removeprefix(current)
    assert name.startswith(current), f"{name} stands among the samples of {current}"
    assert suffix in (_SUFFIXES if family.kind == "histogram" else ("",)), line
    pairs: list[tuple[str, str]] = []
    position = 0
    while inside and position < len(inside):
        label = _LABEL.match(inside, position)
        assert label is not None, line
        pairs.append((label[1], _unescaped(label[2])))
        position = label.end()
    key = (suffix, tuple(sorted(pairs)))
    assert key not in family.samples, f"{line}: the series is there twice"
    family.samples[key] = float(value)


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), value)


def _check_histogram(name: str, family: ReadFamily) -> None:
    """Buckets rise with their bounds, the last one is `+Inf` and equals `_count`."""
    buckets: dict[Labels, list[tuple[float, float]]] = {}
    for (suffix, pairs), value in family.samples.items():
        if suffix == "_bucket":
            rest = tuple(pair for pair in pairs if pair[0] != "le")
            buckets.setdefault(rest, []).append((float(dict(pairs)["le"]), value))
    for rest, found in buckets.items():
        assert found == sorted(found), name
        assert [count for _, count in found] == sorted(count for _, count in found), name
        assert found[-1] == (float("inf"), family.samples["_count", rest])
        assert ("_sum", rest) in family.samples
