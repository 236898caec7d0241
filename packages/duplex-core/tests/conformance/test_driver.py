"""The driver's own arguments: whose ears, how long they take, what a stage's work costs, and what each event follows from."""

from __future__ import annotations

from duplex_core.commands import InputAudioBufferAppend, ResponseCreate, SessionUpdate
from duplex_core.config import Modality
from duplex_core.detection import SpeechFrame
from duplex_core.events import OutputTextDelta, ResponseDone, SpeechStarted
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.machine.io import SpeechFrames
from duplex_core.patch import ResponseParams, SessionPatch
from duplex_core.stages import StageReply, StageRequest
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.echo import ECHO

QUESTION = MessageItem(role=Role.USER, content=(InputText(text="one two three"),))


class Nervous:
    """Hears speech in everything, 100 ms at a time."""

    def __init__(self) -> None:
        self.at_ms = 0.0

    def reset(self, start_ms: float) -> None:
        self.at_ms = start_ms

    def judge(self, pcm: bytes) -> tuple[SpeechFrame, ...]:
        frame = SpeechFrame(start_ms=self.at_ms, duration_ms=100.0, probability=0.9)
        self.at_ms += 100.0
        return (frame,)


def test_the_detector_given_hears_in_the_place_of_loudness_and_takes_its_time() -> None:
    driver = ConversationDriver(ECHO, detector=Nervous(), ms_to_hear=40.0)
    begun_ms: list[float] = []
    driver.watch = lambda event: begun_ms.append(driver.now_ms) if isinstance(event, SpeechStarted) else None
    driver.send(InputAudioBufferAppend(audio=bytes(3200)))
    driver.advance(100.0)
    driver.close()
    assert begun_ms == [40.0]


def test_a_charge_is_what_a_request_takes_and_its_replies_come_at_its_end() -> None:
    asked: list[StageRequest] = []

    def charge(request: StageRequest) -> float:
        assert driver.host.worked[-1].request == request, "the work was done"
        asked.append(request)
        return 250.0

    driver = ConversationDriver(ECHO, charge=charge)
    driver.send(SessionUpdate(session=SessionPatch(output_modalities=[Modality.TEXT], options={"pace": 0.0})))
    driver.send(ResponseCreate(response=ResponseParams(input=(QUESTION,), conversation="none")))
    driver.advance(249.0)
    before = len(driver.all_of(OutputTextDelta))
    driver.advance(1.0)
    driver.close()
    assert before == 0
    assert driver.all_of(OutputTextDelta)
    assert driver.all_of(ResponseDone)
    assert len(asked) == 1


def test_who_heeds_is_told_first_what_an_event_follows_from() -> None:
    story: list[str] = []
    driver = ConversationDriver(ECHO, detector=Nervous())

    def heed(taken: SpeechFrames | StageReply) -> None:
        story.append("verdict" if isinstance(taken, SpeechFrames) else "reply")

    driver.heed = heed
    driver.watch = lambda event: story.append(type(event).__name__)
    driver.send(InputAudioBufferAppend(audio=bytes(3200)))
    driver.settle(limit_ms=10.0)
    assert "SpeechStarted" in story
    assert story[story.index("SpeechStarted") - 1] == "verdict"
    story.clear()
    driver.send(ResponseCreate(response=ResponseParams(input=(QUESTION,), conversation="none")))
    driver.wait_for(ResponseDone)
    driver.close()
    assert "reply" in story
    assert story.index("ResponseCreated") < story.index("reply") < story.index("ResponseDone")
