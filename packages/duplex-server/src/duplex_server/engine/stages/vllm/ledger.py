"""What one session's request holds in the engine, position by position, and what must be fed for the next append.

Pure books, which survive the request: after an interruption, or when the engine has set the session aside, a new request is
fed all of it. Called by :mod:`.session`, with the append's embeddings already made into what the engine takes. Must never
know the engine, and never change before the engine has done what was planned: :meth:`Ledger.plan` promises, and
:meth:`Ledger.commit` keeps.

Positions count from the beginning of the request. The last token of a segment has been chosen but not computed: it is
``pending``, and is fed before the next append's own positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from duplex_core.errors import DuplexError, ErrorCode, error


class Span(NamedTuple):
    """Ready-made embeddings for ``length`` positions from ``start`` on."""

    start: int
    length: int
    item: Any


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """Positions to feed: one id each, and the spans that embeddings take the place of."""

    ids: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()

    def __len__(self) -> int:
        """How many positions."""
        return len(self.ids)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One append, checked against the context.

    Attributes:
        before: what is in the request's context already and stays, in the order fed.
        start: how many positions that is.
        feed: what the append feeds: the pending token, then its own.
        anew: whether the request begins anew, so that nothing of a live one is kept.
    """

    before: tuple[Feed, ...]
    start: int
    feed: Feed
    anew: bool

    @property
    def prompt(self) -> int:
        """Positions in the context when the append's first token is chosen."""
        return self.start + len(self.feed)


def joined(parts: Iterable[Feed]) -> Feed:
    """``parts`` one after the other, as one."""
    ids: list[int] = []
    spans: list[Span] = []
    for part in parts:
        spans.extend(span._replace(start=span.start + len(ids)) for span in part.spans)
        ids.extend(part.ids)
    return Feed(ids=tuple(ids), spans=tuple(spans))


def cut(whole: Feed, start: int, stop: int, split: Callable[[Any, int, int], Any]) -> Feed:
    """Positions ``start`` to ``stop`` of ``whole``; ``split(item, low, high)`` makes the item of a part of a span's rows."""
    spans = []
    for span in whole.spans:
        low, high = max(span.start, start), min(span.start + span.length, stop)
        if low < high:
            all_of_it = high - low == span.length
            item = span.item if all_of_it else split(span.item, low - span.start, high - span.start)
            spans.append(Span(low - start, high - low, item))
    return Feed(ids=whole.ids[start:stop], spans=tuple(spans))


class Ledger:
    """The books of one session."""

    __slots__ = ("_fed", "_limit", "context", "pending")

    def __init__(self, limit: int) -> None:
        """Begin with an empty context of at most ``limit`` positions."""
        self._limit = limit
        self._fed: list[Feed] = []
        self.context = 0
        self.pending: int | None = None

    def plan(self, feed: Feed, max_tokens: int, *, fresh: bool = False, drop_last: bool = False) -> Planned:
        """What an append of ``feed`` that chooses up to ``max_tokens`` asks of the engine; nothing has changed.

        Raises:
            DuplexError: ``context_length_exceeded``: it would not fit.
            ValueError: nothing to feed, or no token to choose: a fault of the program.
        """
        if max_tokens < 1:
            raise ValueError(f"an append must let at least one token be chosen, not {max_tokens}")
        start = 0 if fresh else self.context
        kept = self.pending is not None and not fresh and not drop_last
        if kept:
            feed = joined((Feed(ids=(self.pending or 0,)), feed))
        if not len(feed):
            raise ValueError("an append must feed at least one position: its own, or the token chosen last")
        wanted = start + len(feed) + max_tokens
        if wanted > self._limit:
            raise DuplexError(
                error(
                    ErrorCode.CONTEXT_FULL,
                    f"the context holds {start} of {self._limit} positions; {len(feed)} more and up to {max_tokens} tokens "
                    f"do not fit",
                )
            )
        return Planned(before=() if fresh else tuple(self._fed), start=start, feed=feed, anew=fresh or not start)

    @property
    def fed(self) -> Feed:
        """All that is in the context."""
        return joined(self._fed)

    def commit(self, planned: Planned, chosen: Sequence[int]) -> None:
        """The engine has fed what was planned, then chosen ``chosen``, of which it has computed all but the last."""
        if planned.anew:
            self._fed.clear()
        self._fed.append(planned.feed)
        if len(chosen) > 1:
            self._fed.append(Feed(ids=tuple(chosen[:-1])))
        self.context = planned.prompt + len(chosen) - 1
        self.pending = chosen[-1]
