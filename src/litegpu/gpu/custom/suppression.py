"""Non-maximum suppression: of boxes that overlap, the ones with the highest scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.custom.definition import Array, Dim3, Group, per_group
from litegpu.gpu.graph import Shape
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import Features, Kernel, TracedValue, i32, u32

#: Boxes that one workgroup goes through.
MOST_BOXES = 1 << 16
_BITS = 32
_NOBODY = 2**31 - 1


@dataclass(frozen=True)
class Suppression:
    """inputs: boxes [1,1,N,4] as y and x of two corners, scores [1,1,N,1] -> [1,1,1,M] INT32, the numbers of at most M
    boxes by falling score, of equal ones the first, then -1. A box is left out if its score is below `least`, or if it
    overlaps one before it by more than `overlap` (the intersection over the union); `reaching`: also if the overlap is
    that, and where the score is no more than `least`.
    (NonMaxSuppressionSingleClassHelper of TFLite's detection_postprocess.cc; non_max_suppression.h is the other.)"""

    least: float
    overlap: float
    reaching: bool = False
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        boxes, scores = inputs[0].reshape(-1, 4).astype(np.float32), inputs[1].reshape(-1).astype(np.float32)
        order = np.argsort(-scores, kind="stable")
        least, most = np.float32(self.least), np.float32(self.overlap)
        waiting = [int(i) for i in order if (scores[i] > least if self.reaching else scores[i] >= least)]
        found: list[int] = []
        while waiting and len(found) < shape[3]:
            best, *waiting = waiting
            found.append(best)
            shares = [(i, self._overlap(boxes[best], boxes[i])) for i in waiting]
            waiting = [i for i, share in shares if not (share >= most if self.reaching else share > most)]
        return np.array(found + [-1] * (shape[3] - len(found)), np.int32).reshape(shape)

    def _overlap(self, a: Array, b: Array) -> float:
        areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
        if min(areas) <= 0:
            return 0.0
        height, width = (max(min(a[i + 2], b[i + 2]) - max(a[i], b[i]), np.float32(0)) for i in (0, 1))
        return float(height * width / (areas[0] + areas[1] - height * width))

    def build(self, ctx: KernelContext) -> list[Launch]:
        def grid(shape: Shape, features: Features) -> tuple[Dim3, Dim3]:
            return (1 << (min(features.max_threads, 256).bit_length() - 1), 1, 1), (1, 1, 1)

        threads = grid(ctx.output.shape, ctx.features)[0][0]
        return per_group(ctx, "suppression", grid, lambda group: _Search(self, group, threads).run())


class _Search:
    """One workgroup; thread t has boxes t, t + threads, ..., of which bits tell the ones that are left."""

    def __init__(self, op: Suppression, group: Group, threads: int) -> None:
        self.op, self.group, self.k, self.threads = op, group, group.k, threads
        self.count, self.most = group.inputs[0].shape[2], group.output_shape[3]
        self.t = group.k.local_id()
        self.left = [group.k.var(group.k.const(0xFFFFFFFF, u32)) for _ in range(-(-self.own // _BITS))]

    @property
    def own(self) -> int:
        """Boxes of a thread, at most."""
        return -(-self.count // self.threads)

    def run(self) -> None:
        k, t = self.k, self.t
        scores, places = k.shared(self.score(0).type, self.threads), k.shared(i32, self.threads)
        chosen = k.shared(i32, -(-self.most // 4) * 4)
        with k.If(t == 0):
            for place in range(self.most, -(-self.most // 4) * 4):  # lanes past the last one
                chosen[place] = k.const(-1, i32)
        with k.loop(self.most) as r:
            scores[t], places[t] = self.best()
            k.barrier()
            half = self.threads
            while half > 1:
                half //= 2
                with k.If(t < half):
                    a, b = (scores[t], places[t]), (scores[t + half], places[t + half])
                    better = (b[0] > a[0]) | ((b[0] == a[0]) & (b[1] < a[1]))
                    scores[t], places[t] = k.select(better, b[0], a[0]), k.select(better, b[1], a[1])
                k.barrier()
            winner = places[0]
            found = ~(winner == _NOBODY)
            with k.If(t == 0):
                chosen[r] = k.select(found, winner, k.const(-1, i32))
            with k.If(found):
                self.suppress(k.bitcast(winner, u32))
            k.barrier()
        self.store(k, chosen)

    def store(self, k: Kernel, chosen: object) -> None:
        quads = -(-self.most // 4)
        with k.loop(-(-quads // self.threads)) as r:
            q = r * self.threads + self.t
            with k.If(q < quads):
                lanes = [chosen[q * 4 + j] for j in range(4)]  # type: ignore[index]
                self.group.store(0, 0, 0, q, k.vec(*lanes))

    def best(self) -> tuple[TracedValue, TracedValue]:
        """The highest score of the thread's boxes that are left, and which box has it."""
        k = self.k
        score, place = k.var(-k.inf()), k.var(k.const(_NOBODY, i32))

        def look(j: TracedValue, word: int, bit: TracedValue) -> None:
            found = self.score(j)
            enough = found > self.op.least if self.op.reaching else found >= self.op.least
            with k.If(enough & ((found > score.value) | (place.value == _NOBODY))):
                score.set(found)
                place.set(i32(j))

        self.each(look)
        return score.value, place.value

    def suppress(self, winner: TracedValue) -> None:
        """Take the winner, and what overlaps it too much, from what is left."""
        k = self.k
        a = self.group.inputs[0].quad(0, 0, winner, 0)
        area = (a[2] - a[0]) * (a[3] - a[1])

        def look(j: TracedValue, word: int, bit: TracedValue) -> None:
            b = self.group.inputs[0].quad(0, 0, j, 0)
            own = (b[2] - b[0]) * (b[3] - b[1])
            height, width = (k.max(k.min(a[i + 2], b[i + 2]) - k.max(a[i], b[i]), 0.0) for i in (0, 1))
            both = height * width
            share = k.select((area > 0.0) & (own > 0.0), both / (area + own - both), 0.0)
            over = share >= self.op.overlap if self.op.reaching else share > self.op.overlap
            with k.If(over | (j == winner)):
                self.left[word].set(self.left[word].value & (bit ^ 0xFFFFFFFF))

        self.each(look)

    def each(self, look: object) -> None:
        """Call `look` with each of the thread's boxes that are left, and the bit that tells so."""
        k = self.k
        for word, left in enumerate(self.left):
            with k.loop(min(_BITS, self.own - word * _BITS)) as i:
                j = (i + word * _BITS) * self.threads + self.t
                bit = k.const(1, u32) << i
                with k.If((j < self.count) & ~((left.value & bit) == 0)):
                    look(j, word, bit)  # type: ignore[operator]

    def score(self, j: TracedValue | int) -> TracedValue:
        return self.group.inputs[1].at(0, 0, j, 0)
