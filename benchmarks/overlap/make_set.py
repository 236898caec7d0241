"""Make the recorded set anew: speak the texts, cut the human recordings, compute the noises, write FLAC files and a manifest.

Run it as ``python -m benchmarks.overlap.make_set`` from the root of the tree. It needs the voices of `model-cascade` (and
`py-nanotts`) and Debian's `pocketsphinx-testdata`. The set in the tree is what figures are about: a new run speaks the same
texts at the same levels, but the natural voice draws its own lots, so its files are not the same to the last bit.
"""

from __future__ import annotations

import argparse
import re
import wave as wavefile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import soundfile
import soxr

from benchmarks.overlap import texts
from benchmarks.overlap.noises import NOISES, RATE_HZ, Random, Wave, hummed
from benchmarks.overlap.recorded import FOLDER, Bed, Clip, Kind, Part
from model_cascade.parts.joe_voice import JoeVoice
from model_cascade.parts.nano_voice import NanoVoice

HUMAN: Final = Path("/usr/share/pocketsphinx/test/data")
VOICES: Final = ("joe", "nano", "nano-gb")
LICENCES: Final = {"joe": "CC0-1.0", "nano": "Apache-2.0", "nano-gb": "Apache-2.0"}
OWN: Final = "Apache-2.0"
TEMPI: Final = (0.85, 1.0, 1.0, 1.15, 1.3)
PITCHES: Final = (0.86, 0.94, 1.0, 1.0, 1.06, 1.14)
PEAKS_DBFS: Final = (-6.0, -9.0, -12.0, -15.0, -18.0, -24.0, -30.0)
SNRS_DB: Final = (None, None, None, 20.0, 15.0, 10.0)
"""Half of all clips are in a quiet room, whose noise is far below."""
QUIET_DBFS: Final = -72.0
HALVES: Final = (Part.TUNING, Part.HELD_OUT)
NOISES_A_HALF: Final = 2
HUMS_A_HALF: Final = 5
BABBLES_A_HALF: Final = 4
FIRST_SHORT: Final = 1000
SHORT_SEED: Final = 77
LONGEST_S: Final = 3.0
EDGE_MS: Final = 40.0
PAUSES_MS: Final = (180.0, 480.0)
"""The pause in an interruption that has one."""

COMMANDS: Final = {
    "cards/001.wav": "ten of clubs",
    "cards/002.wav": "four queen of clubs",
    "cards/003.wav": "seven of clubs",
    "cards/004.wav": "five five",
    "cards/005.wav": "eight of spades four of clubs seven of hearts",
    "goforward.raw": "go forward ten meters",
    "numbers.raw": "thirty three four six ninety two",
    "something.raw": "go somewhere and do something",
    "tidigits/dhd.2934z.raw": "two nine three four zero",
}
SENTENCES: Final = {
    "0870": "and mister john dashwood had then leisure to consider",
    "0880": "he was not an ill disposed young man",
    "0890": "unless to be rather cold hearted and rather selfish",
    "0920": "had he married a more amiable woman",
    "0930": "he might even have been made amiable himself",
}


class Take(msgspec.Struct, frozen=True, kw_only=True):
    """A sound as it was made, at 16 kHz, before level and room."""

    kind: Kind
    part: Part
    text: str
    source: str
    licence: str
    wave: Wave


@cache
def voice(name: str, tempo: float) -> JoeVoice | NanoVoice:
    """A voice at a tempo."""
    return JoeVoice(speed=tempo) if name == "joe" else NanoVoice(name, speed=tempo)


def speak(name: str, text: str, rng: Random, *, paused: bool) -> tuple[Wave, str]:
    """A line in a voice, at a tempo and a pitch that are drawn, with or without a pause after each sentence; how it was made."""
    tempo, pitch = float(rng.choice(TEMPI)), float(rng.choice(PITCHES))
    speaker = voice(name, tempo / pitch)
    words = texts.SPOKEN_AS.get((name, text), text)
    made: list[Wave] = []
    source = f"voice {name}, tempo {tempo:g}, pitch {pitch:g}"
    for sentence in re.split(r"(?<=[.]) ", words) if paused else [words]:
        samples = speaker.synthesize(sentence).astype(np.float64) / 32768.0
        moved = np.asarray(soxr.resample(samples, speaker.sample_rate_hz * pitch, RATE_HZ))
        if made:
            pause_ms = round(float(rng.uniform(*PAUSES_MS)))
            source += f", pause {pause_ms} ms"
            made.append(np.zeros(pause_ms * RATE_HZ // 1000))
        made.append(trimmed(moved, 0.0) if paused else moved)
    return np.concatenate(made), source


def spoken(rng: Random) -> Iterator[Take]:
    """Everything that the voices say."""
    for part in HALVES:
        turn = 0
        for kind, table in ((Kind.INTERRUPTION, texts.INTERRUPTIONS), (Kind.PAUSE, texts.PAUSES)):
            for text in table[part.value]:
                name = VOICES[turn % len(VOICES)]
                turn += 1
                made, source = speak(name, text, rng, paused=kind is Kind.PAUSE)
                yield Take(kind=kind, part=part, text=text, source=source, licence=LICENCES[name], wave=made)
        for text in texts.BACKCHANNELS[part.value]:
            for name in VOICES:
                made, source = speak(name, text, rng, paused=False)
                yield Take(
                    kind=Kind.BACKCHANNEL, part=part, text=text, source=source, licence=LICENCES[name], wave=made
                )


def short(rng: Random) -> Iterator[Take]:
    """Interruptions of a word or two, and acknowledgements."""
    for kind, table in (
        (Kind.INTERRUPTION, texts.SHORT_INTERRUPTIONS),
        (Kind.BACKCHANNEL, texts.SHORT_BACKCHANNELS),
    ):
        for text in table:
            for name in VOICES:
                made, source = speak(name, text, rng, paused=False)
                yield Take(kind=kind, part=Part.SHORT, text=text, source=source, licence=LICENCES[name], wave=made)


def recordings() -> Iterator[Take]:
    """What people said: the commands whole, the sentences from their beginning; each goes to the halves in turn."""
    names = {f"librivox/sense_and_sensibility_01_austen_64kb-{key}.wav": text for key, text in SENTENCES.items()}
    for number, (name, text) in enumerate((COMMANDS | names).items()):
        path = HUMAN / name
        if path.suffix == ".wav":
            with wavefile.open(str(path)) as file:
                raw = file.readframes(file.getnframes())
        else:
            raw = path.read_bytes()
        made = trimmed(np.frombuffer(raw, "<i2").astype(np.float64) / 32768.0)
        yield Take(
            kind=Kind.INTERRUPTION,
            part=HALVES[number % 2],
            text=text,
            source=f"human, pocketsphinx-testdata {name}",
            licence="BSD-2-Clause",
            wave=shortened(made),
        )


def computed(rng: Random) -> Iterator[Take]:
    """Noises, and hums that stand for the "mm-hmm" that no voice says well."""
    for part in HALVES:
        for name, make in NOISES.items():
            for _ in range(NOISES_A_HALF):
                yield Take(kind=Kind.NOISE, part=part, text=name, source="computed", licence=OWN, wave=make(rng))
        for _ in range(BABBLES_A_HALF):
            made = babble(part, rng)
            yield Take(
                kind=Kind.NOISE, part=part, text="babble", source="computed from six voices", licence=OWN, wave=made
            )
        for _ in range(HUMS_A_HALF):
            yield Take(
                kind=Kind.BACKCHANNEL, part=part, text="(hummed)", source="computed", licence=OWN, wave=hummed(rng)
            )


def babble(part: Part, rng: Random) -> Wave:
    """A moment of six people who talk at once somewhere else: a room full of voices, of which no word can be understood."""
    lines = list(texts.INTERRUPTIONS[part.value])
    mixed = np.zeros(RATE_HZ * 4)
    for number in range(6):
        picked = " ".join(rng.choice(np.array(lines), 5, replace=False))
        line, _ = speak(VOICES[number % len(VOICES)], picked, rng, paused=False)
        line = np.tile(line, 1 + mixed.size // line.size)[: mixed.size]
        mixed += line / np.sqrt((line**2).mean())
    size = round(float(rng.uniform(0.5, 1.3)) * RATE_HZ)
    first = int(rng.integers(0, mixed.size - size))
    return mixed[first : first + size] * np.sin(np.linspace(0, np.pi, size)) ** 0.3


def shortened(wave: Wave) -> Wave:
    """At most three seconds, cut where the last half of a second of them is quietest."""
    size, search, window = (round(s * RATE_HZ) for s in (LONGEST_S, 0.5, 0.03))
    if wave.size <= size:
        return wave
    tail = wave[size - search : size]
    loudness = np.convolve(tail**2, np.ones(window) / window, mode="valid")
    return wave[: size - search + int(loudness.argmin()) + window // 2]


def span(wave: Wave, floor_db: float = -32.0) -> tuple[int, int]:
    """Where the sound begins and ends: 10 ms windows that reach to this far below the loudest."""
    window = RATE_HZ // 100
    count = max(1, wave.size // window)
    rms = np.sqrt((wave[: count * window].reshape(count, -1) ** 2).mean(axis=1))
    loud = np.flatnonzero(rms >= rms.max() * 10 ** (floor_db / 20))
    return int(loud[0]) * window, min(wave.size, (int(loud[-1]) + 1) * window)


def trimmed(wave: Wave, edge_ms: float = EDGE_MS) -> Wave:
    """The sound with little around it."""
    first, last = span(wave)
    edge = round(edge_ms * RATE_HZ / 1000)
    return wave[max(0, first - edge) : last + edge]


def finished(take: Take, number: int, rng: Random, folder: Path) -> Clip:
    """Bring a sound to its level, write it, and describe it."""
    made = trimmed(take.wave)
    peak_dbfs, snr_db = float(rng.choice(PEAKS_DBFS)), rng.choice(np.array(SNRS_DB, dtype=object))
    made = made * 10 ** (peak_dbfs / 20) / np.abs(made).max()
    first, last = span(made)
    rms_dbfs = 10 * float(np.log10((made[first:last] ** 2).mean()))
    bed = Bed(colour="pink", dbfs=QUIET_DBFS)
    if snr_db is not None:
        bed = Bed(colour=str(rng.choice(["white", "pink", "brown"])), dbfs=round(rms_dbfs - float(snr_db), 1))
    name = f"{take.kind.value}-{number:03d}.flac"
    soundfile.write(folder / name, np.round(made * 32767).astype(np.int16), RATE_HZ, subtype="PCM_16")
    return Clip(
        file=name,
        kind=take.kind,
        part=take.part,
        text=take.text,
        source=take.source,
        licence=take.licence,
        onset_ms=first * 1000 / RATE_HZ,
        end_ms=last * 1000 / RATE_HZ,
        peak_dbfs=peak_dbfs,
        bed=bed,
        snr_db=snr_db,
    )


def main() -> None:
    """Make the set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the files (default: the one in the tree)")
    parser.add_argument("--seed", type=int, default=2024)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for old in args.out.glob("*.flac"):
        old.unlink()
    rng = np.random.default_rng(args.seed)
    takes = [*spoken(rng), *recordings(), *computed(rng)]
    clips = [finished(take, number, rng, args.out) for number, take in enumerate(takes)]
    rng = np.random.default_rng(SHORT_SEED)
    clips += [finished(take, number, rng, args.out) for number, take in enumerate([*short(rng)], FIRST_SHORT)]
    manifest = msgspec.json.format(msgspec.json.encode(clips), indent=1)
    (args.out / "manifest.json").write_bytes(manifest + b"\n")
    size = sum(path.stat().st_size for path in args.out.glob("*.flac"))
    print(f"{len(clips)} clips, {size / 1e6:.1f} MB, in {args.out}")


if __name__ == "__main__":
    main()
