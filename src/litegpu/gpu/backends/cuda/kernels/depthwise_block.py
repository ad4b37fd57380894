"""How depthwise kernels divide their work."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.gpu.backends.cuda.kernels.layer import Layer


@dataclass(frozen=True)
class DepthwiseBlock:
    """A thread computes `lanes` channels of y x x pixels; a workgroup has chunks x rows x columns such threads."""

    lanes: int
    y: int
    x: int
    chunks: int
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.lanes} of {self.y}x{self.x} by {self.chunks}x{self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        return self.chunks * self.rows * self.columns

    def groups(self, layer: Layer) -> tuple[int, int, int, int]:
        """Workgroups along chunks, columns, rows and images."""
        batch, out_h, out_w, _ = layer.shape
        return (
            -(-chunks_of(layer, self.lanes) // self.chunks),
            -(-out_w // (self.x * self.columns)),
            -(-out_h // (self.y * self.rows)),
            batch,
        )


def chunks_of(layer: Layer, lanes: int) -> int:
    """Of the channels."""
    return -(-layer.source.quads * 4 // lanes)
