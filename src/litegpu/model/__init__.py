"""Models: bytes to plain data and back."""

from __future__ import annotations

from litegpu.model.batch import with_batch
from litegpu.model.model_type import ModelKind, ModelType, model_type
from litegpu.model.reader import read_model
from litegpu.model.types import Model, Operator, Quantization, Signature, Sparsity, Subgraph, Tensor, TensorType
from litegpu.model.verifier import verify_model
from litegpu.model.writer import ModelBuilder, SubgraphBuilder, cut, quantized, write_model

__all__ = [
    "Model",
    "ModelBuilder",
    "ModelKind",
    "ModelType",
    "Operator",
    "Quantization",
    "Signature",
    "Sparsity",
    "Subgraph",
    "SubgraphBuilder",
    "Tensor",
    "TensorType",
    "cut",
    "model_type",
    "quantized",
    "read_model",
    "verify_model",
    "with_batch",
    "write_model",
]
