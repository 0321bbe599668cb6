"""Which pieces of a file are asked for, which have come, and which were lost on the way.

Pure. Payloads of one plane between two nodes keep their order, and a peer answers in the order it
is asked: a piece that was asked for before one that has come, and has not come itself, is lost.
"""

from typing import Final, Literal, final

Arrival = Literal["taken", "duplicate", "unasked"]

TAKE_BYTES: Final = 4 << 20
"""At most so much is handed on at once, so that the rest of the window stays on its way."""


@final
class RangeWindow:
    """The pieces of one file, from an offset to its end.

    Args:
        offset: The first byte that is wanted.
        end: Behind the last one.
        range_bytes: Of one piece; the last one may be shorter.
        window_bytes: At most so much is asked for, or has come and is not taken.
    """

    def __init__(self, offset: int, end: int, *, range_bytes: int, window_bytes: int) -> None:
        self._taken_to = offset
        self._asked_to = offset
        self._end = end
        self._range_bytes = range_bytes
        self._window_bytes = window_bytes
        self._n_asked = 0
        self._asked: dict[int, int] = {}
        """When each piece that is awaited was asked for, as a count of questions."""
        self._lost: list[int] = []
        self._arrived: dict[int, memoryview] = {}

    @property
    def is_done(self) -> bool:
        """Whether everything has been taken."""
        return self._taken_to >= self._end

    def to_ask(self) -> tuple[int, int] | None:
        """Give the next piece to ask for, as offset and length; None when that is enough now."""
        if self._lost:
            return self._piece(self._lost[0])
        if self._asked_to >= self._end or self._asked_to - self._taken_to >= self._window_bytes:
            return None
        return self._piece(self._asked_to)

    def on_asked(self, offset: int) -> None:
        """Note that the piece that `to_ask` gave was asked for."""
        self._asked[offset] = self._n_asked
        self._n_asked += 1
        if self._lost and self._lost[0] == offset:
            del self._lost[0]
        else:
            self._asked_to = offset + self._piece(offset)[1]

    def on_content(self, offset: int, content: memoryview) -> Arrival:
        """Take in a piece.

        Returns:
            `unasked` for one that nobody can have asked for: its sender is not to be believed.
        """
        if offset < self._taken_to or offset in self._arrived:
            return "duplicate"
        number = self._asked.pop(offset, None)
        is_awaited = number is not None or offset in self._lost
        if not is_awaited or len(content) != self._piece(offset)[1]:
            return "unasked"
        self._arrived[offset] = content
        if number is None:
            # It was late, not lost.
            self._lost.remove(offset)
        else:
            self._lose(before=number)
        return "taken"

    def on_silence(self) -> None:
        """Give up all that is awaited, to be asked for again."""
        self._lose(before=self._n_asked)

    def take(self) -> tuple[memoryview, ...]:
        """Hand on what has come without a gap, at most `TAKE_BYTES`."""
        contents: list[memoryview] = []
        n_bytes = 0
        while n_bytes < TAKE_BYTES and (content := self._arrived.pop(self._taken_to, None)):
            contents.append(content)
            self._taken_to += len(content)
            n_bytes += len(content)
        return tuple(contents)

    def _piece(self, offset: int) -> tuple[int, int]:
        return offset, min(self._range_bytes, self._end - offset)

    def _lose(self, *, before: int) -> None:
        lost = [offset for offset, number in self._asked.items() if number < before]
        for offset in lost:
            del self._asked[offset]
        if lost:
            self._lost = sorted({*self._lost, *lost})
