"""The tap's books, however the engine cuts a prompt into steps; and the two model runners' ways to show their steps."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_server.engine.stages.vllm.moving import Cached, CannotMove, Layout, Rotation
from duplex_server.engine.stages.vllm.tap import Rows, Tap

pytestmark = [pytest.mark.engines]


def options(key: int, *, hidden: bool = True, decider: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"stream": 10 * key, "key": key, "hidden": hidden, "decider": decider}


def states(start: int, length: int) -> torch.Tensor:
    """Rows that say where they are."""
    return torch.arange(start, start + length, dtype=torch.float32)[:, None].repeat(1, 3)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 5), st.data())
def test_hidden_states_are_those_asked_for_however_the_steps_were_cut(parts: list[int], before: int, data: Any) -> None:
    tap = Tap()
    tap.begin("r", before + sum(parts), options(1))
    tap.begin("other", 50, options(2, hidden=False))
    again = data.draw(st.integers(0, len(parts)))
    start = before
    for index, length in enumerate(parts):
        if index == again:
            start = before  # set aside, and computed again from the beginning
        rows = [Rows("other", 9, 2), Rows("r", start, length)]
        tap.before_step(rows)
        tap.after_step(rows, torch.cat([torch.full((2, 3), -1.0), states(start, length)]))
        start += length
    count = start - before
    shape, raw, told, failure = tap.collect(1, before, count)
    assert (shape, told, failure) == ([count, 3], [], "")
    assert np.array_equal(np.frombuffer(raw, np.float32).reshape(shape), states(before, count).numpy())
    assert tap.collect(2, 0, 1)[0] == []


def test_a_position_that_was_not_computed_is_missed() -> None:
    tap = Tap()
    tap.begin("r", 10, options(1))
    rows = [Rows("r", 4, 6)]
    tap.after_step(rows, states(4, 6))
    assert tap.collect(1, 3, 7)[0] == []


class Counter:
    """A decider that chooses how many it has chosen, and tells the logits' largest place."""

    def decide(self, logits: Any, chosen: Any, told: Any, options: Any) -> tuple[int, Any]:
        assert len(chosen) == len(told)
        return len(chosen) + options["from"], int(logits.argmax())


def deciding(decider: dict[str, Any] | None = None) -> Tap:
    tap = Tap()
    tap._decider = Counter()
    tap.begin("r", 10, options(1, hidden=False, decider=decider or {"from": 3}))
    return tap


def test_a_part_of_a_prompt_chooses_nothing_and_what_is_computed_again_chooses_the_same() -> None:
    tap, logits = deciding(), torch.eye(8)[5]
    steps = [(0, 4, None), (4, 6, 3), (10, 1, 4), (0, 4, None), (4, 8, 5), (12, 1, 6), (4, 6, 3)]
    for start, length, wanted in steps:
        tap.begin("r", 10, options(1, hidden=False, decider={"from": 3}))  # V2 tells of it again when it resumes
        tap.before_step([Rows("r", start, length)])
        assert tap.decide(1, logits) == wanted
    assert tap.collect(1, 0, 0)[2] == [5, 5, 5, 5]


def test_a_token_outside_the_vocabulary_fails_the_segment() -> None:
    tap = deciding({"from": 8})
    tap.before_step([Rows("r", 0, 10)])
    assert tap.decide(1, torch.eye(8)[5]) == 0
    assert "chose 8, which is not in the vocabulary" in tap.collect(1, 0, 0)[3]


def test_what_has_ended_is_forgotten() -> None:
    tap = deciding()
    tap.begin("r", 12, options(2))
    assert tap.decide(1, torch.zeros(8)) is None
    assert tap.request(20) == "r"
    tap.begin("r", 14, None)  # its next segment asks for nothing
    tap.after_step([Rows("r", 12, 3)], states(12, 3))
    assert tap.collect(2, 12, 1) == ([], b"", [], "")
    assert tap.request(20) == "r"
    tap.end(["r"])
    assert tap.collect(2, 0, 1) == ([], b"", [], "")
    assert tap.request(20) is None


# -- model runners -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def platform() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from duplex_server.engine.stages.vllm import platform

    return platform


@pytest.fixture(scope="module")
def inside(platform: Any) -> Any:
    from duplex_server.engine.stages.vllm import inside

    return inside


def scheduled(**counts: int) -> Any:
    """What a scheduler says: ``new`` begins with 4 positions, ``old`` goes on at 7."""
    new = SimpleNamespace(
        req_id="new",
        prompt_token_ids=[1] * 4,
        num_computed_tokens=0,
        sampling_params=SimpleNamespace(seed=3, extra_args={"duplex": options(1, decider={"from": 2})}),
    )
    return SimpleNamespace(
        finished_req_ids=set(),
        num_scheduled_tokens=counts,
        scheduled_new_reqs=[new],
        scheduled_cached_reqs=SimpleNamespace(req_ids=["old"], num_computed_tokens=[7]),
    )


class Runner:
    """A model runner of either version, with the parts that the tap looks at."""

    def __init__(self, *, second: bool) -> None:
        self.device = "cpu"
        self.requests = {"new": SimpleNamespace(generator=None)}
        batch = SimpleNamespace(req_ids=["old", "new"])
        state = SimpleNamespace(hidden_states=torch.cat([states(7, 1), states(0, 4)]))
        self.execute_model_state: Any = None
        if second:
            state.input_batch = batch
        else:
            self.input_batch = batch
        self._state = state

    def execute_model(self, scheduled: Any) -> None:
        self.execute_model_state = self._state


@pytest.mark.parametrize("second", [False, True], ids=["V1", "V2"])
def test_both_model_runners_steps_are_seen(inside: Any, monkeypatch: pytest.MonkeyPatch, second: bool) -> None:
    tap = Tap()
    monkeypatch.setattr(inside, "TAP", tap)
    worker = inside.WorkerTap()
    worker.model_runner = runner = Runner(second=second)
    worker.vllm_config = SimpleNamespace(
        use_v2_model_runner=second, model_config=SimpleNamespace(get_vocab_size=lambda: 9)
    )
    assert worker.duplex_install("") == 9
    monkeypatch.setattr(tap, "_decider", Counter())
    runner.execute_model(scheduled(new=4, old=1))
    shape, raw, _, _ = worker.duplex_collect(1, 0, 4)
    assert np.array_equal(np.frombuffer(raw, np.float32).reshape(shape), states(0, 4).numpy())
    assert (runner.requests["new"].generator is None) == second  # V2 draws by seed and position

    logits, untouched = torch.zeros((2, 8)), torch.zeros(8)
    params = scheduled(new=4, old=1).scheduled_new_reqs[0].sampling_params
    if second:
        processor = inside.DeciderV2(None, None)
        assert processor.add_request(5, params)
        assert not processor.add_request(6, SimpleNamespace(extra_args=None))
        processor.apply(logits, SimpleNamespace(idx_mapping_np=np.array([6, 5])))
    else:
        processor = inside.DeciderV1(None, None, False)
        processor.update_state(
            SimpleNamespace(
                added=[(0, SimpleNamespace(extra_args=None), [], []), (1, params, [], [])], removed=[], moved=[]
            )
        )
        assert not processor.is_argmax_invariant()
        processor.apply(logits)
    assert torch.equal(logits[0], untouched)
    assert int(logits[1].argmax()) == 2
    assert int(torch.isinf(logits[1]).sum()) == 7


def test_what_the_second_model_runner_builds_is_ours(inside: Any) -> None:
    """V2 itself needs Triton, which a CPU has not: its loader, which asks what a processor must be, is there."""
    from vllm.v1.sample.logits_processor import LogitsProcessor
    from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors_params_validator

    path = f"{inside.DeciderV2.__module__}:{inside.DeciderV2.__qualname__}"
    build_custom_logits_processors_params_validator([path])(SimpleNamespace(extra_args=None))
    assert issubclass(inside.DeciderV1, LogitsProcessor)
    with pytest.raises(ValueError, match="LogitsProcessor"):
        build_custom_logits_processors_params_validator([path.replace("DeciderV2", "DeciderV1")])


@pytest.mark.parametrize(
    ("changes", "device", "words"),
    [
        ({"engine_args": {"max_num_seqs": 3}}, "", "must not give max_num_seqs"),
        ({"architecture": "a.b:C"}, "", "come together"),
        ({}, "cuda:0", "build for a CPU"),
    ],
)
def test_settings_that_cannot_be_are_refused(platform: Any, changes: dict[str, Any], device: str, words: str) -> None:
    from duplex_core.workers import EngineSettings

    with pytest.raises(platform.EngineStartError, match=words):
        platform.start(EngineSettings(model="x", max_model_len=8, **changes), 1, device, None)


@pytest.mark.parametrize(
    ("device", "cpu", "wanted"),
    [
        ("", True, {"tensor_parallel_size": 1, "enforce_eager": True}),
        ("cuda:0", False, {"tensor_parallel_size": 1}),
        ("cuda:0,cuda:1", False, {"tensor_parallel_size": 2}),
    ],
)
def test_what_an_engine_is_started_with(
    platform: Any, monkeypatch: pytest.MonkeyPatch, device: str, cpu: bool, wanted: dict[str, Any]
) -> None:
    from duplex_core.workers import EngineSettings

    monkeypatch.setattr(platform, "current_platform", SimpleNamespace(is_cpu=lambda: cpu))
    settings = EngineSettings(model="m", max_model_len=4096, embeddings=True, engine_args={"block_size": 64})
    given = platform._arguments(settings, 9, device)
    assert {name: given.get(name) for name in wanted} == wanted
    assert ("enforce_eager" in given) == cpu
    assert (given["max_num_seqs"], given["block_size"], given["long_prefill_token_threshold"]) == (9, 64, 512)
    assert given["worker_extension_cls"] == "duplex_server.engine.stages.vllm.inside.WorkerTap"
    assert given["enable_mm_embeds"]


@pytest.mark.parametrize(
    ("cpu_and_memory", "args", "wanted"),
    [
        ((True, None), {}, (6 * (1000 // 16 + 1) + 1) * 16 * 2 * 4 * 2 * 8 * 2),
        ((False, None), {}, (6 * (1000 // 16 + 1) + 1) * 16 * 2 * 4 * 2 * 8 * 2),
        ((False, 30), {}, 0.5),
        ((True, 100), {}, 90),
        ((True, None), {"kv_cache_memory_bytes": 7}, None),
        ((False, 30), {"gpu_memory_utilization": 0.3}, None),
    ],
)
def test_the_cache_is_as_large_as_every_seat_needs_or_as_the_replica_may_take(
    platform: Any, monkeypatch: pytest.MonkeyPatch, cpu_and_memory: Any, args: dict[str, Any], wanted: Any
) -> None:
    from duplex_core.workers import EngineSettings

    cpu, memory = cpu_and_memory
    machine = SimpleNamespace(is_cpu=lambda: cpu, get_device_total_memory=lambda _: 60)
    monkeypatch.setattr(platform, "current_platform", machine)
    monkeypatch.setattr(platform, "_weights", lambda _: 10)
    cache = SimpleNamespace(block_size=16, kv_cache_memory_bytes=None, gpu_memory_utilization=None)
    model = SimpleNamespace(
        max_model_len=1000,
        dtype=torch.bfloat16,
        get_num_layers=lambda _: 4,
        get_num_kv_heads=lambda _: 2,
        get_head_size=lambda: 8,
    )
    config = SimpleNamespace(cache_config=cache, model_config=model, parallel_config=None)
    platform._size(config, EngineSettings(model="m", max_model_len=1000, engine_args=args), 6, memory)
    assert (cache.kv_cache_memory_bytes or cache.gpu_memory_utilization) == wanted


def test_the_weights_alone_may_be_more_than_a_replica_may_take(platform: Any, checkpoints: Any) -> None:
    from duplex_core.workers import EngineSettings

    settings = EngineSettings(model=str(checkpoints.thinker), max_model_len=64, dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(platform.EngineStartError, match="memory_bytes 1000 is less than the weights"):
            platform.start(settings, 1, "cpu", 1000)


# -- moving keys and values --------------------------------------------------------------------------------------------


def backend(order: torch.Tensor, *, blocks: int, block: int, heads: int, size: int) -> tuple[torch.Tensor, Any]:
    """A cache whose backend scatters a block's numbers by ``order``."""
    cache = torch.zeros((blocks, heads, block, 2 * size))

    def write(keys: torch.Tensor, values: torch.Tensor, into: torch.Tensor, slots: torch.Tensor) -> None:
        flat, places = into.view(len(into), -1), order.reshape(2, block, heads, size)
        for kind, numbers in enumerate((keys, values)):
            for row, slot in zip(numbers, slots.tolist(), strict=True):
                flat[slot // block, places[kind, slot % block].flatten()] = row.flatten()

    return cache, write


@pytest.mark.parametrize("halves", [True, False])
def test_keys_are_moved_whatever_the_layout_and_turn_with_their_position(halves: bool) -> None:
    torch.manual_seed(0)
    block, heads, size = 8, 2, 12
    cache, write = backend(torch.randperm(2 * block * heads * size), blocks=6, block=block, heads=heads, size=size)
    layout = Layout(cache, write, block=block, heads=heads, size=size)
    rotation = Rotation(torch.tensor([1.0, 0.3, 0.01, 0.002, 0.7], dtype=torch.float64), halves)  # the last two stay
    keys, values = torch.randn(2, 11, heads, size)
    source = torch.tensor([5, 6, 7, 40, 41, 42, 43, 44, 45, 46, 47])
    write(rotation.turned(keys, 900), values, cache, source)
    before = cache.clone()
    target = torch.arange(11) + 12
    Cached(cache, layout, write).move(rotation, source, target, -890)
    moved, same = layout.read(cache, target)
    assert torch.equal(same, values)
    assert torch.allclose(moved, rotation.turned(keys, 10), atol=1e-5)
    assert torch.equal(moved[..., 10:], keys[..., 10:])
    assert not torch.allclose(moved[..., :10], keys[..., :10], atol=1e-2)
    untouched = [index for index in range(48) if not 12 <= index < 23]
    for kept, was in zip(
        layout.read(cache, torch.tensor(untouched)), layout.read(before, torch.tensor(untouched)), strict=True
    ):
        assert torch.equal(kept, was)


def test_a_cache_that_keeps_something_else_cannot_be_moved() -> None:
    cache, write = backend(torch.arange(2 * 8 * 2 * 4), blocks=1, block=8, heads=2, size=4)
    with pytest.raises(CannotMove, match="as they are"):
        Layout(cache, lambda k, v, into, slots: write(k / 3, v, into, slots), block=8, heads=2, size=4)
