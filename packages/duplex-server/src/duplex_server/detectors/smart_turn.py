"""Smart Turn v3.2: a network that hears, from the last 8 s of speech, whether somebody has finished what they want to say.

Owns the weights and what the network is given. Called by the end-of-turn service, on its worker thread. Must never keep
anything of a session, download anything, or start threads of its own.

The weights (8.7 MB, BSD-2, by Daily) ship inside the package ``pipecat-ai``, of which nothing else is used or imported: it is
the extra ``duplex-server[smart-turn]``. How well the network does is measured in the documentation, and it is not very well.
"""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from duplex_server.detectors.log_mel import RATE_HZ, log_mel
from duplex_server.detectors.onnx import Network, load, read_weights

WINDOW_MS: Final = 8000
"""How much the network hears: the end of what there is, silence before it when there is less."""

_SAMPLES: Final = RATE_HZ * WINDOW_MS // 1000
_NETWORK: Final = Network(
    name="end-of-turn network",
    distribution="pipecat-ai",
    package="pipecat",
    path="audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
    sha256="2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
    mend="Install it with `pip install duplex-server[smart-turn]`, or leave the end-of-turn detector out.",
)


class SmartTurn:
    """The network, loaded once and used for all sessions.

    Attributes:
        rate_hz: 16000.
        window_ms: 8000.
    """

    rate_hz: int = RATE_HZ
    window_ms: int = WINDOW_MS

    def __init__(self, weights: Path | None = None) -> None:
        """Check the weights and load them; blocks for about 0.3 s.

        Args:
            weights: The ONNX file; by default the one inside ``pipecat-ai``. Its SHA-256 must be the known one.

        Raises:
            DetectorUnavailable: The weights or onnxruntime are not there, or the file is not the known one.
        """
        self._session: Final = load(_NETWORK, read_weights(_NETWORK, weights))

    def probability(self, samples: npt.NDArray[np.float32]) -> float:
        """Judge one utterance up to now.

        Args:
            samples: float32[n] at 16 kHz, full scale 1.0, any n: speech and the silence after it. Only the last 8 s count.

        Returns:
            The probability that the speaker has finished.

        Raises:
            ValueError: It is not float32[n].
        """
        if samples.ndim != 1 or samples.dtype != np.float32:
            raise ValueError(f"the samples must be float32[n], got {samples.dtype}{list(samples.shape)}")
        heard = np.zeros(_SAMPLES, np.float32)
        tail = samples[-_SAMPLES:]
        heard[_SAMPLES - tail.size :] = tail
        (result,) = self._session.run(None, {"input_features": log_mel(heard)[None]})
        return float(result[0, 0])
