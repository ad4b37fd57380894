"""What byte_bands.cu computes, against NumPy: every element equal."""

from __future__ import annotations

import numpy as np
import pytest
from byte_network import whole_network
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import byte_bands, byte_inverted
from litegpu.gpu.backends.cuda.kernels.byte_bands import BandBlock
from litegpu.gpu.backends.cuda.kernels.inverted_cost import InvertedShape
from litegpu.gpu.backends.cuda.passes import inverted as passes
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import DType, Graph, IntegerDepthwiseConv2D


@pytest.fixture(autouse=True)
def _always(monkeypatch) -> None:
    """Join all three, by this kernel."""
    monkeypatch.setattr(passes, "_quickest", lambda graph, some, last, features: [*some, last] if last else some)
    monkeypatch.setattr(byte_inverted, "ranked", lambda *_: ())


def check(device, graph: Graph, x: np.ndarray) -> None:
    (want,) = evaluate_graph(graph, [x])
    assert np.unique(want).size > 20
    program = build_program(graph, device.features, "cuda", half=True)
    assert [k.name for k in program.kernels] == ["byte_bands"]
    np.testing.assert_array_equal(first_output(device, program, [x], want.shape, x.dtype.type), want)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("shape, channels, outputs, stride, taps", [
    ((2, 7, 7, 16), 128, 32, (1, 1), (3, 3)), ((1, 14, 14, 24), 96, 24, (1, 1), (3, 3)),
    ((2, 9, 8, 40), 150, 36, (2, 2), (3, 3)), ((1, 7, 7, 12), 72, 60, (1, 1), (5, 5)),
    ((1, 10, 12, 32), 80, 20, (2, 1), (3, 5)), ((3, 5, 6, 7), 64, 16, (1, 2), (3, 3)),
])  # fmt: skip
def test_bands(device, monkeypatch, shape, channels, outputs: int, stride, taps, dtype: DType) -> None:
    op = IntegerDepthwiseConv2D(stride, (1, 1), (taps[0] // 2, taps[1] // 2))
    graph, x = whole_network(
        shape, channels, op, taps=taps, outputs=outputs, dtype=dtype, residual=outputs == shape[3], seed=taps[0]
    )
    usual, seen = byte_bands.ranked, {}

    def all_of(*args) -> tuple[BandBlock, ...]:
        for block in usual(*args):
            seen.setdefault((block.split, block.y, block.rows, block.fold(args[0])), []).append(block)
        return usual(*args)

    monkeypatch.setattr(byte_bands, "ranked", all_of)
    build_program(graph, device.features, "cuda", half=True)
    assert seen
    for i, group in enumerate(list(seen.values())):
        block = group[i * 7 % len(group)]
        monkeypatch.setattr(byte_bands, "ranked", lambda *_, block=block: (block,))
        try:
            check(device, graph, x)
        except Exception as error:
            raise AssertionError(f"{block}: {error}") from error
