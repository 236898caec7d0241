"""What a model package tells the conformance suite about itself, and the turns that every part of the suite makes.

Base class of the suite's parts. Holds no test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest

from duplex_core.commands import (
    ConversationItemCreate,
    InputAudioBufferCommit,
    ResponseCreate,
    SessionUpdate,
)
from duplex_core.config import OverlapMode, OverlapSettings, SessionConfig, TurnDetection
from duplex_core.events import Event, ResponseCreated, ResponseDone, ResponseStatus
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.patch import ResponseParams, SessionPatch
from duplex_core.spec import Checkpoint, ModelSpec
from duplex_core.testing import invariants
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.pipelines import ProgramEngine
from duplex_core.testing.speech import burst, silence
from duplex_core.testing.stages import StageHost

FORCED_UNITS = 3
"""So many units are listened to under ``Subject.listens_first``."""


class Subject:
    """The model package under test. Override what does not fit; only ``spec`` and ``plugin`` must be given.

    Attributes:
        spec: the model.
        plugin: import name of the module that the package's entry point names.
        bad_options: session options that the package's options model must refuse.
        heavy: top-level modules that loading the plugin must not import.
        max_points: at most so many points at which a turn is interrupted, spread evenly; lower it where turns are slow.
        question: a text to which the model answers with words.
        tool_request: a text at which the model calls the tool ``lookup``; ``None`` when that cannot be relied on.
        takes_turns: of a model that takes its turns itself: whether it can be relied on to answer ``speech()`` unasked, once the
            user is silent.
        unit_ms: of a model that takes its turns itself: how much audio it decides on at once, when it tells of each such unit
            that it listens; ``None`` when it does not.
        listens_first: session options with which such a model listens to its first :data:`FORCED_UNITS` units, whatever is
            in them; ``None`` when it has none.
        running: the stages, while the suite runs; not to be overridden.
    """

    spec: ClassVar[ModelSpec]
    plugin: ClassVar[str]
    bad_options: ClassVar[Mapping[str, Any]] = {"no_such_option": 1}
    heavy: ClassVar[frozenset[str]] = frozenset(
        {"torch", "vllm", "transformers", "onnxruntime", "numpy", "tensorflow", "jax", "fastapi", "duplex_server"}
    )
    max_points: ClassVar[int] = 60
    question: ClassVar[str] = "Is anybody there?"
    tool_request: ClassVar[str | None] = None
    takes_turns: ClassVar[bool] = True
    unit_ms: ClassVar[float | None] = None
    listens_first: ClassVar[Mapping[str, Any] | None] = None
    running: ClassVar[StageHost | None] = None

    # -- what a package may override ----------------------------------------------------------------------------------

    @classmethod
    def deploy(cls) -> pydantic.BaseModel:
        """The deploy settings to test with."""
        return cls.spec.deploy_model()

    @classmethod
    def checkpoint(cls) -> Checkpoint:
        """What the server would have been pointed at."""
        return Checkpoint(name=cls.spec.id)

    @classmethod
    def engine(cls) -> ProgramEngine | None:
        """What stands in for vLLM under the package's ``vllm`` stages; ``None`` where there are none."""
        return None

    @classmethod
    def config(cls) -> SessionConfig:
        """What sessions begin with: the package's own, or for instance with the temperature at 0."""
        return cls.spec.session_config(cls.deploy())

    @classmethod
    def speech(cls) -> bytes:
        """An utterance that the model answers: 16-bit mono PCM at its input rate."""
        return burst(1200.0, cls.input_rate_hz())

    @classmethod
    def other_speech(cls) -> bytes:
        """Another one, for a second session or a second turn."""
        return burst(700.0, cls.input_rate_hz(), hz=140.0)

    @classmethod
    def comparable(cls, events: Sequence[Event]) -> object:
        """What two runs of the same conversation must have in common; all of it, for a model that draws no lots."""
        return list(events)

    # -- what the suite works with ------------------------------------------------------------------------------------

    @classmethod
    def input_rate_hz(cls) -> int:
        """The model's input rate."""
        return cls.spec.capabilities(cls.deploy()).input_rate_hz

    @pytest.fixture
    def host(self, request: pytest.FixtureRequest) -> StageHost:
        """The model's running stages: started once for each suite, so that weights load once."""
        suite = type(self)
        if suite.running is None:
            running = StageHost(self.spec.stage_plan(self.checkpoint(), self.deploy()), self.engine())
            suite.running = running

            def stop() -> None:
                suite.running = None
                running.close()

            collected = request.node.getparent(pytest.Class)
            assert collected is not None
            collected.addfinalizer(stop)
        return suite.running

    def open(
        self, host: StageHost, *, session_id: str = "sess_1", detection: TurnDetection | None = None
    ) -> ConversationDriver:
        """Open a session in which, unless told otherwise, the client commits; speech over an answer interrupts at once."""
        return ConversationDriver(
            self.spec,
            deploy=self.deploy(),
            config=msgspec.structs.replace(
                self.config(), turn_detection=detection, overlap=OverlapSettings(mode=OverlapMode.IMMEDIATE)
            ),
            checkpoint=self.checkpoint(),
            host=host,
            session_id=session_id,
        )

    def say(self, driver: ConversationDriver, pcm: bytes | None = None) -> None:
        """Speak, commit, and ask for an answer; returns before there is one."""
        driver.stream(self.speech() if pcm is None else pcm)
        driver.send(InputAudioBufferCommit(response_create=True))

    def write(self, driver: ConversationDriver, text: str, params: ResponseParams | None = None) -> None:
        """Write a message and ask for an answer; returns before there is one."""
        item = MessageItem(role=Role.USER, content=(InputText(text=text),))
        driver.send(ConversationItemCreate(item=item), ResponseCreate(response=params))

    def answer(self, driver: ConversationDriver) -> ResponseDone:
        """Wait for the end of the newest response."""
        return driver.wait_for(ResponseDone, count=len(driver.all_of(ResponseCreated)))

    def still_works(self, driver: ConversationDriver) -> None:
        """Whatever happened, the next turn is answered, and all that always holds does."""
        driver.settle()
        self.say(driver, self.other_speech())
        done = self.answer(driver)
        assert done.response.status is ResponseStatus.COMPLETED, f"the next turn ended {done.response.status.value}"
        assert done.response.output, "the next turn was answered with nothing"
        driver.settle()
        self.well(driver)

    def well(self, driver: ConversationDriver) -> None:
        """Nothing is under way and nothing is wrong."""
        invariants.check(driver.events)
        assert not driver.exchange.open_requests, f"left behind: {driver.exchange.open_requests}"

    def points(self, host: StageHost) -> list[int]:
        """After how many steps behind ``response.created`` to act: from at once to just after generation has ended."""
        driver = self.open(host)
        self.say(driver)
        steps = 0
        while not driver.all_of(ResponseDone):
            driver.step()
            steps += 1
        driver.settle()
        every = max(1, -(-(steps + 2) // self.max_points))
        return sorted({*range(0, steps + 1, every), steps})

    def at_point(self, host: StageHost, steps: int) -> ConversationDriver:
        """A session whose answer is ``steps`` steps old, or has just been made, if a model that draws lots was quicker."""
        driver = self.open(host)
        self.say(driver)
        for _ in range(steps):
            if driver.all_of(ResponseDone):
                break
            driver.step()
        return driver

    def quiet(self, ms: float) -> bytes:
        """Silence at the model's input rate."""
        return silence(ms, self.input_rate_hz())

    @staticmethod
    def update(driver: ConversationDriver, patch: SessionPatch) -> None:
        """Send ``session.update``."""
        driver.send(SessionUpdate(session=patch))
