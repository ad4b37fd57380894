"""Non-maximum suppression: of boxes that overlap, the ones with the highest scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.custom.definition import Array, Dim3, Group, per_group
from litegpu.gpu.graph import Shape
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import Features, Kernel, TracedValue, f32, i32, u32

#: Boxes that one workgroup goes through.
MOST_BOXES = 1 << 16
#: Boxes whose scores fall, which are kept in shared memory, and of which so many are chosen.
MOST_LOWERED, MOST_CHOSEN = 2048, 512
_BITS = 32
_NOBODY = 2**31 - 1


@dataclass(frozen=True)
class Suppression:
    """inputs: boxes [1,1,N,4] as y and x of two corners, scores [1,C,N,1] -> [1,C,1,M] INT32: for each of C classes the
    numbers of at most M boxes by falling score, of equal ones the first, then -1. A box is left out if its score is
    below `least`, or if it overlaps one before it by more than `overlap` (the intersection over the union); `reaching`:
    also if the overlap is that, and where the score is no more than `least`. Without boxes nothing overlaps. With a
    `sigma` above 0 each box that is chosen lowers the scores of the others by exp(-overlap**2 / (2 * sigma)), and there
    is a second row, [1,1,2,M], of the bits of the scores of the one class.
    (NonMaxSuppressionSingleClassHelper of TFLite's detection_postprocess.cc; non_max_suppression.h is the other.)"""

    least: float
    overlap: float
    reaching: bool = False
    sigma: float = 0.0
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        *boxes, scores = inputs
        count = scores.shape[2]
        corners = boxes[0].reshape(-1, 4).astype(np.float32) if boxes else np.zeros((count, 4), np.float32)
        rows = [self._searched(corners, np.array(row, np.float32), shape) for row in scores.reshape(-1, count)]
        return np.concatenate(rows).reshape(shape)

    def _searched(self, boxes: Array, scores: Array, shape: Shape) -> Array:
        least, most = np.float32(self.least), np.float32(self.overlap)
        waiting = [i for i in range(scores.size) if self._is_enough(scores[i], least)]
        found: list[int] = []
        values: list[np.float32] = []
        while waiting and len(found) < shape[3]:
            best = max(waiting, key=lambda i: (scores[i], -i))
            found.append(best)
            values.append(scores[best])
            waiting.remove(best)
            shares = [(i, self._overlap(boxes[best], boxes[i])) for i in waiting]
            waiting = [i for i, share in shares if not (share >= most if self.reaching else share > most)]
            if self.sigma > 0:
                for i, share in shares:
                    scores[i] *= np.exp(np.float32(self.factor * share * share))
                waiting = [i for i in waiting if self._is_enough(scores[i], least)]
        rest = shape[3] - len(found)
        result = [np.array(found + [-1] * rest, np.int32)]
        if self.sigma > 0:
            result.append(np.array([*values, *[0] * rest], np.float32).view(np.int32))
        return np.stack(result)

    @property
    def factor(self) -> float:
        return -0.5 / self.sigma

    def _is_enough(self, score: np.float32, least: np.float32) -> bool:
        return bool(score > least if self.reaching else score >= least)

    def _overlap(self, a: Array, b: Array) -> float:
        areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
        if min(areas) <= 0:
            return 0.0
        height, width = (max(min(a[i + 2], b[i + 2]) - max(a[i], b[i]), np.float32(0)) for i in (0, 1))
        return float(height * width / (areas[0] + areas[1] - height * width))

    def build(self, ctx: KernelContext) -> list[Launch]:
        def grid(shape: Shape, features: Features) -> tuple[Dim3, Dim3]:
            return (1 << (min(features.max_threads, 256).bit_length() - 1), 1, 1), (shape[1], 1, 1)

        threads = grid(ctx.output.shape, ctx.features)[0][0]
        return per_group(ctx, "suppression", grid, lambda group: _Search(self, group, threads).run())


class _Search:
    """One workgroup for each class; thread t has boxes t, t + threads, ..., of which bits tell those that are left."""

    def __init__(self, op: Suppression, group: Group, threads: int) -> None:
        self.op, self.group, self.k, self.threads = op, group, group.k, threads
        *boxes, self.scores = group.inputs
        self.boxes = boxes[0] if boxes else None
        self.count, self.most = self.scores.shape[2], group.output_shape[3]
        self.own_class = group.k.group_id(0) if group.output_shape[1] > 1 else 0
        self.t = group.k.local_id()
        self.lowered = group.k.shared(f32, self.count) if op.sigma > 0 else None  # each thread's own scores
        self.left = [group.k.var(group.k.const(0xFFFFFFFF, u32)) for _ in range(-(-self.own // _BITS))]

    @property
    def own(self) -> int:
        """Boxes of a thread, at most."""
        return -(-self.count // self.threads)

    def run(self) -> None:
        k, t = self.k, self.t
        scores, places = k.shared(f32, self.threads), k.shared(i32, self.threads)
        room = -(-self.most // 4) * 4
        chosen = k.shared(i32, room)
        values = k.shared(i32, room) if self.lowered is not None else None
        with k.If(t == 0):
            for place in range(self.most, room):  # lanes past the last one
                chosen[place] = k.const(-1, i32)
                if values is not None:
                    values[place] = k.const(0, i32)
        if self.lowered is not None:
            with k.loop(self.count, start=t, step=self.threads) as j:
                self.lowered[j] = self.scores.at(0, 0, j, 0)
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
                if values is not None:
                    values[r] = k.select(found, k.bitcast(scores[0], i32), k.const(0, i32))
            with k.If(found):
                self.suppress(k.bitcast(winner, u32))
            k.barrier()
        self.store(k, 0, chosen)
        if values is not None:
            self.store(k, 1, values)

    def store(self, k: Kernel, row: int, chosen: object) -> None:
        quads = -(-self.most // 4)
        with k.loop(-(-quads // self.threads)) as r:
            q = r * self.threads + self.t
            with k.If(q < quads):
                lanes = [chosen[q * 4 + j] for j in range(4)]  # type: ignore[index]
                self.group.store(0, self.own_class, row, q, k.vec(*lanes))

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
        k, boxes = self.k, self.boxes
        if boxes is None:
            self.each(lambda j, word, bit: self.leave(word, bit, j == winner))
            return
        a = boxes.quad(0, 0, winner, 0)
        area = (a[2] - a[0]) * (a[3] - a[1])

        def look(j: TracedValue, word: int, bit: TracedValue) -> None:
            b = boxes.quad(0, 0, j, 0)
            own = (b[2] - b[0]) * (b[3] - b[1])
            height, width = (k.max(k.min(a[i + 2], b[i + 2]) - k.max(a[i], b[i]), 0.0) for i in (0, 1))
            both = height * width
            share = k.select((area > 0.0) & (own > 0.0), both / (area + own - both), 0.0)
            over = share >= self.op.overlap if self.op.reaching else share > self.op.overlap
            self.leave(word, bit, over | (j == winner))
            if self.lowered is not None:
                self.lowered[j] = self.lowered[j] * k.exp(share * share * self.op.factor)

        self.each(look)

    def leave(self, word: int, bit: TracedValue, out: TracedValue) -> None:
        with self.k.If(out):
            self.left[word].set(self.left[word].value & (bit ^ 0xFFFFFFFF))

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
        if self.lowered is not None:
            return self.lowered[j]
        return self.scores.at(0, self.own_class, j, 0)
