"""One session's requests to a stage on vLLM, or one chat's: its program's steps, one at a time, on a request that lives.

Owns the session's queue, its ledger and its live request in the engine, which may be lost at any time (an interruption, or the
engine's memory needed for others) and is then begun again from the ledger. Called by :mod:`.driver`, on the event loop. Must
never let two steps of one session run at once, nor one session's fault reach another.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Protocol

from duplex_core.errors import DuplexError, ErrorCode, error
from duplex_core.stages import Forward, StageMetrics, StageRequest
from duplex_core.tensors import Tensor
from duplex_core.workers import Append, Emit, EngineProgram, EngineSession, ProgramStep, Sampling, Segment
from duplex_server.engine.stages.processes.driver import Sink
from duplex_server.engine.stages.vllm.ledger import Feed, Ledger, Planned, Span, cut, joined
from duplex_server.engine.stages.vllm.meter import Meter
from duplex_server.engine.stages.vllm.platform import (
    Chosen,
    Collected,
    Engine,
    EngineDied,
    EngineRefused,
    Stream,
    part,
)
from duplex_server.engine.stages.vllm.room import Room

log = logging.getLogger(__name__)


class Host(Protocol):
    """What a session needs of the driver."""

    stage: str
    engine: Engine
    sink: Sink
    room: Room

    def end(self, stream: Stream) -> asyncio.Future[None]:
        """End a request in the engine, whatever becomes of who asked for it."""

    def died(self, reason: str) -> None:
        """The engine is gone."""

    def count(self, what: str, number: int = 1) -> None:
        """Something happened, for the metrics."""


class _Old:
    """What had been fed when a request said ``fresh``, and the request in the engine that has it, unless it was lost."""

    __slots__ = ("fed", "stream")

    def __init__(self, fed: Feed, stream: Stream | None) -> None:
        self.fed = fed
        self.stream = stream


class Session:
    """One session's side of the stage."""

    def __init__(self, host: Host, session_id: str, program: EngineProgram, *, first: bool) -> None:
        """A session of ``program``; ``first`` ones go before the others where the engine has a choice."""
        self._host = host
        self._id = session_id
        self._program = program
        self._side: EngineSession | None = None
        self.first = first
        self._ledger = Ledger(host.engine.max_model_len)
        self._stream: Stream | None = None
        self._queue: deque[StageRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._running: StageRequest | None = None
        self._set_aside = 0
        self._old: _Old | None = None
        self._alone = False
        self._closed = False

    def submit(self, request: StageRequest) -> None:
        """Queue ``request``."""
        self._queue.append(request)
        if self._task is None:
            self._next()

    def abort(self, request_id: str | None) -> None:
        """Stop one request, or all."""
        kept = [each for each in self._queue if request_id is not None and each.request_id != request_id]
        self._queue = deque(kept)
        running = self._running
        if running is not None and self._task is not None and request_id in {None, running.request_id}:
            self._running = None  # one cancellation only: the second would cut off the first one's tidying
            self._task.cancel()

    def close(self) -> None:
        """The session is over."""
        self._closed = True
        self.abort(None)
        if self._task is None:
            self._lose()

    def set_aside(self) -> asyncio.Future[None] | None:
        """End the request in the engine, which is needed for others; the next append begins it again."""
        self._set_aside += 1
        self._host.count("set_aside")
        return self._lose()

    async def ended(self) -> None:
        """Wait until nothing runs."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _next(self) -> None:
        """Begin the next request, if there is one."""
        if not self._queue:
            return
        request = self._running = self._queue.popleft()
        self._task = asyncio.create_task(self._work(request))
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = self._running = None
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure  # the driver's death: the loop's handler is told
        if self._closed:
            self._lose()
        else:
            self._next()

    def _lose(self) -> asyncio.Future[None] | None:
        """Nothing of the session is in the engine any more."""
        stream, self._stream = self._stream, None
        self._host.room.drop(self)
        return self._host.end(stream) if stream is not None else None

    async def _work(self, request: StageRequest) -> None:
        """Run the program on one request; whatever it raises ends that request."""
        sink, stage = self._host.sink, self._host.stage
        which = (stage, request.request_id, self._id)
        meter = Meter(sink.submitted_at(request), time.monotonic())
        try:
            if self._side is None:
                self._side = self._program.open(self._id)
            with contextlib.closing(self._side.run(request.payload)) as steps:
                last = await self._drive(request, steps, meter)
        except DuplexError as exc:
            log.warning("stage %s: request %s of %s failed: %s", *which, exc.__cause__ or exc)
            info = exc.info
        except EngineDied as exc:
            self._host.died(str(exc))
            return
        except EngineRefused as exc:
            log.exception("stage %s: request %s of %s failed", *which)
            info = error(ErrorCode.ENGINE_ERROR, f"stage {stage}: {exc}")
        except Exception:
            log.exception("stage %s: request %s of %s failed", *which)
            info = error(ErrorCode.ENGINE_ERROR, f"the model's stage {stage} failed; the server's log says why")
        else:
            _give(sink, request, last, meter.metrics(stage, time.monotonic()))
            return
        finally:
            self._let_go()
        sink.failed(request, info, metrics=(meter.metrics(stage, time.monotonic()),))

    async def _drive(
        self, request: StageRequest, steps: Generator[ProgramStep, Segment | None, None], meter: Meter
    ) -> Emit | None:
        """Do what the program says, until it has no more to say; what it gives out last is left to go with the end."""
        answer: Callable[[], ProgramStep] = partial(steps.send, None)
        last: Emit | None = None
        while True:
            try:
                step = answer()
            except StopIteration:
                return last
            except BaseException:
                _give(self._host.sink, request, last)
                raise
            _give(self._host.sink, request, last)
            last, answer = None, partial(steps.send, None)
            if isinstance(step, Emit):
                meter.emitted(time.monotonic())
                last = step
                continue
            try:
                answer = partial(steps.send, await self._append(step, meter))
            except DuplexError as exc:
                if exc.info.code is not ErrorCode.CONTEXT_FULL:
                    raise
                answer = partial(steps.throw, exc)

    async def _append(self, append: Append, meter: Meter) -> Segment:
        """Feed an append and wait for its tokens; the ledger knows of it when all of it is there, and not before."""
        sampling = append.sampling
        _check_sampling(sampling, self._host.engine.vocabulary)
        if append.fresh:
            self._let_go()
        if append.kept is not None:
            await self._keep(append)
        feed = _fed(self._host.engine, append, self._old)
        planned = self._ledger.plan(feed, sampling.max_tokens, fresh=append.fresh, drop_last=append.drop_last)
        positions = planned.prompt + sampling.max_tokens
        try:
            if self._old is not None and not self._host.room.fits(positions, self._old):
                self._let_go(lost=True)
            await self._host.room.claim(self, positions)
            chosen, collected = await self._segment(planned, sampling, hidden=append.hidden)
            if append.kept is not None:
                await self._move(*append.kept, to=planned.prompt - len(feed))
        except BaseException:
            self._lose()
            raise
        self._ledger.commit(planned, chosen.ids)
        self._host.room.rest(self, self._ledger.context)
        meter.segment(len(planned.feed), chosen.arrivals)
        meter.preemptions += chosen.preemptions + self._set_aside
        self._set_aside = 0
        told = collected.told[: len(chosen.ids)]
        return Segment(
            ids=chosen.ids,
            end=chosen.end,
            fed=len(planned.feed) + len(chosen.ids) - 1,
            context=self._ledger.context,
            hidden=collected.hidden,
            told=told if any(each is not None for each in told) else (),
        )

    async def _segment(self, planned: Planned, sampling: Sampling, *, hidden: bool) -> tuple[Chosen, Collected]:
        """One segment on the live request, or on a new one that is fed what was fed before.

        Where prefixes are reused, the new one is fed that as a segment of its own, whose token is dropped: what comes after it
        is then computed for certain, and its hidden states are there to be had.
        """
        engine = self._host.engine
        key = engine.next_key()
        feed, alone = planned.feed, False
        if planned.anew or self._stream is None:
            stream = await self._begin()
            if planned.before and hidden and engine.reuses_prefixes:
                await stream.segment(joined(planned.before), Sampling(), key)
                key = engine.next_key()
            else:
                feed, alone = joined((*planned.before, feed)), hidden
            self._host.count("refed_positions", planned.start)
        else:
            stream = self._stream
        chosen = await stream.segment(feed, sampling, key, hidden=hidden, whole=alone)
        if not hidden and sampling.decider is None:
            return chosen, Collected(None, (), "")
        count = len(planned.feed) + len(chosen.ids) - 1
        collected = await engine.collect(key, planned.start, count)
        if collected.failure:
            raise EngineRefused(collected.failure)
        if hidden and collected.hidden is None:
            collected = collected._replace(hidden=await self._computed_again(planned, chosen.ids, count))
        return chosen, collected

    async def _keep(self, append: Append) -> None:
        """Make sure that what an append keeps is there to be moved: of the context that a fresh append ends."""
        if append.hidden or append.embeds is not None:
            raise ValueError("positions that are kept are not computed: they have no embeddings and no hidden states")
        if append.fresh:
            self._alone = True  # blocks that are moved into must be nobody else's
            self._old = await self._kept()
        known = len(self._old.fed) if self._old is not None else 0
        start, stop = append.kept or (0, 0)
        if not 0 <= start < stop <= known or stop - start != len(append.ids):
            raise ValueError(
                f"{len(append.ids)} positions keep {start} to {stop} of {known}: as many, of what had been fed when this "
                "request said fresh and kept some"
            )

    async def _kept(self) -> _Old:
        """The context as it is, set beside for moving from; fed again if it has been lost."""
        old = _Old(self._ledger.fed, None)
        if not len(old.fed):
            return old
        await self._host.room.spare()
        try:
            if self._stream is None:
                await self._restored(old.fed)
        except BaseException:
            self._lose()
            self._host.room.let_go(old)
            raise
        self._host.room.hand_over(self, old)
        old.stream, self._stream = self._stream, None
        return old

    async def _restored(self, fed: Feed) -> None:
        """Feed a context again that has been lost."""
        await self._host.room.claim(self, len(fed) + 1)
        stream = await self._begin()
        await stream.segment(fed, Sampling(), self._host.engine.next_key())

    async def _move(self, start: int, stop: int, *, to: int) -> None:
        """Put the keys and values that are kept in the place of those that were just computed from the same tokens."""
        why = "the KV cache is too small to hold the old context beside the new one"
        if self._old is not None and self._old.stream is not None and self._stream is not None:
            why = await self._host.engine.move(self._old.stream, self._stream, start=start, stop=stop, to=to)
        if why:
            log.warning(
                "stage %s: what %s keeps was computed again instead of moved: %s", self._host.stage, self._id, why
            )
        self._host.count("recomputed_positions" if why else "moved_positions", stop - start)

    def _let_go(self, *, lost: bool = False) -> None:
        """The old context is not needed any more, or cannot be had: then only what was fed is known of it."""
        old = self._old
        if old is None:
            return
        if old.stream is not None:
            _ = self._host.end(old.stream)
            self._host.room.let_go(old)
            old.stream = None
        self._old = old if lost else None

    async def _computed_again(self, planned: Planned, chosen: Sequence[int], count: int) -> Tensor:
        """The hidden states of a segment that took some from the engine's prefixes after it was set aside within it."""
        engine = self._host.engine
        stream = await self._begin()
        key = engine.next_key()
        whole = joined((*planned.before, planned.feed, Feed(ids=tuple(chosen[:-1]))))
        await stream.segment(whole, Sampling(), key, hidden=True, whole=True)
        hidden = (await engine.collect(key, planned.start, count)).hidden
        if hidden is None:
            raise EngineRefused("the engine gave no hidden states")
        self._host.count("computed_again", count)
        return hidden

    async def _begin(self) -> Stream:
        """A new request in the engine, in the place of the one that is there."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await asyncio.shield(self._host.end(stream))
        self._stream = self._host.engine.open(first=self.first, alone=self._alone)
        return self._stream


def _give(sink: Sink, request: StageRequest, emit: Emit | None, end: StageMetrics | None = None) -> None:
    """Give out what the program has, if anything, and the end, if this is it."""
    if emit is None and end is None:
        return
    payload = None if emit is None else emit.payload
    forward = payload if isinstance(payload, Forward) else None
    sink.output(
        request,
        None if forward is not None else payload,
        forward=forward,
        final=end is not None,
        metrics=() if end is None else (end,),
    )


def _fed(engine: Engine, append: Append, old: _Old | None) -> Feed:
    """An append's positions: kept of ``old``, or its own, with its embeddings made into what the engine takes.

    Raises:
        ValueError: what it says does not fit together, or not this model: a fault of the program.
    """
    if append.kept is not None:
        assert old is not None
        return cut(old.fed, *append.kept, part)
    ids = list(append.ids)
    spans: list[Span] = []
    if append.embeds is not None:
        at = tuple(append.embed_at)
        _check_places(at, append.embeds, len(ids))
        for low, high in _runs(at):
            start = at[low]
            for length, item in engine.items(_rows(append.embeds, low, high)):
                spans.append(Span(start, length, item))
                start += length
        for place in at:
            ids[place] = 0
    _check_tokens("ids", ids, engine.vocabulary)
    return Feed(ids=tuple(ids), spans=tuple(spans))


def _check_places(at: Sequence[int], embeds: Tensor, length: int) -> None:
    rows = embeds.shape[0] if embeds.shape else 0
    rising = all(low < high for low, high in itertools.pairwise(at))
    if len(at) != rows or not rising or (at and not 0 <= at[0] <= at[-1] < length):
        raise ValueError(
            f"{rows} embeddings are given for the places {list(at)[:8]} of {length}: one each, rising, within them"
        )


def _check_tokens(what: str, tokens: Sequence[int], vocabulary: int) -> None:
    """An unknown token ends the engine for everybody, so it is found here."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise ValueError(f"{what} holds {min(tokens)} to {max(tokens)}; the model's tokens are 0 to {vocabulary - 1}")


def _check_sampling(sampling: Sampling, vocabulary: int) -> None:
    _check_tokens("stop_token_ids", sampling.stop_token_ids, vocabulary)
    _check_tokens("allowed_token_ids", sampling.allowed_token_ids, vocabulary)
    bias: Mapping[int, float] = sampling.logit_bias
    _check_tokens("logit_bias", list(bias), vocabulary)


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """The stretches of neighbouring places, as the indices at which each begins and ends."""
    cuts = [index for index in range(1, len(places)) if places[index] != places[index - 1] + 1]
    edges = [0, *cuts, len(places)] if places else []
    return list(itertools.pairwise(edges))


def _rows(values: Tensor, low: int, high: int) -> Tensor:
    """Rows ``low`` to ``high`` of a matrix, sharing its bytes."""
    if (low, high) == (0, values.shape[0]):
        return values
    row = values.nbytes // values.shape[0]
    data = memoryview(values.data).cast("B")[low * row : high * row]
    return Tensor(dtype=values.dtype, shape=(high - low, *values.shape[1:]), data=data)
