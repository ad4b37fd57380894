"""Index arithmetic as MoveNet's post-processing has it stays on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run

from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

I32 = TensorType.INT32
SIDE, JOINTS = 12, 5


def keypoints() -> bytes:
    """The place of each joint's largest heat, refined by an offset that is looked up there: ARG_MAX over the flattened
    map, row and column by FLOOR_DIV and FLOOR_MOD, GATHER_ND of the offsets, and the sum in image coordinates."""
    b = ModelBuilder()
    heat = b.input("heat", (1, SIDE, SIDE, JOINTS))
    offsets = b.input("offsets", (SIDE, SIDE, 2))

    def ints(*values: int) -> int:
        return b.constant(np.array(values, np.int32))

    flat = b.op("RESHAPE", [heat, ints(1, SIDE * SIDE, JOINTS)], (1, SIDE * SIDE, JOINTS))
    places = b.op("ARG_MAX", [flat, ints(1)], (1, JOINTS), {"output_type": int(I32)}, type=I32)
    side = b.constant(np.array(SIDE, np.int32))
    row = b.op("FLOOR_DIV", [places, side], (1, JOINTS), type=I32)
    column = b.op("FLOOR_MOD", [places, side], (1, JOINTS), type=I32)
    pairs = b.op("PACK", [row, column], (1, JOINTS, 2), {"values_count": 2, "axis": 2}, type=I32)
    found = b.op("GATHER_ND", [offsets, pairs], (1, JOINTS, 2))
    whole = b.op("CAST", [pairs], (1, JOINTS, 2), {"in_data_type": int(I32), "out_data_type": 0})
    place = b.op("ADD", [whole, found], (1, JOINTS, 2))
    b.output(b.op("MUL", [place, b.constant(np.array(1 / SIDE, np.float32))], (1, JOINTS, 2)))
    return b.build()


@pytest.mark.parametrize("seed", range(5))
def test_keypoints(seed: int) -> None:
    require_gpu()
    content = keypoints()
    one = on_gpu(content)
    assert one.delegation_report().fully_delegated, one.delegation_report().summary()
    rng = np.random.default_rng(seed)
    x = [rng.random((1, SIDE, SIDE, JOINTS), np.float32), rng.standard_normal((SIDE, SIDE, 2)).astype(np.float32)]
    np.testing.assert_allclose(run(one, x)[0], run(official(content), x)[0], rtol=1e-6)
