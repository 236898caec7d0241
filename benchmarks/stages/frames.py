"""What goes to and from the stage of the ``torch`` runtime's benchmark. Light: the server's process imports it as well."""

from __future__ import annotations

import msgspec

from duplex_core.tensors import Tensor

SAMPLES = 1920
"""Of one frame: 80 ms at 24 kHz."""
FRAME_MS = 80.0


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag="frame"):
    """``[SAMPLES]`` float32, in and out."""

    samples: Tensor


class Bare(msgspec.Struct, frozen=True, kw_only=True, tag="bare"):
    """Compute so many steps of all slots in a loop, with this frame, and say how long one took."""

    steps: int
    samples: Tensor


class Took(msgspec.Struct, frozen=True, kw_only=True, tag="took"):
    """Milliseconds for one of the steps of :class:`Bare`: by the clock, and of the process's own processor time."""

    ms: float
    cpu_ms: float


Payload = Frame | Bare | Took
