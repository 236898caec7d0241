"""Writes stand-ins for the two ONNX files that read a reference voice: same names, same inputs and outputs, made-up contents.

Owns: those two. Called by: tests, beside `model_minicpmo.testing.checkpoint`. Never: pretends to hear anything: a
code depends on the frames that it stands for, and that is all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TOKENIZER_FILE = "speech_tokenizer_v2_25hz.onnx"
SPEAKER_FILE = "campplus.onnx"
_SPEECH_BINS, _SPEAKER_BINS, _SPEAKER = 128, 80, 192
_FRAMES_A_CODE = 4
_OPSET = 17


def write_voice_models(folder: Path, *, codes: int, seed: int = 0) -> None:
    """Write the speech tokenizer and the speaker model.

    Args:
        folder: `assets/token2wav` of a checkpoint; it is made if it is not there.
        codes: how many audio codes there are.
        seed: another seed gives other models.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    onnx.save(_tokenizer(generator, codes), str(folder / TOKENIZER_FILE))
    onnx.save(_speaker(generator), str(folder / SPEAKER_FILE))


def _tokenizer(generator: np.random.Generator, codes: int) -> onnx.ModelProto:
    """Four frames [1, 128, T] make one code [1, ceil(T / 4)]: a projection, spread out, modulo the codes."""
    kernel = generator.standard_normal((1, _SPEECH_BINS, _FRAMES_A_CODE)).astype(np.float32)
    nodes = [
        helper.make_node(
            "Conv", ["feats", "kernel"], ["drawn"], strides=[_FRAMES_A_CODE], pads=[0, _FRAMES_A_CODE - 1]
        ),
        helper.make_node("Abs", ["drawn"], ["positive"]),
        helper.make_node("Mul", ["positive", "spread"], ["spread_out"]),
        helper.make_node("Cast", ["spread_out"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mod", ["whole", "codes"], ["code"]),
        helper.make_node("Squeeze", ["code", "axis"], ["row"]),
        helper.make_node("Cast", ["row"], ["indices"], to=TensorProto.INT32),
    ]
    constants: dict[str, NDArray[np.generic]] = {
        "kernel": kernel,
        "spread": np.array(97.0, dtype=np.float32),
        "codes": np.array(codes, dtype=np.int64),
        "axis": np.array([1], dtype=np.int64),
    }
    return _model(
        nodes,
        inputs=[
            helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, _SPEECH_BINS, "frames"]),
            helper.make_tensor_value_info("feats_length", TensorProto.INT32, [1]),
        ],
        output=helper.make_tensor_value_info("indices", TensorProto.INT32, [1, "codes"]),
        constants=constants,
    )


def _speaker(generator: np.random.Generator) -> onnx.ModelProto:
    """The mean of squared frames [1, T, 80], projected to [1, 192]: the frames themselves have no mean."""
    matrix = generator.standard_normal((_SPEAKER_BINS, _SPEAKER)).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["input", "input"], ["squared"]),
        helper.make_node("ReduceMean", ["squared"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "matrix"], ["output"]),
    ]
    return _model(
        nodes,
        inputs=[helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, "frames", _SPEAKER_BINS])],
        output=helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, _SPEAKER]),
        constants={"matrix": matrix},
    )


def _model(
    nodes: list[onnx.NodeProto],
    *,
    inputs: list[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    constants: dict[str, NDArray[np.generic]],
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "stand-in", inputs, [output], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    return model
