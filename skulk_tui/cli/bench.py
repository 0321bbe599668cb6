"""`skulk bench`: how fast a placed model answers, through the node that is asked."""

import json
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Final, final

import typer

from protocol.errors import ClientError, SkulkError
from protocol.ids import ModelId, parse_model_id
from skulk_tui.cli.bench_figures import bench_tables, summary
from skulk_tui.cli.bench_run import Load, Outcome, measure
from skulk_tui.cli.completing import complete_placed_model
from skulk_tui.cli.instances import several_exit_code
from skulk_tui.cli.interruptions import Interrupted
from skulk_tui.cli.output import Listing
from skulk_tui.cli.progress import ProgressLine
from skulk_tui.cli.session import Session
from skulk_tui.cli.suggestions import naming_the_nearest_model
from skulk_tui.cli.verb import verb
from skulk_tui.cli.waiting import progress_line, wait_until_ready
from skulk_tui.client import envelope_of

MAX_REQUESTS: Final = 100_000
MAX_CONCURRENCY: Final = 256
MAX_WORDS: Final = 100_000
_WORDS: Final = "the ship came home late and the keeper of the light wrote it down".split()  # ruff: ignore[split-static-string]  a sentence reads better
_TASK: Final = "Write a long story that begins with these words:"


def add_bench(app: typer.Typer) -> None:
    """Register the verb."""
    verb(
        app,
        "bench",
        examples=("skulk bench my/model", "skulk bench my/model -n 64 -c 8 --json"),
    )(bench)


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The requests of a run.

    No two begin alike, nor those of two runs: no cache of prompts has seen one before.
    """

    model_id: ModelId
    run: int
    """Differs from run to run."""
    words: int
    max_tokens: int

    def body(self, number: int) -> str:
        """Write a request."""
        filler = " ".join(_WORDS[index % len(_WORDS)] for index in range(self.words))
        return json.dumps(
            {
                "model": self.model_id,
                "messages": [{"role": "user", "content": f"{self.run}-{number}. {_TASK} {filler}"}],
                "max_tokens": self.max_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )


def bench(
    session: Session,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A placed model.", autocompletion=complete_placed_model
        ),
    ],
    *,
    requests: Annotated[
        int,
        typer.Option("--requests", "-n", min=1, max=MAX_REQUESTS, help="How many are measured."),
    ] = 16,
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", "-c", min=1, max=MAX_CONCURRENCY, help="How many at a time."),
    ] = 1,
    words: Annotated[
        int, typer.Option(min=1, max=MAX_WORDS, metavar="N", help="Length of each prompt, about.")
    ] = 100,
    max_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Longest answer; a model may end before it.")
    ] = 64,
    warmup: Annotated[
        int, typer.Option(min=0, max=1000, metavar="N", help="Requests before that do not count.")
    ] = 1,
) -> int | None:
    """Measure how fast a placed model answers: time to the first token, tokens a second.

    The requests go through the node that is asked, as those of any client do. Exit code: 6 when
    some of them failed.
    """
    questions = Questions(
        model_id=parse_model_id(model),
        run=session.clock.wall_ms(),
        words=words,
        max_tokens=max_tokens,
    )
    run = _Run(session, questions, requests=requests, concurrency=concurrency)
    run.warm_up(warmup)
    return run.measure()


@final
class _Run:
    def __init__(
        self, session: Session, questions: Questions, *, requests: int, concurrency: int
    ) -> None:
        self._session = session
        self._questions = questions
        self._requests = requests
        self._concurrency = concurrency
        self._outcomes: list[Outcome] = []
        self._began_s = 0.0
        self._last_s = 0.0

    def warm_up(self, n: int) -> None:
        """Ask some questions that do not count; a model that is loading is waited for."""
        session, clock = self._session, self._session.clock
        with naming_the_nearest_model(session, self._questions.model_id):
            for index in range(n):
                body = self._questions.body(-index)
                try:
                    measure(session.client, body, number=index, clock=clock)
                except SkulkError as error:
                    envelope = envelope_of(error)
                    loading = envelope.loading if envelope is not None else None
                    if loading is None:
                        raise
                    wait_until_ready(session, loading.instance_id)
                    measure(session.client, body, number=index, clock=clock)

    def measure(self) -> int:
        """Ask all questions and show the figures, also those of a run that is ended early."""
        self._began_s = self._last_s = self._session.clock.monotonic_s()
        ended: BaseException | None = None
        try:
            self._gather()
        except (KeyboardInterrupt, Interrupted) as interrupt:
            ended = interrupt
        errors = [one.error for one in self._outcomes if one.error is not None]
        if any(error.code == "client.timeout" for error in errors):
            ended = _budget_spent()
        elif ended is None and len(errors) == self._requests:
            self._raise_common(errors)
        self._show()
        if ended is not None:
            raise ended
        return several_exit_code(errors, self._requests)

    def _gather(self) -> None:
        session = self._session
        load = Load(
            make_client=session.another_client,
            body_of=self._questions.body,
            requests=self._requests,
            concurrency=self._concurrency,
            clock=session.clock,
        )
        line = progress_line(session)
        try:
            with closing(load.outcomes()) as outcomes:
                for outcome in outcomes:
                    self._last_s = session.clock.monotonic_s()
                    self._outcomes.append(outcome)
                    if outcome.error is not None and outcome.error.code == "client.timeout":
                        return
                    self._tell(line)
        finally:
            line.clear()

    def _tell(self, line: ProgressLine) -> None:
        n_failed = sum(1 for one in self._outcomes if one.error is not None)
        text = f"bench  {len(self._outcomes)} of {self._requests} requests"
        if n_failed:
            text += f", {n_failed} failed"
        record = {
            "phase": "bench",
            "done_requests": len(self._outcomes),
            "total_requests": self._requests,
            "failed_requests": n_failed,
        }
        line.show(text, topic="bench", record=record)

    def _raise_common(self, errors: list[SkulkError]) -> None:
        """Raise what every request failed with: there is nothing else to show."""
        if len({error.code for error in errors}) == 1:
            with naming_the_nearest_model(self._session, self._questions.model_id):
                raise errors[0]

    def _show(self) -> None:
        record = summary(
            # What the end of the budget broke off was not measured.
            [
                one.record
                for one in self._outcomes
                if one.error is None or one.error.code != "client.timeout"
            ],
            model_id=self._questions.model_id,
            node=self._session.client.target.url,
            concurrency=self._concurrency,
            requests=self._requests,
            wall_s=self._last_s - self._began_s,
        )
        self._session.output.show(
            Listing(
                kind="bench",
                items=(record,),
                tables=bench_tables(record),
                names=(record.model_id,),
            )
        )


def _budget_spent() -> ClientError:
    return ClientError(
        "client.timeout",
        "the time given by --timeout ran out before all requests were done",
        remediation="Give it longer, or ask for less with --requests.",
    )
