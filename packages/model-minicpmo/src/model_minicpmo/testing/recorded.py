"""The recorded runs of the golden data, as the stages take them in.

Owns how a recording is read: the options that it was made with, the draws, and each unit as the senses or the thinker get it.
Used by the tests that play recordings to the thinker, to the whole loop and to vLLM. Holds no expectation and no data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from duplex_core.torch_tensors import of_torch
from model_minicpmo.payloads import (
    ChatSensed,
    Draws,
    Opened,
    Options,
    Orders,
    Picture,
    Sensed,
    SensedMessage,
    SensedPart,
)

WINDOWS = {"duplex_window_basic": "basic", "duplex_window_context": "context"}
"""The runs whose window moves, and how."""
INTERRUPTIONS = {"duplex_sampled": "keep_talker", "duplex_greedy_release": "drop_unit"}
"""The runs that are interrupted, and what that does in the program that was recorded."""
PUBLISHED_CLASS = frozenset({"duplex_greedy_release"})
"""The runs of the vendor's published class, which has no limit of characters; all others are the demo's."""
PROMPT = "Streaming Omni Conversation."
_VOICE = slice(26, 46)
"""Where the reference voice's embeddings stand in what was fed."""


class Recording:
    """One recorded run of a conversation.

    Attributes:
        run: `run.json`.
        tensors: `tensors.safetensors`.
        options: those that it was made with.
        unit_end: the id of `</unit>`, which the recording counts among a unit's ids.
    """

    def __init__(self, goldens: Path, name: str) -> None:
        """Read the run `name` of the folder `goldens`."""
        self.name = name
        self.run: dict[str, Any] = json.loads((goldens / name / "run.json").read_text())
        self.tensors = load_file(goldens / name / "tensors.safetensors")
        self.unit_end: int = json.loads((goldens / "checkpoint" / "added_tokens.json").read_text())["</unit>"]
        self.options = Options(
            greedy=self.run["decode"] == "greedy",
            window=WINDOWS.get(name, "off"),
            high_tokens=160,
            low_tokens=110,
            context_units=4,
            previous_tokens=24,
            char_limit=0 if name in PUBLISHED_CLASS else 28,
            interruption=INTERRUPTIONS.get(name, "close"),
        )

    @property
    def units(self) -> list[dict[str, Any]]:
        """What was recorded of each unit."""
        units: list[dict[str, Any]] = self.run["units"]
        return units

    @property
    def opened(self) -> Opened:
        """The prompt with the recorded voice."""
        voice = of_torch(self.tensors["feed.embeds"][_VOICE])
        return Opened(prompt=PROMPT, options=self.options, reference=voice)

    def orders(self, unit: dict[str, Any]) -> Orders:
        """What was ordered of a unit, with the recorded draws."""
        return Orders(
            number=unit["unit"],
            forced=is_forced(unit),
            ends_turn=unit["force_listen_override"],
            draws=self._draws(unit),
        )

    def sensed(self, unit: dict[str, Any]) -> Sensed:
        """A unit as the senses hand it over."""
        audio = of_torch(self.tensors[prefix(unit) + "audio_embeds"].reshape(10, -1))
        return Sensed(orders=self.orders(unit), audio=audio, pictures=self._pictures(unit))

    def _draws(self, unit: dict[str, Any]) -> Draws | None:
        """The uniforms of a unit, two for each token; the second is not used where none was drawn."""
        if self.options.greedy:
            return None
        llm = [number for step in unit["llm_steps"] for number in (*step.get("u", ()), 0.5, 0.5)[:2]]
        return Draws(llm=tuple(llm), tts=tuple((unit.get("tts") or {}).get("u", ())))

    def _pictures(self, unit: dict[str, Any]) -> tuple[Picture, ...]:
        views = self.tensors.get(prefix(unit) + "image_embeds")
        if views is None:
            return ()
        if len(unit["frames"]) > 1:
            return tuple(Picture(whole=of_torch(view.contiguous())) for view in views)
        whole, *slices = (of_torch(view.contiguous()) for view in views)
        return (Picture(whole=whole, slices=tuple(slices)),)


def prefix(unit: dict[str, Any]) -> str:
    """What the names of a unit's tensors begin with."""
    return f"u{unit['unit']:02d}."


def is_forced(unit: dict[str, Any]) -> bool:
    """Tell whether a unit was made to listen."""
    return bool(unit["force_listen"] or unit["force_listen_override"])


def is_interruption(unit: dict[str, Any]) -> bool:
    """Tell whether an interruption came before a unit: a break, or an order to listen that is not the beginning's."""
    return bool(unit.get("break_event") or unit.get("force_listen_override"))


def chat_sensed(goldens: Path, name: str, *, max_tokens: int = 96) -> ChatSensed:
    """Give a recorded chat as the senses hand it over, to be answered greedily and spoken."""
    run = json.loads((goldens / name / "run.json").read_text())
    embeds = load_file(goldens / name / "tensors.safetensors")["input_embeds"]
    bounds = iter(run.get("audio_bounds", [[]])[0])
    messages = []
    for message in run["messages"]:
        part = SensedPart(text=message.get("text", ""))
        if "wav" in message:
            start, stop = next(bounds)
            part = SensedPart(audio=of_torch(embeds[start:stop].clone()))
        messages.append(SensedMessage(role=message["role"], parts=(part,)))
    return ChatSensed(messages=tuple(messages), options=Options(greedy=True), max_tokens=max_tokens, spoken=True)
