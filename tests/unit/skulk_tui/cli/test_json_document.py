"""docs/cli-json.md: in step with the records that it describes."""

from tests.support.json_document import DOCUMENT, KINDS, document

RENEW = "python -m tests.support.json_document"


def test_the_document_is_that_of_the_records() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), f"renew it: {RENEW}"


def test_a_record_within_another_has_a_section_of_its_own() -> None:
    text = document()
    assert "| `failure` | [FailureRecord](#failurerecord) or null |" in text
    assert "\n## FailureRecord\n" in text


def test_every_kind_has_its_section() -> None:
    text = document()
    assert [kind for kind, record in KINDS.items() if f"## {record.__name__}\n" not in text] == []
