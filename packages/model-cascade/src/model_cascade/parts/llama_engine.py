"""llama.cpp in this process, for one model on one thread: a prompt in, pieces of text out.

Owns: the engine's life, its slots, the threads that wait for it, and cancellation. Called by:
:mod:`model_cascade.parts.local_language_model`. Never: knows messages or tools, or opens the engine to others: the
server inside xllamacpp always listens on a loopback port, which is locked here with a key that nobody knows.

The engine releases the interpreter lock while it computes. Its callback runs on the thread that asked for the
completion, so each completion has a thread, which ends with it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xllamacpp

from model_cascade.parts.channel import Channel
from model_cascade.parts.errors import Cancel, LanguageModelError
from model_cascade.parts.language_model import FinishReason, Usage

_BATCH = 64  # tokens read at a time; a completion can be cancelled between batches
_CACHE_MIB = 256  # for conversations that have no slot at the moment
_REUSE = 32  # the shortest run of tokens worth moving in the cache when what stood before it is gone


class PromptTooLongError(Exception):
    """The prompt has ``tokens``; a slot holds ``context``."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(f"{tokens} tokens, {context} fit")
        self.tokens = tokens
        self.context = context


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a completion is generated.

    Attributes:
        max_tokens: The most tokens it may have; 0 only reads the prompt.
        temperature: 0 takes the likeliest token each time.
        seed: Fixes the draws.
        stop: Texts before which it ends.
        grammar: What it must be a sentence of, in llama.cpp's or llguidance's notation.
    """

    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    grammar: str = ""


class Completion:
    """One completion: read :meth:`pieces` to the end, then ``reason`` and ``usage``."""

    def __init__(self, channel: Channel[dict[str, Any]], cancelled: Cancel, stop: threading.Event) -> None:
        self._channel = channel
        self._cancelled = cancelled
        self._stop = stop
        self.reason = FinishReason.CANCELLED
        self.usage = Usage()

    def pieces(self) -> Iterator[str]:
        """Give the text as it is generated; ends early when the completion is cancelled.

        Raises:
            PromptTooLongError: Nothing was generated, because the prompt does not fit.
            LanguageModelError: The engine refused the request, failed, or was closed.
        """
        try:
            for chunk in self._channel.items(self._cancelled):
                if text := self._take(chunk):
                    yield text
        finally:
            self._stop.set()

    def _take(self, chunk: dict[str, Any]) -> str:
        if "error" in chunk:
            raise _error(chunk["error"])
        progress = chunk.get("prompt_progress")
        if progress:
            self.usage = Usage(prompt_tokens=progress["total"], cached_tokens=progress["cache"])
            return ""
        choice = chunk["choices"][0]
        if choice["finish_reason"] is None:
            self.usage += Usage(completion_tokens=1)
        else:
            self.reason = FinishReason(choice["finish_reason"])
            counted = chunk["usage"]
            self.usage = Usage(
                prompt_tokens=counted["prompt_tokens"],
                completion_tokens=counted["completion_tokens"],
                cached_tokens=counted["prompt_tokens_details"]["cached_tokens"],
            )
        return str(choice["text"])


class LlamaEngine:
    """Holds one model. All methods may be called from any thread.

    Args:
        path: The weights, a GGUF file.
        slots: How many completions are generated at once; more wait. Each slot caches one conversation.
        context: Tokens that a slot holds, prompt and completion together.

    Raises:
        LanguageModelError: The engine does not start.
    """

    def __init__(self, path: Path, *, slots: int, context: int) -> None:
        self.context = context
        self._free = threading.Semaphore(slots)
        self._closing = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        try:
            self._server: Any = xllamacpp.Server(_params(path, slots, context))
        except RuntimeError as error:
            raise LanguageModelError(f"The language-model engine does not start with {path}: {error}") from error

    def complete(self, prompt: str, sampling: Sampling, cancelled: Cancel) -> Completion:
        """Begin a completion, once a slot is free. It goes on by itself: read it, or leave its pieces to stop it."""
        channel: Channel[dict[str, Any]] = Channel()
        stop = threading.Event()
        completion = Completion(channel, cancelled, stop)
        while not self._free.acquire(timeout=0.02):
            if cancelled() or self._closing.is_set():
                channel.finish(self._closed())
                return completion

        def take(chunks: Any) -> bool:
            for chunk in chunks if isinstance(chunks, list) else [chunks]:
                channel.put(chunk)
            return stop.is_set() or self._closing.is_set() or cancelled()

        def work() -> None:
            outcome: LanguageModelError | None = LanguageModelError("The language-model engine broke down")
            try:
                self._server.handle_completions(_body(prompt, sampling), take)
                outcome = self._closed()
            except (RuntimeError, ValueError) as error:
                outcome = LanguageModelError(f"The language-model engine failed: {error}")
            finally:
                channel.finish(outcome)
                with self._lock:
                    self._threads.discard(thread)
                self._free.release()

        thread = threading.Thread(target=work, name="llama")
        with self._lock:
            if self._closing.is_set():
                self._free.release()
                channel.finish(self._closed())
            else:
                self._threads.add(thread)
                thread.start()
        return completion

    def close(self) -> None:
        """Stop all completions, wait for their threads, and free the engine. May be called again."""
        with self._lock:
            self._closing.set()
            threads = list(self._threads)
        for thread in threads:
            thread.join()
        self._server = None

    def _closed(self) -> LanguageModelError | None:
        return LanguageModelError("The language model was closed") if self._closing.is_set() else None


def _params(path: Path, slots: int, context: int) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = slots
    params.n_ctx = context * slots
    params.n_batch = params.n_ubatch = _BATCH
    params.n_cache_reuse = _REUSE
    params.cache_ram_mib = _CACHE_MIB
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = 1  # with two, and another model beside it, a tenth of the speed
        threads.poll = 0
    params.n_threads_http = 1
    params.api_keys = [secrets.token_hex(32)]
    params.ui = False
    params.endpoint_props = params.endpoint_slots = False
    params.verbosity = 0
    return params


def _body(prompt: str, sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": prompt,
        "n_predict": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": 0.9,
        "seed": -1 if sampling.seed is None else sampling.seed % 2**32,
        "stop": list(sampling.stop),
        "stream": True,
        "cache_prompt": True,
        "return_progress": True,
    }
    if sampling.grammar:
        body["grammar"] = sampling.grammar
    return body


def _error(error: dict[str, Any]) -> Exception:
    if error.get("type") == "exceed_context_size_error":
        return PromptTooLongError(error["n_prompt_tokens"], error["n_ctx"])
    return LanguageModelError(f"The language-model engine refused the request: {error.get('message', error)}")
