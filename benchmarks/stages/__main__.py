"""What the stage runtimes cost, against the bare loops of the same work.

That is for ``torch`` a batched step of a network, and for ``vllm`` an append to an engine's request.

Run it from the root of the tree with `python -m benchmarks.stages`, in the environment of `nox -s engines`, on Linux. It takes
some five minutes, `--quick` half a minute, and writes JSON, a table (Markdown) and a chart for each part. Ratios within one run
are what counts: absolute times depend on the machine and on who else uses it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.conditions import to_json
from benchmarks.engine.__main__ import two_cores
from benchmarks.stages import batched, batched_report, engines, engines_report
from duplex_server.process import run

COUNTS = (1, 2, 4, 8, 16, 32)
QUICK_COUNTS = (1, 8)
EVERYWHERE = os.sched_getaffinity(0)


def torch_half(chosen: argparse.Namespace, core: int) -> dict[str, str]:
    """Measure the ``torch`` runtime; the files to write."""
    quick = chosen.quick
    steps, repeats, seconds = (20, 3, 2.0) if quick else (20, 21, 6.0)
    load_before = os.getloadavg()[0]
    counts = chosen.sessions or (QUICK_COUNTS if quick else COUNTS)
    rows = run(batched.measure(counts, steps=steps, repeats=repeats, seconds=seconds, core=core))
    results = batched_report.Results(
        conditions=batched_report.conditions(steps=steps, repeats=repeats, seconds=seconds, load_before=load_before),
        rows=rows,
    )
    return {
        "stages-torch.json": to_json(results),
        "stages-torch-table.txt": batched_report.table(results),
        "stages-torch.svg": batched_report.chart(results),
    }


def vllm_half(chosen: argparse.Namespace, core: int) -> dict[str, str]:
    """Measure the ``vllm`` runtime, on every core that there is; the files to write."""
    os.sched_setaffinity(0, EVERYWHERE)
    appends, repeats = (8, 5) if chosen.quick else (8, 60)
    counts = chosen.sessions or ((1, 4) if not chosen.quick else (1,))
    kinds = [(count, tokens, hidden) for count in counts for tokens, hidden in ((8, False), (8, True), (1, True))]
    load_before = os.getloadavg()[0]
    rows = run(engines.measure(kinds, appends=appends, repeats=repeats))
    how = engines_report.conditions(appends=appends, repeats=repeats, load_before=load_before)
    results = engines_report.Results(conditions=how, rows=rows)
    return {
        "stages-vllm.json": to_json(results),
        "stages-vllm-table.txt": engines_report.table(results),
    }


PARTS: dict[str, Callable[[argparse.Namespace, int], dict[str, str]]] = {"torch": torch_half, "vllm": vllm_half}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=sorted(PARTS), nargs="+", default=sorted(PARTS), help="which runtimes")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rows, for a first look")
    parser.add_argument("--sessions", type=int, nargs="+", help="how many sessions at once, once for each row")
    parser.add_argument("--out", type=Path, default=Path("benchmark-out"), help="folder for the results")
    chosen = parser.parse_args()
    stage, load = two_cores()
    os.sched_setaffinity(0, {load})
    chosen.out.mkdir(parents=True, exist_ok=True)
    for part in chosen.part:
        for name, text in PARTS[part](chosen, stage).items():
            (chosen.out / name).write_text(text, encoding="utf-8")
            if name.endswith(".txt"):
                print(text)


if __name__ == "__main__":
    main()
