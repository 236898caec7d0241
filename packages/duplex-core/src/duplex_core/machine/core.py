"""What the sides of the session machine share: identity, configuration, lanes, history, and the step being made.

Private to :mod:`duplex_core.machine`. Each side gets the same :class:`Core`; nothing outside the machine ever does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duplex_core.audio import pcm16_ms
from duplex_core.capabilities import Capabilities, TurnPolicy
from duplex_core.config import ServerVad, SessionConfig
from duplex_core.events import Event, SessionView, session_view
from duplex_core.fence import Fence
from duplex_core.machine.heard import Playback
from duplex_core.machine.history import History
from duplex_core.machine.io import NOTHING, Effect, SetTimer, Step, Tell
from duplex_core.machine.semantic import Pause, detector_settings
from duplex_core.machine.table import Hearing, Lanes
from duplex_core.model import AudioArrived, Configured, ImageArrived, ModelInput, Respond, TextArrived


class Core:
    """Shared state of one session machine."""

    def __init__(
        self,
        *,
        session_id: str,
        config: SessionConfig,
        capabilities: Capabilities,
        check_options: Callable[[dict[str, Any]], dict[str, Any]] | None,
        attachment_generation: int,
    ) -> None:
        """See :class:`~duplex_core.machine.session.SessionMachine`."""
        self.session_id = session_id
        self.config = config
        self.capabilities = capabilities
        self.streams = capabilities.turn_policy is TurnPolicy.MODEL
        """Whether the model hears everything as it comes and takes its turns itself."""
        self.check_options = check_options
        self.attachment_generation = attachment_generation
        self.fence = Fence(session_id=session_id)
        self.lanes = Lanes()
        self.history = History()
        self.playback = Playback()
        self.pause: Pause | None = None
        """The newest pause of the user's that was looked into; it may be over."""
        self.now_ms = 0.0
        self.input_end_ms = 0.0
        """How far the user's audio reaches, in ms of it."""
        self.configured = False
        self.begun = ""
        """What the model has begun with, in words; what is fixed after the start may change until then."""
        self._serial = 0
        self._events: list[Event] = []
        self._effects: list[Effect] = []

    @property
    def server_vad(self) -> ServerVad | None:
        """How the speech detector is followed now, if one listens: under ``semantic_vad`` by what is known of the pause."""
        detection = self.config.turn_detection
        if detection is None or isinstance(detection, ServerVad):
            return detection
        return detector_settings(detection, self.open_pause)

    @property
    def open_pause(self) -> Pause | None:
        """What is known of the pause that lasts now, if there is one that was looked into."""
        return self.pause if self.lanes.hearing is Hearing.PAUSED else None

    def new_id(self, kind: str) -> str:
        """A fresh id: the kind, the session and a counter, so that the same inputs give the same ids.

        Never the id of an item that the client made, whatever it chose.
        """
        while True:
            self._serial += 1
            fresh = f"{kind}_{self.session_id.removeprefix('sess_')}_{self._serial}"
            if self.history.find(fresh) is None:
                return fresh

    def emit(self, *events: Event) -> None:
        """Tell the client."""
        self._events.extend(events)

    def perform(self, *effects: Effect) -> None:
        """Ask the runner."""
        self._effects.extend(effects)

    def set_timer(self, key: str, at_ms: float | None) -> None:
        """Set or cancel a timer."""
        self.perform(SetTimer(key=key, at_ms=at_ms))

    def tell(self, event: ModelInput) -> None:
        """Tell the model; its configuration always comes first."""
        if not self.configured:
            self.configure()
        self.begun = self.begun or _begins(event)
        self.perform(Tell(event=event))

    def configure(self) -> None:
        """Tell the model what the configuration is now."""
        self.configured = True
        self.perform(Tell(event=Configured(config=self.config, fence=self.fence)))

    def gathered(self) -> tuple[int, int]:
        """How much has been gathered since the last step, for :meth:`withdraw`."""
        return len(self._events), len(self._effects)

    def withdraw(self, gathered: tuple[int, int]) -> None:
        """Forget what was gathered beyond ``gathered``."""
        events, effects = gathered
        del self._events[events:], self._effects[effects:]

    def take_step(self) -> Step:
        """What has been gathered since the last call."""
        if not self._events and not self._effects:
            return NOTHING
        step = Step(events=tuple(self._events), effects=tuple(self._effects))
        self._events.clear()
        self._effects.clear()
        return step

    def view(self) -> SessionView:
        """The session as the client sees it."""
        return session_view(
            self.session_id,
            self.config,
            self.capabilities,
            epoch=self.fence.epoch,
            attachment_generation=self.attachment_generation,
        )

    def input_ms(self, pcm: bytes) -> float:
        """Milliseconds of audio at the model's input rate."""
        return pcm16_ms(len(pcm), self.capabilities.input_rate_hz)


def _begins(event: ModelInput) -> str:
    """What this is for a model to begin with, in words; nothing when it can be begun without."""
    match event:
        case AudioArrived():
            return "sound has come"
        case ImageArrived():
            return "a picture has come"
        case TextArrived():
            return "text has come"
        case Respond():
            return "a response was created"
        case _:
            return ""
