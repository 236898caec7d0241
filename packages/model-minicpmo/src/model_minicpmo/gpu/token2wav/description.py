"""What `flow.yaml` says of the flow: its sizes, read without making the objects that its tags name.

Owns: the reading and the checks. Called by: `flow.py` when it loads. Never: imports what a tag names, or guesses a
size.

The published file is HyperPyYAML: each part is a mapping under a tag `!new:module.Class`. Only the class's name is
looked at, to hold that the part is one that is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from model_minicpmo.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NEW = "!new:"
_CLASS = "!new"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSizes:
    """The conformer that turns codes into frames.

    Attributes:
        width_in: width of a code's embedding.
        width: width of its layers.
        heads: attention heads.
        inner: width within a feed-forward.
        layers: layers at the codes' rate.
        up_layers: layers after the rate has risen.
        lookahead: how many codes it sees ahead.
        stride: frames a code.
    """

    width_in: int
    width: int
    heads: int
    inner: int
    layers: int
    up_layers: int
    lookahead: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorSizes:
    """The transformer that gives the flow's direction: its channels in and out, and the sizes of its blocks."""

    channels_in: int
    channels_out: int
    width: int
    inner: int
    heads: int
    head: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSizes:
    """The whole flow.

    Attributes:
        codes: how many audio codes it knows.
        mel_bins: bins of a mel frame.
        speaker: width of a speaker vector.
        guidance: weight of classifier-free guidance.
        encoder: the conformer.
        estimator: the transformer.
    """

    codes: int
    mel_bins: int
    speaker: int
    guidance: float
    encoder: EncoderSizes
    estimator: EstimatorSizes


class _Loader(yaml.SafeLoader):
    """Reads `!new:` mappings as mappings that know their class's name; every other tag is an error."""


def _construct(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise yaml.constructor.ConstructorError(None, None, f"{_NEW}{suffix} is no mapping", node.start_mark)
    content = {str(key): value for key, value in loader.construct_mapping(node, deep=True).items()}
    return {_CLASS: suffix.rpartition(".")[2], **content}


_Loader.add_multi_constructor(_NEW, _construct)


class _Part:
    """One mapping of the file, read field by field so that what is missing or unknown is named."""

    def __init__(self, path: Path, name: str, values: object, expected: str) -> None:
        self.path, self.name = path, name
        if not isinstance(values, dict) or values.get(_CLASS) != expected:
            found = values.get(_CLASS) if isinstance(values, dict) else values
            raise CheckpointError(path, f"{name} is {found!r}; what is supported there is {_NEW}…{expected}")
        self.values: Mapping[str, Any] = values

    def size(self, field: str) -> int:
        value = self.values.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(self.path, f"{self.name}.{field} is {value!r}; it has to be a whole number above 0")
        return value

    def number(self, field: str, default: float) -> float:
        value = self.values.get(field, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise CheckpointError(self.path, f"{self.name}.{field} is {value!r}; it has to be a number above 0")
        return float(value)

    def require(self, **known: object) -> None:
        for field, value in known.items():
            if self.values.get(field, value) != value:
                problem = f"{self.name}.{field} is {self.values[field]!r}; only {value!r} is supported"
                raise CheckpointError(self.path, problem)


def read_flow_sizes(path: Path) -> FlowSizes:
    """Read `flow.yaml`.

    Raises:
        CheckpointError: the file is missing or broken, lacks a size, or describes parts that are not written here.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CheckpointError(path, f"is not understood: {error}") from error
    if not isinstance(content, dict) or "flow" not in content:
        raise CheckpointError(path, "has no entry `flow`, which describes the flow")
    flow = _Part(path, "flow", content["flow"], "CausalMaskedDiffWithXvec")
    encoder = _Part(path, "flow.encoder", flow.values.get("encoder"), "UpsampleConformerEncoderV2")
    decoder = _Part(path, "flow.decoder", flow.values.get("decoder"), "CausalConditionalCFM")
    estimator = _Part(path, "flow.decoder.estimator", decoder.values.get("estimator"), "DiT")
    flow.require(output_type="mel")
    encoder.require(
        input_layer="linear",
        pos_enc_layer_type="rel_pos_espnet",
        selfattention_layer_type="rel_selfattn",
        activation_type="swish",
        key_bias=True,
        normalize_before=True,
        up_scale_factor=encoder.size("up_stride"),
    )
    sizes = FlowSizes(
        codes=flow.size("vocab_size"),
        mel_bins=flow.size("output_size"),
        speaker=flow.size("spk_embed_dim"),
        guidance=decoder.number("inference_cfg_rate", 0.7),
        encoder=_encoder_sizes(encoder),
        estimator=_estimator_sizes(estimator),
    )
    if sizes.estimator.channels_in != 4 * sizes.mel_bins or sizes.estimator.channels_out != sizes.mel_bins:
        problem = (
            f"flow.decoder.estimator: in_channels has to be 4 times {sizes.mel_bins} (output_size), out_channels that"
        )
        raise CheckpointError(path, problem)
    return sizes


def _encoder_sizes(part: _Part) -> EncoderSizes:
    return EncoderSizes(
        width_in=part.size("input_size"),
        width=part.size("output_size"),
        heads=part.size("attention_heads"),
        inner=part.size("linear_units"),
        layers=part.size("num_blocks"),
        up_layers=part.size("num_up_blocks"),
        lookahead=part.size("pre_lookahead_len"),
        stride=part.size("up_stride"),
    )


def _estimator_sizes(part: _Part) -> EstimatorSizes:
    width = part.size("hidden_size")
    return EstimatorSizes(
        channels_in=part.size("in_channels"),
        channels_out=part.size("out_channels"),
        width=width,
        inner=int(width * part.number("mlp_ratio", 4.0)),
        heads=part.size("num_heads"),
        head=part.size("head_dim"),
        blocks=part.size("depth"),
    )
