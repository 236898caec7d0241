"""Measure how speech over an answer is judged, over the recorded set.

Run it as ``python -m benchmarks.overlap.run`` from the root of the tree; it takes a minute or two. It prints a table for sessions
whose speech is recognised and one for sessions whose speech is not, says what came out wrong, and with ``--json`` writes every
scene. Only the held-out part is reported unless another is asked for: the rule was tuned on the other one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from benchmarks.overlap.figures import ROWS, figures, table, wrong
from benchmarks.overlap.recorded import Clip, Part, load
from benchmarks.overlap.scene import Outcome, Parts, play


def measure(clips: list[Clip], parts: Parts, *, transcribes: bool, repeats: int) -> list[Outcome]:
    """Play every clip so many times, each time in another room and at another place in the stream."""
    return [
        play(clip, parts, transcribes=transcribes, seed=1000 * turn + number)
        for turn in range(repeats)
        for number, clip in enumerate(clips)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=[part.value for part in Part] + ["all"], default=Part.HELD_OUT.value)
    parser.add_argument("--repeats", type=int, default=3, help="how often each clip is played (default: 3)")
    parser.add_argument("--json", type=Path, help="write every scene and the figures to this file")
    args = parser.parse_args()
    clips = load(None if args.part == "all" else Part(args.part))
    parts = Parts.load()
    written = {}
    for transcribes in (True, False):
        outcomes = measure(clips, parts, transcribes=transcribes, repeats=args.repeats)
        title = "with a recogniser" if transcribes else "without a recogniser"
        print(
            f"\n{title}, {args.part} part, {len(clips)} clips, {args.repeats} times each; times in ms: middle / 90 % / largest\n"
        )
        print(table(outcomes))
        print(f"\nwrong in the first round:\n{wrong(outcomes[: len(clips)])}")
        written[title] = {
            "figures": {row: figures(outcomes, chosen) for row, chosen in ROWS.items()},
            "scenes": outcomes,
        }
    if args.json is not None:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n")


if __name__ == "__main__":
    main()
