"""What a client asks of the answers: to make one, to stop it, and to know how much of it was heard.

Used by :class:`~duplex_core.machine.session.SessionMachine`. Checks everything before it changes anything.
"""

from __future__ import annotations

import msgspec

from duplex_core.commands import BargeIn, InputAudioBufferCommit, PlaybackAck, TurnSignal, TurnSignalKind
from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import StatusReason
from duplex_core.items import FunctionCallItem, FunctionCallOutputItem, Item, ItemStatus
from duplex_core.machine.core import Core
from duplex_core.machine.editing import Editing
from duplex_core.machine.history import as_heard
from duplex_core.machine.input import InputSide
from duplex_core.machine.output import OutputSide
from duplex_core.machine.table import Hearing
from duplex_core.model import ResponseCause
from duplex_core.patch import ItemReference, ResponseParams, apply_response_params


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A request for an answer that waits until the user has spoken, checked already. ``turn`` is the last turn when it came."""

    config: SessionConfig
    metadata: dict[str, str] | None
    turn: int


class Asking:
    """Commands about the answers of one session."""

    def __init__(self, core: Core, output: OutputSide, editing: Editing, incoming: InputSide) -> None:
        """Work on the shared sides."""
        self._core = core
        self._output = output
        self._editing = editing
        self._input = incoming
        self._held: Held | None = None

    def respond(self, params: ResponseParams) -> None:
        """``response.create``.

        Raises:
            DuplexError: a response is being made, or an override or a given item cannot be served.
        """
        core = self._core
        self._output.require_idle()
        config = apply_response_params(core.config, params, core.capabilities)
        if not core.capabilities.out_of_band:
            _require_the_conversation(params)
        if self._waits_for_the_user(params):
            self._held = Held(config=config, metadata=params.metadata, turn=core.fence.turn)
            return
        if params.conversation != "none":
            core.history.require_room()
        history = None if params.input is None else self._given(params.input)
        self._output.open(
            ResponseCause.CLIENT,
            config=config,
            history=history,
            outside=params.conversation == "none",
            metadata=params.metadata,
        )

    def _waits_for_the_user(self, params: ResponseParams) -> bool:
        """A tool's result that comes while the user speaks is answered together with what the user says."""
        core = self._core
        if core.lanes.hearing is Hearing.QUIET or params.input is not None or params.conversation == "none":
            return False
        return isinstance(core.history.newest, FunctionCallOutputItem)

    def settle(self) -> None:
        """The user may have fallen silent: answer the tool's result now, unless the user's turn has been answered since."""
        held, core = self._held, self._core
        if held is None or core.lanes.hearing is not Hearing.QUIET:
            return
        self._held = None
        if core.fence.turn == held.turn and self._output.response is None:
            self._output.open(ResponseCause.CLIENT, config=held.config, metadata=held.metadata)

    def _given(self, given: tuple[Item | ItemReference, ...]) -> tuple[Item, ...]:
        """The history that one response is to be made from instead of the conversation's."""
        items: list[Item] = []
        calls: set[str] = set()
        limits = self._output.sounding.limits()
        for index, each in enumerate(given):
            param = f"response.input[{index}]"
            if isinstance(each, ItemReference):
                entry = self._core.history.get(each.id, f"{param}.id")
                heard = as_heard(entry, limits)
                items.extend([heard] if heard is not None else [])
            else:
                self._editing.check(each, param, calls)
                items.append(each)
                if isinstance(each, FunctionCallItem) and each.call_id is not None:
                    calls.add(each.call_id)
        return tuple(self._named(item) for item in items)

    def _named(self, item: Item) -> Item:
        """A model may keep its work by item id, so each item has one."""
        if item.id is None:
            item = msgspec.structs.replace(item, id=self._core.new_id("item"), status=ItemStatus.COMPLETED)
        if isinstance(item, FunctionCallItem) and item.call_id is None:
            item = msgspec.structs.replace(item, call_id=self._core.new_id("call"))
        return item

    def cancel(self, response_id: str | None) -> None:
        """``response.cancel``.

        Raises:
            DuplexError: no response is being made, or another one than was named.
        """
        running = self._output.response
        if running is None:
            raise refuse(ErrorCode.NO_ACTIVE_RESPONSE, "there is no response to cancel")
        if response_id not in (None, running.id):
            message = f"response {response_id!r} is not being made; the running one is {running.id}"
            raise refuse(ErrorCode.NO_ACTIVE_RESPONSE, message, param="response_id")
        self._output.interrupt(StatusReason.CLIENT_CANCELLED)

    def clear_sound(self) -> None:
        """``output_audio_buffer.clear``: nothing that is queued may be heard any more.

        Raises:
            DuplexError: nothing is being made and nothing sounds.
        """
        if not self._output.audible:
            raise refuse(ErrorCode.NO_ACTIVE_RESPONSE, "there is no output audio to clear")
        self._output.interrupt(StatusReason.CLIENT_CANCELLED)

    def barge_in(self, command: BargeIn) -> None:
        """The client's own detector says that the user talks over the answer.

        Raises:
            DuplexError: the served model takes no such signal, or there is nothing to talk over.
        """
        output = self._output
        if not self._core.capabilities.barge_in_signal:
            raise refuse(ErrorCode.UNSUPPORTED_EVENT, "the served model takes no barge_in; its detector interrupts")
        if not output.audible:
            raise refuse(ErrorCode.NO_ACTIVE_RESPONSE, "there is no answer to talk over")
        if command.played_ms is not None:
            output.sounding.note(command.played_ms)
        output.interrupt(StatusReason.TURN_DETECTED)

    def turn_signal(self, command: TurnSignal) -> None:
        """The client takes the turns itself: the user begins, which stops an answer, or has finished, which wants one.

        Raises:
            DuplexError: the served model takes no such signal, a detector finds the turns, or there is nothing to commit.
        """
        core = self._core
        if not core.capabilities.turn_signal:
            raise refuse(ErrorCode.UNSUPPORTED_EVENT, "the served model takes no turn.signal")
        if core.config.turn_detection is not None:
            message = (
                "turn.signal is for clients that find the turns themselves: "
                "set session.audio.input.turn_detection to null first"
            )
            raise refuse(ErrorCode.UNSUPPORTED_EVENT, message)
        if command.signal is TurnSignalKind.END:
            self._input.commit(InputAudioBufferCommit(response_create=True))
        elif self._output.audible:
            self._output.interrupt(StatusReason.TURN_DETECTED)

    def acknowledge(self, command: PlaybackAck) -> None:
        """``playback.ack``. With ``truncate`` the answer is not played any further, so it stops if it is being made.

        Raises:
            DuplexError: a time that cannot be.
        """
        output = self._output
        track = output.sounding.acknowledge(
            command.played_ms,
            response_id=command.response_id,
            item_id=command.item_id,
            committed_ms=command.committed_ms,
        )
        if track is None or not command.truncate:
            output.sounding.drain()
        elif track.generated:
            output.sounding.stop_one(track, command.played_ms)
        else:
            output.interrupt(StatusReason.CLIENT_CANCELLED, heard_ms={track.item_id: command.played_ms})


def _require_the_conversation(params: ResponseParams) -> None:
    """Refuse a response outside the conversation, or made from other items than its own.

    Raises:
        DuplexError: it is one; ``param`` names what asks for it.
    """
    asked = {"conversation": params.conversation == "none", "input": params.input is not None}
    for name, wanted in asked.items():
        if wanted:
            param = f"response.{name}"
            message = f"the served model answers within the conversation alone; leave {param} out"
            raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, param=param)
