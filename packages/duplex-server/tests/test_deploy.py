"""Deploy settings: where they come from, which wins, and how a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

from duplex_server.deploy import DeployError, read_settings, validate


class Inner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    base_url: str = "none"
    retries: int = 1


class Settings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    llm: Inner = Inner()
    voice: str = "first"


def test_set_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("voice: file\nllm: {base_url: file, retries: 2}\n")
    environ = {"DUPLEX_DEPLOY__LLM__BASE_URL": "env", "DUPLEX_DEPLOY__LLM__RETRIES": "3", "OTHER": "x"}
    settings = read_settings(file, ["llm.retries=4"], environ)
    assert validate(Settings, settings) == Settings(voice="file", llm=Inner(base_url="env", retries=4))


def test_nothing_set_is_the_models_own_defaults() -> None:
    assert validate(Settings, read_settings(None, [], {})) == Settings()


def test_values_keep_what_follows_the_first_equals_sign() -> None:
    assert read_settings(None, ["voice=a=b"], {}) == {"voice": "a=b"}


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["voice"], "write it as key=value"),
        (["=x"], "write it as key=value"),
        (["voice=[1"], "not a YAML value"),
        (["voice=a", "voice.b=c"], "voice is set to 'a' elsewhere"),
    ],
)
def test_a_malformed_assignment_is_explained(assignments: list[str], message: str) -> None:
    with pytest.raises(DeployError, match=message):
        read_settings(None, assignments, {})


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("volume=11", "there is no deploy setting volume"),
        ("llm.speed=1", r"there is no deploy setting llm\.speed"),
        ("llm.retries=many", r"deploy setting llm\.retries: .*integer"),
        ("llm=5", "deploy setting llm: "),
    ],
)
def test_a_wrong_setting_is_named_with_those_that_exist(assignment: str, message: str) -> None:
    with pytest.raises(DeployError, match=message) as caught:
        validate(Settings, read_settings(None, [assignment], {}))
    assert "the settings are: llm, voice" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"voice: [", "is not YAML"), (b"- a\n- b\n", "key: value"), (b"\xff\xfe\xff", "cannot be read")],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_bytes(content)
    with pytest.raises(DeployError, match=message) as caught:
        read_settings(file, [], {})
    assert "deploy.yaml" in str(caught.value)


def test_a_missing_file_is_named_and_an_empty_one_sets_nothing(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="nowhere"):
        read_settings(tmp_path / "nowhere.yaml", [], {})
    (tmp_path / "empty.yaml").write_text("")
    assert read_settings(tmp_path / "empty.yaml", [], {}) == {}
