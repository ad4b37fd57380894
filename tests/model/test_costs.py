"""Operations and bytes of operators, counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batch_networks import CONV, Network

from litegpu.model import ModelBuilder, TensorType, read_model
from litegpu.model.costs import OpCost, op_costs
from litegpu.model.ops import BUILTIN, CUSTOM
from litegpu.model.types import Quantization


def costs(b: ModelBuilder, **inputs: tuple[int, ...]) -> list[OpCost]:
    main = read_model(b.build()).main
    by_name = {main.tensors[i].name: i for i in main.inputs}
    return list(op_costs(main, {by_name[name]: shape for name, shape in inputs.items()}))


def test_a_convolution_multiplies_and_adds() -> None:
    b = Network()
    x = b.input("x", (1, 8, 8, 3))
    y = b.op("CONV_2D", [x, b.weights(16, 3, 3, 3), b.weights(16)], (1, 8, 8, 16), CONV)
    options = {**CONV, "depth_multiplier": 1}
    b.output(b.op("DEPTHWISE_CONV_2D", [y, b.weights(1, 5, 5, 16), b.weights(16)], (1, 8, 8, 16), options))
    first, second = costs(b)
    assert first == OpCost(2 * 8 * 8 * 16 * 27, 4 * (8 * 8 * 3 + 16 * 27 + 16), 4 * 8 * 8 * 16)
    assert second.flops == 2 * 8 * 8 * 16 * 25
    assert second.bytes == 4 * (2 * 8 * 8 * 16 + 25 * 16 + 16)
    larger = costs(b, x=(4, 8, 8, 3))
    assert [cost.flops for cost in larger] == [4 * first.flops, 4 * second.flops]
    assert larger[0].read - first.read == 4 * 3 * 8 * 8 * 3, "weights are read once for any batch"


def test_a_matrix_product_multiplies_and_adds() -> None:
    b = Network()
    x = b.input("x", (5, 7))
    b.output(b.op("FULLY_CONNECTED", [x, b.weights(3, 7), b.weights(3)], (5, 3)))
    assert costs(b)[0] == OpCost(2 * 5 * 7 * 3, 4 * (5 * 7 + 3 * 7 + 3), 4 * 5 * 3)


def test_what_moves_elements_computes_nothing_and_reads_what_it_writes() -> None:
    b = Network()
    x = b.input("x", (1, 100, 8))
    y = b.op("SLICE", [x, b.sizes([0, 0, 0]), b.sizes([1, 10, 8])], (1, 10, 8))
    b.output(b.reshape(y, 1, 80))
    cut, shaped = costs(b)
    assert cut == OpCost(0, 4 * 80 + 2 * 12, 4 * 80)
    assert shaped == OpCost(0, 0, 0), "another shape for what lies there"


def test_elementwise_work_counts_the_larger_of_data_and_results() -> None:
    b = Network()
    x = b.input("x", (1, 4, 4, 8))
    y = b.op("ADD", [x, b.weights(8)], (1, 4, 4, 8))
    b.output(b.op("MEAN", [y, b.sizes([1, 2])], (1, 8), {"keep_dims": False}))
    add, mean = costs(b)
    assert add == OpCost(128, 4 * 136, 4 * 128)
    assert mean == OpCost(128, 4 * 128 + 8, 4 * 8)


def test_windows_count_each_element_they_look_at() -> None:
    b = Network()
    x = b.input("x", (1, 8, 8, 4))
    window = {"filter_height": 2, "filter_width": 2, "stride_h": 2, "stride_w": 2, "padding": "VALID"}
    b.output(b.op("MAX_POOL_2D", [x], (1, 4, 4, 4), window))
    assert costs(b)[0].flops == 4 * 4 * 4 * 4


def test_a_recurrent_layer_multiplies_with_its_matrices_at_each_step() -> None:
    full, basic = BUILTIN["UNIDIRECTIONAL_SEQUENCE_LSTM"].work, BUILTIN["LSTM"].work
    pair = BUILTIN["SVDF"].work
    assert full is not None and basic is not None and pair is not None
    layer = [*[(5, 3)] * 4, *[(5, 5)] * 4, *[(5,)] * 4, (2, 5), (2, 5)]
    assert full({}, [(2, 7, 3), *layer], 70) == 2 * 7 * (4 * 15 + 4 * 25)
    assert basic({}, [(2, 3), *layer], 10) == 2 * (4 * 15 + 4 * 25)
    assert basic({}, [(2, 3), (2, 5), (20, 8), (20,), (2, 5)], 10) == 2 * 20 * 8
    assert pair({}, [(2, 3), (5, 3), (5, 9), (2, 45)], 10) == 2 * (15 + 45)


def test_bytes_are_those_of_the_types() -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 10), TensorType.INT8, quantization=Quantization(np.array([0.5], np.float32), np.array([0])))
    b.output(b.op("DEQUANTIZE", [x], (1, 10)))
    assert costs(b)[0] == OpCost(10, 10, 40)
    assert [t.nbytes for t in (TensorType.FLOAT32, TensorType.INT64, TensorType.FLOAT16, TensorType.BOOL)] == [
        4, 8, 2, 1,
    ]  # fmt: skip


def test_constants_count_as_they_lie_in_the_file() -> None:
    b = Network()
    x = b.input("x", (1, 6))
    table = b.constant(np.arange(6, dtype=np.float16))
    b.output(b.op("ADD", [x, b.op("DEQUANTIZE", [table], (6,))], (1, 6)))
    assert costs(b)[0].read == 12


def test_entries_agree_on_what_computes() -> None:
    for op in (*BUILTIN.values(), *CUSTOM.values()):
        assert not (op.moves and op.work), f"{op.name} moves elements and has work"
        assert not op.multiplies or op.work is not None, f"{op.name} multiplies, without a rule for how often"
        assert not op.calls or op.moves, f"{op.name} calls others, which are not counted"


def test_a_known_network(models_dir: Path) -> None:
    """MobileNet v1 has 569 million multiplications (arXiv:1704.04861, table 4)."""
    total = sum(cost.flops for cost in op_costs(read_model(models_dir / "mobilenet_v1_1.0_224_random.tflite").main))
    assert total / 2 == pytest.approx(569e6, rel=0.01)
