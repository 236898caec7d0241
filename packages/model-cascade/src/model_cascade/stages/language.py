"""The language model's stage: a conversation in, text and tool calls out. Made on a worker thread by the ``thread`` runtime."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from model_cascade.parts.errors import Cancel
from model_cascade.parts.language_model import ChatRequest, Finished, FinishReason, LanguageModel
from model_cascade.payloads import Prepare
from model_cascade.settings import LanguageModelSettings
from model_cascade.stages.telling import told


def load_language_model(settings: LanguageModelSettings) -> LanguageModel:
    """The language model that the deploy settings name.

    Raises:
        PartError: it cannot be loaded; says why.
    """
    if settings.provider == "openai":
        from model_cascade.parts.chat_endpoint import ChatEndpoint, EndpointTimeouts  # noqa: PLC0415

        return ChatEndpoint(
            base_url=str(settings.base_url),
            api_key=settings.api_key.get_secret_value() if settings.api_key is not None else "",
            model=settings.model or "",
            timeouts=EndpointTimeouts(silence_s=settings.timeout_s),
        )
    from model_cascade.parts.local_language_model import LocalLanguageModel  # noqa: PLC0415

    return LocalLanguageModel()


NICENESS = 2
"""How far the language model steps back behind the other parts, as Unix counts it."""


def _step_back() -> None:
    """Let this thread, and those that it starts, compute only when the voice and the recogniser have nothing to do.

    On one core a language model that is already ahead of the voice would otherwise halve the voice's speed, just when the
    first clause is waited for. Only Linux has a priority for each thread; the main thread, whose priority is the process's, keeps
    its own.
    """
    if sys.platform == "linux" and threading.current_thread() is not threading.main_thread():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class LanguageWorker:
    """A :class:`~duplex_core.stages.StageWorker`.

    Args:
        settings: which language model, and how it is reached.
    """

    def __init__(self, *, settings: LanguageModelSettings) -> None:
        _step_back()
        self._model = load_language_model(settings)

    def run(self, payload: Any, emit: Callable[[Any], None], cancelled: Cancel) -> None:
        """Answer one conversation, piece by piece, or read one ahead."""
        with told():
            if isinstance(payload, Prepare):
                self._model.prepare(payload.messages, cancelled=cancelled)
                return
            assert isinstance(payload, ChatRequest)
            for delta in self._model.stream(payload, cancelled):
                if isinstance(delta, Finished) and delta.reason is FinishReason.CANCELLED:
                    return
                emit(delta)

    def close(self) -> None:
        """Release the model."""
        self._model.close()
