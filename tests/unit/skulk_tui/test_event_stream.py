"""Lines to server-sent events."""

from skulk_tui.event_stream import ServerEvent, events_in


def read(text: str) -> list[ServerEvent]:
    return [event for event in events_in(text.split("\n")) if event is not None]


def test_an_event_is_complete_at_its_empty_line() -> None:
    assert read("id: 7\nevent: lines\ndata: {}\n\nevent: lines\ndata: half") == [
        ServerEvent(event="lines", data="{}", id="7")
    ]


def test_data_of_several_lines_is_joined_and_a_space_after_the_colon_is_dropped() -> None:
    assert read("data:a\ndata:  b\n\n") == [ServerEvent(event="message", data="a\n b")]


def test_comments_and_unknown_fields_are_no_event_and_say_that_time_passes() -> None:
    assert list(events_in([": keep-alive", "retry: 5"])) == [None, None]
    assert read(": comment\n\nretry: 5\n\n") == []


def test_a_position_belongs_to_its_own_event() -> None:
    first, second = read("id: 7\ndata: a\n\ndata: b\n\n")
    assert (first.id, second.id) == ("7", None)
