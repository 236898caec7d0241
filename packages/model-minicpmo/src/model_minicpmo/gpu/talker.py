"""The talker's slots: it says units of text as audio codes, several speakers in one batched step.

Owns: which slot is at which position, what each is saying, and the order of steps. Called by: the worker of the talker's stage,
which begins utterances and calls `step` until they end, and by tests.
Never: opens a file, draws a random number by itself (the uniforms come with the utterance), or knows what a session is.

A slot's keys and values live as long as its turn: a unit continues where the last one of the turn ended. The last code sampled in
a unit is never fed and never returned: it is the end code, or the one over the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from model_minicpmo.gpu.sampling import (
    CHAT_SAMPLING,
    DUPLEX_SAMPLING,
    CodeSampling,
    code_probabilities,
    draw,
    most_probable,
)
from model_minicpmo.gpu.talker_model import TalkerModel

UNIT_STEPS = 26
CHAT_STEPS = 2048
CHAT_MIN_CODES = 50
INTERLEAVED_WORDS = 10
# Up to this many rows of condition are filled up to a common width and go through the backbone together.
_COMMON_WIDTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """How many codes an utterance may have.

    Attributes:
        min_codes: the end code may not be drawn before so many codes.
        max_steps: so many codes are sampled at most; one fewer is returned.
    """

    min_codes: int
    max_steps: int

    def __post_init__(self) -> None:
        if self.min_codes < 0 or self.max_steps < 1:
            message = f"min_codes {self.min_codes} and max_steps {self.max_steps} have to be at least 0 and 1"
            raise ValueError(message)


def unit_limits(*, opens_turn: bool, closes_turn: bool) -> CodeLimits:
    """Say how many codes one duplex unit of 1 s has.

    25 codes are a second. At its first and its last unit a turn may have fewer; within it the end code is banned.
    """
    return CodeLimits(min_codes=0 if opens_turn or closes_turn else UNIT_STEPS, max_steps=UNIT_STEPS)


def chat_limits(*, interleaved: bool = False) -> CodeLimits:
    """Say how many codes an answer in chat has: at least 50 and at most 2047, without a minimum when text is interleaved."""
    return CodeLimits(min_codes=0 if interleaved else CHAT_MIN_CODES, max_steps=CHAT_STEPS)


def chat_parts(words: int, *, interleaved: bool) -> list[tuple[slice, bool]]:
    """Say in which utterances an answer in chat is spoken, one after the other in one turn.

    Args:
        words: how many text ids the answer has.
        interleaved: whether text and audio take turns (`tts_config.interleaved`): 10 text ids, their audio, and so on.

    Returns:
        Which ids an utterance has, and whether it carries the mark for the end of the text: the last one does.
    """
    width = INTERLEAVED_WORDS if interleaved else max(words, 1)
    starts = range(0, max(words, 1), width)
    return [(slice(start, min(start + width, words)), start == starts[-1]) for start in starts]


def seeded_uniforms(seed: int) -> Callable[[], float]:
    """Give a source of uniform numbers in [0, 1) that a seed fixes."""
    return np.random.default_rng(seed).random


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """What a slot is to say next.

    Attributes:
        slot: whose turn it continues, 0 up to the talker's slots.
        ids: the text ids that are spoken, [n]; may be empty.
        hidden: the language model's last layer at these ids, [n, llm_dim].
        limits: how many codes.
        sampling: the rule of sampling.
        uniform: gives one number in [0, 1) a step; None takes the most probable code each time.
        text_ends: whether the condition carries the mark for the end of the text (chat).
        closes_turn: whether the slot forgets its keys and values once this is said.
        keep_logits: whether the result is to carry the condition and the logits of every step, for tests.
    """

    slot: int
    ids: Tensor
    hidden: Tensor
    limits: CodeLimits
    sampling: CodeSampling = DUPLEX_SAMPLING
    uniform: Callable[[], float] | None = None
    text_ends: bool = False
    closes_turn: bool = False
    keep_logits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """What came of an utterance.

    Attributes:
        slot: whose it is.
        codes: the audio codes to be played, 25 a second; the last sampled one is not among them.
        last: the last sampled one: the end code, or the one over the limit.
        ended: whether the end code was drawn.
        start: the position of its first row.
        length: the slot's positions afterwards; 0 after a turn was closed.
        forgot: whether the slot was full, and the turn's earlier keys and values were let go before it began.
        condition: the condition's rows [n, hidden], if asked for.
        logits: raw logits [steps, codes], if asked for.
    """

    slot: int
    codes: tuple[int, ...]
    last: int
    ended: bool
    start: int
    length: int
    forgot: bool
    condition: Tensor | None
    logits: Tensor | None


@dataclass(slots=True, kw_only=True)
class _Saying:
    """An utterance under way."""

    utterance: Utterance
    condition: Tensor
    start: int
    forgot: bool
    max_steps: int
    codes: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)

    @property
    def slot(self) -> int:
        return self.utterance.slot


class TalkerBusyError(RuntimeError):
    """The slot is still saying something."""


class Talker:
    """The slots of one talker model.

    `begin` puts utterances in, `step` samples one code for each one under way and gives those that are done; `cancel` and
    `close_turn` clear a slot. Results do not depend on which slots speak at the same time.
    """

    def __init__(self, model: TalkerModel, *, slots: int, positions: int | None = None) -> None:
        """Make the slots.

        Args:
            model: the model.
            slots: how many speakers at most.
            positions: how long a turn's memory is, in positions (about 44 a second of speech, text included); by default
                what the model was made for. A turn that grows beyond it goes on without its earlier part.
        """
        self.model = model
        self.positions = positions or model.config.max_position_embeddings
        if self.positions < 2 * _COMMON_WIDTH:
            message = f"positions is {self.positions}; a talker's slot needs at least {2 * _COMMON_WIDTH}"
            raise ValueError(message)
        self._cache = model.new_cache(slots=slots, positions=self.positions + _COMMON_WIDTH)
        self._lengths = [0] * slots
        self._new: dict[int, _Saying] = {}
        self._running: dict[int, _Saying] = {}

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self._lengths)

    @property
    def busy(self) -> frozenset[int]:
        """The slots that are saying something."""
        return frozenset(self._new) | frozenset(self._running)

    def length(self, slot: int) -> int:
        """How many positions of its turn a slot remembers; 0 when no turn is open."""
        return self._lengths[slot]

    @torch.inference_mode()
    def begin(self, utterance: Utterance) -> None:
        """Take an utterance; `step` begins it.

        Raises:
            TalkerBusyError: the slot has not ended its last one.
            ValueError: there is no such slot, ids and hidden states do not match or are no numbers, or the text alone is longer
                than a slot.
        """
        slot = utterance.slot
        if not 0 <= slot < self.slots:
            message = f"there is no slot {slot}: this talker has {self.slots}, counted from 0"
            raise ValueError(message)
        if slot in self._new or slot in self._running:
            message = f"slot {slot} is still speaking: let it end or cancel it before the next utterance"
            raise TalkerBusyError(message)
        condition = self.model.condition(utterance.ids, utterance.hidden, text_ends=utterance.text_ends)
        if not bool(torch.isfinite(condition).all()):
            # In the cache they would outlive their turn: whoever has the slot next masks them, and of those the sum is none.
            message = "the hidden states at the words to be spoken hold values that are no numbers"
            raise ValueError(message)
        rows, start = condition.shape[0], self._lengths[slot]
        forgot = start > 0 and start + rows + utterance.limits.max_steps > self.positions
        if forgot:
            start = 0
        if start + rows >= self.positions:
            message = f"an utterance of {rows} positions does not fit into a talker's slot of {self.positions}; speak it in parts"
            raise ValueError(message)
        self._new[slot] = _Saying(
            utterance=utterance,
            condition=condition,
            start=start,
            forgot=forgot,
            max_steps=min(utterance.limits.max_steps, self.positions - start - rows),
        )

    @torch.inference_mode()
    def step(self) -> list[Spoken]:
        """Sample one code for every slot that is saying something.

        Returns:
            The utterances that ended by it; empty when none did, or nothing is under way.
        """
        if not self.busy:
            return []
        states = self._advanced(self._running) | self._opened()
        self._running |= self._new
        self._new = {}
        slots = sorted(states)
        sayings = [self._running[slot] for slot in slots]
        logits = self.model.code_logits(torch.stack([states[slot] for slot in slots])).float()
        for saying, code, row in zip(sayings, self._sampled(sayings, logits), logits, strict=True):
            saying.codes.append(code)
            if saying.utterance.keep_logits:
                saying.logits.append(row.cpu())
        ended = [saying for saying in sayings if self._has_ended(saying)]
        return [self._end(saying) for saying in ended]

    def say(self, utterances: Sequence[Utterance]) -> list[Spoken]:
        """Say some utterances to their ends, side by side, and give them in order. For callers with nothing else under way."""
        for utterance in utterances:
            self.begin(utterance)
        done: dict[int, Spoken] = {}
        while self.busy:
            done |= {spoken.slot: spoken for spoken in self.step()}
        return [done[utterance.slot] for utterance in utterances]

    def cancel(self, slot: int) -> None:
        """Stop what a slot is saying, if anything, and forget its turn."""
        self._new.pop(slot, None)
        self._running.pop(slot, None)
        self._lengths[slot] = 0

    def close_turn(self, slot: int) -> None:
        """Forget a slot's turn: its next utterance opens one.

        Raises:
            TalkerBusyError: the slot is speaking; `cancel` stops it.
        """
        if slot in self.busy:
            message = f"slot {slot} is still speaking: let it end or cancel it"
            raise TalkerBusyError(message)
        self._lengths[slot] = 0

    def _opened(self) -> dict[int, Tensor]:
        """Put the conditions of new utterances through the backbone; give each one's last state."""
        narrow = [saying for saying in self._new.values() if saying.condition.shape[0] <= _COMMON_WIDTH]
        groups = [[saying] for saying in self._new.values() if saying.condition.shape[0] > _COMMON_WIDTH]
        if narrow:
            groups.append(sorted(narrow, key=lambda saying: saying.slot))
        states: dict[int, Tensor] = {}
        for group in groups:
            rows = torch.nn.utils.rnn.pad_sequence([saying.condition for saying in group], batch_first=True)
            hidden = self.model.model(
                rows, self._cache, [saying.slot for saying in group], [saying.start for saying in group]
            )
            for saying, row in zip(group, hidden, strict=True):
                states[saying.slot] = row[saying.condition.shape[0] - 1]
                self._lengths[saying.slot] = saying.start + saying.condition.shape[0]
        return states

    def _advanced(self, running: dict[int, _Saying]) -> dict[int, Tensor]:
        """Feed each utterance under way its last code; give each one's state."""
        if not running:
            return {}
        slots = sorted(running)
        rows = self.model.code_rows([running[slot].codes[-1] for slot in slots])[:, None]
        hidden = self.model.model(rows, self._cache, slots, [self._lengths[slot] for slot in slots])
        for slot in slots:
            self._lengths[slot] += 1
        return {slot: row[0] for slot, row in zip(slots, hidden, strict=True)}

    def _sampled(self, sayings: list[_Saying], logits: Tensor) -> list[int]:
        probabilities = code_probabilities(
            logits,
            [saying.codes for saying in sayings],
            [saying.utterance.sampling for saying in sayings],
            banned=[len(saying.codes) < saying.utterance.limits.min_codes for saying in sayings],
            end_code=self.model.end_code,
        )
        codes = most_probable(probabilities)
        sampled = [index for index, saying in enumerate(sayings) if saying.utterance.uniform is not None]
        if sampled:
            uniforms = [saying.utterance.uniform() for saying in sayings if saying.utterance.uniform is not None]
            codes[sampled] = draw(probabilities[sampled], uniforms)
        chosen: list[int] = codes.tolist()
        return chosen

    def _has_ended(self, saying: _Saying) -> bool:
        return saying.codes[-1] == self.model.end_code or len(saying.codes) >= saying.max_steps

    def _end(self, saying: _Saying) -> Spoken:
        utterance = saying.utterance
        del self._running[saying.slot]
        if utterance.closes_turn:
            self._lengths[saying.slot] = 0
        return Spoken(
            slot=saying.slot,
            codes=tuple(saying.codes[:-1]),
            last=saying.codes[-1],
            ended=saying.codes[-1] == self.model.end_code,
            start=saying.start,
            length=self._lengths[saying.slot],
            forgot=saying.forgot,
            condition=saying.condition.float().cpu() if utterance.keep_logits else None,
            logits=torch.stack(saying.logits) if utterance.keep_logits else None,
        )


__all__ = [
    "CHAT_SAMPLING",
    "DUPLEX_SAMPLING",
    "CodeLimits",
    "CodeSampling",
    "Spoken",
    "Talker",
    "TalkerBusyError",
    "Utterance",
    "chat_limits",
    "chat_parts",
    "seeded_uniforms",
    "unit_limits",
]
