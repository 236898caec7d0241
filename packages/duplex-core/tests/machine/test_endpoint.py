"""Where an utterance begins and ends: the endpoint rule, frame by frame."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_core.detection import SpeechFrame
from duplex_core.machine.endpoint import (
    ONSET_MS,
    PAUSE_MS,
    Endpoint,
    EndpointSettings,
    EndpointState,
    Verdict,
    follow,
)

STEADY = settings(derandomize=True, database=None, deadline=None)
SETTINGS = EndpointSettings(threshold=0.5, silence_ms=500)
BEGINS_AND_ENDS = {Verdict.STARTED: 1, Verdict.STOPPED: -1}


def run(
    probabilities: list[float], *, frame_ms: float = 32.0, settings: EndpointSettings = SETTINGS
) -> list[tuple[float, Endpoint]]:
    """The verdicts, each with the end of the frame that brought it."""
    state, found = EndpointState(), []
    for number, probability in enumerate(probabilities):
        frame = SpeechFrame(start_ms=number * frame_ms, duration_ms=frame_ms, probability=probability)
        state, verdict = follow(state, frame, settings)
        if verdict is not None:
            found.append((frame.start_ms + frame_ms, verdict))
    return found


def pattern(text: str) -> list[float]:
    return [{"s": 0.9, ".": 0.01, "w": 0.4}[letter] for letter in text]


def verdicts(text: str, settings: EndpointSettings = SETTINGS) -> list[tuple[Verdict, float]]:
    return [(found.verdict, found.at_ms) for _, found in run(pattern(text), settings=settings)]


def test_an_utterance_begins_at_its_first_frame_and_ends_at_its_last() -> None:
    assert verdicts("..ssssss" + "." * 20) == [
        (Verdict.STARTED, 64.0),
        (Verdict.PAUSED, 256.0),
        (Verdict.STOPPED, 256.0),
    ]


def test_a_single_loud_frame_is_not_a_beginning() -> None:
    assert verdicts(".s.s.s..s...") == []


def test_speech_in_the_hangover_resets_the_clock() -> None:
    found = verdicts("ssss" + "." * 14 + "s" + "." * 14 + "s" + "." * 30)
    assert [verdict for verdict, _ in found] == [
        Verdict.STARTED,
        Verdict.PAUSED,
        Verdict.RESUMED,
        Verdict.PAUSED,
        Verdict.RESUMED,
        Verdict.PAUSED,
        Verdict.STOPPED,
    ]
    assert found[-1][1] == (4 + 14 + 1 + 14 + 1) * 32.0


def test_the_threshold_is_lower_while_speaking() -> None:
    assert verdicts("wwwwwwww") == [], "0.4 does not begin an utterance"
    found = verdicts("ssss" + "w" * 30 + "." * 20)
    assert found == [(Verdict.STARTED, 0.0), (Verdict.PAUSED, 34 * 32.0), (Verdict.STOPPED, 34 * 32.0)]


def test_the_silence_that_ends_a_turn_is_the_one_asked_for() -> None:
    for silence_ms in (64, 200, 500, 1000):
        asked = EndpointSettings(threshold=0.5, silence_ms=silence_ms)
        heard_ms, found = run(pattern("ssss" + "." * 40), settings=asked)[-1]
        assert found.verdict is Verdict.STOPPED
        assert silence_ms - 0.5 <= heard_ms - found.at_ms < silence_ms + 32


def test_a_turn_that_ends_sooner_than_a_pause_is_told_has_no_pause() -> None:
    asked = EndpointSettings(threshold=0.5, silence_ms=PAUSE_MS - 32)
    assert [verdict for verdict, _ in verdicts("ssss....", asked)] == [Verdict.STARTED, Verdict.STOPPED]


def test_a_threshold_of_nothing_does_not_take_silence_for_speech() -> None:
    nothing = EndpointSettings(threshold=0.0, silence_ms=500)
    assert run([0.0] * 50, settings=nothing) == []


@STEADY
@given(
    probabilities=st.lists(st.floats(0.0, 1.0), max_size=200),
    silence_ms=st.integers(32, 2000),
    threshold=st.floats(0.0, 1.0),
    frame_ms=st.sampled_from([10.0, 30.0, 32.0, 80.0]),
)
def test_whatever_the_detector_says(
    probabilities: list[float], silence_ms: int, threshold: float, frame_ms: float
) -> None:
    asked = EndpointSettings(threshold=threshold, silence_ms=silence_ms)
    speaking, paused, began_ms, last_ms = False, False, 0.0, 0.0
    for heard_ms, found in run(probabilities, frame_ms=frame_ms, settings=asked):
        assert found.at_ms <= heard_ms, "a verdict about the future"
        assert found.at_ms >= last_ms - 1e-6, "a verdict about what was over"
        match found.verdict:
            case Verdict.STARTED:
                assert not speaking
                assert heard_ms - found.at_ms >= ONSET_MS - 0.5
                speaking, paused, began_ms = True, False, found.at_ms
            case Verdict.PAUSED:
                assert speaking
                assert not paused
                paused = True
            case Verdict.RESUMED:
                assert speaking
                assert paused
                paused = False
            case Verdict.STOPPED:
                assert speaking
                assert found.at_ms > began_ms, "an utterance of no length"
                assert heard_ms - found.at_ms >= silence_ms - 0.5
                speaking = False
        last_ms = found.at_ms
