"""`skulk help [TOPIC|VERB]`: what holds for all verbs, and the help of each; asks no node."""

from typing import Annotated, Final

import typer

from skulk_tui.cli.completing import complete_words
from skulk_tui.cli.exit_codes import MEANINGS
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.records import TopicRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import verb

ENVIRONMENT: Final[dict[str, str]] = {
    "SKULK_NODE": "node to ask, as --node takes it",
    "SKULK_CLUSTER": "saved cluster to ask, as --cluster takes it",
    "SKULK_API_KEY": "API key to show the node",
    "SKULK_API_KEY_FILE": "file that holds the API key, mode 0600",
    "SKULK_OUTPUT": "output format, as -o takes it",
    "SKULK_COLOR": "auto, always or never, as --color takes it",
    "SKULK_TIMEOUT": "budget of a command, as --timeout takes it",
    "SKULK_NO_INPUT": "when set, no question is asked",
    "SKULK_READONLY": "when set, nothing is changed: what would change something is refused",
    "SKULK_CONFIG_DIR": "directory of config.toml and keys"
    " [default: XDG_CONFIG_HOME/skulk, ~/.config/skulk]",
    "SKULK_STATE_DIR": "directory of crashes, copied text and names for completion "
    "[default: XDG_STATE_HOME/skulk, ~/.local/state/skulk]",
    "SKULK_HOME": "home of this machine's node, for `skulk service`",
    "SKULK_CLIPBOARD": "how `skulk tui` copies: auto, tmux, osc52, file or off",
    "SKULK_ASCII": "when set, a terminal is shown ASCII characters alone",
    "SKULK_DEBUG": "1 prints the traceback of an error",
    "NO_COLOR": "when set, no colour",
    "FORCE_COLOR": "when set, colour also without a terminal",
    "LC_ALL, LC_CTYPE, LANG": "unless they name UTF-8, a terminal is shown ASCII alone",
}
_OUTPUT: Final[dict[str, str]] = {
    "table": "for people; on a terminal as wide as it is, in a pipe whole",
    "wide": "the same with all columns",
    "json": "one document: kind, seq, items",
    "jsonl": "one item a line; what follows or watches writes an object for each change",
    "yaml": "the same document as json in YAML; what follows or watches writes one for each change",
    "name": "one identifier a line, for xargs",
}
_TOPICS: Final[dict[str, str]] = {
    "exit-codes": "what the exit code of a command says",
    "environment": "the variables that are read",
    "output": "the formats of -o",
    "man": "the manual page, for `man -l -`",
}
_HEADS: Final = {"exit-codes": "EXIT CODE", "environment": "VARIABLE", "output": "FORMAT"}


def add_help(app: typer.Typer) -> None:
    """Register the verb; it explains all verbs, not only those of `app`."""

    def show(
        session: Session,
        words: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[TOPIC|VERB]",
                help=f"{', '.join(_TOPICS)}; or a verb.",
                autocompletion=_complete_topic,
            ),
        ] = None,
    ) -> int | None:
        """Explain a topic or a verb; without one, list the topics."""
        from skulk_tui.cli.main import build_app

        return _show(build_app(), session, words or [])

    verb(app, "help", examples=("skulk help exit-codes", "skulk help cluster join"))(show)


def _complete_topic(incomplete: str) -> list[str]:
    from skulk_tui.cli.verbs import VERBS

    return complete_words(*_TOPICS, *VERBS)(incomplete)


def _show(app: typer.Typer, session: Session, words: list[str]) -> int | None:
    topic = " ".join(words)
    if not topic:
        _list(session, "topics", "TOPIC", _TOPICS)
        if not session.output.is_for_programs:
            session.narrate("The verbs: `skulk --help`; one of them: `skulk help VERB`.")
    elif topic == "man":
        _show_manual(app, session)
    elif topic in _TOPICS:
        meanings: dict[str, dict[str, str]] = {
            "exit-codes": {str(code): meaning for code, meaning in MEANINGS.items()},
            "environment": ENVIRONMENT,
            "output": _OUTPUT,
        }
        _list(session, topic.replace("-", "_"), _HEADS[topic], meanings[topic])
    else:
        _show_verb(app, session, topic)
    return None


def _show_manual(app: typer.Typer, session: Session) -> None:
    from skulk_tui.cli.manual import manual_page

    page = manual_page(app, ENVIRONMENT)
    if session.form in {"table", "wide"}:
        session.output.write(page)
    else:
        record = TopicRecord(name="man", meaning=page)
        session.output.show(Listing(kind="man", items=(record,), tables=(), names=("man",)))


def _show_verb(app: typer.Typer, session: Session, words: str) -> None:
    from skulk_tui.cli.manual import command_of, verbs_of

    known = {" ".join(path): command for path, command in verbs_of(command_of(app))}
    in_group = {path: one for path, one in known.items() if path.startswith(f"{words} ")}
    found = {words: known[words]} if words in known else in_group
    if not found:
        raise unknown_value("a topic or a verb", words, [*_TOPICS, *known], see="skulk --help")
    texts = {path: str(one.help or "").replace("\b\n", "") for path, one in found.items()}
    if session.form in {"table", "wide"}:
        shown = [f"skulk {path}\n\n{text.strip()}\n" for path, text in texts.items()]
        session.output.write("\n".join(shown))
        session.narrate(f"Options: `skulk {words} --help`.")
    else:
        _list(session, "help", "VERB", texts)


def _list(session: Session, kind: str, head: str, lines: dict[str, str]) -> None:
    table = Table((Column(head), Column("MEANING", least=20, wraps=True)), tuple(lines.items()))
    session.output.show(
        Listing(
            kind=kind,
            items=[TopicRecord(name=name, meaning=meaning) for name, meaning in lines.items()],
            tables=(table,),
            names=list(lines),
        )
    )
