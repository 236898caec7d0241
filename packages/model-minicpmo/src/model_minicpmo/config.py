"""What a checkpoint's `config.json` and `preprocessor_config.json` say, as typed values.

Owns: which fields the stages read, their types, and the published defaults of those that a checkpoint may leave out.
Called by: the checkpoint's reader, the plugin (to size a deployment) and every stage.
Never: imports a tensor library, or reads a size from anywhere but the checkpoint.

Sizes are in the units of the field: positions, features, bytes of nothing else. Sources: the configuration published with
`openbmb/MiniCPM-o-4_5`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from model_minicpmo.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

Size = Annotated[int, msgspec.Meta(gt=0)]
_Read = TypeVar("_Read")


class AudioConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The Whisper encoder: `audio_config`."""

    d_model: Size
    encoder_layers: Size
    encoder_attention_heads: Size
    encoder_ffn_dim: Size
    num_mel_bins: Size = 80
    max_source_positions: Size = 1500
    activation_function: str = "gelu"


class VisionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The SigLIP encoder: `vision_config`. `image_size` gives the side of the grid of learnt positions, in pixels."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    image_size: Size = 980
    patch_size: Size = 14
    num_channels: Size = 3
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6


class TtsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The talker: `tts_config`. The last of `num_audio_tokens` codes ends speech."""

    llm_dim: Size
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_hidden_layers: Size
    num_audio_tokens: Size
    num_text_tokens: Size
    audio_bos_token_id: int
    text_eos_token_id: int
    num_key_value_heads: Size | None = None
    llm_intermediate_size: Size | None = None
    num_vq: Size = 1
    max_position_embeddings: Size = 4096
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    normalize_projected_hidden: bool = True
    interleaved: bool = False
    condition_type: str = "hidden_text_merge"
    projector_type: str = "mlp"
    top_p: float = 0.85
    top_k: int = 25
    repetition_penalty: float = 1.05


class SliceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a picture is cut when `preprocessor_config.json` does not say: `slice_config`."""

    max_slice_nums: Size = 1
    scale_resolution: Size = 448
    patch_size: Size = 14


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole checkpoint: `config.json`. The language model's fields stand at its top level, as those of Qwen3."""

    model_type: str
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    audio_config: AudioConfig
    vision_config: VisionConfig
    tts_config: TtsConfig
    version: str | float | None = None
    torch_dtype: str | None = None
    dtype: str | None = None
    head_dim: Size | None = None
    hidden_act: str = "silu"
    max_position_embeddings: Size = 40960
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    query_num: Size = 64
    audio_pool_step: Size = 5
    audio_chunk_length: float = 1.0
    slice_config: SliceConfig = SliceConfig()

    @property
    def head_size(self) -> int:
        """The size of one attention head of the language model."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def weights_dtype(self) -> str:
        """The type that the weights were published in, by torch's name; bfloat16 when the file does not say."""
        return self.dtype or self.torch_dtype or "bfloat16"


class PreprocessorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How pictures and sound are prepared: `preprocessor_config.json`."""

    max_slice_nums: Size = 9
    scale_resolution: Size = 448
    patch_size: Size = 14
    image_feature_size: Size = 64
    slice_mode: bool = True
    use_image_id: bool = True
    norm_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    norm_std: tuple[float, float, float] = (0.5, 0.5, 0.5)


def read_json(path: Path, form: type[_Read]) -> _Read:
    """Read a JSON file into `form`; fields that `form` does not name are passed over.

    Raises:
        CheckpointError: The file is not there, is no JSON, or a field is missing or of the wrong type, said by its name.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror}); the published layout has it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(path, str(error)) from error


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json` of the checkpoint in `folder`.

    Raises:
        CheckpointError: It is missing or broken, is another model's, or its sizes do not fit together.
    """
    path = folder / "config.json"
    config = read_json(path, ModelConfig)
    if config.model_type != "minicpmo":
        raise CheckpointError(
            path, f"model_type is {config.model_type!r}, not 'minicpmo': this is another model's checkpoint"
        )
    for name, size, heads in (
        ("audio_config.d_model", config.audio_config.d_model, config.audio_config.encoder_attention_heads),
        ("vision_config.hidden_size", config.vision_config.hidden_size, config.vision_config.num_attention_heads),
        ("tts_config.hidden_size", config.tts_config.hidden_size, config.tts_config.num_attention_heads),
        ("num_attention_heads", config.num_attention_heads, config.num_key_value_heads),
    ):
        if size % heads:
            raise CheckpointError(path, f"{name} is {size}, which {heads} heads do not divide")
    if config.tts_config.llm_dim != config.hidden_size:
        raise CheckpointError(
            path, f"tts_config.llm_dim is {config.tts_config.llm_dim}, but hidden_size is {config.hidden_size}"
        )
    return config


def read_preprocessor(folder: Path) -> PreprocessorConfig:
    """Read `preprocessor_config.json` of the checkpoint in `folder`.

    Raises:
        CheckpointError: It is missing or broken.
    """
    return read_json(folder / "preprocessor_config.json", PreprocessorConfig)
