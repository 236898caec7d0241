"""Payloads: tensors travel beside the encoding, nothing is pickled, and what is of another type is named."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_core.stages import StageSpec
from duplex_core.tensors import ITEM_BYTES, Tensor
from duplex_server.engine.stages.loading import StageLoadError
from duplex_server.engine.stages.processes.framing import Buffer
from duplex_server.engine.stages.processes.payloads import PayloadError, Payloads


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    """Checks itself when it is made."""

    tensor: Tensor
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, Tensor):
            raise TypeError("a tensor is wanted")


class Rich(msgspec.Struct, frozen=True, kw_only=True, tag="rich"):
    """Tensors wherever they may stand."""

    one: Tensor | None = None
    many: tuple[Tensor, ...] = ()
    listed: list[Inner] = []
    named: dict[str, Tensor] = {}
    pcm: bytes = b""
    number: float = 0.0


class Plain(msgspec.Struct, frozen=True, kw_only=True, tag="plain"):
    """No tensors."""

    text: str


Kind = Rich | Plain
PATH = f"{__name__}:Kind"


def made() -> Payloads:
    return Payloads(StageSpec(name="work", factory="-", payloads=PATH))


@pytest.fixture
def payloads() -> Payloads:
    return made()


def there_and_back(payloads: Payloads, payload: Any) -> Any:
    buffers: list[Buffer] = []
    encoded = payloads.encode(payload, buffers)
    return payloads.decode(encoded, [bytearray(each) for each in buffers])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = ITEM_BYTES[dtype] * int(np.prod(shape, dtype=int))
    data = draw(st.binary(min_size=size, max_size=size))
    kind = draw(st.sampled_from([bytes, bytearray, memoryview]))
    return Tensor(dtype=dtype, shape=shape, data=kind(data))


RICH = st.builds(
    Rich,
    one=st.none() | tensors(),
    many=st.lists(tensors(), max_size=3).map(tuple),
    listed=st.lists(st.builds(Inner, tensor=tensors(), name=st.text(max_size=5)), max_size=3),
    named=st.dictionaries(st.text(max_size=5), tensors(), max_size=3),
    pcm=st.binary(max_size=20),
    number=st.floats(allow_nan=False),
)


@given(payload=st.none() | RICH | st.builds(Plain, text=st.text(max_size=20)))
def test_a_payload_comes_back_as_it_was(payload: Any) -> None:
    assert there_and_back(made(), payload) == payload


def test_a_tensors_bytes_stay_out_of_the_encoding_and_are_not_copied(payloads: Payloads) -> None:
    samples = np.arange(50_000, dtype=np.float32)
    tensor = Tensor(dtype="float32", shape=(50_000,), data=samples.data)
    buffers: list[Buffer] = []
    encoded = payloads.encode(Rich(one=tensor, listed=[Inner(tensor=tensor)]), buffers)
    assert len(memoryview(encoded)) < 300
    assert [np.shares_memory(np.asarray(each), samples) for each in buffers] == [True, True]


def test_a_received_tensor_lies_in_what_was_received_and_may_be_written_to(payloads: Payloads) -> None:
    received = bytearray(b"\0" * 8)
    tensor = Tensor(dtype="float32", shape=(2,), data=b"\0" * 8)
    back = payloads.decode(payloads.encode(Rich(one=tensor), []), [received])
    np.asarray(back.one)[:] = 1.0
    assert received == np.ones(2, np.float32).tobytes()


def test_what_is_not_contiguous_is_sent_in_row_major_order(payloads: Payloads) -> None:
    turned = np.arange(6, dtype=np.int32).reshape(2, 3).T
    back = there_and_back(payloads, Rich(one=Tensor(dtype="int32", shape=(3, 2), data=turned.data)))
    assert np.asarray(back.one).tolist() == turned.tolist()


def test_an_array_in_a_tensors_place_is_told_what_to_do(payloads: Payloads) -> None:
    with pytest.raises(PayloadError, match=r"holds a numpy\.ndarray; make it a duplex_core\.tensors\.Tensor"):
        payloads.encode({"one": np.zeros(2)}, [])


@pytest.mark.parametrize("wrong", [object(), lambda: None, {"x": {object()}}])
def test_what_would_need_a_pickle_is_refused(payloads: Payloads, wrong: Any) -> None:
    with pytest.raises(PayloadError, match="cannot be sent"):
        payloads.encode(wrong, [])


def test_another_type_is_named_where_it_arrives(payloads: Payloads) -> None:
    encoded = payloads.encode({"type": "plain", "text": 7}, [])
    with pytest.raises(PayloadError, match=r"Expected `str`, got `int` - at `\$\.text`"):
        payloads.decode(encoded, [])


def test_a_tensor_whose_bytes_do_not_fit_is_refused_where_it_arrives(payloads: Payloads) -> None:
    encoded = payloads.encode(Rich(one=Tensor(dtype="float32", shape=(2,), data=b"\0" * 8)), [])
    for received in ([], [bytearray(7)]):
        with pytest.raises(PayloadError):
            payloads.decode(encoded, received)


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("", "set payloads to the import path of a type"),
        ("nonsense", "must look like"),
        ("no_such_package:Type", "cannot be imported"),
        ("os:getcwd", "cannot be sent: TypeError"),
        ("threading:Thread", "cannot be sent: it is no Struct"),
    ],
)
def test_a_type_that_does_not_do_is_named(path: str, match: str) -> None:
    with pytest.raises(StageLoadError, match=match):
        Payloads(StageSpec(name="work", factory="-", payloads=path))
