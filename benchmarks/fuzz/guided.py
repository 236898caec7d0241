"""The codec under frames that a coverage-guided fuzzer finds. Run from the root of the tree, in an environment of its own.

`python -m benchmarks.fuzz.guided --seconds 180` needs atheris, which is no requirement of this tree: it is for Linux alone, and
only ever run by hand. What it found new ground with stays in the folder of `--corpus`, and is where the next run begins. The
first frame that the codec errs on ends the run and is left in a file `crash-…`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["duplex_core"]):  # what was imported before, it would be blind in
    from benchmarks.fuzz import hunt

LONGEST = 4096
"""Bytes of the longest frame."""


def mutator(data: bytes, max_size: int, seed: int) -> bytes:
    """Another frame made from ``data``: every other time as a document, else as bytes, as the fuzzer would by itself."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    made = hunt.mutated(data, rng) if rng.random() < 0.5 else None
    if made is not None and len(made) <= max_size:
        return made
    changed: bytes = atheris.Mutate(data, max_size)
    return changed


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz.guided", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=180, help="for how long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="folder of what the runs before found; a new one by default")
    given = parser.parse_args()
    corpus = given.corpus or Path(tempfile.mkdtemp(prefix="corpus-"))
    corpus.mkdir(parents=True, exist_ok=True)
    hunt.plant(corpus)
    print(f"the corpus is in {corpus}", file=sys.stderr)
    options = [f"-max_total_time={given.seconds}", f"-seed={given.seed}", f"-max_len={LONGEST}", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], hunt.target, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
