"""Quantized networks at random, as converters write them: layers, branches that are joined, functions, resizes, heads;
inputs and outputs of bytes or floats."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import numpy as np
from quantized_networks import STYLES, WORDS, Net, Style, quantize

from litegpu.model.builder import quantized
from litegpu.model.serialize import write_model
from litegpu.model.types import Model, Operator, Tensor, TensorType
from litegpu.zoo.network import NetworkTensor as X

#: What the file takes and gives: bytes as inside, bytes of the other sign, or floats.
ENDS = ("same", "other", "float")
_FUNCTIONS = ("RELU", "RELU6", "HARD_SWISH", "LOGISTIC", "TANH", "SWISH", "HARD_SIGMOID", "GELU")
#: The official runtime has none of UINT8.
_SIGNED = ("ABS", "NEG", "ELU")


class Wild(Net):
    """A network that grows at random. `signed`: its tensors are INT8. `wide`: they are INT16."""

    def __init__(self, seed: str, signed: bool, wide: bool = False) -> None:
        super().__init__(seed, seed=random.Random(seed).getrandbits(32))
        self.r, self.signed, self.wide = random.Random(seed), signed, wide

    # ----------------------------------------------------------------------------------------- pictures

    def grow(self, x: X) -> X:
        steps: list[Callable[[X], X]] = [
            self.layer, self.layer, self.layer, self.residual, self.function, self.branches, self.pooled, self.gated,
            self.resized, self.padded, self.moved, self.affine, self.pairwise, self.parted, self.wider, self.chosen,
            self.normalized,
        ]  # fmt: skip
        if self.wide:
            steps = [self.layer, self.layer, self.residual, self.function, self.branches, self.pooled, self.resized]
        for _ in range(self.r.randint(4, 9)):
            x = self.r.choice(steps)(x)
        return x

    def layer(self, x: X, stride: int | None = None, filters: int = 0) -> X:
        r, side = self.r, min(x.sample.shape[1:3])
        kernel = r.choice([k for k in (1, 1, 3, 3, 5) if k <= side])
        stride = r.choice((1, 1, 1, 2) if side > 8 else (1,)) if stride is None else stride
        dilation = r.choice((1, 1, 1, 2)) if stride == 1 and 2 * kernel - 1 <= side else 1
        fused = r.choice(("NONE", "RELU", "RELU6"))
        keeps = dilation > 1 or filters or (stride == 1 and side < 9)
        padding = "SAME" if keeps else r.choice(("SAME", "SAME", "VALID"))
        if r.random() < 0.3 and not filters:
            return self.depthwise(x, stride, dilation, kernel=kernel, activation=fused, padding=padding)
        filters = filters or r.choice((4, 8, 12, 16, 17, 24, 32, 40))
        return self.convolution(x, filters, kernel, stride, activation=fused, padding=padding, dilation=dilation)

    def residual(self, x: X) -> X:
        r = self.r
        y = self.convolution(x, r.choice((8, 16, 48)), activation="RELU6")
        y = self.convolution(self.depthwise(y, kernel=r.choice((3, 5))), x.channels, activation="NONE")
        return self.add(*r.choice(((x, y), (y, x))), r.choice(("NONE", "RELU", "RELU6")))

    def function(self, x: X) -> X:
        r = self.r
        kind = r.choice((*_FUNCTIONS, "LEAKY_RELU", "PRELU", *(_SIGNED if self.signed else ())))
        if self.wide:
            kind = r.choice(("RELU", "RELU6", "LOGISTIC", "TANH", "SWISH", "GELU", "LEAKY_RELU"))
        if kind == "LEAKY_RELU":
            return self.apply(kind, [x], options=dict(alpha=r.choice((0.01, 0.1, 0.2, 0.3))))
        if kind == "PRELU":
            return self.apply(kind, [x], [self.rng.uniform(-0.1, 0.5, (1, 1, x.channels)).astype(np.float32)])
        return self.activate(x, kind)

    def branches(self, x: X) -> X:
        r = self.r
        parts = [x] if r.random() < 0.3 else []
        for _ in range(r.randint(2, 3)):
            y = self.layer(x, 1, r.choice((4, 8, 13, 16)))
            parts.append(self.function(y) if r.random() < 0.5 else y)
        if r.random() < 0.3:
            parts.append(self.max_pool(x, 3, 1, "SAME"))
        if r.random() < 0.2:
            return self.join(*(self.convolution(p, 8) for p in parts), axis=r.choice((1, 2)))
        return self.join(*parts)

    def pooled(self, x: X) -> X:
        r, side = self.r, min(x.sample.shape[1:3])
        if side < 4:
            return self.max_pool(x, 2, 1, "SAME")
        pool = r.choice((self.max_pool, self.mean_pool))
        return pool(x, r.choice((2, 3)), r.choice((1, 2) if side > 8 else (1,)), r.choice(("SAME", "VALID")))

    def gated(self, x: X) -> X:
        r = self.r
        last = r.choice(("LOGISTIC", "HARD_SIGMOID"))
        return self.gate(x, r.choice((4, 8, 10)), r.choice(("RELU", "SWISH", "HARD_SWISH")), last, r.random() < 0.5)

    def resized(self, x: X) -> X:
        _, h, w, _ = x.sample.shape
        if self.r.random() < 0.3 and 4 * h * w < 1600:
            return self.nearest(x)
        half = self.r.choice((True, False, None))
        return self.bilinear(x, min(2 * h - self.r.choice((0, 1)), 30), min(2 * w, 30), half)

    def padded(self, x: X) -> X:
        r = self.r
        around = np.array([[0, 0], [r.randint(0, 2), 1], [1, r.randint(0, 2)], [0, 0]], np.int32)
        kind = r.choice(("PAD", "PADV2", "MIRROR_PAD"))
        if kind == "MIRROR_PAD":
            small = min(x.sample.shape[1:3]) < 4
            return self.apply(
                kind, [x], [np.minimum(around, 1 if small else 2)], dict(mode=r.choice(("REFLECT", "SYMMETRIC")))
            )
        value = [np.array(r.choice((-0.7, 0.0, 0.33, 1.9)), np.float32)] if kind == "PADV2" else []
        return self.apply(kind, [x], [around, *value])

    def moved(self, x: X) -> X:
        r, (_, h, w, c) = self.r, x.sample.shape
        kind = r.choice(("SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "TRANSPOSE", "RESHAPE", "STRIDED_SLICE", "TILE", "GATHER"))
        if kind == "SPACE_TO_DEPTH" and h % 2 == w % 2 == 0 and c <= 24:
            return self.apply(kind, [x], options=dict(block_size=2))
        if kind == "DEPTH_TO_SPACE" and c % 4 == 0 and h * w < 400:
            return self.apply(kind, [x], options=dict(block_size=2))
        if kind == "RESHAPE" and h % 2 == 0:
            return self.reshape(x, h // 2, w * 2, c)
        if kind == "STRIDED_SLICE" and min(h, w) > 5:
            return self.cut(x, [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, r.choice((1, 2)), 1])
        if kind == "TILE" and c <= 12:
            return self.apply(kind, [x], [np.array([1, 1, 1, 2], np.int32)])
        if kind == "GATHER":
            rows = self.rng.permutation(h).astype(np.int32)
            return self.apply(kind, [x], [rows], dict(axis=1))
        return self.transpose(x, 0, 2, 1, 3)

    def affine(self, x: X) -> X:
        r = self.r
        shape = r.choice(((), (x.channels,), (1, 1, x.channels), (1, 1, 1, 1)))
        values = np.asarray(self.rng.uniform(-1.5, 1.5, shape), np.float32)
        return self.scale(r.choice(("MUL", "ADD", "SUB")), x, values, r.choice(("NONE", "NONE", "RELU", "RELU6")))

    def pairwise(self, x: X) -> X:
        r = self.r
        y = self.convolution(x, r.choice((1, x.channels)), activation="NONE")
        kinds = ["MUL", "SUB", "MAXIMUM", "MINIMUM", "ADD", *(["SQUARED_DIFFERENCE"] if self.signed else [])]
        kind = r.choice(kinds)
        options = dict(fused_activation_function=r.choice(("NONE", "RELU"))) if kind in ("MUL", "SUB", "ADD") else {}
        return self.apply(kind, list(r.choice(((x, y), (y, x)))), options=options)

    def parted(self, x: X) -> X:
        r = self.r
        if x.channels % 2:
            return self.affine(x)
        first, second = self.split(x, 2)
        second = self.function(second) if r.random() < 0.5 else self.layer(second, 1, second.channels)
        if r.random() < 0.3:
            return self.op("MUL", [first, self.op("LOGISTIC", [second])], dict(fused_activation_function="NONE"))
        return self.join(second, first) if r.random() < 0.5 else self.packed(first, second)

    def wider(self, x: X) -> X:
        """TRANSPOSE_CONV."""
        if x.sample.shape[1] > 12:
            return self.pooled(x)
        kernel, filters = self.r.choice((2, 3, 4)), self.r.choice((4, 8, 9))
        _, h, w, c = x.sample.shape
        weights, bias = self._normal((filters, kernel, kernel, c), kernel**2 * c // 4), self._bias(filters)
        options = dict(stride_h=2, stride_w=2, padding="SAME")
        shape = (2 * h, 2 * w, filters)
        sample = self._convolved(x.sample, weights, bias, shape, options)
        sizes = np.array((self.batch, *shape), np.int32)
        operands = [self._constant(sizes), self._constant(weights), x.tensor, self._constant(bias)]
        return self._made(self.builder.op("TRANSPOSE_CONV", operands, self.shape_of(sample), options), sample)

    def chosen(self, x: X) -> X:
        """Where one is greater, else the other."""
        y = self.convolution(x, x.channels, activation="NONE")
        mask = self.builder.op("GREATER", [x.tensor, y.tensor], self.shape_of(x.sample), type=TensorType.BOOL)
        sample = np.where(x.sample > y.sample, x.sample, y.sample).astype(np.float32)
        return self._made(self.builder.op("SELECT_V2", [mask, x.tensor, y.tensor], self.shape_of(sample)), sample)

    def normalized(self, x: X) -> X:
        """Instance normalization by moments, or the nearest to it that bytes without a sign have."""
        axes = np.array([1, 2], np.int32)
        mean = self.mean(x, axes, keep=True)
        x = self.op("SUB", [x, mean], dict(fused_activation_function="NONE"))
        if not self.signed:
            return self.affine(x)
        variance = self.mean(self.op("MUL", [x, x], dict(fused_activation_function="NONE")), axes, keep=True)
        inverse = self.op("RSQRT", [self.scale("ADD", variance, 0.1)])
        return self.op("MUL", [x, inverse], dict(fused_activation_function="NONE"))

    # ---------------------------------------------------------------------------------------- sequences

    def sequence(self, x: X) -> X:
        """[batch, tokens, features]."""
        r = self.r
        for _ in range(r.randint(1, 2)):
            kind = r.choice(("mlp", "mlp", "attention") if self.signed else ("mlp",))
            if kind == "attention":
                x = self.add(x, self.dense(self.attended(x), x.channels))
            wide = r.choice((24, 32, 50))
            y = self.activate(self.dense(x, wide), r.choice(("GELU", "RELU", "GELU_TANH", "SWISH", "TANH")))
            x = self.add(x, self.dense(y, x.channels))
            if self.signed and r.random() < 0.6:
                x = self.layer_norm(x, 1e-2)
        return x

    def attended(self, x: X) -> X:
        heads = self.r.choice((1, 2))
        x = self.dense(x, 16)
        n = x.sample.shape[1]
        q, k, v = (self.transpose(self.reshape(self.dense(x, 16), n, heads, 16 // heads), 0, 2, 1, 3) for _ in range(3))
        logits = self.op("BATCH_MATMUL", [self.scale("MUL", q, 0.3), k], dict(adj_x=False, adj_y=True))
        y = self.op("BATCH_MATMUL", [self.op("SOFTMAX", [logits], dict(beta=1.0)), v], dict(adj_x=False, adj_y=False))
        return self.reshape(self.transpose(y, 0, 2, 1, 3), n, 16)

    # -------------------------------------------------------------------------------------------- heads

    def finish(self, x: X) -> None:
        r = self.r
        for i in range(r.randint(1, 3)):
            kind = r.choice(("classes", "classes", "map", "places", "boxes", "embedding", "largest", "sum"))
            kind = r.choice(("classes", "map", "boxes")) if self.wide else kind
            if x.sample.ndim == 3 and kind in ("map", "boxes"):
                kind = "classes"
            name = f"{kind}{i}"
            if kind == "map":
                y = self.plain(x, r.choice((1, 3, 21)))
                self.give(name, self.last(r.choice(("LOGISTIC", "TANH", "SOFTMAX")), y))
            elif kind == "boxes":
                y = self.plain(x, 12)
                side = y.sample.shape[1] * y.sample.shape[2]
                self.give(name, self.op("LOGISTIC", [self.reshape(y, side * 3, 4)]))
            elif kind == "places":
                self.builder.output(self.arg_max(x, x.sample.ndim - 1, r.choice((TensorType.INT32, TensorType.INT64))))
            elif kind in ("largest", "sum"):
                axes = np.array(list(range(1, x.sample.ndim - 1)), np.int32)
                operator = r.choice(("REDUCE_MAX", "REDUCE_MIN")) if kind == "largest" else "SUM"
                self.give(name, self.apply(operator, [x], [axes], dict(keep_dims=r.random() < 0.5)))
            else:
                axes = np.array(list(range(1, x.sample.ndim - 1)), np.int32)
                y = self.dense(self.mean(x, axes), r.choice((10, 33, 100)))
                last = "L2_NORMALIZATION" if kind == "embedding" else r.choice(("SOFTMAX", "SOFTMAX", "LOGISTIC"))
                self.give(name, self.last(last, y))

    # -------------------------------------------------------------------------------------------- parts

    def last(self, operator: str, x: X) -> X:
        return self.op(operator, [x], dict(beta=1.0) if operator == "SOFTMAX" else {})

    def split(self, x: X, count: int) -> list[X]:
        axis = self._constant(np.array(3, np.int32))
        parts = np.split(x.sample, count, 3)
        made = [self.builder.tensor(self.shape_of(p), TensorType.FLOAT32, "part") for p in parts]
        self.builder.node("SPLIT", [axis, x.tensor], made, dict(num_splits=count))
        return [self._made(t, p) for t, p in zip(made, parts, strict=True)]

    def packed(self, x: X, y: X) -> X:
        """PACK, and the channels in turns, as ShuffleNet has them."""
        if y.sample.shape != x.sample.shape:
            return self.join(y, x)
        both = np.stack([x.sample, y.sample], 4)
        made = self.builder.op("PACK", [x.tensor, y.tensor], self.shape_of(both), dict(axis=4, values_count=2))
        return self.reshape(self._made(made, both), *both.shape[1:3], 2 * x.channels)

    def _convolved(
        self, x: np.ndarray, weights: np.ndarray, bias: np.ndarray, shape: tuple[int, ...], options: dict[str, object]
    ) -> np.ndarray:
        from agreement import official, run

        from litegpu.model.builder import ModelBuilder

        one = ModelBuilder()
        taken = one.input("x", x.shape)
        full = (x.shape[0], *shape)
        parts = [one.constant(np.array(full, np.int32)), one.constant(weights), taken, one.constant(bias)]
        one.output(one.op("TRANSPOSE_CONV", parts, full, options))
        return run(official(one.build()), [x])[0]


def network(seed: str, style: str, ends: str = "same") -> bytes:
    """A network in one of the STYLES of quantized_networks, or "words"."""
    kind = WORDS if style == "words" else STYLES[style]
    net = Wild(f"{seed} {style}", kind.kind is TensorType.INT8, kind.kind is TensorType.INT16)
    side = net.r.choice((9, 16, 17, 20))
    x = net.grow(net.layer(net.image("picture", side, side), net.r.choice((1, 2))))
    if not net.wide and net.r.random() < 0.35 and x.sample.shape[1] * x.sample.shape[2] <= 200:
        x = net.sequence(net.reshape(x, x.sample.shape[1] * x.sample.shape[2], x.channels))
    net.finish(x)
    model = quantize(net.builder.model(), net._ranges, kind)
    return write_model(_ended(model, kind, ends))


def _ended(model: Model, style: Style, ends: str) -> Model:
    """With QUANTIZE or DEQUANTIZE at the ends, as converters put them where the file takes and gives something else."""
    if ends == "same":
        return model
    graph, tensors = model.main, list(model.main.tensors)
    before, after = [], []
    inputs, outputs = list(graph.inputs), list(graph.outputs)

    def other(t: Tensor) -> int:
        if ends == "float":
            made = dataclasses.replace(t, index=len(tensors), type=TensorType.FLOAT32, quantization=None)
        else:
            assert t.quantization is not None
            signed = t.type is TensorType.INT8
            q = quantized(
                float(t.quantization.scales[0]), int(t.quantization.zero_points[0]) + (128 if signed else -128)
            )
            made = dataclasses.replace(
                t, index=len(tensors), type=TensorType.UINT8 if signed else TensorType.INT8, quantization=q
            )
        tensors.append(dataclasses.replace(made, name=f"{t.name}_outside"))
        return len(tensors) - 1

    for place, t in enumerate(inputs):
        inputs[place] = other(tensors[t])
        before.append(Operator(0, "QUANTIZE", 114, 1 if ends == "float" else 2, (inputs[place],), (t,), {}))
    for place, t in enumerate(outputs):
        if tensors[t].type is style.kind:
            outputs[place] = other(tensors[t])
            name, code = ("DEQUANTIZE", 6) if ends == "float" else ("QUANTIZE", 114)
            after.append(Operator(0, name, code, 2, (t,), (outputs[place],), {}))
    operators = [dataclasses.replace(o, index=i) for i, o in enumerate((*before, *graph.operators, *after))]
    return model.with_main(
        dataclasses.replace(
            graph, tensors=tuple(tensors), operators=tuple(operators), inputs=tuple(inputs), outputs=tuple(outputs)
        )
    )
