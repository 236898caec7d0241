"""What the voice's worker refuses, and whose fault it says that is; on a checkpoint of ours."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from duplex_core.errors import ErrorCode, ErrorInfo
from duplex_core.workers import SlotResult, SlotWork
from model_minicpmo.gpu.voice_worker import VoiceWorker
from model_minicpmo.payloads import Codes, Said, Sound, Voice
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY
from model_minicpmo.testing.tiny_speech import write_voice_models

pytestmark = pytest.mark.engines

NAMED = "session.options.reference_audio"


def recording(seconds: float = 1.0, *, missing: int = 0, **more: Any) -> bytes:
    """A file of a tone, without so many bytes of its end."""
    times = np.arange(int(16_000 * seconds)) / 16_000
    file = io.BytesIO()
    soundfile.write(file, 0.2 * np.sin(2 * np.pi * 150 * times), 16_000, **{"format": "WAV", **more})
    content = file.getvalue()
    return content[: len(content) - missing]


def patched(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + bytes([value]) + content[at + 1 :]


def loud(times: float) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, times * np.sign(np.sin(np.arange(16_000) / 20)), 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def no_numbers() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.full(16_000, np.nan), 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def made(folder: Path, *, reads: bool) -> Iterator[VoiceWorker]:
    write_checkpoint(folder, TINY)
    if reads:
        write_voice_models(folder / "assets" / "token2wav", codes=TINY.talker.codes - 1)
    worker = VoiceWorker(checkpoint=str(folder), flow_steps=1)
    worker.start(1, "cpu")
    worker.reset(0)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceWorker]:
    torch.set_num_threads(1)
    yield from made(tmp_path_factory.mktemp("reading") / "checkpoint", reads=True)


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceWorker]:
    yield from made(tmp_path_factory.mktemp("deaf") / "checkpoint", reads=False)


def step(worker: VoiceWorker, payload: Any) -> SlotResult:
    [result] = worker.step([SlotWork(slot=0, payload=payload)])
    while not result.done:
        [result] = worker.step([SlotWork(slot=0)])
    return result


def refused(worker: VoiceWorker, payload: Any) -> ErrorInfo:
    told = step(worker, payload).refusal
    assert told is not None
    return told


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (b"RIFF of nothing", "cannot be read as a wav or flac file"),
        (recording(format="FLAC", missing=9_000), "cannot be read as a wav or flac file"),
        (recording(0.3), "lasts 0.30 s"),
        (no_numbers(), "holds values that are no numbers"),
        (patched(recording(format="FLAC"), 7, 41), "lasts 0.00 s"),  # opens, and holds nothing
        (patched(recording(), 20, 0x40), "cannot be read as a wav or flac file"),  # G.721: a bare ValueError
    ],
    ids=["no-file", "cut", "short", "not-a-number", "empty", "foreign"],
)
def test_a_voice_that_cannot_be_read_is_its_sender_s_to_change(
    reading: VoiceWorker, reference: bytes, message: str
) -> None:
    told = refused(reading, Voice(reference=reference))
    assert (told.code, told.param, told.retryable) == (ErrorCode.INVALID_VALUE, NAMED, False)
    assert message in told.message
    assert step(reading, Voice(reference=recording())).refusal is None
    [sound] = step(reading, Codes(number=0, codes=tuple(range(28)), ends_turn=True)).outputs
    assert isinstance(sound, Sound)
    assert any(sound.pcm)


def test_a_voice_that_is_far_too_loud_speaks_as_if_it_were_clipped(reading: VoiceWorker) -> None:
    said = []
    for times in (1.0, 1e30):
        assert step(reading, Voice(reference=loud(times))).refusal is None
        said.append(step(reading, Codes(number=0, codes=tuple(range(28)), ends_turn=True)).outputs[0])
    assert said[0] == said[1]
    assert any(said[0].pcm)


def test_without_a_voice_of_the_checkpoint_s_own_one_has_to_be_sent(reading: VoiceWorker) -> None:
    reading.reset(0)
    told = refused(reading, Voice())
    assert (told.code, told.param, told.retryable) == (ErrorCode.INVALID_VALUE, NAMED, False)
    assert "send one as the option reference_audio" in told.message
    told = refused(reading, Codes(number=0, codes=(1, 2), chat=True))
    assert (told.code, told.retryable) == (ErrorCode.UNSUPPORTED_PARAMETER, False)


def test_a_checkpoint_that_can_read_no_voice_says_so_and_does_not_name_its_files(
    deaf: VoiceWorker, tmp_path: Path
) -> None:
    told = refused(deaf, Voice(reference=recording()))
    assert (told.code, told.param, told.retryable) == (ErrorCode.UNSUPPORTED_PARAMETER, NAMED, False)
    assert "leave reference_audio out" in told.message
    told = refused(deaf, Voice())
    assert (told.code, told.retryable) == (ErrorCode.INTERNAL_ERROR, False)
    assert str(tmp_path.parent) not in told.message


def test_what_is_no_work_of_the_voice_s_is_a_fault_of_the_engine(reading: VoiceWorker) -> None:
    told = refused(reading, Said(number=0, ids=(), hidden=None))
    assert (told.code, told.retryable) == (ErrorCode.ENGINE_ERROR, True)
