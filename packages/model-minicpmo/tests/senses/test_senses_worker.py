"""The senses' worker against the recorded runs, with slots side by side, and with what must be refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import load_file

from duplex_core.errors import ErrorCode, ErrorInfo
from duplex_core.stages import Forward, LinkKind
from duplex_core.tensors import Tensor
from duplex_core.torch_tensors import as_torch, of_torch
from duplex_core.workers import SlotResult, SlotWork
from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.senses_worker import SensesWorker
from model_minicpmo.payloads import (
    Chat,
    ChatMessage,
    ChatPart,
    ChatSensed,
    Draws,
    Open,
    Opened,
    Options,
    Orders,
    Sensed,
    Unit,
    Voice,
)
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

pytestmark = pytest.mark.engines

EMBEDS = 1e-5
OPTIONS = Options(seed=3)


@pytest.fixture(scope="module")
def recorded_worker(goldens: Path) -> Iterator[SensesWorker]:
    yield from started(goldens / "checkpoint")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), TINY, seed=5)


@pytest.fixture(scope="module")
def worker(tiny: Path) -> Iterator[SensesWorker]:
    yield from started(tiny)


def started(folder: Path, slots: int = 3) -> Iterator[SensesWorker]:
    made = SensesWorker(checkpoint=str(folder))
    made.start(slots, "cpu")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _empty_slots(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in {"worker", "recorded_worker"} & set(request.fixturenames):
        for slot in range(3):
            request.getfixturevalue(name).reset(slot)


def sound(path: Path) -> torch.Tensor:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16_000
    return torch.from_numpy(samples)


def noise(seed: int, samples: int = 16_000) -> torch.Tensor:
    return 0.3 * torch.randn(samples, generator=torch.Generator().manual_seed(seed)).clamp(-3, 3)


def unit(samples: torch.Tensor, number: int = 0, **more: Any) -> Unit:
    return Unit(orders=Orders(number=number), samples=of_torch(samples.clone()), **more)


def asked(samples: torch.Tensor, **more: Any) -> Unit:
    """A unit whose pictures somebody asks about."""
    return Unit(orders=Orders(number=0, asked=True, waited_for=True), samples=of_torch(samples.clone()), **more)


def second(samples: torch.Tensor, number: int, **more: Any) -> Unit:
    return unit(samples[16_000 * number : 16_000 * (number + 1)], number, **more)


def wav(samples: torch.Tensor, rate: int = 16_000, **more: Any) -> bytes:
    file = io.BytesIO()
    values = samples if "subtype" in more else (32767 * samples).round().short()
    soundfile.write(file, values.numpy(), rate, format=more.pop("format", "WAV"), **more)
    return file.getvalue()


def patched(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + bytes([value]) + content[at + 1 :]


def picture(seed: int = 0, size: tuple[int, int] = (320, 240)) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, size=(6, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize(size).save(file, "PNG")
    return file.getvalue()


def step(made: SensesWorker, **payloads: Any) -> dict[str, Any]:
    """One step, `s0=` for slot 0; what is forwarded by each, or its result when it forwards nothing."""
    results = made.step([SlotWork(slot=int(name[1:]), payload=payload) for name, payload in payloads.items()])
    assert sorted(f"s{result.slot}" for result in results) == sorted(payloads)
    return {f"s{result.slot}": forwarded(result) if result.outputs else result for result in results}


def forwarded(result: SlotResult) -> Any:
    [forward] = result.outputs
    assert isinstance(forward, Forward)
    assert forward.kind is LinkKind.EMBEDDINGS
    assert result.done
    assert result.failed is None
    return forward.payload


def theirs(result: SlotResult) -> str | None:
    """The field that is named by a refusal of what a client sent."""
    assert isinstance(result.failed, ErrorInfo)
    assert (result.failed.code, result.failed.retryable) == (ErrorCode.INVALID_VALUE, False)
    return result.failed.param


def sense(made: SensesWorker, slot: int, payload: Any) -> Any:
    """All steps of one request."""
    [result] = made.step([SlotWork(slot=slot, payload=payload)])
    while not result.done:
        [result] = made.step([SlotWork(slot=slot)])
    return result if result.failed else forwarded(result)


def apart(ours: Tensor, recorded: torch.Tensor) -> float:
    values = as_torch(ours)
    assert values.shape == recorded.shape
    return float((values.double() - recorded.double()).abs().max())


def test_a_recorded_session_s_opening_and_units(goldens: Path, recorded_worker: SensesWorker) -> None:
    recorded = load_file(goldens / "duplex_greedy" / "tensors.safetensors")
    prepared = json.loads((goldens / "duplex_greedy" / "run.json").read_text())["prepare"]
    voice = (goldens / "inputs" / "reference_voice.wav").read_bytes()
    opened = sense(recorded_worker, 0, Open(prompt="Hello.", options=OPTIONS, reference=voice))
    fed = recorded["feed.embeds"][len(prepared["prefix_ids"]) : prepared["cache_len"] - len(prepared["suffix_ids"])]
    assert isinstance(opened, Opened)
    assert (opened.prompt, opened.options) == ("Hello.", OPTIONS)
    assert opened.reference is not None
    assert apart(opened.reference, fed) <= EMBEDS
    user = sound(goldens / "inputs" / "user.wav")
    for number in range(12):
        sensed = sense(recorded_worker, 0, second(user, number))
        assert isinstance(sensed, Sensed)
        assert sensed.orders == Orders(number=number)
        assert apart(sensed.audio, recorded[f"u{number:02d}.audio_embeds"]) <= EMBEDS
        assert not sensed.pictures


def test_recorded_pictures(goldens: Path, recorded_worker: SensesWorker) -> None:
    recorded = load_file(goldens / "duplex_vision" / "tensors.safetensors")
    units = json.loads((goldens / "duplex_vision" / "run.json").read_text())["units"]
    user = sound(goldens / "inputs" / "user.wav")
    counts = []
    for told in units:
        files = tuple((goldens / "inputs" / name).read_bytes() for name in told["frames"])
        asked = second(user, told["unit"], pictures=files, max_slices=told["max_slice_nums"])
        sensed = sense(recorded_worker, 1, asked)
        name = f"u{told['unit']:02d}"
        assert apart(sensed.audio, recorded[f"{name}.audio_embeds"]) <= EMBEDS
        views = [view for each in sensed.pictures for view in (each.whole, *each.slices)]
        for view, expected in zip(views, recorded.get(f"{name}.image_embeds", ()), strict=True):
            assert apart(view, expected) <= EMBEDS
        counts.append([(len(each.slices), each.columns) for each in sensed.pictures])
    assert counts == [[], [(0, 0)], [(4, 2)], [(0, 0), (0, 0)]]


def test_a_recorded_chat(goldens: Path, recorded_worker: SensesWorker) -> None:
    recorded = load_file(goldens / "chat_audio" / "tensors.safetensors")
    [[[begin, end]]] = json.loads((goldens / "chat_audio" / "run.json").read_text())["audio_bounds"]
    question = ChatPart(samples=of_torch(sound(goldens / "inputs" / "question.wav")))
    chat = Chat(
        messages=(
            ChatMessage(role="system", parts=(ChatPart(text="Answer the question."),)),
            ChatMessage(role="user", parts=(question,)),
        ),
        options=OPTIONS,
        max_tokens=96,
        spoken=True,
        draws=Draws(tts=(0.25,)),
    )
    sensed = sense(recorded_worker, 0, chat)
    assert isinstance(sensed, ChatSensed)
    assert [message.role for message in sensed.messages] == ["system", "user"]
    assert sensed.messages[0].parts[0].text == "Answer the question."
    [heard] = sensed.messages[1].parts
    assert heard.audio is not None
    assert apart(heard.audio, recorded["input_embeds"][begin:end]) <= EMBEDS
    assert (sensed.options, sensed.max_tokens, sensed.spoken) == (OPTIONS, 96, True)
    assert sensed.draws == Draws(tts=(0.25,))


def test_two_recorded_sessions_in_the_same_steps(goldens: Path, recorded_worker: SensesWorker) -> None:
    runs = {"s0": ("duplex_greedy", "user.wav", 0), "s2": ("duplex_window_basic", "long.wav", 2)}
    recorded = {slot: load_file(goldens / run / "tensors.safetensors") for slot, (run, _, _) in runs.items()}
    sounds = {slot: sound(goldens / "inputs" / file) for slot, (_, file, _) in runs.items()}
    compared = 0
    for turn in range(14):  # the second begins two steps later
        due = {slot: turn - late for slot, (_, _, late) in runs.items() if 0 <= turn - late < 12}
        given = step(recorded_worker, **{slot: second(sounds[slot], number) for slot, number in due.items()})
        for slot, number in due.items():
            assert apart(given[slot].audio, recorded[slot][f"u{number:02d}.audio_embeds"]) <= EMBEDS
            compared += 1
    assert compared == 24


def test_a_slot_begins_anew_after_a_reset(worker: SensesWorker) -> None:
    first = [sense(worker, 0, unit(noise(seed))).audio for seed in range(3)]
    worker.reset(0)
    assert [sense(worker, 0, unit(noise(seed))).audio for seed in range(3)] == first
    assert sense(worker, 0, unit(noise(0))).audio != first[0]


def test_a_bad_input_fails_alone_and_leaves_its_stream_as_it_was(worker: SensesWorker) -> None:
    expected = [sense(worker, 2, unit(noise(seed))).audio for seed in range(3)]
    sense(worker, 0, unit(noise(0)))
    sense(worker, 1, unit(noise(1)))
    broken = picture()[:200]
    given = step(
        worker,
        s0=asked(noise(1), pictures=(picture(), broken)),
        s1=unit(noise(2), pictures=(picture(),)),
        s2=unit(noise(3)[:-1], 3),
    )
    assert theirs(given["s0"]) is None
    assert "200 bytes cannot be decoded as a picture" in given["s0"].failed.message
    assert given["s2"].failed == "unit 3 has 15999 samples; a unit has 16000"
    assert len(given["s1"].pictures) == 1
    again = [sense(worker, 0, unit(noise(seed))).audio for seed in (1, 2)]
    for ours, there in zip(again, expected[1:], strict=True):
        assert apart(ours, as_torch(there)) <= EMBEDS


def test_pictures_that_cannot_be_shown_are_left_out_and_their_second_is_heard(worker: SensesWorker) -> None:
    alone = sense(worker, 1, unit(noise(1)))
    file = io.BytesIO()
    Image.new("1", (4000, 4000)).save(file, "PNG")
    large = file.getvalue()
    shown = (b"GIF89a", picture(), large, large)
    sensed = sense(worker, 0, unit(noise(1), pictures=shown))
    assert apart(sensed.audio, as_torch(alone.audio)) <= EMBEDS
    assert len(sensed.pictures) == 2
    [seen] = sense(worker, 2, unit(noise(2), pictures=(picture(),))).pictures
    assert apart(sensed.pictures[0].whole, as_torch(seen.whole)) <= EMBEDS
    assert [(fault.code, fault.retryable) for fault in sensed.faults] == [(ErrorCode.INVALID_VALUE, False)] * 2
    first, second = (fault.message for fault in sensed.faults)
    assert "these 6 bytes cannot be decoded as a picture" in first
    assert "4000 by 4000 pixels is too large beside the others of its second" in second
    assert not alone.faults


def test_a_recording_that_is_far_too_loud_is_heard_as_if_it_were_clipped(worker: SensesWorker) -> None:
    """Squared, values of 1e30 are no numbers any more, and those would stay in the thinker's cache."""
    loud = torch.sign(noise(4, 20_000))
    voices = [wav(times * loud, subtype="FLOAT") for times in (1.0, 1e30)]
    heard = [sense(worker, 0, Open(prompt="", options=OPTIONS, reference=voice)).reference for voice in voices]
    assert heard[0] == heard[1]
    assert bool(torch.isfinite(as_torch(heard[0])).all())
    wide = [sense(worker, slot, unit(times * noise(5).sign())).audio for slot, times in ((0, 1.0), (1, 1e30))]
    assert apart(wide[1], as_torch(wide[0])) <= EMBEDS


@pytest.mark.parametrize("front", ["_audio", "_vision"])
def test_embeddings_that_are_no_numbers_leave_neither_the_senses_nor_anything_behind(
    worker: SensesWorker, front: str
) -> None:
    given = unit(noise(1), pictures=(picture(),))
    before = sense(worker, 0, given)
    worker.reset(0)
    broken = worker._audio.encoder.conv1.bias if front == "_audio" else worker._vision.resampler.query
    whole = broken.detach().clone()
    with torch.no_grad():
        broken.fill_(torch.nan)
        failed = sense(worker, 0, given)
        broken.copy_(whole)
    assert theirs(failed) is None
    assert "hold no numbers" in failed.failed.message
    after = sense(worker, 0, given)
    assert apart(after.audio, as_torch(before.audio)) <= EMBEDS
    assert after.pictures == before.pictures


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (b"RIFF of nothing", "cannot be read as a wav or flac file"),
        (wav(noise(0, 40_000), format="FLAC")[:30_000], "of 30000 bytes cannot be read as a wav or flac file"),
        (wav(torch.zeros(31 * 8000), 8000), "lasts 31.00 s; it has to last between 0.5 and 30 s"),
        (wav(torch.zeros(100)), "lasts 0.01 s"),
        (patched(wav(noise(0, 40_000), format="FLAC"), 7, 41), "lasts 0.00 s"),  # opens, and holds nothing
        (patched(wav(noise(0, 40_000)), 20, 0x40), "cannot be read as a wav or flac file"),  # G.721: a bare ValueError
        (wav(torch.zeros(16_000, 3)), "has 3 channels at 16000 Hz; it has to be mono or stereo"),
        (wav(torch.full((16_000,), torch.nan), subtype="FLOAT"), "no numbers"),
    ],
    ids=["no-file", "cut", "long", "short", "empty", "foreign", "channels", "not-a-number"],
)
def test_a_broken_voice_fails_its_own_opening(worker: SensesWorker, reference: bytes, told: str) -> None:
    given = step(worker, s0=Open(prompt="", options=OPTIONS, reference=reference), s1=unit(noise(1)))
    assert theirs(given["s0"]) == "session.options.reference_audio"
    assert told in given["s0"].failed.message
    assert isinstance(given["s1"], Sensed)


def test_voices_of_other_rates_and_channels_and_formats_sound_alike(worker: SensesWorker) -> None:
    """A slow tone: what resampling keeps of it is nearly all."""
    at = torch.arange(32_000) / 16_000
    tone = 0.5 * torch.sin(2 * torch.pi * 300 * at) * torch.sin(torch.pi * at / 2)
    halves = torch.stack([tone[::2] * 0.5, tone[::2] * 1.5], dim=1)
    files = (wav(tone), wav(tone, format="FLAC"), wav(halves, 8000))
    plain, flac, other = (
        as_torch(sense(worker, 0, Open(prompt="", options=OPTIONS, reference=file)).reference) for file in files
    )
    assert plain.shape == (20, 128)
    assert torch.equal(plain, flac)
    assert other.shape == plain.shape
    assert float((other - plain).abs().mean() / plain.abs().mean()) < 0.2


def test_without_a_voice_the_checkpoint_s_own_is_taken_if_it_has_one(tmp_path: Path, worker: SensesWorker) -> None:
    asked = Open(prompt="Hello.", options=OPTIONS)
    assert sense(worker, 0, asked) == Opened(prompt="Hello.", options=OPTIONS)
    folder = write_checkpoint(tmp_path, TINY, seed=5)
    own = wav(noise(4, 16_000))
    (folder / "assets" / "HT_ref_audio.wav").write_bytes(own)
    (folder / "assets" / "a_song.wav").write_bytes(wav(noise(5, 16_000)))
    (folder / "assets" / "system_ref_audio.wav").write_bytes(wav(noise(6, 16_000)))
    for owner in started(folder):
        given = sense(owner, 0, asked)
        assert given.reference == sense(worker, 0, Open(prompt="", options=OPTIONS, reference=own)).reference
        theirs = wav(noise(7, 16_000))
        assert sense(owner, 0, Open(prompt="", options=OPTIONS, reference=theirs)).reference != given.reference


def test_a_checkpoint_whose_own_voice_is_broken_does_not_start(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, TINY)
    (folder / "assets" / "ref.wav").write_bytes(b"no sound")
    with pytest.raises(CheckpointError, match=r"ref\.wav: is the checkpoint's own reference voice, but: .* cannot be"):
        SensesWorker(checkpoint=str(folder)).start(1, "cpu")


def test_a_chat_takes_a_step_for_each_piece_beside_units(worker: SensesWorker) -> None:
    long = noise(8, 16_000 * 40)
    parts = (
        ChatPart(text="What is said here?"),
        ChatPart(samples=of_torch(long)),
        ChatPart(picture=picture(1, (900, 900))),
        ChatPart(text="And there?"),
    )
    chat = Chat(messages=(ChatMessage(role="user", parts=parts),), options=OPTIONS)
    alone = [sense(worker, 2, unit(noise(seed))).audio for seed in range(3)]
    given = step(worker, s0=chat, s1=unit(noise(0), pictures=(picture(2),)))
    assert given["s0"] == SlotResult(slot=0, done=False)
    assert apart(given["s1"].audio, as_torch(alone[0])) <= EMBEDS
    given = step(worker, s0=None, s1=unit(noise(1)))
    assert given["s0"] == SlotResult(slot=0, done=False)
    given = step(worker, s0=None, s1=unit(noise(2), pictures=(picture(2),)))
    assert apart(given["s1"].audio, as_torch(alone[2])) <= EMBEDS
    [message] = given["s0"].messages
    text, heard, seen, more = message.parts
    assert (text.text, more.text) == ("What is said here?", "And there?")
    # Each piece of 30 s is encoded on its own.
    clips = [sense(worker, 2, one_sound(piece)).messages[0].parts[0].audio for piece in long.split(480_000)]
    assert apart(heard.audio, torch.cat([as_torch(clip) for clip in clips])) == 0
    assert seen.picture is not None
    assert (len(seen.picture.slices), seen.picture.columns) == (4, 2)
    assert [view.shape for view in (seen.picture.whole, *seen.picture.slices)] == [(64, 128)] * 5


def one_sound(samples: torch.Tensor) -> Chat:
    return Chat(
        messages=(ChatMessage(role="user", parts=(ChatPart(samples=of_torch(samples.clone())),)),), options=OPTIONS
    )


def test_a_chat_s_sound_in_integers_is_heard_as_the_same_in_floats(worker: SensesWorker) -> None:
    """So it comes from the session: nothing is computed where everybody waits."""
    integers = (32767 * noise(1)).short()
    floats = sense(worker, 0, one_sound(integers.float() / 32768)).messages[0].parts[0].audio
    assert sense(worker, 0, one_sound(integers)).messages[0].parts[0].audio == floats


def test_a_chat_that_fits_into_no_context_is_refused_before_any_of_it_is_decoded(
    worker: SensesWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_positions", 600)
    cut_short = picture(size=(900, 900))[:-500]  # its header says how large it is; decoding it would fail
    parts = (ChatPart(samples=of_torch(noise(1, 32_000))), *(ChatPart(picture=cut_short) for _ in range(9)))
    failed = sense(worker, 0, Chat(messages=(ChatMessage(role="user", parts=parts),), options=OPTIONS))
    assert isinstance(failed.failed, ErrorInfo)
    assert (failed.failed.code, failed.failed.retryable) == (ErrorCode.CONTEXT_FULL, False)
    assert "positions or more of a context of 600" in failed.failed.message
    long = sense(worker, 0, one_sound(torch.zeros(16_000 * 61)))
    assert long.failed.code is ErrorCode.CONTEXT_FULL
    assert not worker._chats


def test_a_chat_without_sound_or_pictures_passes_through(worker: SensesWorker) -> None:
    chat = Chat(messages=(ChatMessage(role="user", parts=(ChatPart(text="Hi."),)),), options=OPTIONS)
    sensed = forwarded(worker.step([SlotWork(slot=0, payload=chat)])[0])
    assert sensed.messages[0].parts[0].text == "Hi."


def test_a_chat_that_is_given_up_leaves_nothing(worker: SensesWorker) -> None:
    chat = one_sound(noise(1, 16_000 * 70))
    assert not worker.step([SlotWork(slot=0, payload=chat)])[0].done
    worker.interrupted(0)
    small = one_sound(noise(1))
    assert apart(sense(worker, 0, small).messages[0].parts[0].audio, as_torch(clip_of(worker, 1))) == 0


def clip_of(worker: SensesWorker, slot: int) -> Tensor:
    audio: Tensor = sense(worker, slot, one_sound(noise(1))).messages[0].parts[0].audio
    return audio


@pytest.mark.parametrize(
    ("part", "told", "ours"),
    [
        (ChatPart(samples=of_torch(torch.zeros(1280))), "has 1280 samples; to be heard it needs 1281", False),
        (ChatPart(samples=of_torch(torch.zeros(2, 8000))), "float32 or int16 [n], not float32 [2, 8000]", True),
        (ChatPart(samples=of_torch(torch.zeros(8000, dtype=torch.int32))), "not int32 [8000]", True),
        (ChatPart(samples=of_torch(torch.full((8000,), torch.inf))), "holds values that are no numbers", True),
        (ChatPart(picture=b"GIF89a"), "6 bytes cannot be decoded as a picture", False),
        (ChatPart(picture=picture(size=(1010, 10))), "its sides must be within a factor of 100", False),
    ],
    ids=["short", "stereo", "integers", "not-a-number", "no-picture", "narrow"],
)
def test_a_bad_part_fails_its_own_chat(worker: SensesWorker, part: ChatPart, told: str, ours: bool) -> None:
    """What only the session could have got wrong is a fault of the engine; the rest is the client's to change."""
    good = ChatPart(samples=of_torch(noise(3)))
    chat = Chat(messages=(ChatMessage(role="user", parts=(good, part)),), options=OPTIONS)
    failed = sense(worker, 0, chat)
    if ours:
        assert told in failed.failed
        assert failed.refusal.code is ErrorCode.ENGINE_ERROR
    else:
        assert theirs(failed) is None
        assert told in failed.failed.message
    assert not worker._chats


def test_starting_loads_neither_transformers_nor_a_compiler(tiny: Path) -> None:
    """Either takes longer than all else; a process that has imported torch alone starts in a few seconds."""
    script = (
        "import sys; from model_minicpmo.gpu.senses_worker import SensesWorker as Worker; "
        "Worker(checkpoint=sys.argv[1]).start(1, 'cpu'); "
        "print(*({'transformers', 'torch._dynamo', 'sympy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tiny)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_is_no_work_of_the_senses_is_refused(worker: SensesWorker) -> None:
    assert step(worker, s0=Voice())["s0"].failed == "the senses take an opening, a unit or a chat, not a Voice"
