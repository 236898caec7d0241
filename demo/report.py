"""Figures from the facts of a conversation: `summary.json` and the table.

Pure but for writing the file. Called by `conversation.py`.
"""

from __future__ import annotations

import json
import platform
import statistics
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo.held import Held, Turn
from demo.server import Running
from duplex_core.config import ServerVad

ANSWER_TARGET_S = 1.0
SILENCE_TARGET_S = 0.35
PACKAGES = ("duplex-core", "duplex-server", "duplex-client", "model-cascade")


def answer_latency_s(turn: Turn) -> float | None:
    """From the last voiced sample of what was said to the first audio of the answer."""
    first_ms = turn.answer.first_audio_at_ms
    return None if first_ms is None else (first_ms - turn.utterance.ends_ms) / 1000.0


def silence_latency_s(turn: Turn) -> float | None:
    """From the first voiced sample of an interruption to the last sample of the old answer that sounded."""
    if turn.interrupts is None or turn.interrupts.heard is None:
        return None
    ended_ms = turn.interrupts.heard.ends_at_ms
    return None if ended_ms is None else (ended_ms - turn.utterance.begins_ms) / 1000.0


def interrupted_by(turn: Turn, held: Held) -> Turn | None:
    """The turn in which the user talked over the answer to ``turn``."""
    return next((other for other in held.turns if other.interrupts is turn), None)


def against(value_s: float | None, target_s: float) -> dict[str, Any]:
    """A figure with its target; `met` is `None` where there is no figure."""
    return {
        "value_s": None if value_s is None else round(value_s, 3),
        "target_s": target_s,
        "met": None if value_s is None else value_s <= target_s,
    }


def median_s(turns: list[Turn]) -> float | None:
    """The median latency of the answers to these turns."""
    values = [value for turn in turns if (value := answer_latency_s(turn)) is not None]
    return statistics.median(values) if values else None


def summary(held: Held, running: Running) -> dict[str, Any]:
    """Everything, as `summary.json` has it. Times are in seconds."""
    detection = held.session.audio.input.turn_detection
    scripted = [turn for turn in held.turns if not turn.recorded]
    recorded = [turn for turn in held.turns if turn.recorded]
    stops = [value for turn in held.turns if (value := silence_latency_s(turn)) is not None]
    latency: dict[str, Any] = {
        "end_of_speech_to_first_audio_median": against(median_s(scripted), ANSWER_TARGET_S),
        "interruption_to_silence": against(max(stops, default=None), SILENCE_TARGET_S),
    }
    if recorded:
        latency["end_of_recorded_speech_to_first_audio_median"] = against(median_s(recorded), ANSWER_TARGET_S)
    return {
        "model": running.model,
        "versions": versions(),
        "machine": {
            "system": platform.platform(terse=True),
            "processor": processor(),
            "server_on_one_core": running.cores.server is not None and len(running.cores.server) == 1,
            "cores": running.cores.told,
            "server_start_s": round(running.start_s, 2),
        },
        "hangover_s": detection.silence_duration_ms / 1000.0 if isinstance(detection, ServerVad) else None,
        "lasted_s": round(held.lasted_s, 2),
        "latency": latency,
        "turns": [_told(turn, held) for turn in held.turns],
        "conversation": held.recording.name if held.recording is not None else None,
    }


def _told(turn: Turn, held: Held) -> dict[str, Any]:
    heard, wav = turn.heard, held.wavs.get(turn.answer.response_id)
    interruption = interrupted_by(turn, held)
    answer_s = answer_latency_s(turn)
    silence_s = silence_latency_s(interruption) if interruption is not None else None
    return {
        "said": turn.utterance.line.text,
        "spoken_by": turn.utterance.line.name if turn.recorded else "scripted user",
        "speech_s": round((turn.utterance.ends_ms - turn.utterance.begins_ms) / 1000.0, 3),
        "server_heard": turn.transcript,
        "answered": turn.answer.transcript.strip(),
        "kept_in_history": turn.kept,
        "status": turn.answer.status.value,
        "answer_cut": heard is not None and heard.cut_at_ms is not None,
        "answer_received_s": round(heard.received_ms / 1000.0, 3) if heard is not None else None,
        "answer_played_s": round(heard.played_ms / 1000.0, 3) if heard is not None else None,
        "end_of_speech_to_first_audio_s": None if answer_s is None else round(answer_s, 3),
        "interruption_to_silence_s": None if silence_s is None else round(silence_s, 3),
        "wav": wav.name if wav is not None else None,
    }


def versions() -> dict[str, str]:
    """Python's and the packages' versions."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def processor() -> str:
    """What the system calls its processor."""
    told = Path("/proc/cpuinfo")
    if told.exists():
        names = (line.partition(":")[2].strip() for line in told.read_text().splitlines() if "model name" in line)
        if name := next(names, ""):
            return name
    return platform.processor() or platform.machine()


def write(facts: dict[str, Any], path: Path) -> None:
    """Write `summary.json`."""
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def show(facts: dict[str, Any], console: Console) -> None:
    """Print the turns and the figures against their targets."""
    turns = Table(title="The conversation", title_justify="left", show_lines=True)
    for heading in ("said", "server heard", "answered", "first audio after"):
        turns.add_column(heading, justify="right" if heading.startswith("first") else "left")
    for turn in facts["turns"]:
        turns.add_row(*map(escape, (turn["said"], turn["server_heard"], _answer(turn), _seconds(turn))))
    console.print(turns)
    figures = Table(title="Against the targets", title_justify="left")
    for heading in ("figure", "measured", "target", ""):
        figures.add_column(heading, justify="right" if heading in ("measured", "target") else "left")
    for name, figure in facts["latency"].items():
        measured = "-" if figure["value_s"] is None else f"{figure['value_s']:.2f} s"
        verdict = {True: "met", False: "MISSED", None: "not measured"}[figure["met"]]
        figures.add_row(name.replace("_", " "), measured, f"≤ {figure['target_s']:.2f} s", verdict)
    console.print(figures)
    machine, hangover_s = facts["machine"], facts["hangover_s"]
    included = f"; the {hangover_s:.2f} s of silence that end a turn are included" if hangover_s is not None else ""
    console.print(f"Measured on {machine['processor']}: {machine['cores']}{included}.", soft_wrap=True)


def _answer(turn: dict[str, Any]) -> str:
    if not turn["answer_cut"]:
        return str(turn["answered"])
    told = turn["kept_in_history"] or textwrap.shorten(turn["answered"], 60, placeholder="")
    return f"{told} … (cut after {turn['answer_played_s']:.2f} s)"


def _seconds(turn: dict[str, Any]) -> str:
    value = turn["end_of_speech_to_first_audio_s"]
    return "-" if value is None else f"{value:.2f} s"
