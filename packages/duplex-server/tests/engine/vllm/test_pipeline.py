"""A thinker and a talker on vLLM equal transformers: tokens exactly, hidden states to 1e-4."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from duplex_core.errors import ErrorCode, error
from duplex_core.stages import Purpose
from duplex_core.tensors import Tensor
from duplex_core.workers import Append, Sampling, SegmentEnd
from tests.support import vllm_pipeline as pipeline
from tests.support.vllm_driven import Driven, Failed

pytestmark = [
    pytest.mark.engines,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),  # vllm's, at the end of an engine
]

CLOSE = 1e-4


def close(hidden: Any, wanted: Any) -> bool:
    given = np.asarray(hidden)
    return given.shape == tuple(wanted.shape) and bool(np.abs(given - wanted.numpy()).max() < CLOSE)


def turn(rng: random.Random) -> Append:
    """Some ids, with embeddings among them at places of which some are neighbours."""
    ids = [rng.randrange(pipeline.THINKER_TOKENS) for _ in range(rng.randint(2, 9))]
    at = sorted(rng.sample(range(len(ids)), rng.randint(0, len(ids) - 1)))
    rows = np.random.default_rng(rng.randrange(1000)).normal(size=(len(at), pipeline.HIDDEN)).astype(np.float32)
    return Append(
        ids=ids,
        embeds=Tensor(dtype="float32", shape=rows.shape, data=rows.tobytes()) if at else None,
        embed_at=at,
        sampling=Sampling(max_tokens=rng.randint(1, 5)),
        hidden=True,
    )


def tokens(*ids: int, most: int = 3, **more: Any) -> Append:
    return Append(ids=ids, sampling=Sampling(max_tokens=most), **more)


class Conversation:
    """Turns of one session through both stages, each compared with what transformers makes of the same."""

    def __init__(self, stages: Any, checkpoints: Any, name: str, seed: int) -> None:
        self.stages = stages
        self.name = name
        self.rng = random.Random(seed)
        self.thinker = pipeline.Reference(checkpoints.thinker)
        self.talker = pipeline.Reference(checkpoints.talker)
        for each in stages:
            each.driver.place(name)

    async def turn(self) -> None:
        append = turn(self.rng)
        ids, hidden = self.thinker.append(append)
        thought = await self.stages.thinker.ask(self.name, pipeline.Work(appends=(append,), speak=True))
        (segment,), (speak,) = thought.segments, thought.forwards
        assert list(segment.ids) == ids
        assert close(segment.hidden, hidden)
        assert segment.fed == len(hidden)
        assert segment.context == len(self.thinker.context)
        spoken = await self.stages.talker.ask(self.name, speak)
        assert list(spoken.segments[0].ids) == self.talker.append(pipeline.spoken(speak.hidden))[0]

    async def interrupted(self) -> None:
        """A turn that is aborted while its tokens come: for both sides it has never been."""
        append = Append(ids=turn(self.rng).ids, sampling=Sampling(max_tokens=60), hidden=True)
        begins = tokens(1, most=1)
        work = pipeline.Work(appends=(begins, append))
        self.thinker.append(begins)
        answer = self.stages.thinker.submit(self.name, work)
        async with asyncio.timeout(30):
            await answer.some.wait()  # the first append is in the books
        await self.stages.thinker.steps(2)
        assert not answer.done.done()
        self.stages.thinker.driver.abort(self.name, answer.request.request_id)

    def end(self) -> None:
        for each in self.stages:
            each.driver.release(self.name)


async def test_ten_turns_equal_transformers(stages: Any, checkpoints: Any) -> None:
    conversation = Conversation(stages, checkpoints, "ten", 1)
    for _ in range(10):
        await conversation.turn()
    conversation.end()


async def test_an_interrupted_turn_has_never_been(stages: Any, checkpoints: Any) -> None:
    conversation = Conversation(stages, checkpoints, "interrupted", 2)
    refed = stages.thinker.counts.get("refed_positions", 0)
    for index in range(8):
        await (conversation.interrupted() if index in {3, 4} else conversation.turn())
    conversation.end()
    await stages.thinker.told()
    assert stages.thinker.counts["refed_positions"] > refed


async def test_four_sessions_at_once_with_a_chat_between(stages: Any, checkpoints: Any) -> None:
    conversations = [Conversation(stages, checkpoints, f"s{index}", 10 + index) for index in range(4)]

    async def talk(conversation: Conversation) -> None:
        for index in range(6):
            await (conversation.interrupted() if index == conversation.rng.randint(1, 8) else conversation.turn())

    async def chat(name: str) -> None:
        reference = pipeline.Reference(checkpoints.thinker)
        question = tokens(*range(30, 90), most=20)
        stages.thinker.driver.place(name)
        answer = await stages.thinker.ask(name, pipeline.Work(appends=(question,)), Purpose.CHAT)
        assert list(answer.segments[0].ids) == reference.append(question)[0]
        stages.thinker.driver.release(name)

    async with asyncio.TaskGroup() as group:
        for each in conversations:
            group.create_task(talk(each))
        group.create_task(chat("c1"))
    await chat("c2")  # beside four sessions that wait for their next turn, and hold every seat of theirs
    for each in conversations:
        await each.turn()
        each.end()


async def test_a_full_context_is_the_sessions_own_matter(stages: Any, checkpoints: Any) -> None:
    full, other = (Conversation(stages, checkpoints, name, 5) for name in ("full", "other"))
    await other.turn()
    thinker: Driven = stages.thinker
    long = tokens(*range(100), most=2)
    first, second = full.thinker.append(long)[0], full.thinker.append(long)[0]
    given = (await thinker.ask("full", pipeline.Work(appends=(long, long)))).segments
    assert [list(each.ids) for each in given] == [first, second]
    left = pipeline.CONTEXT - given[1].context
    with pytest.raises(Failed, match="do not fit") as refused:
        await thinker.append("full", tokens(*range(left - 2), most=2))  # the token chosen last is fed as well
    assert refused.value.info.code is ErrorCode.CONTEXT_FULL
    exact = tokens(*range(left - 3), most=2)
    assert list((await thinker.append("full", exact)).ids) == full.thinker.append(exact)[0]  # to the last position
    with pytest.raises(Failed):
        await thinker.append("full", tokens(most=1))
    await other.turn()
    anew = tokens(5, 6, 7, most=4, hidden=True)
    answer = await thinker.ask("full", pipeline.Work(appends=(anew,), catch=True))
    ids, hidden = full.thinker.append(tokens(5, 6, 7, most=4, fresh=True))
    assert answer.payloads[0] == pipeline.Full(code="context_length_exceeded")
    assert list(answer.segments[0].ids) == ids
    assert close(answer.segments[0].hidden, hidden)
    for each in (full, other):
        each.end()


async def test_a_refusal_keeps_the_code_that_the_program_gave_it(stages: Any, checkpoints: Any) -> None:
    """As one of the torch runtime's workers does: what is the client's to change is told as such. The session goes on."""
    reference, thinker = pipeline.Reference(checkpoints.thinker), stages.thinker
    thinker.driver.place("declined")
    with pytest.raises(Failed) as refused:
        await thinker.ask("declined", pipeline.Work(appends=(tokens(3, 4),), decline=True))
    told = error(ErrorCode.INVALID_VALUE, "that is no word of ours", param="session.options.word")
    assert refused.value.info == told
    assert not told.retryable
    reference.append(tokens(3, 4))
    assert list((await thinker.append("declined", tokens(6))).ids) == reference.append(tokens(6))[0]
    thinker.driver.release("declined")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e20])
async def test_embeddings_that_are_no_numbers_reach_no_cache(stages: Any, checkpoints: Any, value: float) -> None:
    """Blocks are handed from one session to the next, and of a masked no number the sum is none either."""
    thinker: Driven = stages.thinker
    before = Conversation(stages, checkpoints, "before", 3)
    await before.turn()
    before.end()
    rows = np.random.default_rng(1).normal(size=(200, pipeline.HIDDEN)).astype(np.float32)
    rows[100, 5] = value
    embeds = Tensor(dtype="float32", shape=rows.shape, data=rows.tobytes())
    poison = Append(ids=[0] * 200, embeds=embeds, embed_at=range(200), sampling=Sampling(max_tokens=5))
    reference = pipeline.Reference(checkpoints.thinker)
    thinker.driver.place("attacker")
    await thinker.append("attacker", tokens(3, 4))
    reference.append(tokens(3, 4))
    with pytest.raises(Failed, match="hold no numbers") as refused:
        await thinker.append("attacker", poison)
    assert (refused.value.info.code, refused.value.info.retryable) == (ErrorCode.INVALID_VALUE, False)
    goes_on = tokens(6, hidden=True)
    assert close((await thinker.append("attacker", goes_on)).hidden, reference.append(goes_on)[1])
    thinker.driver.release("attacker")
    after = Conversation(stages, checkpoints, "after", 3)
    for _ in range(6):
        await after.turn()
    after.end()


async def test_the_last_token_can_be_dropped(stages: Any, checkpoints: Any) -> None:
    reference, thinker = pipeline.Reference(checkpoints.thinker), stages.thinker
    thinker.driver.place("drop")
    for append in (tokens(3, 4), tokens(5, drop_last=True, hidden=True), tokens(6, hidden=True), tokens(hidden=True)):
        segment = await thinker.append("drop", append)
        ids, hidden = reference.append(append)
        assert list(segment.ids) == ids
        assert segment.context == len(reference.context)
        assert segment.hidden is None if not append.hidden else close(segment.hidden, hidden)
    thinker.driver.release("drop")


async def test_stop_tokens_end_a_segment(stages: Any, checkpoints: Any) -> None:
    reference, thinker = pipeline.Reference(checkpoints.thinker), stages.thinker
    ids, _ = reference.append(tokens(3, 4, most=8))
    stop = ids[4]
    append = Append(ids=(3, 4), sampling=Sampling(max_tokens=8, stop_token_ids=(stop,)))
    thinker.driver.place("stop")
    segment = await thinker.append("stop", append)
    assert list(segment.ids) == ids[: ids.index(stop) + 1]
    assert segment.end is SegmentEnd.STOP
    follow = tokens(9)
    reference.reset()
    reference.append(append)
    assert list((await thinker.append("stop", follow)).ids) == reference.append(follow)[0]
    assert (await thinker.append("stop", follow)).end is SegmentEnd.LENGTH
    thinker.driver.release("stop")


async def test_a_decider_chooses_as_it_would_from_transformers_logits(stages: Any, checkpoints: Any) -> None:
    reference, thinker = pipeline.Reference(checkpoints.thinker), stages.thinker
    thinker.driver.place("decide")
    thinker.driver.place("greedy")
    rng, other = random.Random(8), pipeline.Reference(checkpoints.thinker)
    for _ in range(3):
        uniforms = [rng.random() for _ in range(6)]
        decider = {"uniforms": uniforms, "temperature": 1.5}
        append = Append(ids=turn(rng).ids, sampling=Sampling(max_tokens=6, decider=decider), hidden=True)
        greedy = thinker.submit("greedy", pipeline.Work(appends=(tokens(1, 2, most=6),)))  # in the same steps
        segment = await thinker.append("decide", append)
        wanted: list[float] = []

        def choose(logits: Any, chosen: list[int], us: list[float] = uniforms, told: list[float] = wanted) -> int:
            token, probability = pipeline.inverse(logits, us[len(chosen)], 1.5)
            told.append(probability)
            return token

        ids, hidden = reference.sample(append, choose)
        assert list(segment.ids) == ids
        assert segment.told == pytest.approx(wanted, abs=1e-4)
        assert close(segment.hidden, hidden)
        await greedy.done
        assert list(greedy.segments[0].ids) == other.append(tokens(1, 2, most=6))[0]
    for name in ("decide", "greedy"):
        thinker.driver.release(name)


async def test_a_deciders_fault_is_the_segments_own(stages: Any, checkpoints: Any) -> None:
    reference, thinker = pipeline.Reference(checkpoints.thinker), stages.thinker
    thinker.driver.place("faulty")
    thinker.driver.place("well")
    broken = Append(ids=(1, 2), sampling=Sampling(max_tokens=6, decider={"break": True}))
    well = thinker.submit("well", pipeline.Work(appends=(tokens(1, 2, most=6),)))
    with pytest.raises(Failed, match="ValueError: told to break"):
        await thinker.append("faulty", broken)
    await well.done
    after = tokens(1, 2, most=6)
    assert list((await thinker.append("faulty", after)).ids) == reference.append(after)[0]
    for name in ("faulty", "well"):
        thinker.driver.release(name)


async def test_a_seed_draws_the_same_at_every_append(stages: Any) -> None:
    thinker, drawn = stages.thinker, []
    for name, first, second in (("a", None, 7), ("b", 5, 7), ("c", 5, 8)):
        thinker.driver.place(name)
        for seed, most in ((first, 1), (second, 8)):
            sampling = Sampling(max_tokens=most, temperature=0.0 if seed is None else 2.0, seed=seed)
            drawn.append((await thinker.append(name, Append(ids=(8, 9), sampling=sampling, drop_last=True))).ids)
        thinker.driver.release(name)
    assert drawn[1] == drawn[3]  # in the same context, whatever was drawn before
    assert drawn[3] != drawn[5]


async def test_a_prompt_longer_than_an_item_and_than_a_step(stages: Any, checkpoints: Any) -> None:
    reference, talker = pipeline.Reference(checkpoints.talker), stages.talker
    rows = np.random.default_rng(4).normal(size=(240, pipeline.HIDDEN)).astype(np.float32)
    append = pipeline.spoken(Tensor(dtype="float32", shape=rows.shape, data=rows.tobytes()))
    talker.driver.place("long")
    assert list((await talker.append("long", append)).ids) == reference.append(append)[0]
    talker.driver.release("long")


@pytest.mark.parametrize("decider", [False, True], ids=["greedy", "decided"])
async def test_a_segment_that_the_engine_sets_aside_in_the_middle_is_the_same(
    stages: Any, checkpoints: Any, decider: bool
) -> None:
    reference, thinker = pipeline.Reference(checkpoints.thinker), stages.thinker
    thinker.driver.place("aside")
    before = tokens(*range(60), most=2)
    assert list((await thinker.append("aside", before)).ids) == reference.append(before)[0]
    uniforms = [random.Random(index).random() for index in range(80)]
    options = {"uniforms": uniforms, "temperature": 1.5} if decider else None
    long = Append(ids=(5, 6), sampling=Sampling(max_tokens=80, decider=options), hidden=True)
    answer = thinker.submit("aside", pipeline.Work(appends=(long,)))
    for _ in range(3):
        await thinker.steps(5)
        assert await thinker.driver.engine._engine.reset_prefix_cache(reset_running_requests=True)
    assert not answer.done.done()
    async with asyncio.timeout(30):
        await answer.done
    wanted = reference.sample(
        long,
        lambda logits, ids: pipeline.inverse(logits, uniforms[len(ids)], 1.5)[0] if decider else int(logits.argmax()),
    )
    assert list(answer.segments[0].ids) == wanted[0]
    assert close(answer.segments[0].hidden, wanted[1])
    assert answer.metrics is not None
    assert answer.metrics.preemptions == 3
    assert len(answer.segments[0].told) == (80 if decider else 0)
    thinker.driver.release("aside")


async def test_hidden_states_that_the_engine_did_not_compute_are_computed_once_more(
    stages: Any, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation(stages, checkpoints, "once more", 30)
    await conversation.turn()
    engine = stages.thinker.driver.engine
    collect, missing = engine.collect, [True, False, True, False]

    async def without(key: int, first: int, count: int) -> Any:
        collected = await collect(key, first, count)
        return collected._replace(hidden=None) if missing.pop() else collected

    missing.reverse()
    with monkeypatch.context() as patched:
        patched.setattr(engine, "collect", without)
        await conversation.turn()
        await conversation.turn()
    assert not missing
    await conversation.turn()
    conversation.end()


@pytest.mark.parametrize(
    ("append", "words"),
    [
        (tokens(pipeline.THINKER_TOKENS), "failed"),
        (tokens(-1), "failed"),
        (Append(ids=(1,), sampling=Sampling(stop_token_ids=(9999,))), "failed"),
        (Append(ids=(1,), sampling=Sampling(temperature=-1.0)), "failed"),
        (
            Append(
                ids=(1,),
                embeds=Tensor(dtype="float32", shape=(1, 3), data=bytes(12)),
                embed_at=(0,),
                sampling=Sampling(),
            ),
            "failed",
        ),
        (
            Append(
                ids=(1,),
                embeds=Tensor(dtype="float32", shape=(1, 64), data=bytes(256)),
                embed_at=(1,),
                sampling=Sampling(),
            ),
            "failed",
        ),
        (tokens(drop_last=True), "failed"),
    ],
)
async def test_a_programs_fault_is_its_requests_own(stages: Any, checkpoints: Any, append: Append, words: str) -> None:
    reference, thinker = pipeline.Reference(checkpoints.thinker), stages.thinker
    thinker.driver.place("fault")
    before, after = tokens(11, 12), tokens(13)
    assert list((await thinker.append("fault", before)).ids) == reference.append(before)[0]
    with pytest.raises(Failed, match=words):
        await thinker.append("fault", append)
    assert list((await thinker.append("fault", after)).ids) == reference.append(after)[0]
    thinker.driver.release("fault")


async def test_what_a_request_cost(stages: Any) -> None:
    thinker = stages.thinker
    thinker.driver.place("cost")
    work = pipeline.Work(appends=(tokens(1, 2, 3, most=5), tokens(4, most=1)))
    metrics = (await thinker.ask("cost", work)).metrics
    assert (metrics.input_tokens, metrics.output_tokens, metrics.steps, metrics.preemptions) == (5, 6, 6, 0)
    assert 0 <= metrics.queue_ms <= metrics.first_ms <= metrics.total_ms
    assert 0 < metrics.ms_per_token < metrics.total_ms
    thinker.driver.release("cost")
    await thinker.told()
    assert 0.0 <= thinker.gauges["kv_used"] < 1.0
