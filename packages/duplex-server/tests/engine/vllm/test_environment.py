"""What vLLM's environment is before it is imported, and that importing the driver imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from duplex_server.engine.stages.vllm.environment import prepare
from tests.support.pools import alive


@pytest.mark.parametrize(
    ("device", "visible", "wanted"),
    [
        ("", None, None),
        ("cpu", None, None),
        ("cuda:1", None, "1"),
        ("cuda", None, "0"),
        ("cuda:0,cuda:2", None, "0,2"),
        ("cuda:1", "4,5", "5"),
        ("cuda:0, cuda:1", "GPU-aa,GPU-bb", "GPU-aa,GPU-bb"),
    ],
)
def test_devices_count_within_what_is_visible(device: str, visible: str | None, wanted: str | None) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    prepare(environ, device)
    assert environ.get("CUDA_VISIBLE_DEVICES") == wanted
    assert environ["VLLM_NO_USAGE_STATS"] == "1"


def test_what_the_operator_set_stays() -> None:
    environ = {"VLLM_LOGGING_LEVEL": "DEBUG", "CUDA_VISIBLE_DEVICES": "3"}
    prepare(environ, "cpu")
    assert (environ["VLLM_LOGGING_LEVEL"], environ["CUDA_VISIBLE_DEVICES"]) == ("DEBUG", "3")


@pytest.mark.parametrize(
    ("device", "words"), [("tpu:0", "not 'tpu:0'"), ("cuda:x", "not 'cuda:x'"), ("cuda:2", "shows 2")]
)
def test_a_device_that_cannot_be_is_refused(device: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepare({"CUDA_VISIBLE_DEVICES": "0,1"}, device)


def test_the_driver_and_the_plugin_import_neither_torch_nor_vllm() -> None:
    code = (
        "import sys; import duplex_server.engine.stages.vllm.driver, duplex_server.engine.stages.vllm.plugin as plugin; "
        "plugin.register(); print(sorted({'torch', 'vllm', 'transformers'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_is_forked_dies_with_its_parent() -> None:
    code = (
        "import os, sys, time\n"
        "from duplex_server.engine.stages.vllm.environment import forks_die_with_me\n"
        "forks_die_with_me()\n"
        "if (pid := os.fork()) == 0:\n"
        "    time.sleep(60)\n"
        "print(pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        forked = int(process.stdout.readline())
        assert alive(forked)
        process.kill()
    deadline = time.monotonic() + 10
    while alive(forked):
        assert time.monotonic() < deadline
        time.sleep(0.01)
