"""The manual page of `skulk`, made of the help that the verbs carry: `skulk help man`.

Run as a module it writes the page that is shipped, docs/skulk.1.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, cast

from skulk_tui.cli.exit_codes import MEANINGS

if TYPE_CHECKING:
    import typer

_SHORT_LINE: Final = ".br\n"
_COMMON: Final = frozenset(
    {
        "--node",
        "--cluster",
        "--output",
        "--json",
        "--columns",
        "--no-headers",
        "--color",
        "--quiet",
        "--timeout",
        "--insecure",
    }
)


def manual_page(app: "typer.Typer", environment: Mapping[str, str]) -> str:
    """Write the page in the macros of man(7); the same for every build of the same verbs."""
    root = command_of(app)
    parts = [
        '.TH SKULK 1 "" "skulk" "User Commands"\n',
        ".SH NAME\nskulk \\- run models on the machines of a network, as one\n",
        ".SH SYNOPSIS\n.B skulk\n.I VERB\n[options]\n",
        ".SH DESCRIPTION\n",
        "Asks one node over HTTP; any node answers for the whole cluster.\n",
        "The options at the end of this list may stand before or after every verb.\n",
        ".SH VERBS\n",
    ]
    for path, command in verbs_of(root):
        parts.append(_verb(path, command))
    parts.append(".SH OPTIONS OF EVERY VERB\n")
    parts += [_option(one) for one in root.params if _is_common(one)]
    parts.append(".SH EXIT STATUS\n")
    parts += [_entry(str(code), meaning) for code, meaning in MEANINGS.items()]
    parts.append(".SH ENVIRONMENT\n")
    parts += list(starmap(_entry, environment.items()))
    parts.append(".SH SEE ALSO\n.BR skulkd (1)\n")
    return "".join(parts)


def command_of(app: "typer.Typer") -> Any:  # ruff: ignore[any-type]  the parser has no public type
    """Give the command tree that the program parses with."""
    from typer.main import get_command

    return cast("Any", get_command(app))


def verbs_of(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:  # ruff: ignore[any-type]  see above
    """Give every verb with its words, in the order of the help."""
    for name, inner in command.commands.items():
        words = (*path, str(name))
        if hasattr(inner, "commands"):
            yield from verbs_of(inner, words)
        else:
            yield words, inner


def _verb(path: tuple[str, ...], command: Any) -> str:  # ruff: ignore[any-type]  see above
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = " ".join(str(one.metavar or one.name).upper() for one in arguments)
    text, _, examples = str(command.help or "").replace("\b", "").partition("Examples:")
    parts = [f".SS skulk {_plain(' '.join((*path, words)).strip())}\n"]
    parts += [f"{_plain(line)}\n" for line in _paragraphs(text)]
    parts += [
        _entry(str(one.metavar or one.name).upper(), str(one.help or "")) for one in arguments
    ]
    parts += [
        _option(one)
        for one in command.params
        if one.param_type_name == "option" and not _is_common(one)
    ]
    shown = [line.strip() for line in examples.splitlines() if line.strip()]
    if shown:
        parts.append(".PP\nExamples:\n.PP\n.nf\n.RS\n")
        parts += [f"{_plain(line)}\n" for line in shown]
        parts.append(".RE\n.fi\n")
    return "".join(parts)


def _paragraphs(text: str) -> Iterable[str]:
    blocks = [" ".join(block.split()) for block in text.split("\n\n") if block.strip()]
    for index, block in enumerate(blocks):
        if index:
            yield ".PP"
        yield block


def _is_common(option: Any) -> bool:  # ruff: ignore[any-type]  see above
    return bool(_COMMON & set(option.opts))


def _option(option: Any) -> str:  # ruff: ignore[any-type]  see above
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or str(option.name).upper()}"
    return _entry(names + value, str(option.help or ""))


def _entry(term: str, meaning: str) -> str:
    return f".TP\n.B {_plain(term)}\n{_plain(meaning)}\n"


def _plain(text: str) -> str:
    """Write text so that roff takes nothing in it for its own."""
    if text == ".PP":
        return text
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    safe = safe.replace("'", "\\(aq").replace("~", "\\(ti").replace("^", "\\(ha")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe


def main() -> None:
    """Write the page to standard output."""
    from skulk_tui.cli.main import build_app
    from skulk_tui.cli.topics import ENVIRONMENT

    sys.stdout.write(manual_page(build_app(), ENVIRONMENT))


if __name__ == "__main__":
    main()
