"""The detectors of one engine, together: the one that hears speech and, if there is one, the one that hears turns end.

Made when the engine starts, closed when it stops; handed to each session. Decides nothing.
"""

import dataclasses

from duplex_server.detectors.end_of_turn import EndOfTurnService
from duplex_server.detectors.service import DetectorService


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Detectors:
    """What an engine's sessions are heard with.

    Attributes:
        speech: Which frames hold speech.
        end_of_turn: How finished an utterance sounds at a pause; ``None`` when no such detector was chosen.
    """

    speech: DetectorService
    end_of_turn: EndOfTurnService | None = None

    async def aclose(self) -> None:
        """End both services. Idempotent."""
        try:
            await self.speech.aclose()
        finally:
            if self.end_of_turn is not None:
                await self.end_of_turn.aclose()
