"""The thinker's answer to a chat: the prompt in the published form, the tokens of the answer, and what of it is to be spoken.

Owns: the layout of a chat's prompt and the streaming of its text. Called by: the thinker's program. Never: computes with weights.

Source: `goldens/minicpmo` (`chat_text`, `chat_audio`): the checkpoint's own template, thinking left out, the answer begun with
`<|tts_bos|>`; it ends at `<|im_end|>` or `<|endoftext|>`, not at `<|tts_eos|>`. Spoken is what stands before the last of those.
An answer that reaches the end of the context ends there, as one that has had its tokens; a prompt that fills it is refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Generator

import torch

from duplex_core.errors import ErrorCode, refuse
from duplex_core.stages import Forward, LinkKind
from duplex_core.torch_tensors import as_torch, of_torch
from duplex_core.workers import Append, Emit, ProgramStep, Sampling, Segment, SegmentEnd
from model_minicpmo.gpu.layout import Feed, Layout
from model_minicpmo.payloads import ChatSensed, Picture, Said, SensedMessage, SensedPart, Written

PIECE_TOKENS = 8
"""The answer's text is told after so many tokens each."""
_PLACE = re.compile(r"(<(?:audio|image)>\./</(?:audio|image)>)")

Steps = Generator[ProgramStep, Segment | None, None]


def answer(layout: Layout, sensed: ChatSensed, limit: int) -> Steps:
    """Answer a chat; a context of its own, of at most `limit` positions.

    Raises:
        DuplexError: `context_length_exceeded`: the prompt leaves no room for a single token.
    """
    feed = _prompt(layout, sensed.messages)
    prompt = len(feed.ids)
    if prompt >= limit:
        message = (
            f"the messages take {prompt} positions of a context of {limit}, which leaves none for an answer; send less"
        )
        raise refuse(ErrorCode.CONTEXT_FULL, message)
    most = min(sensed.max_tokens, limit - prompt)
    step = feed.append(_sampling(layout, sensed, most), hidden=sensed.spoken, fresh=True)
    ids: list[int] = []
    rows: list[torch.Tensor] = []
    told = ""
    while True:
        segment = yield step
        assert segment is not None, "an append is answered with a segment"
        if segment.hidden is not None:
            fed = as_torch(segment.hidden)
            # Of the first segment the answer's own positions; of a later one all of them.
            rows.append(fed[prompt:] if not ids else fed)
        ids += segment.ids
        over = segment.end is SegmentEnd.STOP or len(ids) >= most
        text = layout.decode(ids)
        whole = text if over else text.rstrip("\ufffd")
        cut = over and segment.end is not SegmentEnd.STOP
        counts = {"input_tokens": prompt, "output_tokens": len(ids)} if over else {}
        yield Emit(payload=Written(text=whole[len(told) :], done=over, cut=cut, **counts))
        told = whole
        if over:
            break
        left = most - len(ids)
        step = Append(ids=(), sampling=_sampling(layout, sensed, left), hidden=sensed.spoken)
    if sensed.spoken:
        yield Emit(payload=Forward(kind=LinkKind.HIDDEN_STATES, payload=_said(layout, sensed, ids, torch.cat(rows))))


def _sampling(layout: Layout, sensed: ChatSensed, left: int) -> Sampling:
    options, tokens = sensed.options, layout.tokens
    return Sampling(
        max_tokens=min(PIECE_TOKENS, left),
        temperature=0.0 if options.greedy else options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        stop_token_ids=(tokens.message_end, tokens.end_of_text),
    )


def _said(layout: Layout, sensed: ChatSensed, ids: list[int], rows: torch.Tensor) -> Said:
    """What the talker is told: the words before the last mark for the end of speech, with the hidden states at them."""
    tokens = layout.tokens
    ends = (tokens.tts_eos, tokens.message_end, tokens.end_of_text)
    stop = max((at for at, token in enumerate(ids) if token == tokens.tts_eos), default=-1)
    if stop < 0:
        stop = len(ids) - 1 if ids[-1] in ends else min(len(ids), len(rows))
    return Said(
        number=0,
        ids=tuple(ids[:stop]),
        hidden=of_torch(rows[:stop].clone()),
        opens_turn=True,
        ends_turn=True,
        chat=True,
        options=sensed.options,
        draws=sensed.draws,
    )


def _prompt(layout: Layout, messages: tuple[SensedMessage, ...]) -> Feed:
    written = [{"role": message.role, "content": _written(message)} for message in messages]
    prompt: str = layout.tokenizer.apply_chat_template(
        written, tokenize=False, add_generation_prompt=True, enable_thinking=False, use_tts_template=True
    )
    parts = [part for message in messages for part in message.parts if part.audio or part.picture]
    text, places = _PLACE.split(prompt)[::2], len(_PLACE.findall(prompt))
    if places != len(parts):
        message = (
            f"the messages have {len(parts)} pictures and recordings, but the checkpoint's template leaves places for {places}: "
            "is there one in a message of the assistant's, before </think>?"
        )
        raise refuse(ErrorCode.INVALID_VALUE, message)
    feed = Feed(layout.tokens.unknown)
    pictures = 0
    for piece, part in itertools.zip_longest(text, parts):
        feed.tokens(*layout.encode(piece))
        if part is None:
            continue
        if part.audio is not None:
            feed.tokens(layout.tokens.audio_start).embeddings(part.audio).tokens(layout.tokens.audio_end)
        else:
            assert part.picture is not None, "a part with a place has sound or a picture"
            _picture(feed, layout, part.picture, number=pictures)
            pictures += 1
    return feed


def _written(message: SensedMessage) -> str:
    """A message as text: places for its sound and pictures; what a user writes that looks like a place is taken apart.

    Parts of text that follow each other are one text, since they may make the mark of a place together.
    """
    written: list[str] = []
    for place, parts in itertools.groupby(message.parts, key=_place):
        if place:
            written += [place for _ in parts]
        else:
            text = "".join(part.text for part in parts)
            written.append(_PLACE.sub(lambda found: found[0].replace("./", ". /"), text))
    return "".join(written)


def _place(part: SensedPart) -> str:
    """The mark of a part's place; none for text."""
    if part.audio is not None:
        return "<audio>./</audio>"
    return "<image>./</image>" if part.picture is not None else ""


def _picture(feed: Feed, layout: Layout, picture: Picture, *, number: int) -> None:
    tokens = layout.tokens
    feed.tokens(tokens.image_id_start, *layout.encode(str(number)), tokens.image_id_end)
    feed.tokens(tokens.image_start).embeddings(picture.whole).tokens(tokens.image_end)
    for index, each in enumerate(picture.slices):
        if picture.columns and index and index % picture.columns == 0:
            feed.tokens(*layout.encode("\n"))
        feed.tokens(tokens.slice_start).embeddings(each).tokens(tokens.slice_end)
