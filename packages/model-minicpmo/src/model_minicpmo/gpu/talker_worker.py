"""The worker of the talker's stage: words in, audio codes out, for all sessions in batched steps.

Owns: which slot is saying which request. Called by: the `torch` runtime, in the stage's worker process
(:class:`duplex_core.workers.BatchedWorker`). Never: decides what is said or when a turn ends.

A step samples one code for every slot that speaks, so a unit of 1 s takes up to 26 steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from duplex_core.stages import Forward, LinkKind
from duplex_core.torch_tensors import as_torch
from duplex_core.workers import SlotResult, SlotWork
from model_minicpmo.gpu.checkpoint import DtypeName, choose_dtype, open_checkpoint
from model_minicpmo.gpu.hub import checkpoint_folder
from model_minicpmo.gpu.sampling import CHAT_SAMPLING, CodeSampling
from model_minicpmo.gpu.talker import Spoken, Talker, Utterance, chat_limits, unit_limits
from model_minicpmo.gpu.talker_model import load_talker_model
from model_minicpmo.payloads import Codes, Said
from model_minicpmo.rules.turn import talker_forgets
from model_minicpmo.rules.units import UNIT_MS

log = logging.getLogger(__name__)


class TalkerWorker:
    """Speaks in codes: `Said` in, `Codes` for the voice out.

    Args:
        checkpoint: a checkpoint's folder, or its name on the hub.
        dtype: the type of the weights; `auto` is the published one, and float32 on a CPU.
        positions: how long a turn's memory is, in positions; the model's own length when left out.
    """

    frame_ms: float | None = UNIT_MS
    """A second of speech has to be made within a second."""

    def __init__(self, *, checkpoint: str, dtype: DtypeName = "auto", positions: int | None = None) -> None:
        self._name = checkpoint
        self._dtype: DtypeName = dtype
        self._positions = positions
        self._interleaved = False
        self._talker: Talker
        self._saying: dict[int, Said] = {}

    def start(self, slots: int, device: str) -> None:
        """Load the model and take memory for every slot's turn.

        Raises:
            CheckpointError: the checkpoint is not there, or its tensors do not fit its configuration.
        """
        checkpoint = open_checkpoint(checkpoint_folder(self._name))
        dtype = choose_dtype(self._dtype, config=checkpoint.config, device=torch.device(device))
        self._interleaved = checkpoint.config.tts_config.interleaved
        model = load_talker_model(checkpoint, device=device, dtype=dtype)
        self._talker = Talker(model, slots=slots, positions=self._positions)
        log.info("talker: %d slots, %s on %s", slots, dtype, device)

    def reset(self, slot: int) -> None:
        """Forget all of a slot's turn."""
        self.interrupted(slot)

    def interrupted(self, slot: int) -> None:
        """Give up what the slot is saying; its turn is over with it."""
        self._saying.pop(slot, None)
        self._talker.cancel(slot)

    def close(self) -> None:
        """Forget everything that is being said."""
        self._saying.clear()

    def step(self, work: Sequence[SlotWork]) -> list[SlotResult]:
        """Sample one code for each of these slots; see :class:`duplex_core.workers.BatchedWorker`."""
        results: dict[int, SlotResult] = {}
        for item in work:
            if item.payload is not None:
                done = self._begin(item.slot, item.payload)
                if done is not None:
                    results[item.slot] = done
        for spoken in self._talker.step():
            results[spoken.slot] = self._ended(spoken)
        return [results.get(item.slot, SlotResult(slot=item.slot, done=False)) for item in work]

    def _begin(self, slot: int, payload: Any) -> SlotResult | None:
        """Take a request; the result of one that needs no step."""
        if not isinstance(payload, Said):
            return SlotResult(slot=slot, failed=f"the talker takes words of a unit, not a {type(payload).__name__}")
        if payload.abandoned:
            if talker_forgets(payload.options.interruption):
                self._talker.cancel(slot)
            return _result(slot, Codes(number=payload.number, codes=(), abandoned=True, chat=payload.chat))
        try:
            self._talker.begin(self._utterance(slot, payload))
        except ValueError as error:
            return SlotResult(slot=slot, failed=str(error))
        self._saying[slot] = payload
        return None

    def _utterance(self, slot: int, said: Said) -> Utterance:
        model = self._talker.model
        hidden = torch.empty(0, model.config.llm_dim) if said.hidden is None else as_torch(said.hidden)
        weight = model.emb_text.weight
        if said.chat:
            limits = chat_limits(interleaved=self._interleaved)
        else:
            # A turn that was abandoned and not forgotten is gone on with: its successor begins in the midst of it.
            opens = said.opens_turn and not self._talker.length(slot)
            limits = unit_limits(opens_turn=opens, closes_turn=said.ends_turn)
        return Utterance(
            slot=slot,
            ids=torch.tensor(said.ids, dtype=torch.long, device=weight.device),
            hidden=hidden.to(weight),
            limits=limits,
            sampling=self._sampling(said),
            uniform=None if said.options.greedy else _uniforms(said),
            text_ends=said.chat,
            closes_turn=said.ends_turn,
        )

    def _sampling(self, said: Said) -> CodeSampling:
        chosen = CHAT_SAMPLING if said.chat and not self._interleaved else CodeSampling()
        return CodeSampling(
            temperature=said.options.tts_temperature,
            penalty=said.options.tts_repetition_penalty,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
        )

    def _ended(self, spoken: Spoken) -> SlotResult:
        said = self._saying.pop(spoken.slot)
        return _result(
            spoken.slot,
            Codes(number=said.number, codes=spoken.codes, ends_turn=said.ends_turn, chat=said.chat),
        )


def _result(slot: int, codes: Codes) -> SlotResult:
    return SlotResult(slot=slot, outputs=(Forward(kind=LinkKind.CODEC_FRAMES, payload=codes),))


def _uniforms(said: Said) -> Callable[[], float]:
    """Numbers in [0, 1): the recorded ones, or those that the session's seed and the unit's number fix."""
    if said.draws is not None:
        return iter(said.draws.tts).__next__
    return np.random.default_rng((said.options.seed, said.number, 1)).random
