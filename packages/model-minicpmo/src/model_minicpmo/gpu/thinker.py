"""The thinker: what the language model is fed for each unit, and what is made of the tokens that it chooses.

Owns: the layout of the context, the bookkeeping of units in it, and the window's moves. Called by: the vLLM runtime, in the
worker process; by tests over another language model. Never: computes with weights, or chooses a token (`decider.py`).

The layout is the published one: prompt, reference voice, then for each unit `<unit>`, pictures, ten embeddings of sound, what was
decided, `</unit>`. What ends a unit is fed with the next one, which is the same to the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

import msgspec
import numpy as np

from duplex_core.errors import ErrorCode, ErrorInfo, error, refuse
from duplex_core.stages import Forward, LinkKind
from duplex_core.tensors import Tensor
from duplex_core.torch_tensors import as_torch, of_torch
from duplex_core.workers import Append, Emit, EngineSettings, ProgramStep, Sampling, Segment
from model_minicpmo.gpu.chatting import answer
from model_minicpmo.gpu.decider import UnitOrders
from model_minicpmo.gpu.described import DescriptionFolder
from model_minicpmo.gpu.hub import checkpoint_folder
from model_minicpmo.gpu.language import ARCHITECTURE, ARCHITECTURE_NAME, write_description
from model_minicpmo.gpu.layout import Feed, Layout
from model_minicpmo.payloads import ChatSensed, Decided, Opened, Options, Orders, Picture, Said, Sensed, at_temperature
from model_minicpmo.rules.limit import ends_turn
from model_minicpmo.rules.window import Span, Window, WindowPolicy, fits, move

PREVIOUS = "\n\nprevious: "
"""What stands before the words of dropped units in the prompt."""
CLOSING = 4
"""Positions that the end of a unit takes beside its words: of its turn, of what was decided, of the unit, and one to move."""
EMPTY_UNIT = 11
"""Positions of a unit in which nothing is but sound."""
_ONE = Sampling(max_tokens=1)
"""For appends whose token is dropped: an engine that is fed has to choose one."""

Steps = Generator[ProgramStep, Segment | None, None]


class Thinker:
    """The stage's program (:class:`duplex_core.workers.EngineProgram`)."""

    def __init__(self, *, checkpoint: str, engine: dict[str, Any]) -> None:
        """Read what the layout needs of a checkpoint: a folder, or a name on the hub; `engine` is an `EngineSettings`' fields.

        Raises:
            CheckpointError: it is not there, or its tokens are not what the layout needs.
        """
        self._folder = checkpoint_folder(checkpoint)
        self._engine = engine
        self._layout = Layout(self._folder)
        self._described: DescriptionFolder | None = None

    def settings(self) -> EngineSettings:
        """Give the engine that the language model runs on: the checkpoint's weights, described as a Qwen3.

        Raises:
            CheckpointError: the checkpoint's configuration is missing or broken.
        """
        self._described = DescriptionFolder()
        write_description(self._folder, self._described.path)
        engine_args = {"hf_config_path": str(self._described.path), **self._engine.get("engine_args", {})}
        return EngineSettings(
            model=str(self._folder),
            architecture=ARCHITECTURE,
            architecture_name=ARCHITECTURE_NAME,
            embeddings=True,
            decider="model_minicpmo.gpu.decider:UnitDecider",
            **{**self._engine, "engine_args": engine_args},
        )

    def open(self, session_id: str) -> ThinkerSession:
        """Begin a conversation."""
        return ThinkerSession(self._layout, int(self._engine["max_model_len"]))

    def close(self) -> None:
        """Take the description away."""
        if self._described is not None:
            self._described.close()


class ThinkerSession:
    """One conversation's context (:class:`duplex_core.workers.EngineSession`)."""

    def __init__(self, layout: Layout, limit: int) -> None:
        self._layout = layout
        self._limit = limit
        self._header = len(layout.encode(PREVIOUS))
        self._options = Options()
        self._history: deque[int] = deque()
        self._prefix = 0
        self._suffix: tuple[int, ...] = ()
        self._units: list[Span] = []
        self._dropped = 0
        self._previous: tuple[int, ...] = ()
        self._context = 0
        self._tail: tuple[int, ...] = ()
        self._drop_last = False
        self._turn_open = False

    def run(self, payload: Any) -> Steps:
        """Work on one request: the opening, a unit, or a chat."""
        match payload:
            case Opened():
                yield from self._open(payload)
            case Sensed():
                yield from self._unit(payload)
            case ChatSensed():
                yield from answer(self._layout, payload, self._limit)
            case _:
                raise TypeError(f"the thinker was given {type(payload).__name__}")

    # -- the opening --------------------------------------------------------------------------------------------------

    def _open(self, opened: Opened) -> Steps:
        tokens = self._layout.tokens
        self._options = opened.options
        self._history = deque(maxlen=opened.options.repetition_window)
        feed = Feed(tokens.unknown)
        feed.tokens(*self._layout.encode(f"<|im_start|>system\n{opened.prompt}"))
        if opened.reference is not None:
            feed.tokens(*self._layout.encode("\n"), tokens.audio_start).embeddings(opened.reference)
            self._suffix = (tokens.audio_end, tokens.message_end)
        else:
            self._suffix = (tokens.message_end,)
        self._prefix = len(feed.ids)
        feed.tokens(*self._suffix)
        if not fits(window := self._window(EMPTY_UNIT)):
            message = (
                f"the prompt and the voice take {window.fixed} positions, and the context has {window.limit}, which leaves no "
                "room for a second of sound; write a shorter prompt"
            )
            raise refuse(ErrorCode.CONTEXT_FULL, message)
        yield from self._fed(feed.append(_ONE, fresh=True))
        self._drop_last = True

    # -- a unit -------------------------------------------------------------------------------------------------------

    def _unit(self, sensed: Sensed) -> Steps:
        orders, tokens = sensed.orders, self._layout.tokens
        text = self._layout.encode(orders.text) if orders.text else []
        pictures, faults = self._seen(sensed, len(text))
        yield from self._move_window(self._window(_positions(len(text), pictures, sensed.audio)))
        feed = Feed(tokens.unknown).tokens(*self._tail)
        start = self._end
        feed.tokens(tokens.unit_start, *text)
        for picture in pictures:
            feed.tokens(tokens.image_start).embeddings(picture.whole).tokens(tokens.image_end)
            for each in picture.slices:
                feed.tokens(tokens.slice_start).embeddings(each).tokens(tokens.slice_end)
        feed.embeddings(sensed.audio)
        before = self._turn_open
        said: Said | None
        words: tuple[int, ...] = ()
        if orders.forced:
            yield from self._listen(feed, orders)
            decided = Decided(number=orders.number, listens=True, ends_turn=before and orders.ends_turn)
            said = self._abandoned(orders) if decided.ends_turn else None
        else:
            segment = yield from self._fed(feed.append(self._sampling(orders), hidden=True, drop_last=self._drop_last))
            self._drop_last, self._tail = False, (tokens.unit_end,)
            words = segment.ids[1:-1] if segment.ids[-1] == tokens.chunk_eos else ()
            decided = self._decided(orders, segment, words)
            if not decided.listens and self._turn_open and ends_turn(orders.most_tokens, decided.tokens):
                decided = self._cut_off(decided)
            said = None if decided.listens else self._said(orders, segment, words, was_open=before)
            self._history.extend(segment.told)
        self._units.append(Span(number=orders.number, start=start, length=0, words=self._spoken(words)))
        told = {"context": self._context, "dropped_units": self._dropped, "faults": (*sensed.faults, *faults)}
        yield Emit(payload=msgspec.structs.replace(decided, **told))
        yield Emit(payload=Forward(kind=LinkKind.HIDDEN_STATES, payload=said))

    def _seen(self, sensed: Sensed, words: int) -> tuple[tuple[Picture, ...], tuple[ErrorInfo, ...]]:
        """The pictures of a unit that can be taken in, of a camera's the latest that ever fit; and why others are not.

        Raises:
            DuplexError: `invalid_value`: somebody waits for what is in the unit, and it fits into no context.
        """
        pictures = sensed.pictures
        message = ""
        while not fits(window := self._window(_positions(words, pictures, sensed.audio))):
            message = message or (
                f"what is given at once takes {window.room} positions, and the context has {window.limit}, of which the "
                f"prompt takes {window.fixed}; write less, or give fewer or smaller pictures"
            )
            if sensed.orders.waited_for or not pictures:
                raise refuse(ErrorCode.INVALID_VALUE, message)
            pictures = pictures[1:]
        if not message:
            return pictures, ()
        left_out = f"{len(sensed.pictures) - len(pictures)} of {len(sensed.pictures)} pictures left out: {message}"
        return pictures, (error(ErrorCode.INVALID_VALUE, left_out),)

    def _listen(self, feed: Feed, orders: Orders) -> Steps:
        """Take a unit in without deciding on it; a turn that was interrupted is closed in it."""
        tokens = self._layout.tokens
        yield from self._fed(feed.append(_ONE, drop_last=self._drop_last))
        closes = self._turn_open and orders.ends_turn
        self._tail = (*((tokens.turn_eos,) if closes else ()), tokens.listen, tokens.unit_end)
        self._drop_last = True
        if closes:
            self._turn_open = False

    def _abandoned(self, orders: Orders) -> Said:
        return Said(number=orders.number, ids=(), hidden=None, abandoned=True, options=self._options)

    def _sampling(self, orders: Orders) -> Sampling:
        tokens, options = self._layout.tokens, self._options
        if orders.temperature is not None:
            options = at_temperature(options, orders.temperature)
        draws = orders.draws.llm if orders.draws is not None else self._uniforms(orders.number)
        asks = UnitOrders(
            checkpoint=str(self._layout.folder),
            options=options,
            history=tuple(self._history),
            uniforms=draws,
            turn_open=self._turn_open,
            asked=orders.asked,
            most_tokens=orders.most_tokens,
        )
        return Sampling(
            max_tokens=options.max_tokens,
            stop_token_ids=(tokens.chunk_eos, tokens.listen),
            decider=msgspec.to_builtins(asks),
        )

    def _uniforms(self, number: int) -> tuple[float, ...]:
        """Two numbers a token, which the session's seed and the unit's number fix."""
        drawn = np.random.default_rng((self._options.seed, number)).random(2 * self._options.max_tokens)
        return tuple(drawn.tolist())

    def _decided(self, orders: Orders, segment: Segment, words: tuple[int, ...]) -> Decided:
        tokens = self._layout.tokens
        if segment.ids[-1] == tokens.listen:
            return Decided(number=orders.number, listens=True, ids=segment.ids)
        spoken = [word for word in words if word != tokens.turn_eos]
        self._turn_open = not words or words[-1] != tokens.turn_eos
        return Decided(
            number=orders.number,
            listens=False,
            text=self._layout.decode(spoken),
            tokens=len(self._spoken(words)),
            ends_turn=not self._turn_open,
            ids=segment.ids,
        )

    def _cut_off(self, decided: Decided) -> Decided:
        """Close the turn behind the last token that it may have, as the model closes one: all of it is voiced to its end."""
        tokens = self._layout.tokens
        self._turn_open = False
        self._drop_last, self._tail = True, (tokens.turn_eos, tokens.chunk_eos, tokens.unit_end)
        return msgspec.structs.replace(decided, ends_turn=True, cut=True)

    def _said(self, orders: Orders, segment: Segment, words: tuple[int, ...], *, was_open: bool) -> Said:
        """What the talker is told: the unit's words with the hidden states at them, the first token left out."""
        assert segment.hidden is not None, "a unit asks for hidden states"
        rows = as_torch(segment.hidden)
        first = segment.fed - (len(segment.ids) - 1) + 1
        hidden = rows[first : first + len(words)]
        return Said(
            number=orders.number,
            ids=words,
            hidden=of_torch(hidden.clone()),
            opens_turn=not was_open,
            ends_turn=not self._turn_open,
            options=self._options,
            draws=orders.draws,
        )

    def _spoken(self, words: tuple[int, ...]) -> tuple[int, ...]:
        """The words of a unit without special tokens: what is remembered when the unit is dropped."""
        return tuple(word for word in words if word not in self._layout.special)

    # -- the window ---------------------------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        """Positions in the context once what ends the last unit has been fed."""
        return self._context + len(self._tail) + (0 if self._drop_last else 1)

    def _window(self, positions: int) -> Window:
        """What the window's policy goes by, before a unit of so many positions is fed."""
        options = self._options
        return Window(
            policy=WindowPolicy(options.window),
            high_tokens=options.high_tokens,
            low_tokens=options.low_tokens,
            context_units=options.context_units,
            previous_tokens=options.previous_tokens,
            previous=self._previous,
            limit=self._limit,
            room=positions + options.max_tokens + CLOSING,
            fixed=self._prefix + len(self._suffix),
            header=self._header,
        )

    def _move_window(self, window: Window) -> Steps:
        end = self._end
        spans = self._measured(end)
        step = move(spans, end, window)
        if step is None:
            return
        # What ends the last unit is computed where it stands, before anything moves.
        if self._tail or not self._drop_last:
            yield from self._fed(
                Feed(self._layout.tokens.unknown).tokens(*self._tail).append(_ONE, drop_last=self._drop_last)
            )
        self._tail, self._drop_last = (), True
        yield from self._keep(0, self._prefix, fresh=True)
        middle = self._suffix
        if step.previous:
            middle = (*self._layout.encode(PREVIOUS), *step.previous, *self._suffix)
        yield from self._fed(Feed(self._layout.tokens.unknown).tokens(*middle).append(_ONE, drop_last=True))
        kept = spans[step.drop :]
        if kept:
            shift = kept[0].start - self._context
            yield from self._keep(kept[0].start, end)
            kept = [msgspec.structs.replace(span, start=span.start - shift) for span in kept]
        self._units = kept
        self._dropped += step.drop
        self._previous = step.previous

    def _keep(self, start: int, stop: int, *, fresh: bool = False) -> Steps:
        ids = [self._layout.tokens.unknown] * (stop - start)
        yield from self._fed(Append(ids=ids, sampling=_ONE, kept=(start, stop), fresh=fresh, drop_last=True))

    def _measured(self, end: int) -> list[Span]:
        """The units with their lengths: each reaches to the next one's beginning."""
        stops = [*(span.start for span in self._units), end][1:]
        return [
            msgspec.structs.replace(span, length=stop - span.start)
            for span, stop in zip(self._units, stops, strict=True)
        ]

    # -- the engine ---------------------------------------------------------------------------------------------------

    def _fed(self, append: Append) -> Generator[ProgramStep, Segment | None, Segment]:
        segment = yield append
        assert segment is not None, "an append is answered with a segment"
        self._context = segment.context
        return segment


def _positions(words: int, pictures: Sequence[Picture], audio: Tensor) -> int:
    """How many positions a unit is fed with: its beginning, its words, its pictures with what stands around them, its sound."""
    views = [view for picture in pictures for view in (picture.whole, *picture.slices)]
    return 1 + words + sum(view.shape[0] + 2 for view in views) + audio.shape[0]
