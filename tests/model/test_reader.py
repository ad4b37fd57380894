"""The reader: what a model holds, zero copies, and what bad bytes get."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from litegpu.errors import ModelError
from litegpu.model import ModelBuilder, TensorType, quantized, read_model, write_model

MODELS_WITHOUT_RUNTIME = ("malformed.tflite",)


def test_reads_what_was_built(small_models):
    model = read_model(small_models["network"])
    assert [operator.name for operator in model.main.operators] == [
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "MAX_POOL_2D",
        "RESHAPE",
        "FULLY_CONNECTED",
        "SOFTMAX",
    ]
    conv = model.main.operators[0]
    assert conv.options["padding"] == 0 and conv.options["stride_w"] == 1
    assert conv.options["fused_activation_function"] == 3
    assert conv.options["dilation_h_factor"] == 1, "the schema's default, which the file leaves out"
    assert model.main.operators[3].options == {"new_shape": (1, 16)}
    (signature,) = model.signatures
    assert signature.key == "serving_default" and signature.inputs == {"x": 0}
    assert model.main.tensors[0].shape == (1, 8, 8, 3) and model.main.tensors[0].data is None


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_constants_are_read_only_views(small_models, kind):
    content = kind(small_models["network"])
    model = read_model(content)
    weights = model.main.tensors[model.main.operators[0].inputs[1]].data
    assert weights is not None and weights.shape == (4, 3, 3, 3) and weights.dtype == np.float32
    assert np.shares_memory(weights, np.frombuffer(content, np.uint8))
    assert not weights.flags.writeable


def test_path_is_mapped(small_models, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(small_models["integer"])
    model = read_model(path)
    assert model.path == str(path) and bytes(model.content) == small_models["integer"]
    weights = model.main.tensors[model.main.operators[0].inputs[1]]
    assert weights.quantization is not None
    np.testing.assert_allclose(weights.quantization.scales, [0.01, 0.02, 0.03])
    assert weights.quantization.zero_points.tolist() == [0, 0, 0]


def test_large_model_layout(small_models, run_official):
    """Constants behind the flatbuffer, as in files of more than 2 GB."""
    content = write_model(read_model(small_models["network"]), blobs_outside=True)
    for mine, original in zip(
        read_model(content).main.tensors, read_model(small_models["network"]).main.tensors, strict=True
    ):
        assert (mine.data is None) == (original.data is None)
        if mine.data is not None:
            np.testing.assert_array_equal(mine.data, original.data)
    for mine, theirs in zip(run_official(content), run_official(small_models["network"]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_unknown_extents_and_empty_constants():
    builder = ModelBuilder()
    x = builder.input("x", (-1, 4))
    axes = builder.constant(np.zeros(0, np.int32), "axes")
    builder.output(builder.op("SUM", [x, axes], (-1, 4)))
    model = read_model(builder.build())
    assert model.main.tensors[x].shape == (1, 4) and model.main.tensors[x].shape_signature == (-1, 4)
    nothing = model.main.tensors[axes].data
    assert nothing is not None and nothing.shape == (0,)


def test_packed_and_string_constants(run_official):
    values = np.arange(-8, 8).reshape(4, 4)[:, :3]
    builder = ModelBuilder()
    builder.input("x", (1,))
    packed = builder.constant(values, type=TensorType.INT4, quantization=quantized(0.5))
    strings = builder.constant([b"ab", b"", b"cde"], type=TensorType.STRING)
    builder.output(builder.op("DEQUANTIZE", [packed], values.shape), strings)
    content = builder.build()
    model = read_model(content)
    stored = model.main.tensors[packed].data
    assert stored is not None and stored.dtype == np.uint8 and stored.size == 6
    dequantized, text = run_official(content)
    np.testing.assert_array_equal(dequantized, values * 0.5)
    assert text.tolist() == [b"ab", b"", b"cde"]


def test_every_model_is_read_quickly(models_dir):
    for path in sorted(models_dir.glob("*.tflite")):
        if path.name in MODELS_WITHOUT_RUNTIME:
            continue
        seconds = min(_seconds_to_read(path) for _ in range(3))
        assert seconds < 0.25, f"{path.name}: {seconds} s of processor time; a few milliseconds on an idle machine"


def _seconds_to_read(path) -> float:
    """Processor time, which other work on the machine does not add to."""
    start = time.process_time()
    model = read_model(path)
    assert model.main.operators
    return time.process_time() - start


def test_agrees_with_the_official_reader(models_dir):
    from ai_edge_litert.interpreter import Interpreter

    for name in ("mobilenet_v1_0.25_128_quant", "style_transfer_f16_384", "ssd_mobilenet_v1_coco_quant"):
        path = models_dir / f"{name}.tflite"
        model = read_model(path)
        official = Interpreter(model_path=str(path), experimental_delegates=[], num_threads=1)
        for details in official.get_tensor_details():
            if details["index"] >= len(model.main.tensors):
                continue  # scratch tensors of the official runtime
            tensor = model.main.tensors[details["index"]]
            assert tensor.name == details["name"] and tensor.shape == tuple(details["shape"])
            scales = details["quantization_parameters"]["scales"]
            assert np.array_equal(scales, tensor.quantization.scales if tensor.quantization else [])
        assert [details["index"] for details in official.get_input_details()] == list(model.main.inputs)
        assert [details["index"] for details in official.get_output_details()] == list(model.main.outputs)


def test_html_page_is_named_as_such(models_dir):
    with pytest.raises(ModelError, match=r"malformed\.tflite.*HTML"):
        read_model(models_dir / "malformed.tflite")


def test_missing_and_empty_files(tmp_path):
    missing = tmp_path / "none.tflite"
    with pytest.raises(ValueError, match=f"Could not open '{missing}'"):
        read_model(missing)
    empty = tmp_path / "empty.tflite"
    empty.touch()
    with pytest.raises(ModelError, match="empty"):
        read_model(empty)
    with pytest.raises(ModelError, match="Could not open"):
        read_model(tmp_path)
    with pytest.raises(ModelError):
        read_model(b"")


def test_truncated_at_every_4_kb(models_dir):
    content = (models_dir / "deeplabv3_257_mv_gpu.tflite").read_bytes()
    for end in range(0, len(content) - 1, 4096):
        with pytest.raises(ModelError):
            read_model(memoryview(content)[:end])


def test_tables_that_refer_to_each_other_again_and_again():
    """A vector of many offsets to one table with a vector of many offsets: quadratic work in a small file."""
    from litegpu.model import flatbuffer

    count = 3000
    tensors = [{"name": "t", "shape": (1,)}]
    root = {"version": 3, "buffers": [{"data": None}], "subgraphs": [{"tensors": tensors}]}
    content = bytearray(flatbuffer.encode(root))
    view = memoryview(bytes(content))
    table = flatbuffer.decode(view)
    assert len(table["subgraphs"]) == 1
    # Append a vector of offsets that all lead to the subgraph, and a vector of tensors for that subgraph.
    expanded = _with_shared_tables(bytes(content), count)
    start = time.process_time()
    with pytest.raises(ModelError):
        read_model(expanded)
    assert time.process_time() - start < 5


def _with_shared_tables(content: bytes, count: int) -> bytes:
    """The model with `count` subgraphs that are one table, whose `count` tensors are one table."""
    import struct

    (root,) = struct.unpack_from("<I", content, 0)

    def field(table: int, slot: int) -> int:
        vtable = table - struct.unpack_from("<i", content, table)[0]
        return table + struct.unpack_from("<H", content, vtable + 4 + 2 * slot)[0]

    def follow(position: int) -> int:
        return position + struct.unpack_from("<I", content, position)[0]

    subgraph_field = field(root, 2)
    subgraph = follow(follow(subgraph_field) + 4)
    tensor_field = field(subgraph, 0)
    tensor = follow(follow(tensor_field) + 4)
    # Offsets only lead forward, so both tables are copied behind the vectors that refer to them.
    body = bytes(content[:])
    out = bytearray(content)
    out += bytes(-len(out) % 8)
    vectors = len(out)
    out += struct.pack("<I", count) + bytes(4 * count)
    out += bytes(-len(out) % 8)
    copy = len(out)
    out += body  # a whole copy: relative offsets and vtables stay right
    for index in range(count):
        position = vectors + 4 + 4 * index
        struct.pack_into("<I", out, position, copy + subgraph - position)
    struct.pack_into("<I", out, subgraph_field, vectors - subgraph_field)
    out += bytes(-len(out) % 8)
    inner = len(out)
    out += struct.pack("<I", count) + bytes(4 * count)
    out += bytes(-len(out) % 8)
    second = len(out)
    out += body
    for index in range(count):
        position = inner + 4 + 4 * index
        struct.pack_into("<I", out, position, second + tensor - position)
    struct.pack_into("<I", out, copy + tensor_field, inner - (copy + tensor_field))
    return bytes(out)


def test_content_of_another_length_than_its_shape(small_models):
    model = read_model(small_models["network"])
    weights = model.main.operators[0].inputs[1]
    data = model.main.tensors[weights].data
    assert data is not None
    position = small_models["network"].index(data.tobytes())
    content = bytearray(small_models["network"])
    content[position - 4 : position] = (100).to_bytes(4, "little")
    with pytest.raises(ModelError, match=rf"tensor {weights} .*needs 432 bytes, but its buffer \d+ has 100"):
        read_model(content)


def test_import_does_not_load_the_schema():
    import subprocess
    import sys

    code = "import sys, litegpu.model; sys.exit('ai_edge_litert.schema_py_generated' in sys.modules)"
    source = Path(__file__).resolve().parents[2] / "src"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(source)}).returncode == 0
