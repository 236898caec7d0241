"""Long runs of broken frames, through the codec or at a server. Run from the root of the tree.

`python -m benchmarks.fuzz codec --frames 1000000` takes some minutes on one core.
`python -m benchmarks.fuzz socket --seconds 300` starts a server of its own, holds a conversation beside the nonsense and says how
many frames it took. Both print the seed; the same seed gives the same frames. The first frame that is not answered as it should
be ends the run and is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fuzz import sockets
from benchmarks.fuzz.codec import check
from benchmarks.fuzz.frames import frame
from benchmarks.fuzz.process import server
from benchmarks.fuzz.sockets import Report, fuzz


def frames(seed: int, count: int | None, seconds: float | None) -> Iterator[str | bytes]:
    """``count`` frames, or as many as ``seconds`` allow."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    until = None if seconds is None else time.monotonic() + seconds
    for number in itertools.count():
        if (count is not None and number >= count) or (until is not None and time.monotonic() >= until):
            return
        yield frame(rng)


def codec(given: argparse.Namespace) -> None:
    """Give the codec all frames."""
    began, taken, total = time.monotonic(), 0, 0
    for each in frames(given.seed, given.frames, given.seconds):
        total += 1
        taken += check(each)
    took = time.monotonic() - began
    print(
        f"codec, seed {given.seed}: {total} frames in {took:.1f} s, {taken} taken, {total - taken} refused with a reason"
    )


async def socket(given: argparse.Namespace) -> None:
    """Send all frames to a server of our own."""
    began = time.monotonic()
    sockets.PATIENCE_S = given.patience

    def far(report: Report) -> None:
        print(f"{report.frames} frames after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        async with server(Path(folder) / "server.log") as address:
            report = await fuzz(address, frames(given.seed, given.frames, given.seconds), far)
    took = time.monotonic() - began
    print(
        f"socket, seed {given.seed}: {report.frames} frames in {took:.1f} s over {report.sessions} sessions "
        f"({report.late} frames behind a session's end), {report.turns} turns beside them undisturbed"
    )
    print("refused:", ", ".join(f"{code} {count}" for code, count in report.errors.most_common()))


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["codec", "socket"])
    parser.add_argument("--frames", type=int, help="how many frames")
    parser.add_argument(
        "--seconds", type=float, help="for how long; the default is 60 s when no number of frames is given"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--patience", type=float, default=sockets.PATIENCE_S, help="seconds that an answer may take before it is a hang"
    )
    given = parser.parse_args()
    if given.frames is None and given.seconds is None:
        given.seconds = 60.0
    if given.what == "codec":
        codec(given)
    else:
        asyncio.run(socket(given))


if __name__ == "__main__":
    main()
