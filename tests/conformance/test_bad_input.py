"""Requests that are nearly right: always an answer in the dialect's form, and nothing stays held.

A request that was answered wrongly is told at its smallest; it is fixed, and kept as a file under
`kept_requests/`. `make fuzz` sends more of each dialect than a run of all tests does.
"""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from protocol.tasks import ChatTask
from skulkd.runtime.logs import JsonFormatter
from tests.support.answer_judges import ERROR_JUDGES, dialect_of, fields_of
from tests.support.api_harness import Api, chat_body, with_api
from tests.support.fuzz_flood import flood, told, wrong_alone
from tests.support.fuzz_requests import DIALECTS, Sent, corpus, unchanged

KEPT: Final = sorted((Path(__file__).parent / "kept_requests").glob("*.json"))
MESSAGES: Final = [{"role": "user", "content": "hi"}]
ASKED: Final = (
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5}),
    ("/ollama/api/chat", {"messages": MESSAGES, "stream": False}),
)
MUTANTS: Final = int(os.environ.get("SKULK_TEST_MUTANTS", "2000"))
SEED_START: Final = int(os.environ.get("SKULK_TEST_SEED_START", "0"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_clients_send_is_answered_as_they_read_it(dialect: str) -> None:
    for known in corpus(dialect):
        assert wrong_alone(unchanged(known)) is None, known


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_chance_makes_of_requests_is_answered_and_holds_nothing(dialect: str) -> None:
    wrong = flood(dialect, range(SEED_START, SEED_START + MUTANTS))
    assert not wrong, "\n\n".join(told(dialect, one) for one in wrong[:3])


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_request_that_once_went_wrong_does_not_again(path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    raw = kept["request"].encode("latin-1")
    sent = Sent(
        method="", path="", headers=(), body=b"", raw=raw, leaves_after=kept["leaves_after"]
    )
    assert wrong_alone(sent) is None


@pytest.fixture
def story() -> Iterator[list[dict[str, object]]]:
    """Gather what is logged as an error, as the daemon writes it."""
    lines: list[dict[str, object]] = []

    class Gather(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(self.format(record)))

    handler = Gather(logging.ERROR)
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    yield lines
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize(("path", "fields"), ASKED, ids=[path for path, _ in ASKED])
def test_a_bug_is_a_500_of_the_dialect_with_its_story_in_the_log(
    path: str, fields: dict[str, object], story: list[dict[str, object]]
) -> None:
    def broken(task: ChatTask) -> list[None]:
        raise ZeroDivisionError(task.model_id)

    async def ask(api: Api) -> None:
        api.daemon.inference.script_of = broken  # type: ignore[assignment]
        answer = await api.client.post(path, json={**chat_body(), **fields})
        assert answer.status_code == 500
        ERROR_JUDGES[dialect_of(path)](fields_of(answer.content))
        (line,) = story
        assert line["command_id"] == answer.headers["x-skulk-command-id"]
        assert "ZeroDivisionError" in str(line)

    with_api(ask)
