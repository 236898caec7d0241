"""Events out of lines."""

from __future__ import annotations

from model_cascade.parts.server_sent_events import EventReader


def read(*lines: str) -> list[str]:
    reader = EventReader()
    found = [reader.feed(line) for line in lines]
    return [data for data in [*found, reader.finish()] if data is not None]


def test_each_empty_line_ends_an_event() -> None:
    assert read("data: one", "", "data:two", "", "") == ["one", "two"]


def test_lines_of_one_event_are_joined_and_one_space_is_dropped() -> None:
    assert read("data: a", "data:  b", "data", "") == ["a\n b\n"]


def test_comments_and_other_fields_are_no_data() -> None:
    assert read(": ping", "", "event: x", "id: 3", "data: y", "retry: 5", "", "colon-less") == ["y"]


def test_a_last_event_counts_without_its_empty_line() -> None:
    assert read("data: end") == ["end"]
