"""The page for operators names what there is: every series of the metrics, and the options that it speaks of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from prometheus_client import generate_latest

from duplex_core.hookspecs import duplex_register_authenticators
from duplex_server import cli
from duplex_server.engine.lease import Lifetime
from duplex_server.engine.metrics import EngineMetrics
from duplex_server.serving import client_secrets, keys
from tests.support.serving import serving

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


def options(command: str = "serve") -> dict[str, Any]:
    group: Any = typer.main.get_command(cli.app)
    return {name: each for each in group.commands[command].params for name in each.opts}


def test_every_option_on_the_page_exists() -> None:
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert named <= options().keys() | options("plan").keys()
    lifetimes = {name for name in options() if "seconds" in name or "journal" in name}
    access = {"--api-key", "--authenticator", "--allow-origin", "--served-model-name", "--allow-unauthenticated"}
    assert lifetimes | access <= named


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--disconnect-grace-seconds", Lifetime().disconnect_grace_s),
        ("--idle-ttl-seconds", Lifetime().idle_ttl_s),
        ("--journal-events", Lifetime().journal_events),
        ("--journal-bytes", Lifetime().journal_bytes),
    ],
)
def test_defaults_are_as_they_are(option: str, value: float) -> None:
    assert f"| `{option}` | {value:.0f} |" in PAGE
    assert options()[option].default == value


def test_every_series_is_on_the_page_and_none_that_there_is_not() -> None:
    text = generate_latest(EngineMetrics().registry).decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    there_are = {name for name in kinds if not name.endswith("_created")}
    named = set(re.findall(r"`(duplex_\w+)(?:\{\w+\})?`", PAGE)) - {duplex_register_authenticators.__name__}
    assert named == there_are


async def test_the_answer_of_health_has_these_fields() -> None:
    import httpx

    (example,) = re.findall(r'```json\n(\{\n  "alive".*?)```', PAGE, re.DOTALL)
    async with serving() as served, httpx.AsyncClient(base_url=served.http) as client:
        told = (await client.get("/health")).json()
    assert list(json.loads(example)) == list(told)


def test_figures_are_those_of_the_code() -> None:
    assert f"({client_secrets.DEFAULT_SECONDS} when nothing is said)" in PAGE
    assert f"At most {client_secrets.MAX_SECRETS:,} are remembered".replace(",", " ") in PAGE
    assert client_secrets.RESUME_S == 24 * 3600
    assert "for a day the page can" in PAGE
    assert keys.AUTHENTICATOR_TIMEOUT_S == 10
    assert "longer than ten seconds" in PAGE
