"""Watches an engine's steps, in the engine's process: keeps the hidden states that were asked for, and lets a decider choose.

Owns what has been computed and chosen for each segment that asked, under the segment's own key, until it is collected. Called
by :mod:`.platform`, which knows how a model runner shows its steps; here a step is plain: which rows belong to which request and
position. Must never depend on the order or grouping of steps: a prompt may come in parts, and a request may be set aside and
computed again.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from duplex_core.workers import TokenDecider

log = logging.getLogger(__name__)


class Rows(NamedTuple):
    """What one request computes in a step: ``length`` positions from ``start`` on."""

    request: str
    start: int
    length: int


class _Record:
    """One segment that asked for something."""

    __slots__ = ("chosen", "failure", "hidden", "key", "options", "prompt", "states", "told")

    def __init__(self, key: int, prompt: int, options: dict[str, Any]) -> None:
        self.key = key
        self.prompt = prompt
        self.hidden: bool = options["hidden"]
        self.options: dict[str, Any] | None = options["decider"]
        self.states: list[tuple[int, torch.Tensor]] = []
        self.chosen: list[int] = []
        self.told: list[Any] = []
        self.failure = ""


class Tap:
    """The segments of one engine process."""

    def __init__(self) -> None:
        self._decider: TokenDecider | None = None
        self._records: dict[str, _Record] = {}
        self._ends: dict[int, int] = {}
        self._keys: dict[int, _Record] = {}
        self._streams: dict[int, str] = {}

    def install(self, decider: str) -> None:
        """Make the decider from its import path ``package.module:Class``, if there is one.

        Raises:
            ImportError, AttributeError: it names nothing.
        """
        if decider:
            module, _, name = decider.partition(":")
            self._decider = getattr(importlib.import_module(module), name)()

    def begin(self, request: str, prompt: int, options: dict[str, Any] | None) -> None:
        """A segment of ``request`` is in the engine from now on, whose first token is chosen after ``prompt`` positions.

        ``options`` say what it asks for (``hidden``, ``decider``), under which ``key``, and whose ``stream`` it is, which is told
        at least once; ``None`` asks for nothing.
        """
        old = self._records.get(request)
        if options is not None and old is not None and old.key == options["key"]:
            return  # set aside, and computed again
        self._forget(request)
        if options is None:
            return
        self._streams[options["stream"]] = request
        if not options["hidden"] and options["decider"] is None:
            return
        record = _Record(options["key"], prompt, options)
        self._records[request] = record
        self._keys[record.key] = record

    def end(self, requests: Iterable[str]) -> None:
        """These requests are over."""
        over = set(requests)
        for request in over:
            self._forget(request)
        if over:
            self._streams = {stream: request for stream, request in self._streams.items() if request not in over}

    def request(self, stream: int) -> str | None:
        """Which request of the engine a stream's is."""
        return self._streams.get(stream)

    def _forget(self, request: str) -> None:
        """What a request asked for is over."""
        record = self._records.pop(request, None)
        if record is not None:
            self._keys.pop(record.key, None)
            self._ends.pop(record.key, None)

    def before_step(self, rows: Iterable[Rows]) -> None:
        """A step is about to compute ``rows``."""
        for request, start, length in rows:
            record = self._records.get(request)
            if record is not None:
                self._ends[record.key] = start + length

    def after_step(self, rows: Iterable[Rows], hidden: torch.Tensor) -> None:
        """It has: ``hidden`` is ``[positions, hidden]``, the rows' positions one after the other."""
        offset = 0
        for request, start, length in rows:
            record = self._records.get(request)
            if record is not None and record.hidden:
                record.states.append((start, hidden[offset : offset + length].clone()))
            offset += length

    def decides(self, options: dict[str, Any] | None) -> bool:
        """Whether a segment with these options has its tokens chosen by the decider."""
        return options is not None and options["decider"] is not None

    def decide(self, key: int, logits: torch.Tensor) -> int | None:
        """The token to choose for a segment from ``logits`` ``[vocabulary]``; ``None``: the step chooses none for it."""
        record = self._keys.get(key)
        if record is None or record.options is None:
            return None
        index = self._ends.get(key, 0) - record.prompt
        if index < 0:
            return None  # a part of the prompt
        if index < len(record.chosen):
            return record.chosen[index]
        token, told = self._ask(record, logits)
        record.chosen.append(token)
        record.told.append(told)
        return token

    def _ask(self, record: _Record, logits: torch.Tensor) -> tuple[int, Any]:
        """Call the decider; its fault is the segment's, and chooses an arbitrary token so that the others' step goes on."""
        if self._decider is None:
            record.failure = "a segment names a decider, but the settings have none"
            return 0, None
        try:
            token, told = self._decider.decide(logits, tuple(record.chosen), tuple(record.told), record.options or {})
        except Exception as exc:
            log.exception("the token decider failed")
            record.failure = f"the token decider failed: {type(exc).__name__}: {exc}"
            return 0, None
        if not 0 <= token < logits.shape[-1]:
            record.failure = f"the token decider chose {token}, which is not in the vocabulary"
            return 0, None
        return int(token), told

    def collect(self, key: int, first: int, count: int) -> tuple[list[int], bytes, list[Any], str]:
        """The shape and bytes of a segment's hidden states as float32, what was told, and what failed, or nothing.

        The states are those at ``count`` positions from ``first`` on. The shape is empty when not every one of these has been
        computed since the segment began.
        """
        record = self._keys.get(key)
        if record is None:
            return [], b"", [], ""
        states = _assembled(record.states, first, count) if record.hidden else None
        record.states = []
        if states is None:
            return [], b"", record.told, record.failure
        return list(states.shape), states.numpy().tobytes(), record.told, record.failure


def _assembled(parts: list[tuple[int, torch.Tensor]], first: int, count: int) -> torch.Tensor | None:
    """The rows at ``count`` positions from ``first`` on, on the CPU; the latest where there are several."""
    if not parts:
        return None
    whole = torch.zeros((count, parts[0][1].shape[-1]), dtype=torch.float32)
    seen = torch.zeros(count, dtype=torch.bool)
    for start, rows in parts:
        low, high = max(start, first), min(start + len(rows), first + count)
        if low < high:
            whole[low - first : high - first] = rows[low - start : high - start].float().cpu()
            seen[low - first : high - first] = True
    return whole if bool(seen.all()) else None
