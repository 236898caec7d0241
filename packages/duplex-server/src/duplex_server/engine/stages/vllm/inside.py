"""The half of the platform that runs in the engine's process: where vLLM's steps are watched, and its tokens decided.

Owns what differs between vLLM's model runners V1 (on a CPU, and by choice) and V2 (on GPUs). Called by vLLM, which mixes
:class:`WorkerTap` into its worker, and makes one of the two deciders; :mod:`.platform` reaches the former's methods by
``collective_rpc``. Must never know a session.

Measured against vLLM 0.32. What it relies on beyond vLLM's documented interface: the two model runners' ``execute_model`` with
``execute_model_state.hidden_states`` after it, the scheduler's output, and for moving keys and values the runners' block tables
and the attention backends' ``do_kv_cache_update``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from vllm.model_executor.layers.rotary_embedding import MRotaryEmbedding, RotaryEmbedding
from vllm.v1.sample.logits_processor import LogitsProcessor as ProcessorV1
from vllm.v1.sample.logits_processor import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as ProcessorV2

from duplex_server.engine.stages.vllm.environment import die_with
from duplex_server.engine.stages.vllm.moving import Cached, CannotMove, Layout, Rotation
from duplex_server.engine.stages.vllm.tap import Rows, Tap

OPTIONS = "duplex"
"""Under which name a segment's wishes travel in ``SamplingParams.extra_args``."""

TAP = Tap()
"""The tap of this process, when it is an engine's."""


class WorkerTap:
    """Mixed by vLLM into its worker's class, whichever that is; its methods are reached by ``collective_rpc``."""

    model_runner: Any
    vllm_config: Any

    def duplex_install(self, decider: str) -> int:
        """Watch every step of this worker's model runner from now on. Gives the size of the vocabulary."""
        die_with(os.getppid())  # where vLLM spawns its processes, nothing has said so yet
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

    def duplex_move(self, source: int, target: int, start: int, stop: int, to: int) -> str:
        """Move the keys and values of a stream's positions ``start`` to ``stop`` to another's, from ``to`` on.

        Gives why that is impossible, or nothing.
        """
        config = self.vllm_config
        try:
            slots = [_slots(self.model_runner, config, each) for each in (source, target)]
            rotation = _rotation(self.model_runner.get_model())
            layers = config.compilation_config.static_forward_context.values()
            for cached in [_cached(layer) for layer in layers if getattr(layer, "impl", None) is not None]:
                cached.move(rotation, slots[0][start:stop], slots[1][to : to + stop - start], to - start)
        except CannotMove as exc:
            return str(exc)
        return ""

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


_LAYOUTS: dict[tuple[Any, ...], Layout] = {}


def _cached(layer: Any) -> Cached:
    """One attention layer's cache, whose logical shape is ``[blocks, heads, positions, content]``.

    Raises:
        CannotMove: it is another kind of cache, or keeps something else than the keys and values.
    """
    cache = layer.kv_cache
    if not hasattr(layer.impl, "do_kv_cache_update") or cache.dim() != 4:
        raise CannotMove(f"{type(layer.impl).__name__} has no means of writing keys and values alone")

    def write(keys: torch.Tensor, values: torch.Tensor, into: torch.Tensor, slots: torch.Tensor) -> None:
        layer.impl.do_kv_cache_update(layer, keys, values, into, slots)

    _, heads, block, _ = cache.shape
    which = (type(layer.impl), cache.dtype, tuple(cache.shape[1:]), cache.stride()[1:])
    if which not in _LAYOUTS:
        _LAYOUTS[which] = Layout(cache, write, block=block, heads=heads, size=layer.head_size)
    return Cached(cache, _LAYOUTS[which], write)


def _slots(runner: Any, config: Any, stream: int) -> torch.Tensor:
    """Where in the cache a stream's positions are, for as many as it has blocks."""
    request = TAP.request(stream)
    if request is None:
        raise CannotMove("the request is not in the engine any more")
    if config.use_v2_model_runner:
        tables = runner.block_tables.block_tables
        index = runner.req_states.req_id_to_index[request]
        blocks = [table.gpu[index].long().cpu() for table in tables]
    else:
        blocks = [torch.tensor(each) for each in runner.requests[request].block_ids]
    if len(blocks) != 1:
        raise CannotMove("the model's layers do not all have one kind of KV cache")
    size = config.cache_config.block_size
    return (blocks[0][:, None] * size + torch.arange(size)).flatten()


def _rotation(model: Any) -> Rotation:
    """How the model rotates keys, which must be the same in every layer."""
    found = {
        tuple(each._compute_inv_freq(each.base).tolist()): each.is_neox_style  # noqa: SLF001 - its cache is too coarse
        for each in model.modules()
        if type(each) in {RotaryEmbedding, MRotaryEmbedding}
    }
    if len(found) != 1:
        raise CannotMove("the model's positions are not told by one plain rotation of its keys")
    ((frequencies, halves),) = found.items()
    return Rotation(torch.tensor(frequencies, dtype=torch.float64), halves)


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
