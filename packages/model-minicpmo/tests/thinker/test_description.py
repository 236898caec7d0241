"""What vLLM is told of a checkpoint: the language model alone, and from a name on the hub as well as from a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
from transformers import AutoConfig

from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.language import ARCHITECTURE_NAME, write_description
from model_minicpmo.gpu.thinker import Thinker
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

pytestmark = pytest.mark.engines

NAME = "somebody/a-model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ENGINE = {"max_model_len": 512, "engine_args": {"block_size": 32}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), replace(TINY, llm=replace(TINY.llm, layers=3)))


def test_a_public_library_reads_the_language_model_alone(checkpoint: Path, tmp_path: Path) -> None:
    write_description(checkpoint, tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    whole = json.loads((checkpoint / "config.json").read_text())
    assert (config.model_type, config.architectures) == ("qwen3", [ARCHITECTURE_NAME])
    assert config.num_hidden_layers == 3
    assert config.hidden_size == whole["hidden_size"]
    assert config.rope_parameters["rope_theta"] == whole["rope_theta"]
    assert config.dtype is not None
    assert str(config.dtype) == "torch.float32"
    assert config.eos_token_id is None  # it would end units


def test_the_engine_reads_weights_from_the_checkpoint_and_the_description_until_the_stage_ends(
    checkpoint: Path,
) -> None:
    thinker = Thinker(checkpoint=str(checkpoint), engine=ENGINE)
    settings = thinker.settings()
    assert settings.model == str(checkpoint)
    assert settings.engine_args["block_size"] == 32
    described = Path(settings.engine_args["hf_config_path"])
    assert [each.name for each in described.iterdir()] == ["config.json"]
    thinker.close()
    assert not described.exists()


def test_a_name_on_the_hub_is_as_good_as_a_folder(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    held = tmp_path / "models--somebody--a-model"
    (held / "snapshots").mkdir(parents=True)
    (held / "snapshots" / COMMIT).symlink_to(checkpoint)
    (held / "refs").mkdir()
    (held / "refs" / "main").write_text(COMMIT)
    thinker = Thinker(checkpoint=NAME, engine=ENGINE)
    assert Path(thinker.settings().model).samefile(checkpoint)
    thinker.close()


def test_quantised_weights_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(CheckpointError, match="quantization_config"):
        write_description(tmp_path, tmp_path)
