"""Deploy settings: where they come from, which wins, and how a wrong one is named."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Literal

import pydantic
import pytest

from duplex_core.spec import ModelSpec
from duplex_core.testing.echo import ECHO
from duplex_server.deploy import DeployError, profiles, read_settings, resolve, validate


class Inner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    base_url: str = "none"
    retries: int = pydantic.Field(default=1, ge=0)
    key: pydantic.SecretStr | None = None
    kind: Literal["small", "large"] = "small"
    url: pydantic.HttpUrl | None = None
    big: bool = False


class Settings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    llm: Inner = Inner()
    voice: str = "first"
    voices: tuple[str, ...] = pydantic.Field(default=("first",), min_length=1)
    speed: float = 1.0

    @pydantic.field_validator("speed")
    @classmethod
    def _slow(cls, speed: float) -> float:
        if speed > 2:
            raise ValueError(f"{speed} is too fast")
        return speed


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
        ("volume=11", "there is no deploy setting volume; there are: llm, voice, voices, speed"),
        ("voise=x", "there is no deploy setting voise; did you mean voice? there are: llm, voice, voices, speed"),
        ("llm.volume=1", "there is no deploy setting llm.volume; llm has: base_url, retries, key, kind, url, big"),
        ("llm.retry=1", "there is no deploy setting llm.retry; did you mean llm.retries? llm has: base_url, retries"),
        ("llm.retries=many", "deploy setting llm.retries must be a whole number, not 'many'"),
        ("llm.retries=-1", "deploy setting llm.retries must be at least 0, not -1"),
        ("llm.big=maybe", "deploy setting llm.big must be true or false, not 'maybe'"),
        ("llm.kind=tiny", "deploy setting llm.kind must be 'small' or 'large', not 'tiny'"),
        ("llm.url=nowhere", "deploy setting llm.url must be an address like http://127.0.0.1:9000/v1, not 'nowhere'"),
        ("llm.key=123", "deploy setting llm.key must be text; put it in quotes"),
        ("llm.base_url=7", "deploy setting llm.base_url must be text, not 7; put it in quotes"),
        (
            "llm=5",
            "deploy setting llm has settings inside (base_url, retries, key, kind, url, big); it cannot be 5 itself",
        ),
        ("voices=bob", "deploy setting voices must be a list, for example [first, second], not 'bob'"),
        ("voices=[]", "deploy setting voices needs at least 1 entry"),
        ("voices=[a, 7]", "deploy setting voices[1] must be text, not 7; put it in quotes"),
        ("speed=fast", "deploy setting speed must be a number, not 'fast'"),
        ("speed=3", "deploy setting speed: 3.0 is too fast"),
        ("voice=", "deploy setting voice must be text, not nothing; put it in quotes"),
    ],
)
def test_a_wrong_setting_is_named_in_plain_words(assignment: str, message: str) -> None:
    with pytest.raises(DeployError) as caught:
        validate(Settings, read_settings(None, [assignment], {}))
    assert str(caught.value).startswith(message)
    assert not [word for word in ("Input", "Value error", "pydantic", "123") if word in str(caught.value)]


def test_a_list_of_wrong_entries_is_not_called_too_short_as_well() -> None:
    with pytest.raises(DeployError, match=r"^deploy setting voices\[0\] must be text, not 7; put it in quotes$"):
        validate(Settings, {"voices": [7]})


def test_several_wrong_settings_are_all_named() -> None:
    with pytest.raises(DeployError, match=r"^deploy setting llm\.retries must .*; there is no deploy setting volume; "):
        validate(Settings, {"llm": {"retries": "x"}, "volume": 1})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"voice: [", r"deploy\.yaml is not YAML: line 1, column 9: expected "),
        (b"voice: a\n  llm: b\n", r"deploy\.yaml is not YAML: line 2, column 6: mapping values are not allowed here$"),
        (b"voice: \x00", r"deploy\.yaml is not YAML: .*special characters"),
        (b"- a\n- b\n", "key: value"),
        (b"\xff\xfe\xff", "cannot be read: it is not text in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_bytes(content)
    with pytest.raises(DeployError, match=message) as caught:
        read_settings(file, [], {})
    assert "deploy.yaml" in str(caught.value)


def test_a_missing_file_is_named_and_an_empty_one_sets_nothing(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"nowhere\.yaml cannot be read: No such file or directory$"):
        read_settings(tmp_path / "nowhere.yaml", [], {})
    (tmp_path / "empty.yaml").write_text("")
    assert read_settings(tmp_path / "empty.yaml", [], {}) == {}


# -- profiles of a model package --------------------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    """A model whose package ships two profiles."""
    folder = tmp_path / "a_model_package" / "profiles"
    folder.mkdir(parents=True)
    (tmp_path / "a_model_package" / "__init__.py").write_text("")
    (folder / "small.yaml").write_text("# For one small machine.\nvoice: small\nllm: {base_url: here, retries: 1}\n")
    (folder / "big.yaml").write_text("voice: big\n")
    (folder / "notes.txt").write_text("no profile")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_model_package", raising=False)
    return dataclasses.replace(
        ECHO, deploy_model=Settings, profiles="a_model_package:profiles", default_profile="small"
    )


def test_the_default_profile_stands_under_what_was_set(shipped: ModelSpec) -> None:
    settings = read_settings(None, ["llm.retries=4"], {})
    assert resolve(shipped, settings) == Settings(voice="small", llm=Inner(base_url="here", retries=4))


def test_a_profile_is_chosen_by_name(shipped: ModelSpec) -> None:
    assert resolve(shipped, {}, "big") == Settings(voice="big")


def test_profiles_are_listed_with_what_they_are_for_the_default_first(shipped: ModelSpec) -> None:
    assert list(profiles(shipped).items()) == [("small", "For one small machine."), ("big", "")]


def test_an_unknown_profile_is_refused_with_those_that_there_are(shipped: ModelSpec) -> None:
    with pytest.raises(DeployError, match="has no profile 'huge'; it has: small, big"):
        resolve(shipped, {}, "huge")


def test_a_model_without_profiles_says_so() -> None:
    with pytest.raises(DeployError, match="model echo has no profile 'any'; it has: none"):
        resolve(ECHO, {}, "any")
    assert profiles(ECHO) == {}


def test_a_wrong_setting_over_a_profile_is_named(shipped: ModelSpec) -> None:
    with pytest.raises(DeployError, match=r"deploy setting llm\.retries must be at least 0, not -1"):
        resolve(shipped, {"llm": {"retries": -1}})


def test_a_setting_inside_another_kind_of_value_replaces_it(shipped: ModelSpec) -> None:
    with pytest.raises(DeployError, match="llm has settings inside"):
        resolve(shipped, {"llm": 3})


def test_a_package_without_its_folder_of_profiles_is_named(shipped: ModelSpec) -> None:
    with pytest.raises(DeployError, match="model echo says that its profiles are in nowhere_at_all:x"):
        resolve(dataclasses.replace(shipped, profiles="nowhere_at_all:x"), {})
