"""Which tensors the published checkpoint has under which names, and of which shapes, for given sizes.

Owns: the names and shapes in `model.safetensors`, `flow.pt` and `hift.pt`. Called by: what makes a checkpoint.
Never: imports the stages' modules: the names stand here a second time on purpose, so that a loader that misses one is found out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from model_minicpmo.testing.sizes import Sizes, TalkerSizes

Named = tuple[str, tuple[int, ...]]
"""A tensor's name and shape."""

ADDED_TOKENS = 105
"""How many tokens the published tokenizer adds, `<unk>` not counted."""
MEL_BINS = 80
AUDIO_POSITIONS = 1500
QUERIES = 64
PATCH = 14
IMAGE_SIDE = 980
SPEAKER = 192
STEP_WAVES = 256
HARMONICS = 9
SPECTRUM = 18
UNUSED_WORDS = 32_000
KERNELS_UP = (16, 11, 7)
KERNELS_DOWN = (30, 6, 1)
KERNELS_BLOCK = (3, 7, 11)
KERNELS_SOURCE = (7, 7, 11)
DILATIONS = 3


def model_tensors(sizes: Sizes) -> Iterator[Named]:
    """List what is in `model.safetensors`."""
    hidden, words = sizes.llm.hidden, sizes.vocabulary.added + ADDED_TOKENS
    yield from _encoder_of_sound(sizes)
    yield from _prefixed("audio_projection_layer.linear1.", _linear(hidden, sizes.audio.hidden))
    yield from _prefixed("audio_projection_layer.linear2.", _linear(hidden, hidden))
    yield from _encoder_of_pictures(sizes)
    yield from _resampler(sizes)
    yield "llm.lm_head.weight", (words, hidden)
    yield "llm.model.embed_tokens.weight", (words, hidden)
    yield "llm.model.norm.weight", (hidden,)
    llm = sizes.llm
    for index in range(llm.layers):
        inside = _decoder_layer(hidden, llm.intermediate, queries=llm.heads * llm.head, keys=llm.kv_heads * llm.head)
        yield from _prefixed(f"llm.model.layers.{index}.", inside)
        yield f"llm.model.layers.{index}.self_attn.q_norm.weight", (llm.head,)
        yield f"llm.model.layers.{index}.self_attn.k_norm.weight", (llm.head,)
    yield from _prefixed("tts.", _talker(sizes.talker, hidden))


def flow_tensors(sizes: Sizes) -> Iterator[Named]:
    """List what is in `flow.pt`."""
    flow = sizes.token2wav
    width = flow.hidden
    yield "input_embedding.weight", (sizes.talker.codes - 1, width)
    yield from _prefixed("spk_embed_affine_layer.", _linear(MEL_BINS, SPEAKER))
    yield from _prefixed("encoder_proj.", _linear(MEL_BINS, width))
    for name in ("embed", "up_embed"):
        yield from _prefixed(f"encoder.{name}.out.0.", _linear(width, width))
        yield from _prefixed(f"encoder.{name}.out.1.", _norm(width))
    yield from _prefixed("encoder.after_norm.", _norm(width))
    yield from _prefixed("encoder.pre_lookahead_layer.conv1.", _linear(width, width, 4))
    yield from _prefixed("encoder.pre_lookahead_layer.conv2.", _linear(width, width, 3))
    yield from _prefixed("encoder.up_layer.conv.", _linear(width, width, 5))
    for name, count in (("encoders", flow.blocks), ("up_encoders", flow.up_blocks)):
        for index in range(count):
            yield from _prefixed(f"encoder.{name}.{index}.", _conformer_layer(width, flow.intermediate, flow.heads))
    yield from _prefixed("decoder.estimator.", _estimator(width, flow.heads, flow.depth))


def vocoder_tensors(sizes: Sizes) -> Iterator[Named]:
    """List what is in `hift.pt`."""
    base, pitch = sizes.token2wav.vocoder, sizes.token2wav.pitch
    widths = [base >> step for step in range(len(KERNELS_UP) + 1)]
    yield from _prefixed("m_source.l_linear.", _linear(1, HARMONICS))
    yield from _prefixed("conv_pre.", _normed_convolution(base, MEL_BINS, 7))
    yield from _prefixed("conv_post.", _normed_convolution(SPECTRUM, widths[-1], 7))
    for step, kernel in enumerate(KERNELS_UP):
        yield f"ups.{step}.bias", (widths[step + 1],)
        yield f"ups.{step}.parametrizations.weight.original0", (widths[step], 1, 1)
        yield f"ups.{step}.parametrizations.weight.original1", (widths[step], widths[step + 1], kernel)
        yield from _prefixed(f"source_downs.{step}.", _linear(widths[step + 1], SPECTRUM, KERNELS_DOWN[step]))
        yield from _prefixed(f"source_resblocks.{step}.", _residual_block(widths[step + 1], KERNELS_SOURCE[step]))
        for place, size in enumerate(KERNELS_BLOCK):
            index = step * len(KERNELS_BLOCK) + place
            yield from _prefixed(f"resblocks.{index}.", _residual_block(widths[step + 1], size))
    for index in range(5):
        convolution = _normed_convolution(pitch, MEL_BINS if index == 0 else pitch, 3)
        yield from _prefixed(f"f0_predictor.condnet.{2 * index}.", convolution)
    yield from _prefixed("f0_predictor.classifier.", _linear(1, pitch))


def _prefixed(prefix: str, tensors: Iterator[Named]) -> Iterator[Named]:
    return ((prefix + name, shape) for name, shape in tensors)


def _linear(out: int, into: int, *kernel: int) -> Iterator[Named]:
    yield "weight", (out, into, *kernel)
    yield "bias", (out,)


def _norm(size: int) -> Iterator[Named]:
    yield "weight", (size,)
    yield "bias", (size,)


def _normed_convolution(out: int, into: int, kernel: int) -> Iterator[Named]:
    yield "bias", (out,)
    yield "parametrizations.weight.original0", (out, 1, 1)
    yield "parametrizations.weight.original1", (out, into, kernel)


def _residual_block(size: int, kernel: int) -> Iterator[Named]:
    for index in range(DILATIONS):
        for half in ("1", "2"):
            yield from _prefixed(f"convs{half}.{index}.", _normed_convolution(size, size, kernel))
            yield f"activations{half}.{index}.alpha", (size,)


def _encoder_of_sound(sizes: Sizes) -> Iterator[Named]:
    audio = sizes.audio
    size = audio.hidden
    yield from _prefixed("apm.conv1.", _linear(size, MEL_BINS, 3))
    yield from _prefixed("apm.conv2.", _linear(size, size, 3))
    yield "apm.embed_positions.weight", (AUDIO_POSITIONS, size)
    yield from _prefixed("apm.layer_norm.", _norm(size))
    for index in range(audio.layers):
        layer = f"apm.layers.{index}."
        yield f"{layer}self_attn.k_proj.weight", (size, size)
        for name in ("q_proj", "v_proj", "out_proj"):
            yield from _prefixed(f"{layer}self_attn.{name}.", _linear(size, size))
        yield from _prefixed(f"{layer}self_attn_layer_norm.", _norm(size))
        yield from _prefixed(f"{layer}final_layer_norm.", _norm(size))
        yield from _prefixed(f"{layer}fc1.", _linear(audio.intermediate, size))
        yield from _prefixed(f"{layer}fc2.", _linear(size, audio.intermediate))


def _encoder_of_pictures(sizes: Sizes) -> Iterator[Named]:
    vision = sizes.vision
    size = vision.hidden
    yield from _prefixed("vpm.embeddings.patch_embedding.", _linear(size, 3, PATCH, PATCH))
    yield "vpm.embeddings.position_embedding.weight", ((IMAGE_SIDE // PATCH) ** 2, size)
    yield from _prefixed("vpm.post_layernorm.", _norm(size))
    for index in range(vision.layers):
        layer = f"vpm.encoder.layers.{index}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _prefixed(f"{layer}self_attn.{name}.", _linear(size, size))
        for name in ("layer_norm1", "layer_norm2"):
            yield from _prefixed(f"{layer}{name}.", _norm(size))
        yield from _prefixed(f"{layer}mlp.fc1.", _linear(vision.intermediate, size))
        yield from _prefixed(f"{layer}mlp.fc2.", _linear(size, vision.intermediate))


def _resampler(sizes: Sizes) -> Iterator[Named]:
    size = sizes.llm.hidden
    yield "resampler.query", (QUERIES, size)
    yield "resampler.proj", (size, size)
    yield "resampler.kv_proj.weight", (size, sizes.vision.hidden)
    yield "resampler.attn.in_proj_weight", (3 * size, size)
    yield "resampler.attn.in_proj_bias", (3 * size,)
    yield from _prefixed("resampler.attn.out_proj.", _linear(size, size))
    for name in ("ln_q", "ln_kv", "ln_post"):
        yield from _prefixed(f"resampler.{name}.", _norm(size))


def _decoder_layer(hidden: int, intermediate: int, *, queries: int, keys: int) -> Iterator[Named]:
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    yield "mlp.gate_proj.weight", (intermediate, hidden)
    yield "mlp.up_proj.weight", (intermediate, hidden)
    yield "mlp.down_proj.weight", (hidden, intermediate)
    yield "self_attn.q_proj.weight", (queries, hidden)
    yield "self_attn.k_proj.weight", (keys, hidden)
    yield "self_attn.v_proj.weight", (keys, hidden)
    yield "self_attn.o_proj.weight", (hidden, queries)


def _talker(talker: TalkerSizes, llm_hidden: int) -> Iterator[Named]:
    size = talker.hidden
    yield "emb_code.0.weight", (talker.codes, size)
    yield "emb_text.weight", (talker.text_tokens, size)
    yield "head_code.0.parametrizations.weight.original0", (talker.codes, 1)
    yield "head_code.0.parametrizations.weight.original1", (talker.codes, size)
    yield "model.embed_tokens.weight", (UNUSED_WORDS, size)
    yield "model.norm.weight", (size,)
    for index in range(talker.layers):
        inside = _decoder_layer(size, talker.intermediate, queries=size, keys=size)
        yield from _prefixed(f"model.layers.{index}.", inside)
    for name in ("projector_semantic", "projector_spk"):
        yield from _prefixed(f"{name}.linear1.", _linear(size, llm_hidden))
        yield from _prefixed(f"{name}.linear2.", _linear(size, size))


def _conformer_layer(width: int, intermediate: int, heads: int) -> Iterator[Named]:
    yield "self_attn.pos_bias_u", (heads, width // heads)
    yield "self_attn.pos_bias_v", (heads, width // heads)
    yield "self_attn.linear_pos.weight", (width, width)
    for name in ("linear_q", "linear_k", "linear_v", "linear_out"):
        yield from _prefixed(f"self_attn.{name}.", _linear(width, width))
    yield from _prefixed("feed_forward.w_1.", _linear(intermediate, width))
    yield from _prefixed("feed_forward.w_2.", _linear(width, intermediate))
    yield from _prefixed("norm_ff.", _norm(width))
    yield from _prefixed("norm_mha.", _norm(width))


def _estimator(width: int, heads: int, depth: int) -> Iterator[Named]:
    yield from _prefixed("t_embedder.mlp.0.", _linear(width, STEP_WAVES))
    yield from _prefixed("t_embedder.mlp.2.", _linear(width, width))
    yield from _prefixed("in_proj.", _linear(width, 4 * MEL_BINS))
    yield from _prefixed("final_layer.adaLN_modulation.1.", _linear(2 * width, width))
    yield from _prefixed("final_layer.linear.", _linear(MEL_BINS, width))
    for index in range(depth):
        block = f"blocks.{index}."
        for name in ("to_q", "to_k", "to_v", "proj"):
            yield from _prefixed(f"{block}attn.{name}.", _linear(width, width))
        for name in ("q_norm", "k_norm"):
            yield from _prefixed(f"{block}attn.{name}.", _norm(width // heads))
        yield from _prefixed(f"{block}mlp.fc1.", _linear(4 * width, width))
        yield from _prefixed(f"{block}mlp.fc2.", _linear(width, 4 * width))
        yield from _prefixed(f"{block}conv.block.1.", _linear(width, width, 3))
        yield from _prefixed(f"{block}conv.block.3.", _norm(width))
        yield from _prefixed(f"{block}conv.block.6.", _linear(width, width, 3))
        yield from _prefixed(f"{block}adaLN_modulation.1.", _linear(9 * width, width))
