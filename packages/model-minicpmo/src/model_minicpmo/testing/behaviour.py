"""Weights that behave: a made checkpoint which listens while it is spoken to, answers when that ends, and stops.

Owns: which few dimensions of a made checkpoint's encoder, language model and talker are wired, and to what. Called by: what makes
a checkpoint, for each tensor. Never: is known to an implementation, to which these are weights like any others.

**What it does.** Under the greedy rule, and as good as always under the sampled one:

- A unit with sound in it (a tenth of a second that is loud where voices are) is listened to. So is a quiet one, unless there was
  sound since the last turn ended: then the model speaks.
- A turn has a fixed number of units with fixed words, whatever is heard meanwhile, then `<|turn_eos|>`. An interrupted turn,
  which is closed by `<|turn_eos|>` from outside, is not gone on with.
- When it may not listen (an answer was asked for), it speaks.
- In chat it says one fixed sentence and ends.
- The talker makes 25 codes a unit while a turn is short; in chat it ends after about five codes a word, 50 at least.

**How.** All positions have a constant that dwarfs everything else, so that norms scale them alike. The language model's first
layer has three heads: how much of this unit was loud; whether the last event was sound, or words of its own; which word ended its
last unit. The vocabulary's head adds that up, and knows the word after each word.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from model_minicpmo.testing.tokenizer import added_tokens, vocabulary

if TYPE_CHECKING:
    from model_minicpmo.testing.sizes import Sizes

CONSTANT, SOUND, LOUD, EVENT, UNIT_LOUD, PENDING = range(6)
"""Wired dimensions of the language model's residual stream: the constant; a tenth of a second of sound; whether it is loud; words
that matter; then what the heads find: how much of the unit is loud, and whether sound was the last event."""
_FIRST_FREE = 6
_HEIGHT = 100.0
"""The constant's value."""
_LOUD_FROM = 0.05
"""The mean of some low bands of a scaled log-mel frame that is neither loud nor quiet; speech is about 0.6, faint noise -0.4."""
_BANDS = range(2, 12)
"""Bands of about 80 to 450 Hz, where voices have most of their power."""
_LIFT = 3.0
"""What keeps that mean above 0 where the encoder's activation would bend it."""
_STEEP = 20.0
# The first layer's heads, by pairs of rotated dimensions: those from 2 to 8 turn over tens to thousands of positions, the last
# ones hardly at all, so that flags stand there.
_NEAR = {2: 3.0, 3: 3.0, 4: 8.0, 5: 10.0, 6: 12.0, 7: 12.0, 8: 12.0}
"""How much of each pair makes the head for this unit look at about ten positions."""
_NEAR_CENTRE = 3.0
"""The middle of that: sound in a unit's first tenth of a second, where what was said before it may end, counts little."""
_SLOW_PAIR, _SLOW_PHASE = 8, 0.5
"""The pair that tells earlier from later events, over two thousand positions."""
_UNSEEN_PAIR, _EVEN_PAIR, _SOUND_PAIR, _FLAG_PAIR = 10, 13, 14, 15
_LATER, _FLAG, _IS_SOUND = 1600.0, 4800.0, 20.0
_QUERY = 80_000.0
"""The length of every query, which the norm of queries sets."""
_NEXT, _ANSWER, _FIRST_WORD, _GOES_ON = 130.0, 60.0, 30.0, 60.0
"""Logits: of the word after a word; of listening and speaking; of a turn's first word, and of one that goes on with it."""
_CODE, _CODES_SHARE = 1, 2
_FULL = 0.84
"""The talker ends when so much of what it has seen since the turn began is codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a behaving checkpoint says. No word may be in it twice.

    Attributes:
        units: the words of each unit of a turn; a turn has as many units.
        written: its answer in chat.
    """

    units: tuple[str, ...] = (
        "I heard every word of that",
        " and shall answer slowly so nobody",
        " gets lost on the way.",
    )
    written: str = "Here is a written reply."

    def __post_init__(self) -> None:
        """Refuse what cannot be wired."""
        words = [*self.words]
        twice = sorted({word for word in words if words.count(word) > 1})
        if twice:
            raise ValueError(f"each word has one word after it, but these are said twice: {', '.join(twice)}")
        if not self.units or not all(1 <= len(split(unit)) <= 17 for unit in (*self.units, self.written)):
            raise ValueError("a unit has 1 to 17 words, and a turn at least one unit")

    @property
    def words(self) -> tuple[str, ...]:
        """All words, as the vocabulary writes them."""
        return tuple(word for text in (*self.units, self.written) for word in split(text))


def split(text: str) -> list[str]:
    """Take a text apart into words as the vocabulary writes them: a space before a word is its first character, as `Ġ`.

    Raises:
        ValueError: other characters than ASCII's, or a space that stands before no word.
    """
    words = [word for word in text.replace(" ", " Ġ").split(" ") if word]
    if not text.isascii() or "Ġ" in words:
        raise ValueError(f"{text!r} has to be words of ASCII characters with single spaces between them")
    return words


class Wiring:
    """A behaviour, wired into a checkpoint's tensors one by one.

    Args:
        behaviour: what it says.
        sizes: the checkpoint's; their vocabulary has room for the words.

    Raises:
        ValueError: the language model or the talker is too narrow.
    """

    def __init__(self, behaviour: Behaviour, sizes: Sizes) -> None:
        ids = vocabulary(sizes.vocabulary, behaviour.words) | added_tokens(sizes.vocabulary)
        self._sizes = sizes
        self._units = [[ids[word] for word in split(unit)] for unit in behaviour.units]
        self._listen, self._speak = ids["<|listen|>"], ids["<|speak|>"]
        self._turn_end, self._message_end = ids["<|turn_eos|>"], ids["<|im_end|>"]
        self._begins = {self._speak: self._units[0][0], ids["<|tts_bos|>"]: ids[split(behaviour.written)[0]]}
        written = [ids[word] for word in split(behaviour.written)]
        chains = [[*unit, ids["<|chunk_eos|>"]] for unit in self._units[:-1]]
        chains.append([*self._units[-1], self._turn_end, ids["<|chunk_eos|>"]])
        chains.append([*written, ids["<|tts_eos|>"], self._message_end])
        self._after = {one: other for chain in chains for one, other in itertools.pairwise(chain)}
        self._ends = [unit[-1] for unit in self._units[:-1]]
        known = [*self._after, *self._begins]
        self._wired = _FIRST_FREE + 2 * len(self._ends) + len(known)
        self._own = {token: self._wired - len(known) + place for place, token in enumerate(known)}
        self._scale = _HEIGHT / math.sqrt(sizes.llm.hidden)
        self._check(sizes)

    def wire(self, name: str, drawn: Tensor) -> Tensor:
        """Wire one tensor: what was drawn for it, changed where something is wired."""
        head, _, rest = name.partition(".")
        match head:
            case "apm":
                return self._wire_encoder(rest, drawn)
            case "audio_projection_layer":
                return self._wire_projection(rest, drawn)
            case "resampler":
                return self._wire_resampler(rest, drawn)
            case "llm":
                return self._wire_words(rest, drawn)
            case "tts":
                return wire_talker(rest, drawn)
            case _:
                return drawn

    def _check(self, sizes: Sizes) -> None:
        llm = sizes.llm
        if self._wired + 16 > llm.hidden or llm.kv_heads < 2 or llm.heads < 2 * llm.kv_heads or llm.head != 32:
            raise ValueError(
                f"{self._wired} dimensions have to be wired, and three heads of 32: a language model of {llm.hidden} with "
                f"{llm.heads} heads of {llm.head} has too few"
            )

    # -- hearing and seeing -------------------------------------------------------------------------------------------

    def _wire_encoder(self, name: str, drawn: Tensor) -> Tensor:
        """The encoder's first channel is how loud it is, and no layer changes it."""
        match name:
            case "conv1.weight":
                drawn[0] = 0.0
                drawn[0, _BANDS.start : _BANDS.stop, 1] = 1.0 / len(_BANDS)
            case "conv1.bias":
                drawn[0] = _LIFT
            case "conv2.weight":
                drawn[0] = 0.0
                drawn[0, 0] = _STEEP / 3
            case "conv2.bias":
                drawn[0] = 0.0
            case "embed_positions.weight":
                drawn[:, 0] = -_STEEP * (_LIFT + _LOUD_FROM)
            case "layer_norm.weight":
                drawn[0] = 1.0
            case "layer_norm.bias":
                drawn[0] = 0.0
            case _ if ".out_proj." in name or ".fc2." in name:
                drawn[0] = 0.0
            case _:
                pass
        return drawn

    def _wire_projection(self, name: str, drawn: Tensor) -> Tensor:
        """Two of the hidden units make a step of how loud it is: 0 or 1, hardly anything between."""
        match name:
            case "linear1.weight":
                drawn[:2] = 0.0
                drawn[:2, 0] = 10.0
            case "linear1.bias":
                drawn[0], drawn[1] = 0.0, -1.0
            case "linear2.weight":
                drawn[:, :2] = 0.0
                drawn[: self._wired] = 0.0
                drawn[LOUD, 0], drawn[LOUD, 1] = 1.0, -1.0
            case "linear2.bias":
                drawn[: self._wired] = 0.0
                drawn[CONSTANT], drawn[SOUND] = _HEIGHT, 1.0
            case _:
                pass
        return drawn

    def _wire_resampler(self, name: str, drawn: Tensor) -> Tensor:
        """What is seen has the constant, and nothing else of what is wired."""
        match name:
            case "ln_post.weight":
                drawn[0] = 0.0
            case "ln_post.bias":
                drawn[0] = 1.0
            case "proj":
                drawn[0] = 0.0
                drawn[:, : self._wired] = 0.0
                drawn[0, CONSTANT] = _HEIGHT
            case _:
                pass
        return drawn

    # -- the language model -------------------------------------------------------------------------------------------

    def _wire_words(self, name: str, drawn: Tensor) -> Tensor:
        layer, _, place = name.removeprefix("model.layers.").partition(".")
        match place if name.startswith("model.layers.") else name:
            case "model.embed_tokens.weight":
                return self._embeddings(drawn)
            case "lm_head.weight":
                return self._logits(drawn)
            case "model.norm.weight":
                drawn[: self._wired] = 1.0
                drawn *= self._scale
                drawn[CONSTANT] = self._scale / _HEIGHT
            case "input_layernorm.weight" | "post_attention_layernorm.weight":
                drawn[: self._wired] = 1.0
                drawn *= self._scale
            case "self_attn.q_norm.weight" if layer == "0":
                drawn[:] = _QUERY / math.sqrt(self._sizes.llm.head)
            case "self_attn.k_norm.weight" if layer == "0":
                drawn[:] = 1.0
            case "mlp.down_proj.weight":
                drawn[: self._wired] = 0.0
            case "self_attn.o_proj.weight":
                drawn[: self._wired] = 0.0
                if layer == "0":
                    self._found(drawn)
            case _ if place.endswith("_proj.weight"):
                drawn[:, : self._wired] = 0.0
                if layer == "0" and place.startswith("self_attn."):
                    self._heads(place.removeprefix("self_attn.")[0], drawn)
            case _:
                pass
        return drawn

    def _embeddings(self, drawn: Tensor) -> Tensor:
        drawn[:, : self._wired] = 0.0
        drawn[:, CONSTANT] = _HEIGHT
        for token, place in self._own.items():
            drawn[token, place] = 1.0
        for token in (self._turn_end, self._message_end, *self._ends):
            drawn[token, EVENT] = 1.0
        for place, token in enumerate(self._ends):
            drawn[token, _FIRST_FREE + place] = 1.0
        return drawn

    def _logits(self, drawn: Tensor) -> Tensor:
        """Add up what is known at a position; the random rest stays small beside it."""
        drawn[:, : self._wired] = 0.0
        ended = _FIRST_FREE + len(self._ends)  # what the head for it found
        for token, after in self._after.items():
            drawn[after, self._own[token]] = _NEXT
        for token, after in self._begins.items():
            drawn[after, self._own[token]] = _FIRST_WORD
            drawn[after, SOUND] = -200.0
        for place, unit in enumerate(self._units[1:]):
            drawn[unit[0], ended + place] = _GOES_ON
            drawn[unit[0], SOUND] = -200.0
        drawn[self._speak, SOUND] = _ANSWER
        listen = drawn[self._listen]
        listen[CONSTANT], listen[SOUND] = -1000.0, 1000.0 + _ANSWER + 14.0
        listen[UNIT_LOUD], listen[PENDING] = 400.0, -28.0
        listen[ended : ended + len(self._ends)] = -600.0
        return drawn

    def _heads(self, which: str, drawn: Tensor) -> None:
        """Wire what the first layer's heads ask for, are asked, and give.

        Heads 0 and 1 have the first group of keys and values, the first head of the second group has its own. All others ask for
        nothing and mix evenly.
        """
        llm = self._sizes.llm
        heads = drawn.view(-1, llm.head, llm.hidden)
        if which == "q":
            heads[:] = 0.0
            for head, wanted in (
                (0, _this_unit(llm.head)),
                (1, _last_event(llm.head)),
                (self._third, _last_event(llm.head)),
            ):
                heads[head, :, CONSTANT] = wanted / _HEIGHT
        elif which == "k":
            heads[:2] = 0.0
            for place in _NEAR:
                heads[:2, place, CONSTANT] = 3.0 / _HEIGHT
            half = llm.head // 2
            heads[:2, _FLAG_PAIR, EVENT] = 1.0
            heads[:2, _EVEN_PAIR, EVENT] = 1.0
            heads[0, _FLAG_PAIR + half, LOUD] = 1.0
            heads[0, _SOUND_PAIR, SOUND] = 1.0
            # Keys of events of both kinds, and of all sound, are equally long: their norm would tell them apart otherwise.
            heads[0, _EVEN_PAIR, SOUND], heads[0, _EVEN_PAIR, LOUD] = 1.0, -1.0
        else:
            heads[0, 0], heads[1, : len(self._ends)] = 0.0, 0.0
            heads[0, 0, LOUD] = 1.0
            for place in range(len(self._ends)):
                heads[1, place, _FIRST_FREE + place] = 1.0

    def _found(self, drawn: Tensor) -> None:
        """Put what the first layer's heads found where the vocabulary looks for it."""
        size, ends = self._sizes.llm.head, len(self._ends)
        drawn[UNIT_LOUD, 0] = 1.0
        drawn[PENDING, size] = 1.0
        for place in range(ends):
            drawn[_FIRST_FREE + ends + place, self._third * size + place] = 1.0

    @property
    def _third(self) -> int:
        """The first head of the second group."""
        return self._sizes.llm.heads // self._sizes.llm.kv_heads


def _asked(size: int, wanted: dict[tuple[int, int], float]) -> Tensor:
    """A query whose scores are `wanted`, for keys with 3 in each of the near pairs and 1 for a flag; (pair, half) names a place.

    The rest of its length, which is the same for all, lies where no key has anything.
    """
    length = math.sqrt(size / (9.0 * len(_NEAR) + 2.0))  # what the norm makes of 1 in such a key
    query = torch.zeros(2, size // 2)
    for (pair, half), score in wanted.items():
        query[half, pair] = score * math.sqrt(size) / (length * (3.0 if pair in _NEAR else 1.0))
    rest = _QUERY**2 - float(query.square().sum())
    assert rest > 0, "the query is longer than all queries are"
    query[0, _UNSEEN_PAIR] = math.sqrt(rest)
    return query.flatten()


def _turned(pair: int, score: float, angle: float) -> dict[tuple[int, int], float]:
    return {(pair, 0): score * math.cos(angle), (pair, 1): score * math.sin(angle)}


def _this_unit(size: int) -> Tensor:
    wanted: dict[tuple[int, int], float] = {(_SOUND_PAIR, 0): _IS_SOUND}
    for pair, score in _NEAR.items():
        wanted |= _turned(pair, score, -_NEAR_CENTRE * 1e6 ** (-2 * pair / size))
    return _asked(size, wanted)


def _last_event(size: int) -> Tensor:
    flags = {(_FLAG_PAIR, 0): _FLAG, (_FLAG_PAIR, 1): _FLAG}
    return _asked(size, flags | _turned(_SLOW_PAIR, _LATER, _SLOW_PHASE))


def wire_talker(name: str, drawn: Tensor) -> Tensor:
    """Wire one tensor of the talker: its first layer's first head tells which share of the turn's positions are codes."""
    share = slice(0, 3)
    scale = _HEIGHT / math.sqrt(drawn.shape[-1])
    match name.removeprefix("model.layers.0."):
        case "emb_code.0.weight" | "emb_text.weight":
            drawn[:, share] = 0.0
            drawn[:, 0] = _HEIGHT
            drawn[:, _CODE] = 1.0 if name.startswith("emb_code") else 0.0
        case "projector_semantic.linear2.weight" | "projector_semantic.linear2.bias":
            drawn[share] = 0.0
        case "head_code.0.parametrizations.weight.original1":
            drawn[:, share] = 0.0
            drawn[-1] = 0.0
            drawn[-1, 0], drawn[-1, _CODES_SHARE] = -_FULL, 1.0
        case "head_code.0.parametrizations.weight.original0":
            drawn[-1] = 300.0 * math.hypot(_FULL, 1.0)
        case "self_attn.q_proj.weight":
            drawn[:] = 0.0
        case "self_attn.v_proj.weight":
            drawn[:, share] = 0.0
            drawn[0] = 0.0
            drawn[0, _CODE] = 1.0
        case "self_attn.o_proj.weight":
            drawn[share] = 0.0
            drawn[_CODES_SHARE, 0] = 1.0
        case "model.norm.weight":
            drawn[share] = 1.0
            drawn *= scale
            drawn[0] = scale / _HEIGHT
        case _ if name.endswith("layernorm.weight"):
            drawn[share] = 1.0
            drawn *= scale
        case _ if name.endswith(("o_proj.weight", "down_proj.weight")):
            drawn[share] = 0.0
        case _ if name.endswith("_proj.weight"):
            drawn[:, share] = 0.0
        case _:
            pass
    return drawn
