"""How well pauses are told from ends of turns, by sound, by words and by both, and what that costs in silence and in time.

Run it with `python -m benchmarks.end_of_turn.measure`; it prints the tables of the documentation. It needs the extra
`duplex-server[smart-turn]`, `model-cascade` for voices and recogniser, and the recorded speech of `tests/support/clips.py`.

Speech that is finished: sentences spoken by the three voices, and all recordings of people. Speech that is not: beginnings of
sentences spoken by the voices, which do not know that more is to come and often sound finished, and the recordings cut at their
quietest points. None of the sentences was looked at while the rule was made.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import soxr

from duplex_core.config import Eagerness
from duplex_core.machine.endpoint import PAUSE_MS
from duplex_core.machine.semantic import FINISHED, Ending, Pause, ending, patience_ms
from duplex_core.transcribing import PAUSE_TAIL_MS
from duplex_server.detectors import SmartTurn
from model_cascade.parts.recognizer import Recognizer
from model_cascade.parts.voices import VOICE_NAMES, load_voice
from tests.support.clips import load

Floats = npt.NDArray[np.float32]

RATE_HZ = 16_000
FINISHED_SENTENCES = (
    "Where did I leave my keys?",
    "Please call me a taxi to the airport.",
    "The soup needs a little more salt.",
    "We went to the beach last summer.",
    "Is there a pharmacy near here?",
    "My flight leaves at seven in the morning.",
    "Thank you very much.",
    "No problem.",
    "Remind me to water the plants.",
    "She bought a red bicycle for her son.",
    "How long does it take to cook rice?",
    "I would rather stay at home tonight.",
    "Open the second window.",
    "He has worked here for twenty years.",
    "What time is it?",
    "Let me think about that.",
)
BEGINNINGS = (
    "Where did I leave my",
    "Please call me a taxi to the",
    "The soup needs a little more",
    "We went to the beach and",
    "Is there a pharmacy near the",
    "My flight leaves at",
    "Thank you for the",
    "No, wait, I",
    "Remind me to",
    "She bought a red bicycle for",
    "How long does it take to",
    "I would rather stay at home because",
    "Open the second",
    "He has worked here for twenty",
    "What time is the",
    "Let me think, um",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One utterance up to a pause, and what the two witnesses say of it."""

    kind: str
    finished: bool
    probability: float
    words: str


def spoken(voice_name: str, texts: Sequence[str]) -> Iterator[Floats]:
    """Texts by one voice, at 16 kHz, full scale 1.0."""
    voice = load_voice(voice_name)
    for text in texts:
        samples = voice.synthesize(text).astype(np.float32) / 32768
        yield soxr.resample(samples, voice.sample_rate_hz, RATE_HZ).astype(np.float32)


def trimmed(samples: Floats) -> Floats:
    """Without the quiet before and after it."""
    levels = np.sqrt(np.square(samples[: samples.size // 160 * 160]).reshape(-1, 160).mean(axis=1))
    loud = np.flatnonzero(levels > 0.02 * levels.max())
    return samples[loud[0] * 160 : (loud[-1] + 1) * 160]


def beginnings(samples: Floats) -> Iterator[Floats]:
    """A recording up to the quietest point near the half, in a long one also near a third and three quarters."""
    for share in (0.35, 0.55, 0.75) if samples.size > 3 * RATE_HZ else (0.5,):
        middle, reach = int(samples.size * share), int(0.3 * RATE_HZ)
        first, last = max(reach, middle - reach), min(samples.size - reach, middle + reach)
        starts = range(first, last, 80) if last > first else [middle]
        quietest = min(starts, key=lambda at: float(np.square(samples[at : at + 480]).sum()))
        yield trimmed(samples[: quietest + 240])


class Witnesses:
    """The end-of-turn network and the recogniser, asked as a session asks them."""

    def __init__(self) -> None:
        """Load both."""
        self.network = SmartTurn()
        self.recognizer = Recognizer()
        self.judging_ms: list[float] = []
        self.recognizing_ms: list[float] = []
        self._quiet = np.random.default_rng(7).standard_normal(RATE_HZ).astype(np.float32) * 1e-3

    def hear(self, kind: str, samples: Floats, *, finished: bool) -> Case:
        """One utterance with the padding before it, and the silence that each gets after it."""
        before = self._quiet[: RATE_HZ * 3 // 10]
        began = time.process_time()
        probability = self.network.probability(np.concatenate((before, samples, self._tail(PAUSE_MS))))
        judged = time.process_time()
        words = self.recognizer.transcribe(np.concatenate((before, samples, self._tail(PAUSE_TAIL_MS))))
        self.judging_ms.append((judged - began) * 1000)
        self.recognizing_ms.append((time.process_time() - judged) * 1000)
        return Case(kind=kind, finished=finished, probability=probability, words=words)

    def _tail(self, ms: float) -> Floats:
        return self._quiet[: round(RATE_HZ * ms / 1000)]


def gather(witnesses: Witnesses) -> list[Case]:
    """Every case."""
    cases = []
    for name in VOICE_NAMES:
        for texts, finished in ((FINISHED_SENTENCES, True), (BEGINNINGS, False)):
            cases += [witnesses.hear(f"voice {name}", trimmed(pcm), finished=finished) for pcm in spoken(name, texts)]
    for clip in load():
        samples = trimmed(np.frombuffer(clip.pcm(), "<i2").astype(np.float32) / np.float32(32768))
        cases.append(witnesses.hear("people", samples, finished=True))
        cases += [witnesses.hear("people", part, finished=False) for part in beginnings(samples)]
    return cases


def share(found: Sequence[bool]) -> str:
    """A share, in words that keep the numbers."""
    return f"{sum(found)}/{len(found)} ({100 * sum(found) / len(found):.0f} %)"


def show_accuracy(cases: Sequence[Case]) -> None:
    """Who is right how often, for each kind of speech."""
    print("| speech | | network right | words right |")
    print("|---|---|---|---|")
    for kind in dict.fromkeys(case.kind for case in cases):
        for finished in (True, False):
            chosen = [case for case in cases if (case.kind, case.finished) == (kind, finished)]
            sound = [(case.probability >= FINISHED) == finished for case in chosen]
            reads_finished = (Ending.FINISHED, Ending.UNKNOWN)
            read = [(ending(case.words) in reads_finished) == finished for case in chosen]
            print(f"| {kind} | {'finished' if finished else 'not finished'} | {share(sound)} | {share(read)} |")


def show_silence(cases: Sequence[Case]) -> None:
    """How long the silence is that ends a finished turn, and how many unfinished ones survive a pause."""
    print("| eagerness | witnesses | finished: median | 90 % within | pause of 0.7 s survived | 1.5 s survived |")
    print("|---|---|---|---|---|---|")
    for eagerness in (Eagerness.HIGH, Eagerness.AUTO, Eagerness.LOW):
        for name, sound, read in (
            ("none", False, False),
            ("network", True, False),
            ("words", False, True),
            ("both", True, True),
        ):
            times: dict[bool, list[int]] = {True: [], False: []}
            for case in cases:
                pause = Pause(
                    serial=1,
                    item_id="i",
                    probability=case.probability if sound else None,
                    words=case.words if read else None,
                )
                times[case.finished].append(patience_ms(eagerness, pause))
            done = sorted(times[True])
            print(
                f"| {eagerness.value} | {name} | {statistics.median(done):.0f} ms | {done[int(0.9 * len(done))]} ms "
                f"| {share([ms > 700 for ms in times[False]])} | {share([ms > 1500 for ms in times[False]])} |"
            )


def main() -> None:
    """Measure, and print what was found."""
    witnesses = Witnesses()
    cases = gather(witnesses)
    show_accuracy(cases)
    print()
    show_silence(cases)
    print()
    for name, times in (("network", witnesses.judging_ms), ("recogniser", witnesses.recognizing_ms)):
        print(
            f"{name}: {statistics.median(times):.0f} ms of processor time an utterance (median), at most {max(times):.0f} ms"
        )


if __name__ == "__main__":
    main()
