"""What the page on MiniCPM-o shows is run as it stands there: the tiny checkpoint's command, and each example in Python."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import io
import re
import sys
import wave
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duplex_core.testing.speech import burst
from tests.minicpmo.conftest import TURN, WRITTEN
from tests.minicpmo.served import INPUT_HZ, OUTPUT_HZ, PATIENCE_S, call, voice, wav
from tests.minicpmo.test_page import PAGE
from tests.support.serving import Served

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
]
TEXT = PAGE.read_text(encoding="utf-8")
SHELL = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def example(name: str) -> Callable[..., Any]:
    """The function of this name out of the page, with all that stands in its block."""
    for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        if f"\nasync def {name}(" in block:
            names: dict[str, Any] = {}
            exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page
            found: Callable[..., Any] = names[name]
            assert inspect.iscoroutinefunction(found)
            return found
    raise AssertionError(f"the page has no example {name}")


@pytest.fixture
def question(tmp_path: Path) -> Path:
    path = tmp_path / "question.wav"
    path.write_bytes(wav(burst(2000.0, INPUT_HZ), INPUT_HZ))
    return path


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    from PIL import Image

    path = tmp_path / "picture.png"
    Image.linear_gradient("L").resize((320, 240)).convert("RGB").save(path, "PNG")
    return path


def files(folder: Path) -> dict[str, str]:
    """Every file below a folder, and the hash of its content; what torch writes has a date in it."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items() if path.suffix != ".pt"}


async def run(*command: str, cwd: Path) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=cwd, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_writes_the_checkpoint_that_the_tests_serve(tmp_path: Path) -> None:
    from model_minicpmo.testing.talking import write_talking_checkpoint

    (line,) = re.findall(r"^python (-m model_minicpmo\.testing \w+) ", "\n".join(SHELL), re.MULTILINE)
    code, out, _ = await run(*line.split(), cwd=tmp_path)
    assert (code, out) == (0, "Written. Serve it with: duplex-server serve tiny --profile cpu\n")
    assert re.search(r"^duplex-server serve tiny --profile cpu ", "\n".join(SHELL), re.MULTILINE)
    alike = write_talking_checkpoint(tmp_path / "alike")
    assert files(tmp_path / "tiny") == files(alike)
    code, _, err = await run(*line.split(), cwd=tmp_path)
    assert code == 2
    assert "tiny is there already and not an empty folder; name another one" in err


async def test_a_session_with_options_a_voice_and_a_picture(
    served: Served, question: Path, picture: Path, tmp_path: Path
) -> None:
    (tmp_path / "voice.wav").write_bytes(voice(170.0))
    given = (question, tmp_path / "voice.wav", picture, tmp_path)
    async with asyncio.timeout(PATIENCE_S):
        said = await example("ask_aloud")(f"ws://127.0.0.1:{served.port}", *given)
    assert said == "".join(TURN)
    with wave.open(str(tmp_path / "answer-1.wav")) as file:
        assert file.getnframes() > OUTPUT_HZ


async def test_a_session_with_openais_client(served: Served) -> None:
    async with asyncio.timeout(PATIENCE_S):
        said, sound = await example("talk")(served.http, burst(2000.0, OUTPUT_HZ))
    assert said == "".join(TURN)
    assert len(sound) > 2 * OUTPUT_HZ


async def test_a_chat_with_sound_and_a_picture_answered_aloud(served: Served, question: Path, picture: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        said, sound = await example("chat")(served.http, question, picture)
    assert said == WRITTEN
    with wave.open(io.BytesIO(sound)) as file:
        assert file.getnframes() > OUTPUT_HZ // 2


async def test_the_command_line_talks_and_ends(served: Served, question: Path, tmp_path: Path) -> None:
    (line,) = re.findall(r"^duplex-client (talk .*)$", "\n".join(SHELL), re.MULTILINE)
    command = ("-c", "from duplex_client.cli import main; main()", *line.split(), "--url", served.http)
    async with asyncio.timeout(PATIENCE_S):
        code, out, err = await run(*command, cwd=tmp_path)
    assert code == 0, out + err
    assert "finished" in out
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert file.getnframes() > OUTPUT_HZ


async def test_an_answer_that_is_asked_for_while_listening_is_forced_is_empty(served: Served) -> None:
    assert "also when an answer is asked for: that one is `completed` with nothing in it" in TEXT
    async with call(served, options={"forced_listen": 60}) as caller:
        await caller.send("response.create")
        answer = await caller.answered(1)
        await caller.close()
    assert (answer.status, answer.text, answer.pcm) == ("completed", "", b"")
