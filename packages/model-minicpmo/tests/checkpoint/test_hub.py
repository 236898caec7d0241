"""Where a checkpoint is looked for: folders, and the hub's cache. Nothing is fetched here."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest

from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.hub import checkpoint_folder

pytestmark = pytest.mark.engines

NAME = "somebody/a-model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert checkpoint_folder(str(tmp_path)) == tmp_path


def test_a_name_is_taken_from_the_cache(hub_cache: Path) -> None:
    held = hub_cache / "models--somebody--a-model"
    snapshot = held / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (held / "refs").mkdir()
    (held / "refs" / "main").write_text(COMMIT)
    assert checkpoint_folder(NAME) == snapshot


@pytest.mark.usefixtures("hub_cache")
def test_a_name_that_cannot_be_fetched_says_what_to_do() -> None:
    with pytest.raises(
        CheckpointError, match=r"somebody/a-model: .* not be fetched from the hub .*`hf download somebody/a-model`"
    ):
        checkpoint_folder(NAME)


@pytest.mark.parametrize("name", ["/no/such/folder", "./folder", "a-model", "a/b/c"])
def test_what_is_neither_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="is no folder and no name on the hub"):
        checkpoint_folder(name)
