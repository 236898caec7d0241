"""Holds one spoken conversation with the embedded default and writes it down: `python -m demo --out demo-out`.

Called by `__main__.py`. Starts the server as a user would, speaks to it over the socket in real time, interrupts it, and exits
0 when everything that it is to show has happened. Figures are reported against their targets and never decide the exit status;
it is 1, with the reason, when an answer or the interruption is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from pathlib import Path

import numpy as np
from rich.console import Console

from demo import report
from demo.held import Held, Missing, Script, hold
from demo.server import Running, ServerFailed, serving
from demo.user import INTERRUPTION, PROVOCATIONS, QUESTION, VOICE, Line, recorded, spoken
from duplex_client import DuplexClientError
from duplex_client.audio import SESSION_RATE_HZ, UnwritableAudio, write_wav
from tests.support.clips import DEBIAN, FOLDER_VARIABLE, ClipsMissing

WRITTEN = ("question.wav", "conversation.wav", "summary.json", "server.log")
"""What is written beside the answers."""


def options(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Hold one spoken conversation with the embedded default.")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the wavs and summary.json")
    parser.add_argument(
        "--clips",
        type=Path,
        nargs="?",
        const=Path(os.environ.get(FOLDER_VARIABLE) or DEBIAN),
        metavar="DIR",
        help="also say the recordings of Debian's pocketsphinx-testdata; DIR is where librivox/ and cards/ are",
    )
    parser.add_argument(
        "--serve", action="append", default=[], metavar="OPTION", help="an option for `duplex-server serve`"
    )
    return parser.parse_args(words)


def script(clips: Path | None) -> Script:
    """Speak the lines of the scripted user, before anything is timed.

    Raises:
        ClipsMissing: there are no recordings in `clips`.
    """
    people: list[Line] = recorded(clips) if clips is not None else []
    texts = [("question", QUESTION), *(("provocation", text) for text in PROVOCATIONS), ("interruption", INTERRUPTION)]
    question, *provocations, interruption = spoken(texts)
    return Script(question=question, provocations=provocations, interruption=interruption, recordings=people)


async def converse(chosen: argparse.Namespace, console: Console) -> tuple[Held, Running]:
    """Start the server, hold the conversation, stop the server.

    Raises:
        Missing: something that is to be shown did not happen.
        ServerFailed: the server did not start, or not end.
        DuplexClientError: the connection failed.
        ClipsMissing: there are no recordings.
        UnwritableAudio: a sound file cannot be written.
    """
    lines = script(chosen.clips)
    write_wav(chosen.out / "question.wav", np.frombuffer(lines.question.pcm, dtype="<i2"), SESSION_RATE_HZ)
    console.print(f"The user's lines are spoken by the voice {VOICE}. Starting duplex-server serve …")
    async with serving(chosen.out / "server.log", chosen.serve) as running:
        console.print(f"{running.url} serves {running.model} after {running.start_s:.1f} s; {running.cores.told}.")
        held = await hold(running.url, lines, out=chosen.out, console=console)
    return held, running


def main() -> int:
    """Run the demo; the process's exit status."""
    chosen, console = options(), Console()
    logging.getLogger("duplex_client").setLevel(logging.ERROR)  # what it would say is shown in its place
    chosen.out.mkdir(parents=True, exist_ok=True)
    for old in (*chosen.out.glob("answer-*.wav"), *(chosen.out / name for name in WRITTEN)):
        old.unlink(missing_ok=True)
    try:
        held, running = asyncio.run(converse(chosen, console))
    except (Missing, ServerFailed, DuplexClientError, ClipsMissing, UnwritableAudio) as exc:
        console.print(f"The demo failed: {exc}", style="bold red", markup=False, soft_wrap=True)
        return 1
    facts = report.summary(held, running)
    report.write(facts, chosen.out / "summary.json")
    report.show(facts, console)
    written = [path.name for path in chosen.out.iterdir() if path.name in WRITTEN or path.match("answer-*.wav")]
    console.print(f"Written to {chosen.out}: " + ", ".join(sorted(written)))
    return 0
