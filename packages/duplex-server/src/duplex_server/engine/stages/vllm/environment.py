"""What one worker process sets before vLLM is imported: the environment that it reads, and that its processes end with this one.

Called by :mod:`.driver` before anything imports vLLM. Must never import it, nor torch.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import MutableMapping

_PR_SET_PDEATHSIG = 1

DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""What is set unless the operator has: no usage reports, and no more in the log than what is worth reading."""


def prepare(environ: MutableMapping[str, str], device: str) -> None:
    """Set ``environ`` for a replica on ``device``: ``cpu``, ``cuda:0``, ``cuda:0,cuda:1``, or nothing.

    Device numbers count within what the operator has made visible.

    Raises:
        ValueError: an unknown kind of device, or one that is not visible.
    """
    for name, value in DEFAULTS.items():
        environ.setdefault(name, value)
    numbers: list[int] = []
    for each in filter(None, device.split(",")):
        kind, _, number = each.strip().partition(":")
        if kind not in {"cpu", "cuda"} or (number and not number.isdecimal()):
            raise ValueError(f"the vllm runtime knows the devices cpu, cuda:0, cuda:0,cuda:1 and so on, not {each!r}")
        if kind == "cuda":
            numbers.append(int(number or 0))
    if not numbers:
        return
    visible = [each for each in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if visible and max(numbers) >= len(visible):
        raise ValueError(
            f"device cuda:{max(numbers)} was asked for, but CUDA_VISIBLE_DEVICES shows {len(visible)} devices"
        )
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[each] if visible else str(each) for each in numbers)


def forks_die_with_me() -> None:
    """Have every process that is forked from here on killed when the one that forked it ends, however that comes about."""
    parents: list[int] = []
    os.register_at_fork(
        before=lambda: parents.append(os.getpid()),
        after_in_parent=parents.pop,
        after_in_child=lambda: die_with(parents.pop()),
    )


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends. The kernel tells nobody else: a server that is killed cannot."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended meanwhile
        os.kill(os.getpid(), signal.SIGKILL)
