"""Every action of the terminal UI, once: its keys, its `:` command, its help and its `skulk` line.

Pure. Keys, the command line, the palette, the help pages, the key row and the confirmation dialogs
all read this one table; what an action does is a method of the seat that has its id.
"""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, final

from protocol.errors import ClientError
from protocol.state import Scope
from skulk_tui.table_model import Ref

Topic = Literal["views", "cluster", "placement", "store", "chat", "diag", "view", "move"]
ArgumentKind = Literal[
    "node", "nodes", "model", "instance", "transfer", "command", "profile", "choice", "text",
    "number", "path", "setting", "column", "columns",
]  # fmt: skip
SAFE_KEYS: Final = frozenset(
    {*string.ascii_lowercase, *string.ascii_uppercase, *string.digits}
    | {"slash", "colon", "question_mark", "asterisk", "plus", "minus", "semicolon", "space"}
    | {"exclamation_mark", "less_than_sign", "greater_than_sign", "backspace", "period", "comma"}
    | {"left_square_bracket", "right_square_bracket", "equals_sign"}
    | {"up", "down", "left", "right", "home", "end", "pageup", "pagedown"}
    | {"tab", "shift+tab", "enter", "escape"}
    | {f"f{n}" for n in range(1, 10)}
    | {f"ctrl+{letter}" for letter in "cjlopqz"}
)
"""Keys that arrive as themselves in every terminal and multiplexer."""


_WHOLE_LINES: Final = frozenset({"text", "column", "columns"})
"""Kinds of an argument that, where it is the only one, takes all words."""
LOST: Final = "@lost"
"""The place of actions whose keys count, before all others, while the link is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of a `:` command."""

    name: str
    kind: ArgumentKind
    word: str = ""
    """The word that stands before it (`on` in `place MODEL on A,B`); empty for a positional one."""
    is_required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What conditions are asked about: where the operator is, and what is selected."""

    view: str
    """`cluster`, `models`, `chat`, `store`, `diag`, or a detail's: `node`, `instance`, …"""
    pane: str
    """The focused pane of that view."""
    selection: tuple[Ref, ...] = ()
    scope: Scope | None = "admin"
    is_readonly: bool = False
    is_linked: bool = True
    """Requests can be sent."""
    has_undo: bool = False
    is_streaming: bool = False
    """A chat stream is running here."""
    is_typing: bool = False
    """A text field has the keyboard, and owns all keys that write."""
    is_lost: bool = False
    """The link is lost, and being tried again."""

    def has(self, *kinds: str) -> bool:
        """Whether something is selected, and all of it is of these kinds."""
        return bool(self.selection) and all(ref.kind in kinds for ref in self.selection)

    def has_one(self, *kinds: str) -> bool:
        """Whether exactly one object of these kinds is selected."""
        return len(self.selection) == 1 and self.has(*kinds)


Condition = Callable[[Situation], bool]


def always(situation: Situation) -> bool:
    """Hold everywhere."""
    del situation
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing an operator can do."""

    id: str
    """`cluster.remove`: also the id by which the keymap file rebinds it."""
    title: str
    """A few words, as in the key row and in menus."""
    effect: str
    """One line: what it does, for help and the prompt."""
    topic: Topic
    keys: tuple[str, ...] = ()
    command: str = ""
    """Its name after `:`; empty for what is only a key."""
    arguments: tuple[Argument, ...] = ()
    mutates: bool = False
    scope: Scope = "read"
    views: tuple[str, ...] = ()
    """Where its keys work: `view` or `view.pane`, or `LOST`; empty for everywhere."""
    condition: Condition = always
    cli: str = ""
    """The `skulk` line of the same effect, with `{selection}` and `{argument}` fields; empty where
    it only changes what is shown."""
    needs_link: bool = False
    key_hint: str = ""
    """How its first key is written in the key row; empty for the key's own name."""
    weight: int = 0
    """Among the hints of the key row, the highest comes first; 0 is never shown there."""

    def is_here(self, situation: Situation) -> bool:
        """Whether its keys belong to the focused pane or view."""
        places = {situation.view, f"{situation.view}.{situation.pane}"}
        if situation.is_lost:
            places.add(LOST)
        return not self.views or bool(places & set(self.views))


_RANK: Final[Mapping[Scope, int]] = {"infer": 0, "read": 1, "operate": 2, "admin": 3}


def is_allowed(action: Action, situation: Situation) -> bool:
    """Whether an action is there at all: what changes something is absent without the scope."""
    if not action.mutates:
        return True
    if situation.is_readonly or situation.scope is None:
        return False
    return _RANK[situation.scope] >= _RANK[action.scope]


def is_possible(action: Action, situation: Situation) -> bool:
    """Whether it can be done now."""
    if not is_allowed(action, situation) or not action.is_here(situation):
        return False
    if (action.mutates or action.needs_link) and not situation.is_linked:
        return False
    return action.condition(situation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Two actions on one key in one pane."""

    key: str
    first: str
    second: str


@final
class Registry:
    """The table.

    Args:
        actions: All of them; ids and command names are unique.
        keymap: Keys by action id, in place of those the action has; from the keymap file.
    """

    def __init__(
        self, actions: Iterable[Action], keymap: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.actions = tuple(actions)
        self._by_id = {action.id: action for action in self.actions}
        self._by_command = {item.command: item for item in self.actions if item.command}
        self._keys = {action.id: action.keys for action in self.actions}
        self._unknown = tuple(sorted((keymap or {}).keys() - self._by_id.keys()))
        for action_id, keys in (keymap or {}).items():
            if action_id in self._keys:
                self._keys[action_id] = tuple(keys)
        self._by_key: dict[str, list[Action]] = {}
        for action in self.actions:
            for key in dict.fromkeys(self._keys[action.id]):
                self._by_key.setdefault(key, []).append(action)
        self._hinted: tuple[Situation, tuple[tuple[str, str], ...]] | None = None
        """The last key row, and where it was for: most frames ask for the same."""

    def get(self, action_id: str) -> Action:
        """Give an action by its id, which is one of ours."""
        return self._by_id[action_id]

    def by_command(self, name: str) -> Action | None:
        """Give the action of a `:` command."""
        return self._by_command.get(name)

    def keys_of(self, action: Action) -> tuple[str, ...]:
        """Give the keys an action has, after the keymap file."""
        return self._keys[action.id]

    def for_key(self, key: str, situation: Situation) -> Action | None:
        """Choose the action of a key, or None where nothing it means is possible now.

        The pane's comes before the view's, and that before one that works everywhere.
        """
        found = [action for action in self._by_key.get(key, ()) if is_possible(action, situation)]
        return max(found, key=lambda action: _closeness(action, situation), default=None)

    def hints(self, situation: Situation) -> tuple[tuple[str, str], ...]:
        """Give key and title for the key row, the most useful first."""
        if self._hinted is None or self._hinted[0] != situation:
            self._hinted = (situation, self._make_hints(situation))
        return self._hinted[1]

    def _make_hints(self, situation: Situation) -> tuple[tuple[str, str], ...]:
        shown = [
            action
            for action in self.actions
            if action.weight
            and self._keys[action.id]
            and is_possible(action, situation)
            and not (situation.is_typing and writes(self._keys[action.id][0]))
            and self.for_key(self._keys[action.id][0], situation) is action
        ]
        shown.sort(key=lambda action: -action.weight)
        return tuple((self.hint_of(action), action.title) for action in shown)

    def hint_of(self, action: Action) -> str:
        """Write an action's first key as people do."""
        keys = self._keys[action.id]
        if not keys:
            return f":{action.command}" if action.command else ""
        is_own = keys == action.keys
        return action.key_hint if is_own and action.key_hint else key_name(keys[0])

    def commands(self, situation: Situation) -> tuple[Action, ...]:
        """Give the `:` commands that are there for this key's scope, by name."""
        found = [
            item for item in self.actions if item.command and is_allowed(item, situation)
        ]  # fmt: skip
        return tuple(sorted(found, key=lambda item: item.command))

    def menu(self, situation: Situation) -> tuple[Action, ...]:
        """Give what can be done with the selection."""
        return tuple(
            action
            for action in self.actions
            if action.condition is not always
            and is_possible(action, situation)
            and (action.views or action.command)
        )

    def keymap_faults(self) -> tuple[str, ...]:
        """Say in words what is wrong with the keymap file: unknown actions, keys with two meanings.

        Keys that not every terminal sends are allowed there: it is the operator's own terminal.
        """
        unknown = [f"there is no action {name!r}" for name in self._unknown]
        clashing = [
            f"the key {key_name(clash.key)} means both {clash.first} and {clash.second}"
            for clash in self.clashes()
        ]
        return (*unknown, *clashing)

    def clashes(self) -> tuple[Clash, ...]:
        """Find keys that mean two things in one pane, conditions left aside."""
        found: list[Clash] = []
        places = {place for action in self.actions for place in action.views} | {""}
        for place in sorted(places):
            owners: dict[str, str] = {}
            for action in self.actions:
                if (place in action.views) if place else not action.views:
                    for key in self._keys[action.id]:
                        first = owners.setdefault(key, action.id)
                        if first != action.id:
                            found.append(Clash(key=key, first=first, second=action.id))
        return tuple(found)


def _closeness(action: Action, situation: Situation) -> int:
    if situation.is_lost and LOST in action.views:
        return 3
    if f"{situation.view}.{situation.pane}" in action.views:
        return 2
    return 1 if situation.view in action.views else 0


_NAMES: Final[Mapping[str, str]] = {
    "slash": "/", "colon": ":", "question_mark": "?", "asterisk": "*", "plus": "+", "minus": "-",
    "semicolon": ";", "exclamation_mark": "!", "less_than_sign": "<", "greater_than_sign": ">",
    "left_square_bracket": "[", "right_square_bracket": "]", "pageup": "pgup",
    "pagedown": "pgdn", "escape": "esc", "period": ".", "comma": ",", "equals_sign": "=",
}  # fmt: skip


def writes(key: str) -> bool:
    """Whether a key writes a character, where there is a field to write in."""
    return len(key) == 1 or key == "space" or len(_NAMES.get(key, key)) == 1


def key_name(key: str) -> str:
    """Write a key as people do: `slash` is `/`."""
    return _NAMES.get(key, key)


# ---- Commands ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A command line, read."""

    action: Action
    values: Mapping[str, str] = field(default_factory=dict[str, str])


def parse_command(text: str, registry: Registry) -> Call:
    """Read what was typed after `:`.

    Raises:
        ClientError: `client.usage`: no such command (with the nearest), a missing argument, or a
            value that is none of the choices.
    """
    words = text.split()
    if not words:
        _refuse("nothing was typed", "Type a command; `:help` lists them.")
    action, rest = _find(words, registry)
    values: dict[str, str] = {}
    positional = [item for item in action.arguments if not item.word]
    introduced = {item.word: item for item in action.arguments if item.word}
    is_only = len(action.arguments) == len(positional) == 1
    takes_all = is_only and positional[0].kind in _WHOLE_LINES
    if takes_all and rest:
        values[positional[0].name] = " ".join(rest)
        rest = []
    index = 0
    while rest:
        word = rest.pop(0)
        if word in introduced and rest:
            values[introduced[word].name] = rest.pop(0)
        elif index < len(positional):
            values[positional[index].name] = word
            index += 1
        else:
            _refuse(f"`{action.command}` takes no {word[:40]!r}", f"It takes: {form_of(action)}")
    for argument in action.arguments:
        _check(action, argument, values.get(argument.name))
    return Call(action=action, values=values)


def form_of(action: Action) -> str:
    """Write a command's form: `place MODEL [on NODES] [ctx N]`."""
    parts = [action.command]
    for item in action.arguments:
        shown = "|".join(item.choices) if item.choices else item.name.upper()
        shown = f"{item.word} {shown}" if item.word else shown
        parts.append(shown if item.is_required else f"[{shown}]")
    return " ".join(parts)


def _find(words: list[str], registry: Registry) -> tuple[Action, list[str]]:
    # A command's name may have two words: `clear-breaker` has one, `limit rate` would have two.
    for n_words in (2, 1):
        action = registry.by_command(" ".join(words[:n_words]))
        if action is not None and len(words) >= n_words:
            return action, words[n_words:]
    raise _no_such_command(words[0], registry)


def _no_such_command(word: str, registry: Registry) -> ClientError:
    from difflib import get_close_matches

    names = [item.command for item in registry.actions if item.command]
    near = get_close_matches(word, names, n=1)
    return ClientError(
        "client.usage",
        f"there is no command {word[:40]!r}",
        remediation=f"Did you mean `{near[0]}`?" if near else "`:help` lists all commands.",
    )


def _check(action: Action, argument: Argument, value: str | None) -> None:
    if value is None:
        if argument.is_required:
            _refuse(
                f"`{action.command}` needs {argument.name.upper()}", f"It takes: {form_of(action)}"
            )
        return
    if argument.choices and value not in argument.choices:
        _refuse(
            f"{argument.name} is one of {', '.join(argument.choices)}, not {value[:40]!r}",
            f"It takes: {form_of(action)}",
        )
    if argument.kind == "number" and not value.isdecimal():
        _refuse(
            f"{argument.name} is a whole number, not {value[:40]!r}",
            f"It takes: {form_of(action)}",
        )


def _refuse(message: str, remediation: str) -> NoReturn:
    raise ClientError("client.usage", message, remediation=remediation)
