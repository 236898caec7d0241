"""The whole loop against the recorded runs: sound and pictures in, decisions and sound out, through all four stages' workers.

The language model under the thinker is transformers' own here; on vLLM the same is shown in the tree's `tests/minicpmo`.
"""

from __future__ import annotations

import wave
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from duplex_core.fence import Fence
from duplex_core.spec import Checkpoint
from duplex_core.stages import Lane, StageOutput, StageRequest
from duplex_core.tensors import Tensor
from duplex_core.testing.pipelines import Batched, Worked
from duplex_core.testing.stages import StageHost
from model_minicpmo.gpu.token2wav.flow import Voice as Timbre
from model_minicpmo.gpu.voice_worker import VoiceWorker
from model_minicpmo.payloads import SENSES, VOICE, Decided, Open, Sound, Unit, Voice
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.sound import float32
from model_minicpmo.testing.over_transformers import OverTransformers, language_model
from model_minicpmo.testing.recorded import PROMPT, WINDOWS, Recording, prefix

pytestmark = pytest.mark.engines

(SPEC,) = duplex_register_models()
SAMPLES = 1e-3
UNIT_BYTES = 32_000


class RecordedVoice(VoiceWorker):
    """The voice with the recording's own prompt and noise, in place of what would be read from ONNX files."""

    def __init__(self, goldens: Path, **options: Any) -> None:
        self._recorded = load_file(goldens / "token2wav" / "inputs.safetensors")
        super().__init__(noise="none", default_voice=self._timbre_of(self._recorded), **options)

    @staticmethod
    def _timbre_of(recorded: dict[str, torch.Tensor]) -> Timbre:
        return Timbre(
            codes=recorded["prompt_tokens"][0].long(), mel=recorded["prompt_mel"][0], speaker=recorded["spk_emb"][0]
        )

    def start(self, slots: int, device: str) -> None:
        super().start(slots, device)
        self._synthesis.noise = self._recorded["flow_rand_noise"][0]
        assert self._timbre is not None
        self._own = self._synthesis.open(self._timbre)


class LoopHost(StageHost):
    """The model's four stages on the recorded checkpoint."""

    def __init__(self, goldens: Path) -> None:
        folder = goldens / "checkpoint"
        settings = MiniCPMOSettings(flow_steps=5, dtype="float32")
        plan = SPEC.stage_plan(Checkpoint(name="golden", path=str(folder)), settings)
        model = language_model(folder)
        super().__init__(plan, lambda program, session: OverTransformers(model, session))
        self._goldens = goldens

    def _made(self, spec: Any) -> Worked:
        if spec.name == VOICE:
            return Batched(RecordedVoice(self._goldens, checkpoint=spec.options["checkpoint"], flow_steps=5))
        return super()._made(spec)


@pytest.fixture(scope="module")
def host(goldens: Path) -> Any:
    torch.set_num_threads(1)
    running = LoopHost(goldens)
    yield running
    running.close()


class Loop(Recording):
    """One recorded run, played to the stages."""

    def __init__(self, goldens: Path, name: str, host: StageHost) -> None:
        super().__init__(goldens, name)
        self.host = host
        self.inputs = goldens / "inputs"
        with wave.open(str(self.inputs / ("long.wav" if name in WINDOWS else "user.wav"))) as file:
            self.pcm = file.readframes(file.getnframes())
        reference = (self.inputs / "reference_voice.wav").read_bytes()
        self.ask(SENSES, "open", Open(prompt=PROMPT, options=self.options, reference=reference))
        self.ask(VOICE, "voice", Voice())

    def ask(self, stage: str, request_id: str, payload: Any) -> list[Any]:
        fence = Fence(session_id=f"{self.name}-{id(self)}")
        request = StageRequest(stage=stage, request_id=request_id, fence=fence, lane=Lane.INPUT, payload=payload)
        replies = list(self.host.work(request))
        assert all(isinstance(reply, StageOutput) for reply in replies), replies
        return [reply.payload for reply in replies if isinstance(reply, StageOutput) and not reply.final]

    def unit(self, unit: dict[str, Any]) -> list[Any]:
        number = unit["unit"]
        pcm = self.pcm[number * UNIT_BYTES : (number + 1) * UNIT_BYTES].ljust(UNIT_BYTES, b"\0")
        payload = Unit(
            orders=self.orders(unit),
            samples=Tensor(dtype="float32", shape=(len(pcm) // 2,), data=float32(pcm)),
            pictures=tuple((self.inputs / name).read_bytes() for name in unit["frames"]),
            max_slices=unit["max_slice_nums"],
        )
        return self.ask(SENSES, f"unit-{number}", payload)


def played(sounds: list[Sound]) -> Any:
    return np.frombuffer(b"".join(sound.pcm for sound in sounds), dtype="<i2").astype(np.float32) / 32768.0


@pytest.mark.parametrize("name", ["duplex_greedy", "duplex_window_basic", "duplex_window_context", "duplex_vision"])
def test_every_unit_is_decided_and_sounds_as_recorded(name: str, goldens: Path, host: StageHost) -> None:
    loop = Loop(goldens, name, host)
    spoken = 0
    for unit in loop.units:
        decided, *rest = loop.unit(unit)
        assert isinstance(decided, Decided)
        assert (decided.listens, decided.text) == (unit["is_listen"], unit["text"])
        wav = loop.tensors.get(prefix(unit) + "wav")
        sounds = [each for each in rest if isinstance(each, Sound)]
        assert bool(sounds) == (not unit["is_listen"])
        if sounds and wav is not None:
            expected = wav.numpy().astype(np.float32) / 32768.0
            ours = played(sounds)
            assert len(ours) == len(expected), f"unit {unit['unit']}"
            assert float(np.abs(ours - expected).max()) < SAMPLES, f"unit {unit['unit']}"
            spoken += 1
    assert spoken == sum(prefix(unit) + "wav" in loop.tensors for unit in loop.units)


def test_two_conversations_side_by_side_are_each_as_alone(goldens: Path, host: StageHost) -> None:
    greedy, seeing = (partial(Loop, goldens, name, host)() for name in ("duplex_greedy", "duplex_vision"))
    for one, other in zip(greedy.units, seeing.units, strict=False):
        for loop, unit in ((greedy, one), (seeing, other)):
            decided, *_ = loop.unit(unit)
            assert (decided.listens, decided.text) == (unit["is_listen"], unit["text"])
