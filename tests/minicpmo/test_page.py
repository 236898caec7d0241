"""The page on MiniCPM-o names every option, setting and profile with its default, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from duplex_core.plugins import load_plugins
from duplex_server import builtins
from duplex_server.deploy import profiles, resolve
from model_minicpmo.options import SessionOptions
from model_minicpmo.plugin import MODEL_ID
from model_minicpmo.settings import MiniCPMOSettings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models" / "minicpmo.md"


def rows(section: str) -> dict[str, list[str]]:
    """The cells of the section's tables, by the names in their first cells; names that share a row share its cells."""
    part = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| `")]
    return {name: cells[1:] for cells in lines for name in re.findall(r"`([\w.-]+)`", cells[0])}


def default(name: str) -> Any:
    """An option's default."""
    return SessionOptions.model_fields[name].default


def test_every_option_is_told_with_its_default() -> None:
    told = rows("Session options")
    windowed = re.findall(r"`(\w+)` \((\d+)\)", told["window"][1])
    assert told.keys() | {name for name, _ in windowed} == SessionOptions.model_fields.keys()
    for name, number in windowed:
        assert int(number) == default(name), name
    for name, (value, *_) in told.items():
        if re.fullmatch(r"[\d.]+", value):
            assert float(value) == default(name), name
    together = {"temperature": 0, "top_k": 1, "top_p": 2}
    for name, at in together.items():
        assert float(told[name][0].split(", ")[at]) == default(name), name
    assert told["window"][0] == f"`{default('window')}`"


def test_every_setting_is_told() -> None:
    told = {name.partition(".")[0] for name in rows("Profiles")}
    served = {"devices", "replicas", "memory_gib"}
    assert told - served - PROFILES.keys() == MiniCPMOSettings.model_fields.keys()


PROFILES = {"one-gpu": "cuda:0", "two-gpus": "cuda:1", "three-gpus": "cuda:1", "cpu": "cpu"}
"""Profiles, and where their senses are."""


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_told_with_what_it_holds(profile: str) -> None:
    spec = load_plugins([builtins]).models[MODEL_ID]
    assert profiles(spec).keys() == PROFILES.keys()
    deploy = resolve(spec, {}, profile)
    assert isinstance(deploy, MiniCPMOSettings)
    _, sessions, chats, *_ = rows("Profiles")[profile]
    assert (int(sessions), int(chats)) == (deploy.sessions, deploy.chats)
    assert deploy.senses.devices == (PROFILES[profile],)
