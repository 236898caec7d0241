"""One example of every command and every event: a conversation in pieces, the same ids throughout.

Read by the tests of the wire (each is rendered and read back, and checked against OpenAI's own types) and by the page on
the wire protocol, which shows them. Whoever adds a command or an event adds its example here, or those tests fail.
"""

from __future__ import annotations

from duplex_core import commands as say
from duplex_core import events as told
from duplex_core.audio import AudioEncoding
from duplex_core.capabilities import Capabilities
from duplex_core.commands import Command
from duplex_core.config import FunctionTool, Modality, ServerVad, SessionConfig, ToolMode, Transcription
from duplex_core.errors import ErrorCode, error
from duplex_core.events import Event
from duplex_core.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputText,
    ItemStatus,
    MessageItem,
    OutputAudio,
    Role,
)
from duplex_core.ledger import CommitPolicy, PlaybackLedger, TextMark
from duplex_core.patch import (
    AudioPatch,
    InputPatch,
    OutputPatch,
    PlaybackPatch,
    ResponseAudioPatch,
    ResponseParams,
    SessionPatch,
    WireFormat,
)
from duplex_core.stages import StageMetrics

SESSION_ID = "sess_4f1c"
RESPONSE_ID = "resp_01"
USER_ITEM_ID = "item_01"
ANSWER_ITEM_ID = "item_02"
CALL_ITEM_ID = "item_03"
RESULT_ITEM_ID = "item_04"
CALL_ID = "call_01"
PCM16 = b"\x00\x00\x10\x00\x20\x00\x10\x00"
"""Four samples; real chunks hold tens of milliseconds."""

_PCM_24K = WireFormat(type=AudioEncoding.PCM16, rate=24000)
_WEATHER = FunctionTool(
    name="get_weather",
    description="The weather at a place, now.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
)

COMMAND_EXAMPLES: dict[str, Command] = {
    "session.update": say.SessionUpdate(
        event_id="evt_c1",
        session=SessionPatch(
            type="realtime",
            instructions="Answer in one short sentence.",
            output_modalities=[Modality.AUDIO],
            audio=AudioPatch(
                input=InputPatch(
                    format=_PCM_24K,
                    transcription=Transcription(language="en"),
                    turn_detection=ServerVad(silence_duration_ms=400),
                ),
                output=OutputPatch(format=_PCM_24K, voice="marin", speed=1.0),
            ),
            tools=[_WEATHER],
            tool_choice=ToolMode.AUTO,
            max_output_tokens="inf",
            playback=PlaybackPatch(commit_policy=CommitPolicy.ACK_ONLY),
        ),
    ),
    "input_audio_buffer.append": say.InputAudioBufferAppend(event_id="evt_c2", audio=PCM16),
    "input_audio_buffer.commit": say.InputAudioBufferCommit(event_id="evt_c3"),
    "input_audio_buffer.clear": say.InputAudioBufferClear(event_id="evt_c4"),
    "conversation.item.create": say.ConversationItemCreate(
        event_id="evt_c5",
        item=MessageItem(role=Role.USER, content=(InputText(text="What is the weather in Bergen?"),)),
    ),
    "conversation.item.retrieve": say.ConversationItemRetrieve(event_id="evt_c6", item_id=ANSWER_ITEM_ID),
    "conversation.item.truncate": say.ConversationItemTruncate(
        event_id="evt_c7", item_id=ANSWER_ITEM_ID, content_index=0, audio_end_ms=1200
    ),
    "conversation.item.delete": say.ConversationItemDelete(event_id="evt_c8", item_id=USER_ITEM_ID),
    "response.create": say.ResponseCreate(
        event_id="evt_c9",
        response=ResponseParams(
            instructions="Say it cheerfully.",
            output_modalities=[Modality.AUDIO],
            audio=ResponseAudioPatch(output=OutputPatch(voice="marin")),
            max_output_tokens=200,
            metadata={"purpose": "greeting"},
        ),
    ),
    "response.cancel": say.ResponseCancel(event_id="evt_c10", response_id=RESPONSE_ID),
    "output_audio_buffer.clear": say.OutputAudioBufferClear(event_id="evt_c11"),
    "playback.ack": say.PlaybackAck(
        event_id="evt_c12", played_ms=1200.0, committed_ms=1200.0, response_id=RESPONSE_ID, item_id=ANSWER_ITEM_ID
    ),
    "barge_in": say.BargeIn(event_id="evt_c13", played_ms=1200.0),
    "turn.signal": say.TurnSignal(event_id="evt_c14", signal=say.TurnSignalKind.END),
    "input.cancel": say.InputCancel(event_id="evt_c15"),
    "input.text.append": say.InputTextAppend(event_id="evt_c16", text="The user is looking at a map of Norway."),
    "session.heartbeat": say.SessionHeartbeat(event_id="evt_c17"),
    "session.event_ack": say.SessionEventAck(event_id="evt_c18", server_event_seq=41),
    "session.resume": say.SessionResume(
        event_id="evt_c19",
        session_id=SESSION_ID,
        resume_token="rt_5b0d",  # noqa: S106 - opens nothing
        last_server_event_seq=41,
    ),
    "session.close": say.SessionClose(event_id="evt_c20", reason="the user hung up"),
}
"""Wire name to an example of each command."""

_CAPABILITIES = Capabilities(tools=True, input_transcription=True, chat=True)
_SESSION = told.session_view(
    SESSION_ID,
    SessionConfig(
        model="some-model",
        instructions="Answer in one short sentence.",
        transcription=Transcription(language="en"),
        turn_detection=ServerVad(silence_duration_ms=400),
        tools=(_WEATHER,),
        commit_policy=CommitPolicy.ACK_ONLY,
    ),
    _CAPABILITIES,
    epoch=0,
    attachment_generation=1,
)
_FRESH = told.session_view(
    SESSION_ID, SessionConfig(model="some-model"), _CAPABILITIES, epoch=0, attachment_generation=1
)

_USER_ITEM = MessageItem(
    id=USER_ITEM_ID,
    object="realtime.item",
    status=ItemStatus.COMPLETED,
    role=Role.USER,
    content=(InputAudio(transcript="What is the weather in Bergen?"),),
)
_ANSWER_BEGUN = MessageItem(
    id=ANSWER_ITEM_ID, object="realtime.item", status=ItemStatus.IN_PROGRESS, role=Role.ASSISTANT, content=()
)
_STAGES = (
    StageMetrics(
        stage="thinker",
        queue_ms=2.1,
        first_ms=96.0,
        total_ms=586.0,
        input_tokens=64,
        output_tokens=6,
        ms_per_token=98.0,
        steps=7,
    ),
    StageMetrics(
        stage="talker", begun_ms=96.3, queue_ms=0.4, first_ms=86.1, total_ms=576.1, output_tokens=75, steps=75
    ),
)
_ANSWER = MessageItem(
    id=ANSWER_ITEM_ID,
    object="realtime.item",
    status=ItemStatus.COMPLETED,
    role=Role.ASSISTANT,
    content=(OutputAudio(transcript="It rains."),),
)
_CALL = FunctionCallItem(
    id=CALL_ITEM_ID,
    object="realtime.item",
    status=ItemStatus.COMPLETED,
    call_id=CALL_ID,
    name="get_weather",
    arguments='{"place":"Bergen"}',
)
_RESULT = FunctionCallOutputItem(
    id=RESULT_ITEM_ID, object="realtime.item", status=ItemStatus.COMPLETED, call_id=CALL_ID, output='{"sky":"rain"}'
)
_LEDGER = PlaybackLedger(generated_ms=1480.0, sent_ms=1480.0, played_ms=1200.0, committed_ms=1200.0)


def _response(status: told.ResponseStatus) -> told.ResponseView:
    done = status is not told.ResponseStatus.IN_PROGRESS
    return told.ResponseView(
        id=RESPONSE_ID,
        status=status,
        status_details=told.StatusDetails(type=status) if done else None,
        output=[_ANSWER] if done else [],
        output_modalities=[Modality.AUDIO],
        audio=told.ResponseAudioView(output=told.ResponseAudioOutputView(format=_PCM_24K, voice=None)),
        conversation_id="conv_4f1c",
        max_output_tokens="inf",
        usage=told.Usage(input_tokens=64, output_tokens=6, total_tokens=70) if done else None,
    )


EVENT_EXAMPLES: dict[str, Event] = {
    "session.created": told.SessionCreated(session=_FRESH),
    "session.updated": told.SessionUpdated(session=_SESSION),
    "session.heartbeat_ack": told.SessionHeartbeatAck(),
    "session.resumed": told.SessionResumed(session=_SESSION, replayed_events=3),
    "session.replaced": told.SessionReplaced(session_id=SESSION_ID, attachment_generation=2),
    "session.expired": told.SessionExpired(session_id=SESSION_ID, reason="idle_ttl"),
    "session.resync_required": told.SessionResyncRequired(
        session_id=SESSION_ID, last_server_event_seq=41, first_available_seq=60
    ),
    "session.closed": told.SessionClosed(session_id=SESSION_ID, reason=told.CloseReason.CLIENT),
    "error": told.ErrorEvent(
        error=error(
            ErrorCode.ITEM_NOT_FOUND,
            "there is no item item_99 in this conversation",
            param="item_id",
            event_id="evt_c8",
        )
    ),
    "rate_limits.updated": told.RateLimitsUpdated(rate_limits=[]),
    "input_audio_buffer.speech_started": told.SpeechStarted(audio_start_ms=820, item_id=USER_ITEM_ID),
    "input_audio_buffer.speech_stopped": told.SpeechStopped(audio_end_ms=2760, item_id=USER_ITEM_ID),
    "input_audio_buffer.committed": told.InputCommitted(item_id=USER_ITEM_ID),
    "input_audio_buffer.cleared": told.InputCleared(),
    "input_audio_buffer.timeout_triggered": told.InputTimeoutTriggered(
        audio_start_ms=9000, audio_end_ms=15000, item_id="item_05"
    ),
    "conversation.item.input_audio_transcription.delta": told.TranscriptionDelta(
        item_id=USER_ITEM_ID, content_index=0, delta="What is the"
    ),
    "conversation.item.input_audio_transcription.completed": told.TranscriptionCompleted(
        item_id=USER_ITEM_ID,
        content_index=0,
        transcript="What is the weather in Bergen?",
        usage=told.TranscriptUsage(seconds=1.94),
    ),
    "conversation.item.input_audio_transcription.failed": told.TranscriptionFailed(
        item_id=USER_ITEM_ID, content_index=0, error=error(ErrorCode.ENGINE_ERROR, "the recogniser stopped")
    ),
    "conversation.item.added": told.ItemAdded(item=_USER_ITEM),
    "conversation.item.created": told.ItemCreated(item=_USER_ITEM),
    "conversation.item.done": told.ItemDone(item=_ANSWER, previous_item_id=USER_ITEM_ID),
    "conversation.item.retrieved": told.ItemRetrieved(item=_RESULT),
    "conversation.item.truncated": told.ItemTruncated(item_id=ANSWER_ITEM_ID, content_index=0, audio_end_ms=1200),
    "conversation.item.deleted": told.ItemDeleted(item_id=USER_ITEM_ID),
    "response.created": told.ResponseCreated(response=_response(told.ResponseStatus.IN_PROGRESS), turn_id=1),
    "response.done": told.ResponseDone(
        response=_response(told.ResponseStatus.COMPLETED),
        turn_id=1,
        metrics=told.ResponseMetrics(
            first_output_ms=182.4,
            first_audio_ms=310.2,
            total_ms=672.4,
            output_tokens=6,
            ms_per_output_token=98.0,
            stages=_STAGES,
        ),
    ),
    "response.output_item.added": told.OutputItemAdded(response_id=RESPONSE_ID, output_index=0, item=_ANSWER_BEGUN),
    "response.output_item.done": told.OutputItemDone(response_id=RESPONSE_ID, output_index=1, item=_CALL),
    "response.content_part.added": told.ContentPartAdded(
        response_id=RESPONSE_ID,
        item_id=ANSWER_ITEM_ID,
        output_index=0,
        content_index=0,
        part=told.PartView(type="audio", transcript=""),
    ),
    "response.content_part.done": told.ContentPartDone(
        response_id=RESPONSE_ID,
        item_id=ANSWER_ITEM_ID,
        output_index=0,
        content_index=0,
        part=told.PartView(type="audio", transcript="It rains."),
    ),
    "response.speak": told.ResponseSpeak(response_id=RESPONSE_ID, item_id=ANSWER_ITEM_ID, epoch=0, turn_id=1),
    "response.listen": told.ResponseListen(epoch=0, turn_id=1),
    "response.output_audio.delta": told.OutputAudioDelta(
        response_id=RESPONSE_ID,
        item_id=ANSWER_ITEM_ID,
        output_index=0,
        content_index=0,
        delta=PCM16,
        format="audio/pcm",
        sample_rate_hz=24000,
        metadata=told.AudioMetadata(
            epoch=0,
            audio_duration_ms=100.0,
            audio_text_marks=[TextMark(chars=2, ms=60.0)],
            playback=PlaybackLedger(generated_ms=300.0, sent_ms=100.0),
        ),
    ),
    "response.output_audio.done": told.OutputAudioDone(
        response_id=RESPONSE_ID, item_id=ANSWER_ITEM_ID, output_index=0, content_index=0
    ),
    "response.output_audio_transcript.delta": told.OutputTranscriptDelta(
        response_id=RESPONSE_ID, item_id=ANSWER_ITEM_ID, output_index=0, content_index=0, delta="It rains."
    ),
    "response.output_audio_transcript.done": told.OutputTranscriptDone(
        response_id=RESPONSE_ID, item_id=ANSWER_ITEM_ID, output_index=0, content_index=0, transcript="It rains."
    ),
    "response.output_text.delta": told.OutputTextDelta(
        response_id=RESPONSE_ID, item_id=ANSWER_ITEM_ID, output_index=0, content_index=0, delta="It "
    ),
    "response.output_text.done": told.OutputTextDone(
        response_id=RESPONSE_ID, item_id=ANSWER_ITEM_ID, output_index=0, content_index=0, text="It rains."
    ),
    "response.function_call_arguments.delta": told.FunctionArgumentsDelta(
        response_id=RESPONSE_ID, item_id=CALL_ITEM_ID, output_index=1, call_id=CALL_ID, delta='{"place":'
    ),
    "response.function_call_arguments.done": told.FunctionArgumentsDone(
        response_id=RESPONSE_ID,
        item_id=CALL_ITEM_ID,
        output_index=1,
        call_id=CALL_ID,
        name="get_weather",
        arguments='{"place":"Bergen"}',
    ),
    "overlap.decision": told.OverlapDecision(
        decision=told.OverlapVerdict.INTERRUPTION, audio_ms=4120, epoch=1, response_id=RESPONSE_ID
    ),
    "turn.event": told.TurnEvent(kind=told.TurnEventKind.HELD, epoch=0, turn_id=1),
    "playback.acknowledged": told.PlaybackAcknowledged(
        playback=_LEDGER, response_id=RESPONSE_ID, item_id=ANSWER_ITEM_ID
    ),
    "output_audio_buffer.cleared": told.OutputBufferCleared(response_id=RESPONSE_ID, epoch=1, audio_end_ms=1200),
}
"""Wire name to an example of each event. Neither ``event_id`` nor ``server_event_seq`` is set: the codec stamps them."""
