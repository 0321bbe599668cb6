"""`skulk tui`: the whole cluster from one full-screen terminal."""

import os
from typing import Annotated

import typer

from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import verb
from skulk_tui.garbage import not_looked_for


def add_tui(app: typer.Typer) -> None:
    """Register the verb."""
    verb(app, "tui", examples=("skulk tui", "skulk tui --cluster home-lab --readonly"))(tui)


def tui(
    session: Session,
    *,
    readonly: Annotated[
        bool, typer.Option("--readonly", help="Offer nothing that changes something.")
    ] = False,
    theme: Annotated[
        str | None, typer.Option(metavar="NAME", help="dark, light, ansi or mono.")
    ] = None,
    ascii_only: Annotated[
        bool, typer.Option("--ascii", help="Draw with ASCII characters alone.")
    ] = False,
    no_mouse: Annotated[
        bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal.")
    ] = False,
) -> int:
    """Operate the cluster from a full-screen terminal: nodes, models, chat, store, diagnostics."""
    with not_looked_for():
        from skulk_tui.start import Wishes, run_tui, theme_named

        wishes = Wishes(
            theme=theme_named(theme, "--theme") if theme else None,
            is_ascii=ascii_only,
            is_readonly=readonly,
            leaves_mouse=no_mouse,
        )
        return run_tui(
            session.target,
            wishes,
            environ=os.environ,
            config_dir=session.config_dir,
            trust=session.trust,
        )
