"""The cascade's deploy settings: what they take, and what is refused before anything loads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from duplex_core.spec import Checkpoint
from model_cascade.plugin import stage_plan
from model_cascade.settings import CascadeSettings

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("given", "voices"),
    [("nano", ("nano",)), ("nano, joe", ("nano", "joe")), (["joe"], ("joe",)), ("my.voices:make", ("my.voices:make",))],
)
def test_voices_are_a_list_or_text_with_commas(given: Any, voices: tuple[str, ...]) -> None:
    assert CascadeSettings(voices=given).voices == voices


@pytest.mark.parametrize("given", ["", ",", "joe, joe", "bob", ["joe", "bob"], 7, {"joe": 1}])
def test_voices_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="voices"):
        CascadeSettings(voices=given)


def plan(**settings: Any) -> list[str]:
    return [stage.name for stage in stage_plan(Checkpoint(name="cascade"), CascadeSettings(**settings)).stages]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"recognizer": "no_such_ears:make"},
            r"^recognizer names no_such_ears:make, and there is no module no_such_ears; ",
        ),
        (
            {"voices": ["joe", "no_such_voice.new:make"]},
            r"^voices names .*, and there is no module no_such_voice; install it",
        ),
        (
            {"voices": "json.no_such_part:make"},
            r"^voices names .*, and there is no module json\.no_such_part; install it",
        ),
        (
            {"voices": "json.decoder.deeper:make"},
            r"^voices names .*, and there is no module json\.decoder\.deeper; install it",
        ),
    ],
)
def test_a_part_that_is_not_installed_is_refused_before_anything_loads(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(**settings)


def test_a_part_that_is_installed_is_planned_and_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "parts_that_must_not_load"
    package.mkdir()
    for name in ("__init__", "ears"):
        (package / f"{name}.py").write_text("raise RuntimeError('loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    for path in ("parts_that_must_not_load:make", "parts_that_must_not_load.ears:make", "json.decoder:JSONDecoder"):
        assert plan(recognizer=path) == ["recognizer", "language", "voice"]


@pytest.mark.parametrize("page", ["packages/model-cascade/README.md", "docs/models/cascade.md"])
def test_the_settings_that_are_shown_are_taken(page: str) -> None:
    (shown,) = re.findall(r"^```yaml.*?\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    settings = CascadeSettings(**yaml.safe_load(shown))
    assert settings.language_model.model == "my-model"
    assert settings != CascadeSettings()
