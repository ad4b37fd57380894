"""Networks quantized by ai-edge-quantizer: integers, dynamic range, weights only, few bits, blocks; sparse weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, relative_l2, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from quantizer_cases import RECIPES, network_input, quantized_network

from litegpu.gpu.lower.constants import Unsupported, as_array
from litegpu.model import read_model, write_model
from litegpu.model.sparse import densified
from litegpu.model.types import Operator, Sparsity, Tensor, TensorType
from litegpu.model.writer import ModelBuilder

pytest.importorskip("ai_edge_quantizer")
#: Of elements that are whole numbers.
BITS = {TensorType.INT8: 8, TensorType.INT4: 4, TensorType.INT2: 2}
FLOAT_ACTIVATIONS = [name for name in RECIPES if not name.startswith("static")]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("recipe", ["static_wi8_ai8", "static_wi8_ai16"])
def test_quantized_activations(recipe: str, half: bool) -> None:
    """Eight operators, a quantum each at most; int16 in float16 has eleven bits."""
    require_gpu()
    content = quantized_network(recipe)
    cpu, gpu = official(content, OpResolverType.BUILTIN), on_gpu(content, precision_loss_allowed=half)
    assert gpu.delegation_report().fully_delegated
    detail = cpu.get_input_details()[0]
    scale, zero = detail["quantization"]
    x = np.rint(network_input(9) / scale) + zero
    limits = np.iinfo(detail["dtype"])
    inputs = [np.clip(x, limits.min, limits.max).astype(detail["dtype"])]
    got, want = (run(interpreter, inputs)[0].astype(np.float64) for interpreter in (gpu, cpu))
    if half and recipe == "static_wi8_ai16":
        assert relative_l2(got, want) <= FLOAT16
    else:
        assert np.abs(got - want).max() <= (8 if recipe == "static_wi8_ai16" else 1)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("recipe", FLOAT_ACTIVATIONS)
def test_quantized_weights_are_the_numbers_that_they_stand_for(recipe: str, half: bool) -> None:
    require_gpu()
    content = quantized_network(recipe)
    gpu = on_gpu(content, precision_loss_allowed=half)
    assert gpu.delegation_report().fully_delegated
    inputs = [network_input(9)]
    want = run(official(_widened(content)), inputs)[0]
    assert_agrees(run(gpu, inputs)[0], want, FLOAT16 if half else FLOAT32, recipe)


@pytest.mark.parametrize("recipe", ["dynamic_wi8_afp32", "dynamic_wi4_afp32", "dynamic_wi4b32_afp32"])
def test_dynamic_range_differs_from_the_cpu_by_its_quantizing_activations(recipe: str) -> None:
    require_gpu()
    content, inputs = quantized_network(recipe), [network_input(9)]
    got, want = run(on_gpu(content), inputs)[0], run(official(content, OpResolverType.BUILTIN), inputs)[0]
    assert relative_l2(got, want) <= 2e-2


def _widened(content: bytes) -> bytes:
    """The model with its quantized constants as float32, and nothing left to dequantize."""
    model = read_model(content)
    main = model.main
    tensors = list(main.tensors)
    operators: list[Operator] = []
    for o in main.operators:
        if o.name == "DEQUANTIZE":
            source, target = (tensors[i[0]] for i in (o.inputs, o.outputs))
            real = _real(source, main.tensors)
            tensors[target.index] = dataclasses.replace(target, data=real, buffer=source.buffer)
        else:
            operators.append(dataclasses.replace(o, version=1, index=len(operators)))
    for t in main.tensors:
        if t.data is not None and (t.type in BITS or t.type is TensorType.FLOAT16):
            tensors[t.index] = dataclasses.replace(
                t, type=TensorType.FLOAT32, data=_real(t, main.tensors), quantization=None
            )
    main = dataclasses.replace(main, tensors=tuple(tensors), operators=tuple(operators))
    return write_model(dataclasses.replace(model, subgraphs=(main,)))


def _real(tensor: Tensor, tensors: tuple[Tensor, ...]) -> np.ndarray:
    """scale * q, element by element; a half as it is."""
    if tensor.type is TensorType.FLOAT16:
        assert tensor.data is not None
        return tensor.data.astype(np.float32)
    bits, q = BITS[tensor.type], tensor.quantization
    assert tensor.data is not None and q is not None
    stored = tensor.data.reshape(-1).view(np.uint8)
    numbers = []
    for i in range(int(np.prod(tensor.shape))):
        n = int(stored[i * bits // 8]) >> (i * bits % 8) & ((1 << bits) - 1)
        numbers.append(n - (1 << bits) if n >> (bits - 1) else n)
    array = np.array(numbers, np.float32).reshape(tensor.shape)
    if q.block_size:
        scales = tensors[q.scales_tensor].data
        assert scales is not None
        return array * np.repeat(scales.reshape(tensor.shape[0], -1), q.block_size, axis=1).astype(np.float32)
    along = [-1 if i == q.dimension else 1 for i in range(array.ndim)]
    return array * (q.scales.reshape(along) if q.scales.size > 1 else q.scales[0])


def test_blocks_without_scales_are_refused() -> None:
    tensor = next(t for t in read_model(quantized_network("dynamic_wi4b32_afp32")).main.tensors
                  if t.quantization is not None and t.quantization.block_size)  # fmt: skip
    for decode in (True, False):
        with pytest.raises(Unsupported, match="blocks of 32"):
            as_array(tensor, decode=decode)


# ---------------------------------------------------------------------------------------------------- sparse


def sparse(dense: np.ndarray, block: tuple[int, int] | None = None) -> tuple[np.ndarray, Sparsity]:
    """The stored values of a matrix and their encoding: rows dense, columns compressed, dense blocks of that size."""
    bh, bw = block or (1, 1)
    rows, columns = dense.shape[0] // bh, dense.shape[1] // bw
    tiles = dense.reshape(rows, bh, columns, bw).transpose(0, 2, 1, 3)
    values: list[np.ndarray] = []
    segments, indices = [0], list[int]()
    for r in range(rows):
        for c in range(columns):
            if tiles[r, c].any():
                values.append(tiles[r, c].reshape(-1))
                indices.append(c)
        segments.append(len(indices))
    levels = [("dense", rows), ("csr", np.array(segments, np.int32), np.array(indices, np.int32))]
    order, block_map = [0, 1], []
    if block is not None:
        levels += [("dense", bh), ("dense", bw)]
        order, block_map = [0, 1, 2, 3], [0, 1]
    return np.concatenate(values), Sparsity(tuple(order), tuple(block_map), tuple(levels))


@pytest.mark.parametrize("block", [None, (1, 4), (2, 2)])
def test_sparse_weights_are_densified(block: tuple[int, int] | None) -> None:
    rng = np.random.default_rng(3)
    mask = np.kron(rng.random((4, 3)) < 0.5, np.ones((2, 4)))
    dense = (rng.standard_normal((8, 12)) * mask).astype(np.float32)
    dense[0, 0] = 1
    values, sparsity = sparse(dense, block)
    b = ModelBuilder()
    x = b.input("x", (2, 12))
    w = b.constant(values, sparsity=sparsity, shape=(8, 12))
    dense_w = b.op("DENSIFY", [b.constant(values, sparsity=sparsity, shape=(8, 12))], (8, 12))
    b.output(b.op("FULLY_CONNECTED", [x, w, None], (2, 8)), b.op("FULLY_CONNECTED", [x, dense_w, None], (2, 8)))
    content = b.build()
    np.testing.assert_array_equal(densified(read_model(content).main.tensors[w]), dense)
    require_gpu()
    gpu = on_gpu(content)
    assert gpu.delegation_report().fully_delegated
    given = rng.standard_normal((2, 12)).astype(np.float32)
    for got in run(gpu, [given]):
        assert_agrees(got, given @ dense.T, FLOAT32)
