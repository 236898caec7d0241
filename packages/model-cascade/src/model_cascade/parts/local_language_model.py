"""The embedded language model: SmolLM2-135M-Instruct.

Owns: the conversation in the model's own format, and how it calls functions. Called by: the cascade's language stage.
Never: fetches anything; claims to be right: it is fluent and **often wrong**.

Functions: where the model may choose, two rules choose for it (:mod:`model_cascade.parts.tool_rule`); where a call is
made, by them or because one is demanded, the model writes its arguments inside the function's schema. They are always
valid; whether they are what the user meant is another matter.

What a conversation has in common with the one before is not read again, nor what is left of it when its oldest turns
are forgotten. On one core it reads a token in 6 ms and writes one in 12 ms.
Model: "SmolLM2: When Smol Goes Big" (Ben Allal et al., 2025); ChatML, 8192 tokens, Apache-2.0.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from model_cascade.parts import weights
from model_cascade.parts.errors import BrokenAnswerError, Cancel, RequestRefusedError, never
from model_cascade.parts.fitting import fitted
from model_cascade.parts.forced_calls import grammar_for_arguments, grammar_for_names
from model_cascade.parts.language_model import (
    ChatRequest,
    Delta,
    Finished,
    FinishReason,
    Message,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolMode,
    Usage,
)
from model_cascade.parts.llama_engine import Completion, LlamaEngine, PromptTooLongError, Sampling
from model_cascade.parts.tool_calls import OPEN, instructions
from model_cascade.parts.tool_rule import function_asked_for, plain_turns, said_plainly

PREFACE = "You are a helpful AI assistant named SmolLM. Give short, simple answers in plain English."
"""Begins the system message. The model was trained with a sentence like it, and drifts into French without."""

_SPECIAL = re.compile(r"<\|(?:im_start|im_end|endoftext)\|>")
_SHORTEST_CALL = 256
_TRIES = 6


class LocalLanguageModel:
    """SmolLM2-135M in this process, on one thread. Loading takes about 1 s and 190 MB.

    Args:
        slots: How many answers are generated at once; more wait. Each slot caches one conversation.
        context_tokens: What one conversation may take, question and answer together; at most 8192.
        prompt_tokens: Of these, how many the question may take before the oldest turns are forgotten.
        preface: Begins every system message.
        new_call_id: Makes the ids of calls.

    Raises:
        WeightsError: The weights are missing or are not those that were tested.
        LanguageModelError: The engine does not start.
    """

    name = "smollm2-135m"

    def __init__(
        self,
        *,
        slots: int = 1,
        context_tokens: int = 2048,
        prompt_tokens: int = 1024,
        preface: str = PREFACE,
        new_call_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}",
    ) -> None:
        self._prompt_tokens = prompt_tokens
        self._preface = preface
        self._new_call_id = new_call_id
        self._engine = LlamaEngine(weights.verified(weights.SMOLLM2), slots=slots, context=context_tokens)

    def stream(self, request: ChatRequest, cancelled: Cancel = never) -> Iterator[Delta]:
        """Answer, as :class:`~model_cascade.parts.language_model.LanguageModel` says."""
        mode = request.tool_choice.mode
        if mode in {ToolMode.REQUIRED, ToolMode.FUNCTION}:
            yield from self._forced(request, _candidates(request), cancelled)
            return
        last = request.messages[-1] if request.messages else None
        if last is not None and last.role == "tool":
            yield from self._read_out(request, said_plainly(last.content), cancelled)
            return
        offered = () if mode is ToolMode.NONE else request.tools
        asked = function_asked_for(request.messages, offered)
        if asked is not None:
            yield from self._forced(request, [asked], cancelled)
        else:
            yield from self._text(request, cancelled)

    def prepare(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = (), cancelled: Cancel = never) -> None:
        """Read a conversation into the cache; the answer to it begins with what is new by then."""
        answer = _Answer(self, ChatRequest(messages=messages), Sampling(max_tokens=0), cancelled)
        for _ in answer.pieces("", closed=True):
            pass

    def close(self) -> None:
        """End all answers and free the engine; may be called again."""
        self._engine.close()

    def complete(self, prompt: str, sampling: Sampling, cancelled: Cancel) -> Completion:
        """Continue a prompt that is already in the model's format."""
        return self._engine.complete(prompt, sampling, cancelled)

    def prompt(self, request: ChatRequest, budget: int, calls: Sequence[Tool] = ()) -> str:
        """Write a conversation in ChatML, cut to about ``budget`` tokens, without anything that could pass for its marks.

        ``calls`` are described behind it, not before, so that what is cached of the conversation stays good.
        """
        has_system = bool(request.messages) and request.messages[0].role == "system"
        system = request.messages[0].content.strip() if has_system else ""
        head = Message(role="system", content="\n".join(part for part in (self._preface, system) if part))
        spoken = request.messages[1:] if has_system else request.messages
        turns = plain_turns(fitted((head, *spoken), budget))
        if calls:
            turns.append(("system", instructions(calls)))
        written = "".join(f"<|im_start|>{role}\n{_SPECIAL.sub('', text)}<|im_end|>\n" for role, text in turns)
        return written.encode("utf-8", "replace").decode()  # a lone surrogate is no text

    def budget(self, max_tokens: int) -> tuple[int, int]:
        """Tell how many tokens a prompt may take beside an answer, and how many the answer."""
        answer = min(max_tokens, self._engine.context // 2)
        return min(self._prompt_tokens, self._engine.context - answer - 16), answer

    def _text(self, request: ChatRequest, cancelled: Cancel) -> Iterator[Delta]:
        answer = _Answer(self, request, _sampling(request), cancelled)
        for piece in answer.pieces():
            yield TextDelta(text=piece)
        yield Finished(reason=answer.reason, usage=answer.usage)

    def _read_out(self, request: ChatRequest, text: str, cancelled: Cancel) -> Iterator[Delta]:
        """Say a text that is given, and have the model read the conversation with it: what is answered next begins there."""
        yield TextDelta(text=text)
        counted: list[int] = []
        for said in ("", text):
            answer = _Answer(self, request, Sampling(max_tokens=0), cancelled)
            for _ in answer.pieces(said):
                pass
            if answer.reason is FinishReason.CANCELLED:
                yield Finished(reason=FinishReason.CANCELLED, usage=answer.usage)
                return
            counted.append(answer.usage.prompt_tokens)
        read, with_text = counted
        yield Finished(
            reason=FinishReason.STOP, usage=Usage(prompt_tokens=read, completion_tokens=max(0, with_text - read))
        )

    def _forced(self, request: ChatRequest, tools: list[Tool], cancelled: Cancel) -> Iterator[Delta]:
        """Write a call: choose the function, then its arguments, each inside a grammar."""
        tool = tools[0]
        spent = Usage()
        if len(tools) > 1:
            sampling = Sampling(max_tokens=64, grammar=grammar_for_names([one.name for one in tools]))
            answer = _Answer(self, request, sampling, cancelled, tools)
            chosen = "".join(answer.pieces(f'{OPEN}{{"name": '))
            spent += answer.usage
            tool = next((one for one in tools if json.dumps(one.name) == chosen), tool)
        most = max(request.max_tokens, _SHORTEST_CALL)
        sampling = Sampling(max_tokens=most, grammar=grammar_for_arguments(tool.parameters))
        answer = _Answer(self, request, sampling, cancelled, [tool])
        text = "".join(answer.pieces(f'{OPEN}{{"name": {json.dumps(tool.name)}, "arguments": '))
        spent += answer.usage
        if answer.reason is FinishReason.CANCELLED:
            yield Finished(reason=answer.reason, usage=spent)
            return
        arguments = _object(text, tool.name, cut=answer.reason is FinishReason.LENGTH)
        yield ToolCallDelta(index=0, call_id=self._new_call_id(), name=tool.name, arguments=arguments)
        yield Finished(reason=FinishReason.TOOL_CALLS, usage=spent)


class _Answer:
    """One completion of a conversation: read :meth:`pieces` to the end, then ``reason`` and ``usage``."""

    def __init__(
        self,
        model: LocalLanguageModel,
        request: ChatRequest,
        sampling: Sampling,
        cancelled: Cancel,
        calls: Sequence[Tool] = (),
    ) -> None:
        self._model = model
        self._request = request
        self._sampling = sampling
        self._cancelled = cancelled
        self._calls = calls
        self.reason = FinishReason.CANCELLED
        self.usage = Usage()

    def pieces(self, begun: str = "", *, closed: bool = False) -> Iterator[str]:
        """Generate the answer's text.

        Args:
            begun: Text that the answer begins with, and that is not given again.
            closed: Stop behind the conversation, before the answer's opening.
        """
        budget, most = self._model.budget(self._sampling.max_tokens)
        sampling = replace(self._sampling, max_tokens=most)
        opening = "" if closed else f"<|im_start|>assistant\n{begun}"
        for _ in range(_TRIES):
            prompt = self._model.prompt(self._request, budget, self._calls) + opening
            completion = self._model.complete(prompt, sampling, self._cancelled)
            try:
                yield from completion.pieces()
            except PromptTooLongError as error:  # a language that takes more tokens than was estimated
                budget = int(budget * 0.9 * (error.context - most) / error.tokens)
            else:
                self.reason, self.usage = completion.reason, completion.usage
                return
        why = "the conversation cannot be shortened to what the model can read"
        raise RequestRefusedError(why, told=why)


def _sampling(request: ChatRequest) -> Sampling:
    return Sampling(
        max_tokens=request.max_tokens, temperature=request.temperature, seed=request.seed, stop=request.stop
    )


def _candidates(request: ChatRequest) -> list[Tool]:
    """Tell which tools a forced call may choose from."""
    wanted = request.tool_choice.name if request.tool_choice.mode is ToolMode.FUNCTION else None
    found = [tool for tool in request.tools if wanted in {None, tool.name}]
    if not found:
        known = ", ".join(tool.name for tool in request.tools) or "none"
        why = f"the tool choice asks for {wanted or 'some function'}; the functions are: {known}"
        raise RequestRefusedError(why, told=why)
    return found


def _object(text: str, name: str, *, cut: bool) -> str:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if cut:
            why = f"the arguments of {name} did not end within the tokens allowed"
            raise BrokenAnswerError(why, told=why) from error
        why = f"the parameters of {name} use something of JSON schema that a call cannot be held to; simplify them"
        raise RequestRefusedError(why, told=why) from error
    return json.dumps(value, ensure_ascii=False)
