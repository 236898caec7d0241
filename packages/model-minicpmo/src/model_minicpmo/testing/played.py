"""The four stages on the checkpoint of the golden data, and what passes between them when a recorded run is played to them.

Owns: the recorded voice, the language model under the thinker (transformers' own), and the list of what one stage gave the next.
Used by the tests of the whole loop. Holds no expectation and no data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from duplex_core.spec import Checkpoint
from duplex_core.testing.pipelines import Batched, Worked
from duplex_core.testing.stages import StageHost
from duplex_core.workers import EngineProgram, SlotResult
from model_minicpmo.gpu.token2wav.flow import Voice as Timbre
from model_minicpmo.gpu.voice_worker import VoiceWorker
from model_minicpmo.payloads import VOICE, Voice
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.over_transformers import OverTransformers, language_model

(SPEC,) = duplex_register_models()
FLOW_STEPS = 5
"""What the runs were recorded with."""


class RecordedVoice(VoiceWorker):
    """The voice with the recording's own prompt and noise, in place of what would be read from ONNX files."""

    def __init__(self, goldens: Path, *, checkpoint: str) -> None:
        """Take the prompt, the speaker and the flow's noise from the folder `goldens`."""
        self._recorded = load_file(goldens / "token2wav" / "inputs.safetensors")
        timbre = Timbre(
            codes=self._recorded["prompt_tokens"][0].long(),
            mel=self._recorded["prompt_mel"][0],
            speaker=self._recorded["spk_emb"][0],
        )
        self._recorded_timbre = timbre
        super().__init__(checkpoint=checkpoint, flow_steps=FLOW_STEPS, noise="none", default_voice=timbre)

    def start(self, slots: int, device: str) -> None:
        """Load, and take the recorded noise."""
        super().start(slots, device)
        self._synthesis.noise = self._recorded["flow_rand_noise"][0]
        self._own = self._synthesis.open(self._recorded_timbre)

    def _take_voice(self, slot: int, voice: Voice) -> SlotResult:
        """The recorded voice is everybody's, whatever a session brings."""
        return super()._take_voice(slot, Voice(seed=voice.seed))


class RecordedHost(StageHost):
    """The model's four stages on the recorded checkpoint.

    Attributes:
        settings: the deploy settings.
        checkpoint: the recorded one.
        passed: what each stage was given, in order; for tests to clear.
        languages: the language model's sessions, in the order in which they began.
    """

    def __init__(self, goldens: Path) -> None:
        """Load the language model; the stages are made on first use."""
        folder = goldens / "checkpoint"
        self.settings = MiniCPMOSettings(flow_steps=FLOW_STEPS, dtype="float32")
        self.checkpoint = Checkpoint(name="golden", path=str(folder))
        self.passed: list[Any] = []
        self.languages: list[OverTransformers] = []
        self._goldens = goldens
        self._model = language_model(folder)
        super().__init__(SPEC.stage_plan(self.checkpoint, self.settings), self._language)

    def _language(self, program: EngineProgram, session: Any) -> OverTransformers:
        self.languages.append(OverTransformers(self._model, session))
        return self.languages[-1]

    def _flow(self, stage: str, session_id: str, payload: Any, pieces: list[tuple[str, Any]]) -> None:
        self.passed.append(payload)
        super()._flow(stage, session_id, payload, pieces)

    def _made(self, spec: Any) -> Worked:
        if spec.name == VOICE:
            return Batched(RecordedVoice(self._goldens, checkpoint=spec.options["checkpoint"]))
        return super()._made(spec)


def largest(one: torch.Tensor, other: torch.Tensor) -> float:
    """Give the largest difference between two tensors of one shape."""
    assert one.shape == other.shape, (one.shape, other.shape)
    return float((one - other).abs().max()) if one.numel() else 0.0
