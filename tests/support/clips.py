"""Recorded human speech for tests: five sentences from LibriVox and five short commands, with transcripts.

Owns: where the recordings are looked for and how their transcripts are read. Called by: tests marked `clips`, mostly
through the fixture `clips` of the root `conftest.py`. Never: fetches anything, or stands in for a missing recording.

The recordings come from Debian's package `pocketsphinx-testdata` (BSD-2; `apt-get install pocketsphinx-testdata`). A
copy elsewhere is used when `DUPLEX_SPEECH_CLIPS` names its folder (the one that holds `cards/` and `librivox/`).
"""

from __future__ import annotations

import os
import re
import wave
from dataclasses import dataclass
from pathlib import Path

DEBIAN = Path("/usr/share/pocketsphinx/test/data")
FOLDER_VARIABLE = "DUPLEX_SPEECH_CLIPS"
REQUIRE_VARIABLE = "DUPLEX_REQUIRE_CLIPS"
SETS = {"librivox": "transcription", "cards": "cards.transcription"}
_LINE = re.compile(r"^<s>\s*(?P<text>.*?)\s*</s>\s*\((?P<name>[^()]+)\)\s*$")


class ClipsMissing(Exception):
    """The recordings are not on this machine. The message says where they were looked for and how to get them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One recording.

    Attributes:
        name: The set and the file's stem, such as `librivox/sense_and_sensibility_01_austen_64kb-0880`.
        path: A wav file: 16 bit, mono, 16 000 Hz.
        transcript: What is said, in lower case without punctuation, numbers in words.
    """

    name: str
    path: Path
    transcript: str

    def pcm(self) -> bytes:
        """Read the samples: 16 bit little-endian, mono, 16 000 Hz, no header."""
        with wave.open(str(self.path), "rb") as file:
            form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            if form != (1, 2, 16_000):
                raise ValueError(f"{self.path} is {form} (channels, bytes a sample, Hz); expected (1, 2, 16000)")
            return file.readframes(file.getnframes())

    @property
    def duration_ms(self) -> float:
        """How long the recording lasts, in milliseconds."""
        return len(self.pcm()) / 2 / 16


def required() -> bool:
    """Tell whether a missing recording is to fail a test rather than to skip it, as in CI."""
    return os.environ.get(REQUIRE_VARIABLE, "") not in {"", "0"}


def load(folder: Path | None = None) -> list[Clip]:
    """Read every recording with its transcript: first the sentences, then the commands.

    Args:
        folder: Where `librivox/` and `cards/` are; by default what `DUPLEX_SPEECH_CLIPS` names, else Debian's place.

    Raises:
        ClipsMissing: A set of recordings is not there.
        ValueError: A transcript is not in the form that is expected, or names a recording that is not there.
    """
    folder = folder or Path(os.environ.get(FOLDER_VARIABLE) or DEBIAN)
    clips = []
    for name, transcripts in SETS.items():
        path = folder / name / transcripts
        if not path.is_file():
            raise ClipsMissing(
                f"no speech recordings: {path} does not exist. On Debian or Ubuntu run `apt-get install "
                f"pocketsphinx-testdata`; elsewhere unpack that package and set {FOLDER_VARIABLE} to its test/data folder."
            )
        clips.extend(_read_set(name, path))
    return clips


def _read_set(name: str, transcripts: Path) -> list[Clip]:
    clips = []
    for line in transcripts.read_text(encoding="ascii").splitlines():
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"{transcripts}: expected `<s> words </s> (name)`, found {line!r}")
        path = transcripts.parent / f"{match['name']}.wav"
        if not path.is_file():
            raise ValueError(f"{transcripts} names {path.name}, which is not beside it")
        clips.append(Clip(name=f"{name}/{match['name']}", path=path, transcript=match["text"]))
    return clips
