"""What an ML program computes, in NumPy: by the words of MIL's reference, independently of litegpu's translations.

It has the operations that the Core ML delegate's programs consist of after coremltools' passes, and computes with them
in the precision that the program has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Arguments = dict[str, Any]


class MilModel:
    """In place of an MLModel on a Mac: has its predict()."""

    def __init__(self, model: Any) -> None:
        self.function = model._mil_program.functions["main"]

    def predict(self, given: Mapping[str, Array]) -> dict[str, Array]:
        assert set(given) == set(self.function.inputs)
        for name, variable in self.function.inputs.items():
            assert given[name].shape == tuple(variable.shape) and given[name].dtype == np.float32
        return evaluate(self.function, given)


def evaluate(function: Any, given: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a function, by their names."""
    known: dict[Any, Any] = {variable: given[name] for name, variable in function.inputs.items()}

    def value(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [value(a) for a in argument]
        return known[argument] if argument in known else argument.val  # noqa: SIM401 - .val warns of what is none

    for operation in function.operations:
        if operation.op_type == "const":
            continue
        arguments = {n: value(a) for n, a in operation.inputs.items() if a is not None}
        with np.errstate(all="ignore"):
            results = OPERATIONS[operation.op_type](arguments)
        results = results if isinstance(results, list) else [results]
        for variable, result in zip(operation.outputs, results, strict=True):
            result = np.asarray(result)
            assert result.shape == tuple(variable.shape), (operation.op_type, result.shape, variable.shape)
            known[variable] = result
    return {variable.name: value(variable) for variable in function.outputs}


def _same(x: Array, of: Array) -> Array:
    return np.asarray(x, of.dtype)


def _unary(function: Callable[[Array], Array]) -> Callable[[Arguments], Array]:
    return lambda a: _same(function(a["x"]), a["x"])


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[Arguments], Array]:
    return lambda a: _same(function(a["x"], a["y"]), np.result_type(a["x"], a["y"]).type(0))


def _reduction(function: Callable[..., Array]) -> Callable[[Arguments], Array]:
    def reduce(a: Arguments) -> Array:
        axes = tuple(int(n) for n in a["axes"]) if "axes" in a else None
        return _same(function(a["x"], axis=axes, keepdims=bool(a.get("keep_dims", False))), a["x"])

    return reduce


def _softmax(a: Arguments) -> Array:
    raised = np.exp(a["x"] - a["x"].max(int(a["axis"]), keepdims=True))
    return raised / raised.sum(int(a["axis"]), keepdims=True)


def _gelu(a: Arguments) -> Array:
    x = a["x"].astype(np.float64)
    if str(a.get("mode", "EXACT")) == "EXACT":
        return _same(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), a["x"])
    return _same(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), a["x"])


def _windows(x: Array, a: Arguments, kernel: tuple[int, int], fill: float) -> Array:
    """[n, c, output height, output width, kernel height, kernel width] of an image, padded before and after."""
    assert str(a["pad_type"]) == "custom"
    pad = [int(n) for n in a["pad"]]
    dilations = [int(n) for n in a.get("dilations", (1, 1))]
    strides = [int(n) for n in a.get("strides", (1, 1))]
    assert not a.get("ceil_mode", False)
    x = np.pad(x, ((0, 0), (0, 0), (pad[0], pad[1]), (pad[2], pad[3])), constant_values=fill)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]


def _conv(a: Arguments) -> Array:
    x, weight, groups = a["x"], a["weight"], int(a.get("groups", 1))
    outputs, _, *kernel = weight.shape
    windows = _windows(x, a, (kernel[0], kernel[1]), 0)
    parts = [
        np.einsum("nchwij,ocij->nohw", w.astype(np.float64), k.astype(np.float64))
        for w, k in zip(np.split(windows, groups, 1), np.split(weight, groups, 0), strict=True)
    ]
    made = np.concatenate(parts, 1)
    return _same(made + a["bias"].reshape(1, outputs, 1, 1) if "bias" in a else made, x)


def _conv_transpose(a: Arguments) -> Array:
    """Each element adds its product with the weights [input, output, height, width] where its window lies."""
    x, weight = a["x"].astype(np.float64), a["weight"].astype(np.float64)
    assert int(a.get("groups", 1)) == 1 and str(a["pad_type"]) == "custom"
    assert all(d == 1 for d in a.get("dilations", (1, 1)))
    (sh, sw), (kh, kw) = (int(s) for s in a["strides"]), weight.shape[2:]
    n, _, h, w = x.shape
    made = np.zeros((n, weight.shape[1], (h - 1) * sh + kh, (w - 1) * sw + kw))
    for i in range(h):
        for j in range(w):
            made[:, :, i * sh : i * sh + kh, j * sw : j * sw + kw] += np.einsum("nc,coij->noij", x[:, :, i, j], weight)
    top, bottom, left, right = (int(p) for p in a["pad"])
    made = made[:, :, top : made.shape[2] - bottom, left : made.shape[3] - right]
    assert made.shape == tuple(a.get("output_shape", made.shape))
    return _same(made + a["bias"].reshape(1, -1, 1, 1) if "bias" in a else made, a["x"])


def _kernel(a: Arguments) -> tuple[int, int]:
    height, width = (int(n) for n in a["kernel_sizes"])
    return height, width


def _avg_pool(a: Arguments) -> Array:
    total = _windows(a["x"], a, _kernel(a), 0).sum((4, 5), dtype=np.float64)
    if not a.get("exclude_padding_from_average", False):
        return _same(total / math.prod(_kernel(a)), a["x"])
    return _same(total / _windows(np.ones_like(a["x"]), a, _kernel(a), 0).sum((4, 5)), a["x"])


def _bilinear(a: Arguments) -> Array:
    """By the grid points that the reference gives for each sampling mode."""
    x, mode = a["x"], str(a["sampling_mode"])
    for axis, output in ((2, int(a["target_size_height"])), (3, int(a["target_size_width"]))):
        size, i = x.shape[axis], np.arange(output, dtype=np.float64)
        if mode == "STRICT_ALIGN_CORNERS":
            grid = i * ((size - 1) / (output - 1) if output > 1 else 0)
        elif mode == "DEFAULT":
            grid = i * ((size - size / output) / (output - 1) if output > 1 else 0)
        else:
            assert mode == "UNALIGN_CORNERS"
            grid = i * (size / output) + 0.5 * (size / output) - 0.5
        grid = np.clip(grid, 0, size - 1)
        low = np.floor(grid).astype(int)
        high, part = np.minimum(low + 1, size - 1), (grid - low).astype(x.dtype)
        part = part.reshape([-1 if k == axis else 1 for k in range(4)])
        x = x.take(low, axis) * (1 - part) + x.take(high, axis) * part
    return _same(x, a["x"])


def _upsample(a: Arguments) -> Array:
    return a["x"].repeat(int(a["scale_factor_height"]), 2).repeat(int(a["scale_factor_width"]), 3)


def _slice_by_index(a: Arguments) -> Array:
    places: list[Any] = []
    count = a["x"].ndim
    ends = a.get("end_mask", [False] * count)
    begins = a.get("begin_mask", [False] * count)
    assert not any(a.get("squeeze_mask", [False]))
    for k in range(count):
        step = int(a["stride"][k]) if "stride" in a else 1
        begin, end = int(a["begin"][k]), int(a["end"][k])
        places.append(slice(None if begins[k] else begin, None if ends[k] else end, step))
    return a["x"][tuple(places)]


def _pad(a: Arguments) -> Array:
    """Of the last axes, as many as there are pairs."""
    pairs = [(int(before), int(after)) for before, after in np.reshape(a["pad"], (-1, 2))]
    pairs = [(0, 0)] * (a["x"].ndim - len(pairs)) + pairs
    if str(a.get("mode", "constant")) == "reflect":
        assert not any(map(any, pairs[:-2]))
        return np.pad(a["x"], pairs, mode="reflect")
    assert str(a.get("mode", "constant")) == "constant"
    return np.pad(a["x"], pairs, constant_values=a.get("constant_val", 0))


def _split(a: Arguments) -> list[Array]:
    axis = int(a["axis"])
    if "split_sizes" in a:
        return np.split(a["x"], np.cumsum(a["split_sizes"])[:-1], axis)
    return np.split(a["x"], int(a["num_splits"]), axis)


def _matmul(a: Arguments) -> Array:
    def turned(x: Array, turn: bool) -> Array:
        return np.swapaxes(x, -1, -2) if turn else x

    return np.matmul(turned(a["x"], a.get("transpose_x", False)), turned(a["y"], a.get("transpose_y", False)))


def _linear(a: Arguments) -> Array:
    return _same(a["x"] @ a["weight"].T + a.get("bias", np.float32(0)), a["x"])


def _space_to_depth(a: Arguments) -> Array:
    """A block's elements, row by row, become groups of channels."""
    block, (n, c, h, w) = int(a["block_size"]), a["x"].shape
    x = a["x"].reshape(n, c, h // block, block, w // block, block)
    return x.transpose(0, 3, 5, 1, 2, 4).reshape(n, -1, h // block, w // block)


def _depth_to_space(a: Arguments) -> Array:
    block, (n, _, h, w) = int(a["block_size"]), a["x"].shape
    x = a["x"].reshape(n, block, block, -1, h, w)
    return x.transpose(0, 3, 4, 1, 5, 2).reshape(n, -1, h * block, w * block)


def _cumsum(a: Arguments) -> Array:
    axis, x = int(a.get("axis", 0)), a["x"]
    x = np.flip(x, axis) if a.get("reverse", False) else x
    total = np.cumsum(x, axis)
    total = total - x if a.get("exclusive", False) else total
    return _same(np.flip(total, axis) if a.get("reverse", False) else total, a["x"])


def _l2_norm(x: Array, axis: Any, keepdims: bool) -> Array:
    return np.sqrt(np.square(x).sum(axis, keepdims=keepdims))


def _log_sum_exp(x: Array, axis: Any, keepdims: bool) -> Array:
    top = x.max(axis, keepdims=True)
    total = np.log(np.exp(x - top).sum(axis, keepdims=True)) + top
    return total if keepdims else total.squeeze(axis)


def _clip(a: Arguments) -> Array:
    return np.clip(a["x"], a["alpha"], a["beta"])


def _prelu(a: Arguments) -> Array:
    alpha = a["alpha"].reshape((-1,) + (1,) * (a["x"].ndim - 2))
    return np.where(a["x"] > 0, a["x"], a["x"] * alpha)


OPERATIONS: dict[str, Callable[[Arguments], Any]] = {
    "identity": lambda a: a["x"],
    "cast": lambda a: a["x"].astype({"fp16": np.float16, "fp32": np.float32, "int32": np.int32}[str(a["dtype"])]),
    **{
        name: _unary(getattr(np, name))
        for name in ("abs", "cos", "sin", "exp", "floor", "ceil", "sqrt", "sign", "tanh")
    },
    "round": _unary(np.rint),
    "square": _unary(np.square),
    "sigmoid": _unary(lambda x: 1 / (1 + np.exp(-x))),
    "relu": _unary(lambda x: np.maximum(x, 0)),
    "relu6": _unary(lambda x: np.clip(x, 0, 6)),
    "log": lambda a: np.log(a["x"] + a["epsilon"]),
    "rsqrt": lambda a: _same(1 / np.sqrt(a["x"] + a["epsilon"]), a["x"]),
    "leaky_relu": lambda a: np.where(a["x"] >= 0, a["x"], a["x"] * a["alpha"]),
    "elu": lambda a: np.where(a["x"] >= 0, a["x"], a["alpha"] * np.expm1(a["x"])),
    "gelu": _gelu,
    "prelu": _prelu,
    "clip": _clip,
    "sigmoid_hard": lambda a: np.clip(a["alpha"] * a["x"] + a["beta"], 0, 1),
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "real_div": _binary(np.divide),
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "pow": _binary(np.power),
    "floor_div": _binary(np.floor_divide),
    "mod": _binary(np.mod),
    "softmax": _softmax,
    "reduce_mean": _reduction(np.mean),
    "reduce_sum": _reduction(np.sum),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_prod": _reduction(np.prod),
    "reduce_l2_norm": _reduction(_l2_norm),
    "reduce_log_sum_exp": _reduction(_log_sum_exp),
    "cumsum": _cumsum,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "avg_pool": _avg_pool,
    "max_pool": lambda a: _windows(a["x"], a, _kernel(a), -np.inf).max((4, 5)),
    "resize_bilinear": _bilinear,
    "upsample_nearest_neighbor": _upsample,
    "reshape": lambda a: a["x"].reshape([int(n) for n in a["shape"]]),
    "expand_dims": lambda a: np.expand_dims(a["x"], tuple(int(n) for n in a["axes"])),
    "squeeze": lambda a: np.squeeze(a["x"], tuple(int(n) for n in a["axes"])),
    "transpose": lambda a: a["x"].transpose([int(n) for n in a["perm"]]),
    "concat": lambda a: np.concatenate(a["values"], int(a["axis"])),
    "stack": lambda a: np.stack(a["values"], int(a["axis"])),
    "split": _split,
    "slice_by_index": _slice_by_index,
    "pad": _pad,
    "tile": lambda a: np.tile(a["x"], [int(n) for n in a["reps"]]),
    "reverse": lambda a: np.flip(a["x"], tuple(int(n) for n in a["axes"])),
    "gather": lambda a: np.take(a["x"], a["indices"], int(a["axis"])),
    "space_to_depth": _space_to_depth,
    "depth_to_space": _depth_to_space,
    "matmul": _matmul,
    "linear": _linear,
}
