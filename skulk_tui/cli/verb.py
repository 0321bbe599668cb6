"""How a function becomes a sub-command: common options, a session, errors as exit codes."""

import contextlib
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Concatenate, ParamSpec, cast

import typer

from protocol.errors import SkulkError
from skulk_tui.cli import exit_codes
from skulk_tui.cli.completing import complete_cluster, complete_words
from skulk_tui.cli.failures import as_json, as_text, failure_of
from skulk_tui.cli.interruptions import Interrupted
from skulk_tui.cli.output import COLOR_CHOICES, OUTPUT_FORMATS, is_for_programs
from skulk_tui.cli.session import Options, Session, output_format, system_session

P = ParamSpec("P")
VerbFunction = Callable[Concatenate[Session, P], int | None]

NodeOption = Annotated[
    str | None,
    typer.Option("--node", metavar="URL", help="Node to ask [default: SKULK_NODE, then loopback]."),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Saved cluster to ask [default: SKULK_CLUSTER, current].",
        autocompletion=complete_cluster,
    ),
]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="table, wide, json, jsonl, yaml or name.",
        autocompletion=complete_words(*OUTPUT_FORMATS),
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for -o json.")]
ColumnsOption = Annotated[
    str | None,
    typer.Option("--columns", metavar="A,B", help="Only these columns of tables, in this order."),
]
HeadersOption = Annotated[bool, typer.Option("--no-headers", help="No line of titles in tables.")]
ColorOption = Annotated[
    str | None,
    typer.Option(
        "--color",
        metavar="WHEN",
        help="auto, always or never.",
        autocompletion=complete_words(*COLOR_CHOICES),
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No narration on stderr.")]
TimeoutOption = Annotated[
    str | None,
    typer.Option("--timeout", metavar="DURATION", help="Budget of the whole command, such as 60s."),
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Allow an API key over plain HTTP to another machine.")
]

WatchOption = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Go on with what changes, until Ctrl-C."),
]


DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")
]


def _common(  # its signature is what counts: the options that every sub-command takes
    *,
    node: NodeOption = None,
    cluster: ClusterOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
    columns: ColumnsOption = None,
    no_headers: HeadersOption = False,
    color: ColorOption = None,
    quiet: QuietOption = False,
    timeout: TimeoutOption = None,
    insecure: InsecureOption = False,
) -> Options:
    return Options(
        node=node,
        cluster=cluster,
        output=output,
        json=json,
        columns=columns,
        no_headers=no_headers,
        color=color,
        quiet=quiet,
        timeout=timeout,
        insecure=insecure,
    )


_COMMON = tuple(inspect.signature(_common).parameters.values())


def before_any_verb(typer_context: typer.Context, **options: object) -> None:
    """Take the common options that stand before the sub-command."""
    typer_context.obj = _options_of(typer_context, options)


def _options_of(context: typer.Context, given: dict[str, object]) -> Options:
    outer = context.obj if isinstance(context.obj, Options) else Options()
    return _common(**cast("dict[str, Any]", given)).over(outer)


_CONTEXT = inspect.Parameter(
    "typer_context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)


def _dress(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    """Give a function the signature that Typer is to read."""
    shown = [_CONTEXT, *parameters]
    function.__signature__ = inspect.Signature(shown)
    function.__annotations__ = {one.name: one.annotation for one in shown}


_dress(before_any_verb, list(_COMMON))


def verb(
    app: typer.Typer, name: str, *, examples: tuple[str, ...]
) -> Callable[[VerbFunction[P]], VerbFunction[P]]:
    """Register a function as a sub-command that also takes the common options.

    The function is handed a Session first; what it returns is the exit code, None is 0. Its
    docstring is the help, followed by the examples.
    """

    def register(function: VerbFunction[P]) -> VerbFunction[P]:
        own = list(inspect.signature(function).parameters.values())[1:]
        # Typer hands over by keyword what the signature below declares, which no type can say.
        body: Callable[..., int | None] = function

        def run(typer_context: typer.Context, **arguments: object) -> None:
            common = {one.name: arguments.pop(one.name) for one in _COMMON}
            session = system_session(_options_of(typer_context, common))
            raise typer.Exit(guarded(session, lambda: body(session, **arguments)))

        run.__doc__ = function.__doc__
        _dress(run, [*own, *_COMMON])
        app.command(name, help=_help_of(function, examples))(run)
        return function

    return register


def group(app: typer.Typer, name: str, summary: str) -> typer.Typer:
    """Add a group of sub-commands; the common options may stand before its verbs too."""
    inner = typer.Typer(help=summary, rich_markup_mode=None)
    inner.callback()(before_any_verb)
    app.add_typer(inner, name=name)
    return inner


def _help_of(function: Callable[..., Any], examples: tuple[str, ...]) -> str:
    text = inspect.getdoc(function) or ""
    shown = "\n".join(f"  {example}" for example in examples)
    return f"{text}\n\n\b\nExamples:\n{shown}"


def guarded(session: Session, body: Callable[[], int | None]) -> int:
    """Run a verb and turn whatever ends it into an exit code.

    An error is told on stderr; a closed pipe is success, for its reader has all it wanted; a bug
    is one line, and its traceback only with SKULK_DEBUG=1.
    """
    try:
        session.check_options()
        try:
            return body() or exit_codes.OK
        except SkulkError as error:
            if error.code == "request.unauthenticated" and session.ask_for_key():
                return body() or exit_codes.OK
            raise
    except SkulkError as error:
        return tell(error, session)
    except BrokenPipeError:
        return exit_codes.OK
    except KeyboardInterrupt:
        return exit_codes.SIGNAL_BASE + 2
    except Interrupted as ended:
        return exit_codes.SIGNAL_BASE + ended.signal_number
    finally:
        session.close()


def tell(error: SkulkError, session: Session) -> int:
    """Write an error to stderr in the form that the session asks for, and give its exit code."""
    failure = failure_of(error, node=session.asked_node)
    with contextlib.suppress(BrokenPipeError):  # nobody reads it; the exit code still tells
        session.stderr.write(as_json(failure) if wants_json(session) else as_text(failure))
        session.stderr.flush()
    if session.environ.get("SKULK_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    return failure.exit_code


def wants_json(session: Session) -> bool:
    """Is a machine to read what is told? A wrong format is told to people."""
    try:
        return is_for_programs(output_format(session.options, session.environ))
    except SkulkError:
        return False
