"""`skulk version | info | help`: this program itself; the first and last ask no node."""

import platform
from importlib import metadata
from typing import Annotated, Final

import typer

from protocol.control_api import HealthDocument
from protocol.errors import SkulkError
from skulk_tui.cli.exit_codes import MEANINGS
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.output import Column, Listing, Table, key_values
from skulk_tui.cli.records import InfoRecord, TopicRecord, VersionRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import verb
from skulk_tui.formatting import UNKNOWN, format_duration

DISTRIBUTION: Final = "skulkd"

ENVIRONMENT: Final[dict[str, str]] = {
    "SKULK_NODE": "node to ask, as --node takes it",
    "SKULK_CLUSTER": "saved cluster to ask, as --cluster takes it",
    "SKULK_API_KEY": "API key to show the node",
    "SKULK_API_KEY_FILE": "file that holds the API key, mode 0600",
    "SKULK_OUTPUT": "output format, as -o takes it",
    "SKULK_COLOR": "auto, always or never, as --color takes it",
    "SKULK_TIMEOUT": "budget of a command, as --timeout takes it",
    "SKULK_NO_INPUT": "when set, no question is asked",
    "SKULK_CONFIG_DIR": "directory of config.toml and keys"
    " [default: XDG_CONFIG_HOME/skulk, ~/.config/skulk]",
    "SKULK_STATE_DIR": "directory of crashes and copied text [default: XDG_STATE_HOME/skulk, "
    "~/.local/state/skulk]",
    "SKULK_CLIPBOARD": "how `skulk tui` copies: auto, tmux, osc52, file or off",
    "SKULK_DEBUG": "1 prints the traceback of an error",
    "NO_COLOR": "when set, no colour",
    "FORCE_COLOR": "when set, colour also without a terminal",
}


def add_program_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    verb(app, "version", examples=("skulk version", "skulk version --json"))(show_version)
    verb(app, "info", examples=("skulk info", "skulk info --node studio.local --json"))(show_info)
    verb(app, "help", examples=("skulk help exit-codes", "skulk help environment"))(show_topic)


def own_version() -> str:
    """Give the installed version; a tree that was never installed has none."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def show_version(session: Session) -> int | None:
    """Show the version of this program; no node is asked."""
    record = VersionRecord(
        version=own_version(), python=platform.python_version(), platform=platform.platform()
    )
    if session.form == "table":
        session.output.write(f"skulk {record.version}\n")
        return None
    table = key_values(
        [
            ("skulk", record.version),
            ("python", record.python),
            ("platform", record.platform),
        ]
    )
    session.output.show(
        Listing(kind="version", items=(record,), tables=(table,), names=(record.version,))
    )
    return None


def show_info(session: Session) -> int | None:
    """Show which node would be asked and by which rule, with which key, and where files lie.

    A node that does not answer is told, and is no failure.
    """
    health: HealthDocument | None = None
    problem: str | None = None
    try:
        health = session.client.get("/health", HealthDocument)
    except SkulkError as error:
        problem = error.message
    target = session.client.target
    record = InfoRecord(
        version=own_version(),
        node=target.url,
        node_rule=target.url_rule,
        reachable=health is not None,
        node_version=health.version if health else None,
        node_name=health.name if health else None,
        api_key=target.key_rule,
        config_dir=str(session.config_dir),
        output=session.form,
        color=session.colors(session.stdout),
        timeout_s=session.timeout_s,
        problem=problem,
    )
    table = key_values(
        [
            ("skulk", record.version),
            ("node", f"{record.node} (by {record.node_rule})"),
            ("answers", f"yes: {record.node_name}" if health else f"no: {problem}"),
            ("node's version", record.node_version or UNKNOWN),
            ("API key from", record.api_key),
            ("config", record.config_dir),
            ("colour", "yes" if record.color else "no"),
            ("budget", format_duration(record.timeout_s)),
        ]
    )
    session.output.show(
        Listing(kind="info", items=(record,), tables=(table,), names=(record.node,))
    )
    return None


def show_topic(
    session: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="exit-codes or environment.")],
) -> int | None:
    """Explain a topic: exit-codes or environment."""
    topics = {
        "exit-codes": {str(code): meaning for code, meaning in MEANINGS.items()},
        "environment": ENVIRONMENT,
    }
    if topic not in topics:
        raise unknown_value("a topic", topic, topics)
    lines = topics[topic]
    head = "EXIT CODE" if topic == "exit-codes" else "VARIABLE"
    session.output.show(
        Listing(
            kind=topic.replace("-", "_"),
            items=[TopicRecord(name=name, meaning=meaning) for name, meaning in lines.items()],
            tables=(Table((Column(head), Column("MEANING")), tuple(lines.items())),),
            names=list(lines),
        )
    )
    return None
