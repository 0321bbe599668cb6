"""`skulk completion SHELL`: the script that has a shell complete verbs, options and names."""

from typing import Annotated, Final

import typer

from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.output import Listing
from skulk_tui.cli.records import CompletionRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import verb

# The variables are those that Typer reads in the program.
_BASH: Final = r"""_skulk_completion() {
    local IFS=$'\n'
    COMPREPLY=($(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" \
        _SKULK_COMPLETE=complete_bash "$1" 2>/dev/null))
    return 0
}
complete -o default -F _skulk_completion skulk
"""
_ZSH: Final = """#compdef skulk
_skulk() {
    eval "$(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" \\
        _SKULK_COMPLETE=complete_zsh skulk 2>/dev/null)"
}
if [ "$funcstack[1]" = "_skulk" ]; then
    _skulk "$@"
else
    compdef _skulk skulk
fi
"""
_FISH: Final = (
    "complete --command skulk --no-files"
    ' --arguments "(env _SKULK_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args'
    ' _TYPER_COMPLETE_ARGS=(commandline -cp) skulk 2>/dev/null)"'
    ' --condition "env _SKULK_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args'
    ' _TYPER_COMPLETE_ARGS=(commandline -cp) skulk 2>/dev/null"\n'
)
SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_completion(app: typer.Typer) -> None:
    """Register the verb."""
    verb(
        app,
        "completion",
        examples=(
            "skulk completion bash > ~/.local/share/bash-completion/completions/skulk",
            "skulk completion fish > ~/.config/fish/completions/skulk.fish",
        ),
    )(completion)


def _complete_shell(incomplete: str) -> list[str]:
    return [shell for shell in SCRIPTS if shell.startswith(incomplete)]


def completion(
    session: Session,
    shell: Annotated[
        str,
        typer.Argument(metavar="SHELL", help="bash, zsh or fish.", autocompletion=_complete_shell),
    ],
) -> int | None:
    """Print the script for a shell's completion; names of nodes, models and instances are live.

    In zsh put it as `_skulk` into a directory of fpath.
    """
    if shell not in SCRIPTS:
        raise unknown_value("a shell", shell, SCRIPTS)
    script = SCRIPTS[shell]
    if session.form in {"table", "wide"}:
        session.output.write(script)
        return None
    record = CompletionRecord(name=shell, script=script)
    session.output.show(Listing(kind="completion", items=(record,), tables=(), names=(shell,)))
    return None
