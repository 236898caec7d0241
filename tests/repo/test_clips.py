"""The reader of the recorded speech: its transcripts, its complaints, and the recordings themselves."""

from __future__ import annotations

import wave
from typing import TYPE_CHECKING

import pytest

from tests.support import clips as speech

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.clips
def test_the_recordings_are_ten_and_carry_their_words(clips: list[speech.Clip]) -> None:
    assert len(clips) == 10
    assert [clip.name.split("/")[0] for clip in clips] == ["librivox"] * 5 + ["cards"] * 5
    by_name = {clip.name: clip for clip in clips}
    assert by_name["cards/002"].transcript == "four queen of clubs"
    young_man = by_name["librivox/sense_and_sensibility_01_austen_64kb-0880"]
    assert young_man.transcript == "he was not an ill disposed young man"
    assert young_man.duration_ms == pytest.approx(2990, abs=5)
    assert len(young_man.pcm()) == 95680


def test_an_empty_folder_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(speech.ClipsMissing, match="pocketsphinx-testdata") as caught:
        speech.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def write_set(folder: Path, line: str, rate: int = 16_000) -> None:
    for name, transcripts in speech.SETS.items():
        (folder / name).mkdir()
        (folder / name / transcripts).write_text(line)
        with wave.open(str(folder / name / "one.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(b"\1\0" * 160)


def test_a_transcript_in_another_form_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, "one: hello\n")
    with pytest.raises(ValueError, match="found 'one: hello'"):
        speech.load(tmp_path)


def test_a_transcript_of_nothing_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, "<s> hello  </s> (two)\n")
    with pytest.raises(ValueError, match=r"names two\.wav"):
        speech.load(tmp_path)


def test_another_sample_rate_is_refused_when_read(tmp_path: Path) -> None:
    write_set(tmp_path, "<s> hello  </s> (one)\n", rate=8000)
    with pytest.raises(ValueError, match="8000"):
        speech.load(tmp_path)[0].pcm()
