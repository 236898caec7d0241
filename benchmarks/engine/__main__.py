"""What the engine costs for each session, from one session to 300 on one core, against a bare WebSocket echo.

Run it from the root of the tree with `python -m benchmarks.engine`: the whole takes under six minutes, `--quick` under one. It
starts each server afresh on one core, drives it from another, and writes `engine.json`, `engine-table.txt` (Markdown) and
`engine.svg`. Ratios within one run are what counts: absolute times depend on the machine and on who else uses it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.conditions import to_json
from benchmarks.engine import interruptions, report
from benchmarks.engine.chart import chart
from benchmarks.engine.child import running
from benchmarks.engine.rounds import Row, Setup, crowd, frame_sizes, kind_of, measure
from duplex_server.process import run as run_process

COUNTS = (1, 10, 50, 100, 200, 300)
QUICK_COUNTS = (10, 100)


async def run(
    counts: Sequence[int], *, seconds: float, repeats: int, interrupting: int, times: int, core: int
) -> report.Results:
    """Measure everything, one thing after the other: the three setups of a step stand side by side in time."""
    load_before = os.getloadavg()[0]
    frames = await frame_sizes(core)
    rows: list[Row] = []
    for sessions in counts:
        taken: dict[Setup, list[Row]] = {setup: [] for setup in Setup}
        for _ in range(repeats):
            for setup in Setup:
                row = await measure(setup, sessions, seconds=seconds, core=core, frames=frames)
                taken[setup].append(row)
                print(f"{sessions:4} {setup.value}: {row.cpu_ms:.2f} ms of CPU per session-second", file=sys.stderr)
        rows += report.summary(taken)
    stops = []
    if times:
        stops.append(await interruptions.by_command(interrupting, times=times, core=core))
        stops.append(await interruptions.by_speech(interrupting, times=times, core=core))
    return report.Results(
        conditions=report.conditions(seconds=seconds, repeats=repeats, load_before=load_before),
        frames=frames,
        rows=rows,
        interruptions=stops,
    )


async def hold(sessions: int, setup: Setup, core: int) -> None:
    """Keep sessions talking until this is interrupted, so that a profiler can look at their server."""
    frames = await frame_sizes(core)
    async with running(kind_of(setup), core=core) as child, crowd(child, setup, sessions, frames):
        print(f"{sessions} sessions talk to process {child.pid} ({setup.value}); Ctrl-C ends it")
        await asyncio.Event().wait()


def two_cores() -> tuple[int, int]:
    """The server's core and the load generator's: the same one where there is no other."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        print("there is one core only: the load generator takes its time from the server's", file=sys.stderr)
    return cores[0], cores[-1]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rows, for a first look")
    parser.add_argument("--sessions", type=int, nargs="+", help="how many sessions at once, once for each step")
    parser.add_argument("--seconds", type=float, help="how long each row is measured")
    parser.add_argument("--repeats", type=int, default=1, help="how often; the median is shown")
    parser.add_argument(
        "--interrupting", type=int, default=report.INTERRUPTION_SESSIONS, help="sessions that are interrupted"
    )
    parser.add_argument("--interruptions", type=int, help="how often each is, in either way")
    parser.add_argument("--out", type=Path, default=Path("benchmark-out"), help="folder for the results")
    parser.add_argument(
        "--hold", type=int, metavar="N", help="measure nothing: keep N sessions talking, for a profiler"
    )
    parser.add_argument("--setup", choices=[setup.name.lower() for setup in Setup], default="engine", help="for --hold")
    chosen = parser.parse_args()
    server, load = two_cores()
    os.sched_setaffinity(0, {load})
    if chosen.hold:
        with contextlib.suppress(KeyboardInterrupt):
            run_process(hold(chosen.hold, Setup[chosen.setup.upper()], server))
        return
    counts = chosen.sessions or (QUICK_COUNTS if chosen.quick else COUNTS)
    results = run_process(
        run(
            counts,
            seconds=chosen.seconds or (2.0 if chosen.quick else 6.0),
            repeats=chosen.repeats,
            interrupting=chosen.interrupting,
            times=chosen.interruptions if chosen.interruptions is not None else (1 if chosen.quick else 3),
            core=server,
        )
    )
    chosen.out.mkdir(parents=True, exist_ok=True)
    written = {
        "engine.json": to_json(results),
        "engine-table.txt": report.table(results),
        "engine.svg": chart(results),
    }
    for name, text in written.items():
        (chosen.out / name).write_text(text, encoding="utf-8")
    print(written["engine-table.txt"])


if __name__ == "__main__":
    main()
