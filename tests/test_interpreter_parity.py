"""The same calls on our Interpreter and on the official one give the same values, dictionaries and kinds of errors."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import interpreter as official

import litegpu
from litegpu.interpreter import Interpreter, InterpreterWithCustomOps, OpResolverType, SignatureRunner
from litegpu.model.reader import read_model
from litegpu.model.types import Operator, Sparsity, TensorType
from litegpu.model.writer import ModelBuilder, write_model

SHAPE = (1, 4)


def model(open_batch: bool = False) -> bytes:
    b = ModelBuilder()
    x = b.input("x", (-1, 4) if open_batch else SHAPE)
    y = b.op("MUL", [b.op("ADD", [x, b.constant(np.arange(4, dtype=np.float32))], SHAPE), x], SHAPE)
    b.output(y)
    b.signature("serve", {"value": x}, {"result": y})
    return b.build()


def two_signatures() -> bytes:
    b = ModelBuilder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    s, p = b.op("ADD", [x, y], SHAPE), b.op("MUL", [x, y], SHAPE)
    b.output(s, p)
    b.signature("sum", {"a": x, "b": y}, {"s": s})
    b.signature("product", {"a": x, "b": y}, {"p": p})
    return b.build()


def pair(content: bytes, **arguments: Any) -> tuple[Interpreter, Any]:
    return Interpreter(model_content=content, **arguments), official.Interpreter(model_content=content, **arguments)


def same(a: Any, b: Any) -> None:
    """Equal in value, type, dtype and order of keys."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b


def fails_alike(ours: Any, theirs: Any, *, text: str | None = None) -> Exception:
    """Both raise; ours is what theirs is, and a LiteGpuError unless the binding's own TypeError."""
    with pytest.raises(Exception) as expected:
        theirs()
    with pytest.raises(expected.type) as found:
        ours()
    assert isinstance(found.value, litegpu.LiteGpuError | TypeError), repr(found.value)
    if text is not None:
        assert text in str(expected.value) and text in str(found.value)
    return found.value


def test_the_constructor_takes_the_official_arguments_in_order() -> None:
    expected = list(inspect.signature(official.Interpreter.__init__).parameters.values())
    found = list(inspect.signature(Interpreter.__init__).parameters.values())
    assert [p.name for p in found[: len(expected)]] == [p.name for p in expected]
    assert [p.default for p in found[1 : len(expected)]] == [p.default for p in expected[1:]]
    assert [p.kind for p in found[len(expected) :]] == [inspect.Parameter.KEYWORD_ONLY]
    assert OpResolverType is official.OpResolverType


@pytest.mark.parametrize(
    "ours, theirs", [(Interpreter, official.Interpreter), (SignatureRunner, official.SignatureRunner)]
)
def test_every_official_method_is_there(ours: type, theirs: type) -> None:
    for name, member in vars(theirs).items():
        if name.startswith("__") or not callable(member):
            continue
        assert hasattr(ours, name), name
        expected = [p.name for p in inspect.signature(member).parameters.values()]
        assert [p.name for p in inspect.signature(getattr(ours, name)).parameters.values()] == expected, name


MODELS = (
    "kws_ref_model.tflite",
    "mobilenet_v1_0.25_128_quant.tflite",
    "face_landmark.tflite",
    "ssd_mobilenet_v1_coco_quant.tflite",
)


@pytest.mark.parametrize("name", MODELS)
def test_details_and_results_of_real_models(models_dir: Path, name: str) -> None:
    path = models_dir / name
    ours, theirs = Interpreter(path), official.Interpreter(path)
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    same(ours.get_input_details(), theirs.get_input_details())
    same(ours.get_output_details(), theirs.get_output_details())
    same(ours.get_tensor_details(), theirs.get_tensor_details())
    same(ours._get_ops_details(), theirs._get_ops_details())
    same(ours.get_signature_list(), theirs.get_signature_list())
    same(ours.num_subgraphs(), theirs.num_subgraphs())
    rng = np.random.default_rng(0)
    for d in theirs.get_input_details():
        value = (rng.standard_normal(d["shape"]) * 40).astype(d["dtype"])
        ours.set_tensor(d["index"], value)
        theirs.set_tensor(d["index"], value)
    ours.invoke()
    theirs.invoke()
    for d in theirs.get_output_details():
        same(ours.get_tensor(d["index"]), theirs.get_tensor(d["index"]))
        same(ours.tensor(d["index"])(), theirs.tensor(d["index"])())


def test_paths_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "m.tflite"
    file.write_bytes(model())
    for path in (file, str(file), str(file).encode()):
        assert Interpreter(path).num_subgraphs() == 1


@pytest.mark.filterwarnings("ignore:Exception ignored in. <function (Delegate|Interpreter).__del__")
def test_bad_arguments(tmp_path: Path) -> None:
    content = model()
    empty, page = tmp_path / "empty.tflite", tmp_path / "page.tflite"
    empty.write_bytes(b"")
    page.write_text("<!DOCTYPE html><html></html>")
    cases: list[dict[str, Any]] = [
        {},
        {"model_content": b""},
        {"model_path": "m.tflite", "model_content": content},
        {"model_path": str(tmp_path / "absent.tflite")},
        {"model_path": str(empty)},
        {"model_path": str(page)},
        {"model_path": 5},
        {"model_content": bytearray(content)},
        {"model_content": content[: len(content) // 2]},
        {"model_content": content, "num_threads": 0},
        {"model_content": content, "num_threads": np.int32(1)},
        {"model_content": content, "experimental_op_resolver_type": 1},
        {"model_content": content, "experimental_delegates": [object()]},
        {"model_content": content, "unknown": 1},
    ]
    for case in cases:
        fails_alike(lambda case=case: Interpreter(**case), lambda case=case: official.Interpreter(**case))
    gc.collect()  # the official class fails in __del__ after a failed constructor; ours must not
    with pytest.raises(litegpu.OptionError, match="strict"):
        Interpreter(model_content=content, fallback="loud")


@pytest.mark.parametrize("delegated", [False, True])
def test_mistakes_with_tensors(numpy_delegate, delegated: bool) -> None:
    content = model()
    theirs = official.Interpreter(model_content=content)
    delegates = [numpy_delegate()] if delegated else None
    ours = Interpreter(model_content=content, experimental_delegates=delegates)
    x, y = 0, ours.get_output_details()[0]["index"]
    value = np.zeros(SHAPE, np.float32)

    def alike(call: Any, text: str | None = None) -> Exception:
        return fails_alike(lambda: call(ours), lambda: call(theirs), text=text)

    alike(lambda i: i.set_tensor(x, value), "Tensor is unallocated. Try calling allocate_tensors() first")
    alike(lambda i: i.get_tensor(y), "Tensor data is null. Run allocate_tensors() first")
    alike(lambda i: i.tensor(y)(), "Tensor data is null. Run allocate_tensors() first")
    alike(lambda i: i.invoke(), "Invoke called on model that is not ready.")
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    if delegated:
        assert ours.delegation_report().fully_delegated
    alike(
        lambda i: i.set_tensor(x, value.astype(np.uint8)),
        "Got value of type UINT8 but expected type FLOAT32 for input 0",
    )
    alike(
        lambda i: i.set_tensor(x, [[1.0, 2, 3, 4]]), "Got value of type FLOAT64 but expected type FLOAT32 for input 0"
    )
    alike(lambda i: i.set_tensor(x, None), "Got value of type STRING but expected type FLOAT32 for input 0, name: x")
    alike(lambda i: i.set_tensor(x, value[0]), "Dimension mismatch. Got 1 but expected 2 for input 0.")
    alike(lambda i: i.set_tensor(x, np.zeros((1, 3), np.float32)), "Got 3 but expected 4 for dimension 1 of input 0.")
    for index in (9999, -1):
        alike(lambda i, index=index: i.set_tensor(index, value), f"Invalid tensor index {index} exceeds max")
        alike(lambda i, index=index: i.get_tensor(index), f"Invalid tensor index {index} exceeds max")
        alike(lambda i, index=index: i.tensor(index)(), f"Invalid tensor index {index} exceeds max")
    alike(lambda i: i.get_tensor(y, 3), "Invalid subgraph index 3")
    alike(lambda i: i.get_tensor_details(3), "subgraph_index is out of range: 3")
    alike(lambda i: i.get_tensor("x"))
    alike(lambda i: i.resize_tensor_input(99, [1, 4]))
    alike(lambda i: i.resize_tensor_input(x, [[1], [4]]), "Shape should be 1D instead of 2.")
    alike(lambda i: i.resize_tensor_input(x, [2, 4], strict=True), "Attempting to resize dimension 0 of tensor 0")
    for interpreter in (ours, theirs):
        interpreter.set_tensor(np.int64(x), value)  # type: ignore[arg-type] # as the official one takes it
        interpreter.invoke()
        interpreter.resize_tensor_input(x, [3, 4])
    alike(lambda i: i.invoke(), "Invoke called on model that is not ready.")
    alike(lambda i: i.set_tensor(x, np.zeros((3, 4), np.float32)), "Tensor is unallocated")
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    same(ours.get_output_details(), theirs.get_output_details())


@pytest.mark.parametrize("delegated", [False, True])
def test_outputs_can_be_read_before_the_first_inference(numpy_delegate, delegated: bool) -> None:
    content = model(open_batch=True)
    delegates = [numpy_delegate()] if delegated else None
    for interpreter in (
        official.Interpreter(model_content=content),
        Interpreter(model_content=content, experimental_delegates=delegates),
    ):
        for batch in (1, 3):
            interpreter.resize_tensor_input(0, (batch, 4))
            interpreter.allocate_tensors()
            (detail,) = interpreter.get_output_details()
            found, view = interpreter.get_tensor(detail["index"]), interpreter.tensor(detail["index"])
            assert found.shape == view().shape == (batch, 4) and found.dtype == view().dtype == np.float32
            held = view()
            with pytest.raises(RuntimeError, match="There is at least 1 reference to internal data"):
                interpreter.invoke()
            del held
            interpreter.set_tensor(0, np.full((batch, 4), 2, np.float32))
            interpreter.invoke()
            np.testing.assert_array_equal(view()[-1], [4, 6, 8, 10])


@pytest.mark.parametrize("delegated", [False, True])
def test_between_a_resize_and_the_allocation(numpy_delegate, delegated: bool) -> None:
    """Outputs have the shapes of the last allocation; a resize of a tensor that is no input asks for another, too."""
    content = model(open_batch=True)
    ours = Interpreter(model_content=content, experimental_delegates=[numpy_delegate()] if delegated else None)
    theirs = official.Interpreter(model_content=content)
    for step in ((0, (3, 4)), None, (0, (2, 4)), None, (2, (2, 4)), None):
        for interpreter in (ours, theirs):
            if step is None:
                interpreter.allocate_tensors()
            else:
                interpreter.resize_tensor_input(*step)
        for details in ("get_input_details", "get_output_details"):
            for mine, other in zip(getattr(ours, details)(), getattr(theirs, details)(), strict=True):
                assert mine["shape"].tolist() == other["shape"].tolist(), (step, details)
        if step is not None:
            fails_alike(ours.invoke, theirs.invoke, text="Invoke called on model that is not ready")


def test_after_an_inference_that_failed_there_is_no_output(numpy_delegate) -> None:
    """It would be taken for a result."""
    interpreter = Interpreter(model_content=model(), experimental_delegates=[delegate := numpy_delegate()])
    interpreter.allocate_tensors()
    assert not interpreter.get_tensor(3).any()
    (kernel,) = delegate.kernels
    kernel.invoke = lambda inputs: 1 / 0
    with pytest.raises(litegpu.DelegateError):
        interpreter.invoke()
    with pytest.raises(litegpu.TensorError, match="Tensor data is null"):
        interpreter.get_tensor(3)


@pytest.mark.parametrize("delegated", [False, True])
def test_what_is_officially_private(numpy_delegate, delegated: bool) -> None:
    """Google's own tools look there."""
    content = two_signatures()
    delegates = [numpy_delegate()] if delegated else []
    ours, theirs = (
        Interpreter(model_content=content, experimental_delegates=delegates),
        official.Interpreter(model_content=content),
    )
    assert ours._delegates is (delegates if delegated else ours._delegates) and list(ours._delegates) == delegates
    same(ours._signature_defs, theirs._signature_defs)
    same(ours._get_full_signature_list(), theirs._get_full_signature_list())
    assert ours._custom_op_registerers == theirs._custom_op_registerers == []
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        assert interpreter._safe_to_run() and isinstance(interpreter._native_handle(), int)
        assert interpreter._interpreter.NumSubgraphs() == 1
        assert interpreter._interpreter.TensorName(0, 0) == "x"
    nodes = len(read_model(content).main.operators)
    same(ours._get_ops_details()[:nodes], theirs._get_ops_details()[:nodes])
    same([ours._get_op_details(i) for i in range(nodes)], [theirs._get_op_details(i) for i in range(nodes)])
    fails_alike(lambda: ours._get_op_details(99), lambda: theirs._get_op_details(99), text="Invalid node index")
    fails_alike(lambda: ours._get_tensor_details(99, 0), lambda: theirs._get_tensor_details(99, 0))
    mine, runner = ours.get_signature_runner("sum"), theirs.get_signature_runner("sum")
    for name in ("_signature_key", "_signature_def", "_inputs", "_subgraph_index"):
        same(getattr(mine, name), getattr(runner, name))
    assert list(mine._outputs) == list(runner._outputs) and type(mine._outputs) is type(runner._outputs)
    for module in (litegpu, official):
        made = module.InterpreterWithCustomOps(custom_op_registerers=[], model_content=content)
        assert made._custom_op_registerers == []


def test_signatures_of_what_is_no_input() -> None:
    """The official modify_model_interface gives a model other inputs and leaves its signatures as they were."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    inner = b.op("NEG", [x], SHAPE)
    y = b.op("ABS", [inner], SHAPE)
    b.output(y)
    b.signature("serve", {"value": inner}, {"result": 77})
    ours, theirs = pair(b.build())
    same(ours._get_full_signature_list(), theirs._get_full_signature_list())
    same(ours.get_signature_list(), theirs.get_signature_list())
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        interpreter.set_tensor(x, np.full(SHAPE, -2, np.float32))
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(y), np.full(SHAPE, 2))
    runner, official_runner = ours.get_signature_runner(), theirs.get_signature_runner()
    fails_alike(runner.get_output_details, official_runner.get_output_details)


def test_models_that_are_none_are_called_as_officially(tmp_path: Path) -> None:
    text = "The model is not a valid Flatbuffer buffer"
    page = tmp_path / "page.tflite"
    page.write_text("<!DOCTYPE html><html></html>")
    for arguments in ({"model_content": b"short"}, {"model_content": b"wrong_identifier"}, {"model_path": str(page)}):
        fails_alike(
            lambda arguments=arguments: Interpreter(**arguments),
            lambda arguments=arguments: official.Interpreter(**arguments),
            text=text,
        )


@pytest.mark.parametrize("delegated", [False, True])
def test_views_and_the_reference_guard(numpy_delegate, delegated: bool) -> None:
    content = model()
    delegates = [numpy_delegate()] if delegated else None
    for interpreter in (
        official.Interpreter(model_content=content),
        Interpreter(model_content=content, experimental_delegates=delegates),
    ):
        interpreter.allocate_tensors()
        given, result = interpreter.tensor(0), interpreter.tensor(interpreter.get_output_details()[0]["index"])
        given()[:] = 2
        interpreter.invoke()
        np.testing.assert_array_equal(result(), [[4, 6, 8, 10]])
        view = given()[0, 1:]
        for call in (
            interpreter.invoke,
            interpreter.allocate_tensors,
            lambda i=interpreter: i.resize_tensor_input(0, [2, 4]),
        ):
            with pytest.raises(RuntimeError, match="There is at least 1 reference to internal data"):
                call()
        interpreter.set_tensor(0, np.zeros(SHAPE, np.float32))  # not guarded
        assert not view.any()
        del view
        interpreter.invoke()
        copied = interpreter.get_tensor(0)
        copied[:] = 7
        assert not interpreter.get_tensor(0).any()


@pytest.mark.parametrize("delegated", [False, True])
def test_odd_arrays(numpy_delegate, delegated: bool) -> None:
    delegates = [numpy_delegate()] if delegated else None
    interpreter = Interpreter(model_content=model(), experimental_delegates=delegates)
    interpreter.allocate_tensors()
    value = np.array([[1, -2, 3, 0.5]], np.float32)
    memory = np.zeros(17, np.uint8)
    unaligned = memory[1:].view(np.float32).reshape(SHAPE)
    unaligned[:] = value
    strided = np.repeat(value, 2, axis=1)[:, ::2]
    for odd in (value.astype(">f4"), unaligned, strided, np.asfortranarray(value)):
        interpreter.set_tensor(0, odd)
        np.testing.assert_array_equal(interpreter.get_tensor(0), value)
    runner = interpreter.get_signature_runner()
    np.testing.assert_array_equal(runner(value=value.astype(">f4"))["result"], (value + np.arange(4)) * value)


@pytest.mark.parametrize("delegated", [False, True])
def test_signatures(numpy_delegate, delegated: bool) -> None:
    content = two_signatures()
    theirs = official.Interpreter(model_content=content)
    ours = Interpreter(model_content=content, experimental_delegates=[numpy_delegate()] if delegated else None)
    same(ours.get_signature_list(), theirs.get_signature_list())
    fails_alike(lambda: ours.get_signature_runner(), lambda: theirs.get_signature_runner())
    fails_alike(lambda: ours.get_signature_runner("no"), lambda: theirs.get_signature_runner("no"), text='"no"')
    a, b = np.full((3, 4), 2, np.float32), np.arange(12, dtype=np.float32).reshape(3, 4)
    for key in ("sum", "product"):
        mine, official_runner = ours.get_signature_runner(key), theirs.get_signature_runner(key)
        for n in (3, 1, 2):
            same(mine(a=a[:n], b=b[:n]), official_runner(a=a[:n], b=b[:n]))
        same(mine.get_input_details(), official_runner.get_input_details())
        same(mine.get_output_details(), official_runner.get_output_details())
        text = "Invalid number of inputs provided for running a SignatureDef, expected 2 vs provided 1"
        fails_alike(lambda: mine(a=a), lambda: official_runner(a=a), text=text)  # noqa: B023
        fails_alike(lambda: mine(a=a, c=b), lambda: official_runner(a=a, c=b), text="Invalid Input name (c)")  # noqa: B023
        fails_alike(lambda: mine(a=a, b=b.astype(int)), lambda: official_runner(a=a, b=b.astype(int)), text="INT64")  # noqa: B023


def test_rank_0_and_strings() -> None:
    b = ModelBuilder()
    x = b.input("x", ())
    b.output(b.op("ABS", [x], ()))
    ours, theirs = pair(b.build())
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.float32(-3))
        interpreter.invoke()
    same(ours.get_tensor(1), theirs.get_tensor(1))
    b = ModelBuilder()
    b.output(b.op("RESHAPE", [b.input("s", (2,), TensorType.STRING)], (2, 1), {"new_shape": [2, 1]}))
    ours, theirs = pair(b.build())
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.array([b"a", b"bcd"]))
        interpreter.invoke()
    same(ours.get_tensor(1), theirs.get_tensor(1))


def test_strings_that_are_chosen_by_number() -> None:
    b = ModelBuilder()
    words, places = b.input("words", (4,), TensorType.STRING), b.input("places", (2,), TensorType.INT64)
    b.output(b.op("GATHER", [words, places], (2,)))
    ours, theirs = pair(b.build())
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        interpreter.set_tensor(places, np.array([3, 1]))
        interpreter.set_tensor(words, np.array(["a", "b", "c", "d"]))
        interpreter.invoke()
    same(ours.get_tensor(2), theirs.get_tensor(2))


def test_error_text_does_not_accumulate() -> None:
    interpreter = Interpreter(model_content=model())
    texts = []
    for _ in range(3):
        with pytest.raises(litegpu.InvokeError) as error:
            interpreter.invoke()
        texts.append(str(error.value))
    assert texts[0] == texts[1] == texts[2] and texts[0].count("not ready") == 1


def test_preserve_all_tensors_warns_like_the_official_one() -> None:
    with pytest.warns(UserWarning, match="experimental_preserve_all_tensors"):
        interpreter = Interpreter(model_content=model(), experimental_preserve_all_tensors=True)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.ones(SHAPE, np.float32))
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(2), [[1, 2, 3, 4]])


def test_it_is_neither_copied_nor_pickled_and_closes() -> None:
    interpreter = Interpreter(model_content=model())
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            attempt(interpreter)
    with interpreter:
        interpreter.allocate_tensors()
    interpreter.close()
    for call in (interpreter.invoke, interpreter.allocate_tensors, interpreter.get_input_details):
        with pytest.raises(litegpu.InvokeError, match="closed"):
            call()


def test_custom_op_registerers_go_to_the_official_runtime() -> None:
    def make(module: Any, **arguments: Any) -> Any:
        return lambda: module.InterpreterWithCustomOps(model_content=model(), **arguments)

    assert InterpreterWithCustomOps(custom_op_registerers=[], model_content=model()).num_subgraphs() == 1
    theirs = make(official, custom_op_registerers=["no_such_symbol"])
    fails_alike(make(litegpu, custom_op_registerers=["no_such_symbol"]), theirs, text="no_such_symbol")


def test_a_custom_operator_that_lacks_its_output_is_left_to_who_registers_it(numpy_delegate: Any) -> None:
    """As in the official sparse_tensor.bin: its one operator reads and writes nothing, and its constant is input and
    output alike."""
    b = ModelBuilder()
    levels = (("dense", 2), ("csr", np.array([0, 2, 3]), np.array([0, 1, 1])), ("dense", 2), ("dense", 2))
    blocks = np.array([1, 0, 0, 4, 2, 3, 0, 0, 5, 0, 0, 6], np.int8)
    x = b.constant(blocks, "sparse_tensor", sparsity=Sparsity((0, 1, 2, 3), (0, 1), levels), shape=(4, 4))
    b.output(x)
    made = b.model()
    fake = Operator(0, "FakeOp", 32, 1, inputs=(-1,), outputs=(-1,), is_custom=True)
    main = dataclasses.replace(made.main, operators=(fake,), inputs=(x,))
    content = bytes(write_model(dataclasses.replace(made, subgraphs=(main,))))

    ours, theirs = pair(content)
    delegated = Interpreter(model_content=content, experimental_delegates=[numpy_delegate()], fallback="silent")
    assert delegated.delegation_report().nodes[0].owner == "CPU"
    assert "lacks an output" in str(delegated.delegation_report())
    for interpreter in (ours, delegated):
        same(interpreter.get_tensor_details(), theirs.get_tensor_details())
        same(interpreter._get_ops_details(), theirs._get_ops_details())
        fails_alike(interpreter.allocate_tensors, theirs.allocate_tensors, text="unresolved custom op: FakeOp")


@pytest.mark.filterwarnings("ignore:Exception ignored in. <function Delegate.__del__")
def test_load_delegate_fails_as_the_official_one() -> None:
    assert litegpu.Delegate is official.Delegate
    for load in (litegpu.load_delegate, official.load_delegate):
        with pytest.raises(OSError, match=r"no_such_library\.so: cannot open"):
            load("no_such_library.so")


SCRIPT = Path(__file__).parents[1] / "scripts" / "official_tests"

OFFICIAL_STYLE = """
import ctypes
from unittest import mock
import tensorflow as tf
from tensorflow.python.framework import test_util
from tensorflow.python.platform import resource_loader
from tensorflow.python.platform import test
from tflite.python import interpreter as interpreter_wrapper
from tflite.python.metrics import metrics
from tflite.python.testdata import _pywrap_test_registerer as test_registerer

FILE = resource_loader.get_path_to_datafile("testdata/permute_float.tflite")

class SomeTest(test_util.TensorFlowTestCase):
  def testPasses(self):
    interpreter = interpreter_wrapper.Interpreter(model_path=FILE)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, tf.zeros((1, 4), tf.float32) + tf.float32([[1, 2, 3, 4]]))
    interpreter.invoke()
    self.assertAllEqual(interpreter.get_tensor(2), [[4, 3, 2, 1]])
    self.assertLen(interpreter.get_tensor_details(), 3)

  def testDelegates(self):
    library = resource_loader.get_path_to_datafile("testdata/test_delegate.so")
    ctypes.pydll.LoadLibrary(library).initialize_counters()
    delegate = interpreter_wrapper.load_delegate(library)
    counts = delegate._library
    interpreter = interpreter_wrapper.Interpreter(model_path=FILE, experimental_delegates=[delegate])
    self.assertIs(interpreter._delegates[0], delegate)
    self.assertEqual(counts.get_num_delegates_invoked(), 1)
    del interpreter, delegate
    self.assertEqual(counts.get_num_delegates_destroyed(), 1)

  def testRegisterers(self):
    for registerer in ("TF_TestRegisterer", test_registerer.TF_TestRegisterer):
      interpreter_wrapper.InterpreterWithCustomOps(model_path=FILE, custom_op_registerers=[registerer])
      self.assertEqual(test_registerer.get_num_test_registerer_calls(), 1)

  @mock.patch.object(metrics.TFLiteMetrics, "increase_counter_interpreter_creation")
  def testCounter(self, increase):
    interpreter_wrapper.Interpreter(model_path=FILE)
    increase.assert_called_once()

  def testFailsOfficially(self):
    self.assertTrue(hasattr(interpreter_wrapper.Interpreter(model_path=FILE), "delegation_report"))

  def testFailsHere(self):
    self.assertFalse(hasattr(interpreter_wrapper.Interpreter(model_path=FILE), "delegation_report"))
"""


@pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="needs a C compiler")
def test_files_of_official_tests_run_on_three_sides(tmp_path: Path) -> None:
    """Delegates of the official kind and registerers are released and counted as they are officially; and the script
    that runs the official tests tells apart what passes where."""
    file = tmp_path / "some_test.py"
    file.write_text(OFFICIAL_STYLE)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(file)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(litegpu.__file__).parents[1])},
    )  # fmt: skip
    lines = {line.split(":")[0].split()[1]: line for line in done.stdout.splitlines() if "SomeTest." in line}
    for test in ("Passes", "Delegates", "Registerers", "Counter"):
        assert lines[f"SomeTest.test{test}"] == f"ok   SomeTest.test{test}: passed", done.stdout + done.stderr
    assert lines["SomeTest.testFailsOfficially"].startswith("ok   ") and "False is not true" in done.stdout
    assert lines["SomeTest.testFailsHere"].startswith("FAIL")
    assert "times tensors were allocated with operators on the GPU" in done.stdout
    assert done.returncode == 1 and "5 pass on the official runtime, 4 of them on litegpu" in done.stdout


def test_invoke_releases_the_interpreter_lock(models_dir: Path) -> None:
    interpreter = Interpreter(models_dir / "mobilenet_v1_1.0_224_random.tflite")
    interpreter.allocate_tensors()
    stop, counted = threading.Event(), [0]

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    start = time.perf_counter()
    while time.perf_counter() - start < 0.3:
        interpreter.invoke()
    ticks = counted[0] - before
    stop.set()
    thread.join()
    assert ticks > 50


def test_a_file_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    """The official runtime opens the file again, for another shape say: it has to be the one that was read at first."""

    def adding(number: float) -> bytes:
        model = ModelBuilder()
        x = model.input("x", (1, 3), shape_signature=(-1, 3))
        model.output(model.op("ADD", [x, model.constant(np.full((1, 3), number, np.float32))], (1, 3)))
        return bytes(model.build())

    def run(interpreter: litegpu.Interpreter, rows: int) -> np.ndarray:
        interpreter.resize_tensor_input(0, (rows, 3))
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.zeros((rows, 3), np.float32))
        interpreter.invoke()
        found: np.ndarray = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        return found

    path, new = tmp_path / "a.tflite", tmp_path / "b.tflite"
    for rows in (2, 0):  # of nothing: with another official interpreter, without XNNPACK
        path.write_bytes(adding(1))
        new.write_bytes(adding(2))
        interpreter = litegpu.Interpreter(path)
        assert (run(interpreter, 1) == 1).all()
        os.replace(new, path)
        assert run(interpreter, rows).shape == (rows, 3)
        assert (run(interpreter, 4) == 1).all()
        assert (run(litegpu.Interpreter(path), 1) == 2).all()
    path.unlink()
    run(interpreter, 0)
    assert (run(interpreter, 1) == 1).all()


_CUT = """
    import sys
    import numpy as np
    import litegpu

    def fails(action):
        try:
            action()
        except (litegpu.ModelError, litegpu.InvokeError) as error:
            assert "the model's file has been cut" in str(error), error
        else:
            raise AssertionError("no error")

    path, device = sys.argv[1:]
    x = np.ones((1, 32, 32, 3), np.float32)
    model = litegpu.load(path, device)
    before = model(x)
    official, young = litegpu.Interpreter(path), litegpu.Interpreter(path)
    official.allocate_tensors()
    open(path, "wb").close()
    for _ in range(2):
        assert np.array_equal(model(x), before) and np.array_equal(next(model.stream([x])), before)
        fails(lambda: model(np.repeat(x, 2, 0)))
        fails(lambda: model.batcher(2))
        fails(lambda: list(model.stream([np.repeat(x, 3, 0)])))
    official.resize_tensor_input(0, (2, 32, 32, 3))
    for action in (official.allocate_tensors, young.allocate_tensors, official.get_tensor_details,
                   official.get_input_details, young.get_output_details, official.get_signature_list):
        fails(action)
    model.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be cut there")
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_file_that_is_cut_meanwhile(tmp_path: Path, device: str) -> None:
    """As by cp or a second download: what is gone of a mapped file cannot be read, which would end the process."""
    path = tmp_path / "a.tflite"
    model = ModelBuilder()
    x = model.input("x", (1, 32, 32, 3))
    weights = model.constant(np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32))
    options = dict(stride_w=8, stride_h=8)
    bias = model.constant(np.zeros(16, np.float32))
    model.output(model.op("CONV_2D", [x, weights, bias], (1, 4, 4, 16), options))
    path.write_bytes(model.build())
    subprocess.run([sys.executable, "-c", textwrap.dedent(_CUT), path, device], check=True, timeout=120)


def test_a_failure_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the official runtime's where memory is lacking."""
    model = ModelBuilder()
    model.output(model.op("NEG", [model.input("x", (1, 3))], (1, 3)))
    with litegpu.load(model.build(), "cpu") as loaded:
        official = loaded.interpreter.official

        def fails() -> None:
            raise RuntimeError

        monkeypatch.setattr(official, "invoke", fails)
        with pytest.raises(litegpu.InvokeError, match="failed without saying why"):
            loaded.interpreter.invoke()
