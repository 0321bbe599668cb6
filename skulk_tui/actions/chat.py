"""Actions of the screen chat."""

from typing import Final

from skulk_tui.registry import Action, Argument, Situation


def _is_streaming(situation: Situation) -> bool:
    return situation.is_streaming


def _has_answer(situation: Situation) -> bool:
    return situation.has_one("command", "answer")


def _is_finished(situation: Situation) -> bool:
    return _has_answer(situation) and not situation.is_streaming


def _has_command(situation: Situation) -> bool:
    return situation.has_one("command")


_FIELD: Final = ("chat.prompt",)
_TEXT: Final = ("chat.transcript",)
_KEYS: Final = (
    Action(id="chat.send", title="send", effect="Ask the model.", topic="chat", keys=("enter",),
           views=_FIELD, needs_link=True, cli="skulk chat MODEL QUESTION", weight=100),
    Action(id="chat.newline", title="newline", effect="Begin a further line.", topic="chat",
           keys=("ctrl+j",), views=_FIELD, weight=90),
    Action(id="chat.stop", title="stop", effect="Stop the answers that are coming, at once.",
           topic="chat", keys=("ctrl+c",), command="stop-answer", views=("chat",),
           condition=_is_streaming, weight=95),
    Action(id="chat.model", title="model", effect="Choose who is asked.", topic="chat",
           keys=("ctrl+o",), views=("chat",), weight=85),
    Action(id="chat.page_up", title="scroll", effect="Look further up.", topic="chat",
           keys=("pageup",), views=_FIELD, weight=70),
    Action(id="chat.page_down", title="scroll down", effect="Look further down.", topic="chat",
           keys=("pagedown",), views=_FIELD),
    Action(id="chat.leave_field", title="keys", effect="Leave the field: letters are keys again.",
           topic="chat", keys=("f2", "escape"), views=_FIELD, weight=65),
    Action(id="chat.editor", title="editor", effect="Write the question in $EDITOR.",
           topic="chat", keys=("f4",), views=("chat",), weight=40),
    Action(id="chat.field", title="write", effect="Go back to the field.", topic="chat",
           keys=("i", "f2"), views=_TEXT, weight=95),
    Action(id="chat.open_command", title="story", effect="Show what nodes tell of this answer.",
           topic="chat", keys=("enter",), views=_TEXT, condition=_has_command,
           cli="skulk timeline {selection}", weight=90),
    Action(id="chat.again", title="ask again", effect="Ask the last question once more.",
           topic="chat", keys=("R",), command="again", views=_TEXT, needs_link=True, weight=80),
    Action(id="chat.copy", title="copy answer", effect="Copy the words of the answer.",
           topic="chat", keys=("ctrl+c",), views=_TEXT, condition=_is_finished),
    Action(id="chat.fold", title="fold", effect="Show reasoning and tool calls, or fold them.",
           topic="chat", keys=("o",), views=_TEXT, condition=_has_answer, weight=75),
    Action(id="chat.follow", title="follow", effect="Go to the end, and stay there.",
           topic="chat", keys=("f", "G", "end"), views=_TEXT, weight=60),
    Action(id="chat.next", title="next answer", effect="Go to the next answer.", topic="chat",
           keys=("right_square_bracket",), views=_TEXT, key_hint="[ ]", weight=50),
    Action(id="chat.previous", title="previous answer", effect="Go to the answer before.",
           topic="chat", keys=("left_square_bracket",), views=_TEXT),
)  # fmt: skip
_COMMANDS: Final = (
    Action(id="chat.new", title="new chat", effect="Begin another conversation; this one is kept.",
           topic="chat", command="new"),
    Action(id="chat.open", title="open chat", effect="Go back to an earlier conversation.",
           topic="chat", command="open", arguments=(Argument(name="title", kind="text"),)),
    Action(id="chat.rename", title="rename chat", effect="Give the conversation a name.",
           topic="chat", command="rename",
           arguments=(Argument(name="title", kind="text", is_required=True),)),
    Action(id="chat.export", title="export chat", effect="Write the conversation to a file.",
           topic="chat", command="export",
           arguments=(Argument(name="form", kind="choice", choices=("md", "json")),)),
    Action(id="chat.system", title="system", effect="Set what the model is told first, or nothing.",
           topic="chat", command="system", arguments=(Argument(name="text", kind="text"),),
           cli="skulk chat MODEL --system TEXT"),
    Action(id="chat.temperature", title="temperature", effect="Set how much chance there is.",
           topic="chat", command="temp", arguments=(Argument(name="value", kind="text"),),
           cli="skulk chat MODEL --temperature X"),
    Action(id="chat.max", title="longest answer", effect="Set how many tokens an answer may have.",
           topic="chat", command="max", arguments=(Argument(name="tokens", kind="number"),),
           cli="skulk chat MODEL --max-tokens N"),
    Action(id="chat.compare", title="compare", effect="Ask a second model the same, side by side.",
           topic="chat", command="compare", arguments=(Argument(name="model", kind="model"),)),
)  # fmt: skip
ACTIONS: Final = (*_KEYS, *_COMMANDS)
