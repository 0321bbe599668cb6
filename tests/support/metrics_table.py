"""Writes the tables of docs/metrics.md from the list of metrics.

python -m tests.support.metrics_table
"""

from typing import Final, get_args

from skulkd.api.metric_families import FAMILIES, Family, Subject
from tests.support.source_tree import ROOT

DOCUMENT: Final = ROOT / "docs" / "metrics.md"
BEGINS: Final = "<!-- metrics: made by python -m tests.support.metrics_table -->\n"
ENDS: Final = "<!-- metrics end -->\n"
_TITLES: Final[dict[Subject, str]] = {
    "requests": "Requests of this node's clients",
    "instances": "Instances that run here",
    "node": "This node",
    "cluster": "The cluster",
}


def tables() -> str:
    """Give a table for each subject."""
    assert set(_TITLES) == set(get_args(Subject))
    return "\n".join(_table(subject) for subject in _TITLES)


def documented() -> str:
    """Read what the document holds."""
    _, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGINS)
    return rest.partition(ENDS)[0]


def renew() -> None:
    """Write the tables of now into the document."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGINS)
    after = rest.partition(ENDS)[2]
    DOCUMENT.write_text(f"{before}{BEGINS}{tables()}{ENDS}{after}", encoding="utf-8")


def _table(subject: Subject) -> str:
    rows = [_row(family) for family in FAMILIES if family.subject == subject]
    head = ["| Name | Kind | Labels | Meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {_TITLES[subject]}\n", *head, *rows]) + "\n"


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


if __name__ == "__main__":
    renew()
