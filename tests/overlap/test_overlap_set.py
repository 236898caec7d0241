"""The recorded set is what it says it is, and the machine does with it about what the documentation says.

The bounds lie below the documented figures by what another machine's arithmetic may move: a recogniser in other last digits hears
a few clips differently. What fails here has become clearly worse.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.overlap import recorded
from benchmarks.overlap.figures import LATE_TARGET_MS, Figures, figures, times
from benchmarks.overlap.recorded import Clip, Kind, Part, load
from benchmarks.overlap.scene import Outcome, Parts, play
from duplex_core.config import OverlapMode, OverlapSettings
from duplex_core.stages import StageRequest


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts.load()


def usual(request: StageRequest, took_ms: float) -> float:
    """What a recognition takes, so that a slow machine does not change a verdict: what was measured for the documentation."""
    return 15.0 + 0.02 * len(request.payload.pcm) / 32


@pytest.fixture(scope="module")
def heard(parts: Parts) -> list[Outcome]:
    """Every clip of the held-out half, played once over an answer, with a recogniser."""
    return [play(clip, parts, charge=usual, seed=seed) for seed, clip in enumerate(load(Part.HELD_OUT))]


@pytest.fixture(scope="module")
def felt(parts: Parts) -> list[Outcome]:
    """Those that a person is to have said, without a recogniser."""
    return [
        play(clip, parts, transcribes=False, seed=seed)
        for seed, clip in enumerate(load(Part.HELD_OUT))
        if clip.kind is not Kind.NOISE
    ]


def of(outcomes: list[Outcome], *kinds: Kind) -> Figures:
    return figures(outcomes, lambda outcome: outcome.kind in kinds)


def largest(outcomes: list[Outcome]) -> float:
    late = figures(outcomes).late_ms
    assert late is not None
    return late.largest


def test_the_set_has_enough_of_each_kind_and_says_where_each_clip_is_from() -> None:
    for part in (Part.TUNING, Part.HELD_OUT):
        counts = Counter(clip.kind for clip in load(part))
        assert counts[Kind.INTERRUPTION] >= 40
        assert counts[Kind.BACKCHANNEL] >= 40
        assert counts[Kind.PAUSE] >= 9
        assert counts[Kind.NOISE] >= 20
        assert sum(clip.human for clip in load(part)) >= 6
    assert {clip.licence for clip in load() if clip.human} == {"BSD-2-Clause"}
    assert "Carnegie Mellon University" in (recorded.FOLDER.parent / "NOTICE").read_text(encoding="utf-8")


def test_the_manifest_and_the_recordings_are_about_the_same() -> None:
    clips = load()
    assert {clip.file for clip in clips} == {path.name for path in recorded.FOLDER.glob("*.flac")}
    assert sum(path.stat().st_size for path in recorded.FOLDER.glob("*.flac")) < 6_000_000
    for clip in clips:
        samples = clip.samples()
        peak_dbfs = 20 * np.log10(np.abs(samples.astype(int)).max() / 32767)
        assert peak_dbfs == pytest.approx(clip.peak_dbfs, abs=0.05), clip.file
        assert 0 <= clip.onset_ms < clip.end_ms <= samples.size / 16, clip.file


def test_no_interruption_is_in_both_halves() -> None:
    def said(part: Part) -> set[str]:
        return {clip.text for clip in load(part) if clip.kind.yields}

    assert not said(Part.TUNING) & said(Part.HELD_OUT)


def test_interruptions_yield(heard: list[Outcome]) -> None:
    assert of(heard, Kind.INTERRUPTION, Kind.PAUSE).share >= 0.90


def test_acknowledgements_are_talked_through(heard: list[Outcome]) -> None:
    assert of(heard, Kind.BACKCHANNEL).share >= 0.72


def test_noises_that_are_no_voices_are_talked_through(heard: list[Outcome]) -> None:
    assert figures(heard, lambda outcome: outcome.kind is Kind.NOISE and outcome.text != "babble").share >= 0.97


def test_nothing_old_is_sent_long_after_the_decision_frame(heard: list[Outcome], felt: list[Outcome]) -> None:
    assert 0 < largest(heard) <= LATE_TARGET_MS
    assert 0 < largest(felt) <= LATE_TARGET_MS


def test_the_answer_is_held_soon_and_goes_on_soon(heard: list[Outcome]) -> None:
    spoken = figures(heard, lambda outcome: outcome.kind is Kind.BACKCHANNEL)
    assert spoken.held_ms is not None
    assert spoken.held_ms.p50 <= 150
    assert spoken.paused_ms is not None
    assert spoken.paused_ms.p50 <= 700


def test_without_a_recogniser_length_alone_does_worse_but_not_much(felt: list[Outcome]) -> None:
    assert of(felt, Kind.INTERRUPTION, Kind.PAUSE).share >= 0.80
    assert of(felt, Kind.BACKCHANNEL).share >= 0.68


def test_a_rule_that_lets_everything_interrupt_would_be_noticed(parts: Parts) -> None:
    """What the figures are worth: under ``immediate``, every acknowledgement stops the answer."""
    clips = [clip for clip in load(Part.TUNING) if clip.kind is Kind.BACKCHANNEL][:5]
    at_once = OverlapSettings(mode=OverlapMode.IMMEDIATE)
    assert all(play(clip, parts, transcribes=False, overlap=at_once).yielded for clip in clips)


def test_times_are_summed_up_by_their_place_in_order() -> None:
    summed = times([30.0, None, 10.0, 20.0])
    assert summed is not None
    assert (summed.p50, summed.p90, summed.largest) == (20.0, 30.0, 30.0)
    assert times([None]) is None


def test_a_recording_in_another_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clip: Clip = load()[0]
    monkeypatch.setattr("soundfile.read", lambda path, dtype: (np.zeros((4, 2), np.int16), 8000))
    with pytest.raises(ValueError, match="8000 Hz"):
        clip.samples()
