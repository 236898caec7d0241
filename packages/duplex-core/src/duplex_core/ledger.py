"""The playback ledger: how much of one answer was made, sent, heard and kept, in milliseconds.

Pure values with one invariant, ``generated >= sent >= played >= committed``, which no operation can break.
"""

from __future__ import annotations

import enum

import msgspec


class CommitPolicy(enum.Enum):
    """What of a finished answer enters the history."""

    ACK_ONLY = "ack_only"
    """Only what the client acknowledged as heard."""
    COMMIT_ALL_ON_DONE = "commit_all_on_done"
    """All of it once generation is done, unless it is interrupted."""


class PlaybackLedger(msgspec.Struct, frozen=True, kw_only=True):
    """One answer's audio, in milliseconds from its beginning."""

    generated_ms: float = 0.0
    sent_ms: float = 0.0
    played_ms: float = 0.0
    committed_ms: float = 0.0

    def __post_init__(self) -> None:
        """Hold the invariant.

        Raises:
            ValueError: the four figures are out of order or negative.
        """
        if not self.generated_ms >= self.sent_ms >= self.played_ms >= self.committed_ms >= 0.0:
            raise ValueError(f"the playback ledger is out of order: {self}")

    def generate(self, ms: float) -> PlaybackLedger:
        """``ms`` more were made."""
        return msgspec.structs.replace(self, generated_ms=self.generated_ms + ms)

    def send(self, ms: float) -> PlaybackLedger:
        """``ms`` more of what was made went to the client."""
        return msgspec.structs.replace(self, sent_ms=min(self.generated_ms, self.sent_ms + ms))

    def give_out(self, ms: float) -> PlaybackLedger:
        """``ms`` more were made and went to the client at once."""
        return PlaybackLedger(
            generated_ms=self.generated_ms + ms,
            sent_ms=self.sent_ms + ms,
            played_ms=self.played_ms,
            committed_ms=self.committed_ms,
        )

    def play(self, until_ms: float) -> PlaybackLedger:
        """The client heard it up to ``until_ms``; an older or an impossible figure changes nothing beyond what is possible."""
        return msgspec.structs.replace(self, played_ms=max(self.played_ms, min(self.sent_ms, until_ms)))

    def commit(self, until_ms: float) -> PlaybackLedger:
        """What was heard up to ``until_ms`` is history."""
        return msgspec.structs.replace(self, committed_ms=max(self.committed_ms, min(self.played_ms, until_ms)))


class TextMark(msgspec.Struct, frozen=True, kw_only=True):
    """``chars`` characters of the transcript have been spoken by ``ms``."""

    chars: int
    ms: float
