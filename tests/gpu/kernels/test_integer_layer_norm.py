"""Layer normalization in whole numbers: the kernel against NumPy's, for rows that layers seldom have."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.kernels.integer_layer_norm import moments, moments_in_numpy, normalized, normalized_in_numpy
from litegpu.gpu.lang import Kernel, i32, i32x4, trace
from litegpu.gpu.lang.interpret import run

MOST = 32767
#: Four rows each, side by side.
ROWS = {
    "equal": [[7] * 5, [0] * 5, [MOST] * 5, [-MOST - 1] * 5],
    "nearly equal, of which the root is lost": [
        [MOST, MOST - 1, MOST],
        [-9000, -9001, -9000],
        [12345, 12345, 12346],
        [3, 4, 3],
    ],
    "far apart": [[MOST, -MOST - 1] * 4, [MOST] + [0] * 7, [-MOST - 1] * 7 + [MOST], [1, 0] * 4],
    "one": [[5], [-5], [MOST], [0]],
    "small": [[1, -1, 0, 2, -2, 1], [1, 0, 0, 0, 0, 0], [2, 2, 2, 2, 2, 3], [-1, -2, -3, -4, -5, -6]],
}
COEFFICIENTS, BIASES = [MOST, -MOST - 1, 1, 1024], [512, -512, 511, 2**24 + 512]
FACTORS = [(1518500250, -9), (2**30, -11), (2**30, -12), (1073741825, -14)]
GUARDS = [1, 7, 300, 40000]


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    rows = np.array(ROWS[name], np.int32)
    count = rows.shape[1]
    for turn in range(4):
        coefficients, biases = (np.roll(a, turn) for a in (COEFFICIENTS, BIASES))

        def kernel(k: Kernel, coefficients: np.ndarray = coefficients, biases: np.ndarray = biases) -> None:
            given, out = k.buffer("given", i32x4, count), k.buffer("out", i32x4, count)
            values = k.shared(i32x4, count)
            with k.If(k.local_id() == 0), k.loop(count) as i:
                values[i] = given[i]
            k.barrier()
            found = moments(k, values, count, k.vec(*(k.const(g, i32) for g in GUARDS)))
            factor = tuple(k.vec(*(k.const(f[j], i32) for f in FACTORS)) for j in range(2))
            operands = [k.vec(*(k.const(int(n), i32) for n in a)) for a in (coefficients, biases)]
            with k.loop(count, start=k.local_id(), step=4) as i:
                out[i] = normalized(k, values[i], found, operands[0], operands[1], (factor[0], factor[1]))

        out = np.zeros((count, 4), np.int32)
        run(trace(kernel, "rows", (4, 1, 1), (1, 1, 1)), {"given": np.ascontiguousarray(rows.T), "out": out})
        for lane in range(4):
            row = rows[lane : lane + 1].astype(np.int64)
            wanted = normalized_in_numpy(
                row,
                moments_in_numpy(row, GUARDS[lane]),
                coefficients[lane : lane + 1],
                biases[lane : lane + 1].astype(np.int64),
                FACTORS[lane],
            )
            np.testing.assert_array_equal(out[:, lane], wanted[0], err_msg=f"{lane} {turn}")
