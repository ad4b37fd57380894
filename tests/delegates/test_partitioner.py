"""Dividing graphs: valid orders, no cycles, limits, copies of widened constants, and results equal to the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official

from litegpu.delegates.partitioner import ON_CPU, Division, NarrowedDelegate, divide
from litegpu.delegates.report import _numbers
from litegpu.errors import DelegateError
from litegpu.interpreter import Interpreter
from litegpu.model.reader import read_model
from litegpu.model.writer import ModelBuilder

SHAPE = (2, 3)


def random_model(seed: int, nodes: int = 24) -> bytes:
    """ADD, MUL and RELU (delegated) mixed with ABS and SUB (not), wired at random; several outputs, one read inside."""
    rng = np.random.default_rng(seed)
    b = ModelBuilder()
    values = [b.input("x", SHAPE), b.input("y", SHAPE), b.constant(rng.standard_normal(SHAPE).astype(np.float32))]
    made = []
    for _ in range(nodes):
        recent = values[-6:]
        left, right = (recent[i] for i in rng.integers(len(recent), size=2))
        kind = str(rng.choice(["ADD", "MUL", "RELU", "ABS", "SUB"]))
        value = b.op(kind, [left] if kind in ("RELU", "ABS") else [left, right], SHAPE)
        values.append(value)
        made.append(value)
    b.output(*{made[-1], made[nodes // 2], *(int(i) for i in rng.choice(made, 2))})
    return b.build()


def chain(*ops: str) -> bytes:
    b = ModelBuilder()
    value = b.input("x", SHAPE)
    for op in ops:
        value = b.op(op, [value] * (2 if op in ("ADD", "MUL", "SUB") else 1), SHAPE)
    b.output(value)
    return b.build()


def division(content: bytes, *delegates: object) -> Division:
    model = read_model(content)
    return divide(model, model.main, delegates)  # type: ignore[arg-type]


def check_division(content: bytes, found: Division) -> None:
    """What every division must satisfy."""
    main = read_model(content).main
    available = {*main.inputs, *(t.index for t in main.tensors if t.is_constant)}
    done: list[int] = []
    for _, partition in found.partitions:
        assert set(partition.inputs) <= available, "a partition runs before its inputs exist"
        assert not any(main.tensors[i].is_constant for i in partition.inputs)
        inside = set(partition.inputs)
        for node in partition.nodes:
            assert all(i in inside or main.tensors[i].is_constant for i in node.inputs), "nodes are out of order"
            inside |= set(node.outputs)
        made = {t for node in partition.nodes for t in node.outputs}
        assert set(partition.outputs) <= made
        available |= set(partition.outputs)
        done += [node.index for node in partition.nodes]
    assert sorted(done) == list(range(len(main.operators))), "every node runs exactly once"
    assert set(main.outputs) <= available
    wanted = set(main.outputs) | {i for _, p in found.partitions for i in p.inputs}
    assert all(i in wanted for _, p in found.partitions for i in p.outputs), "an output that nobody reads"


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("limit", [0, 1, 2])
def test_random_graphs_divide_validly(numpy_delegate, seed: int, limit: int) -> None:
    content = random_model(seed)
    found = division(content, numpy_delegate(max_delegated_partitions=limit))
    check_division(content, found)
    taken = [owner for owner, _ in found.partitions if owner != ON_CPU]
    assert len(taken) > 0 and (limit == 0 or len(taken) <= limit)
    if limit == 0:
        accepted = sum(o.name in ("ADD", "MUL", "RELU") for o in read_model(content).main.operators)
        assert found.report.delegated == accepted


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ops", [("ADD", "MUL", "RELU"), ("ADD",)])
def test_random_graphs_give_the_results_of_the_cpu(numpy_delegate, seed: int, ops: tuple[str, ...]) -> None:
    content = random_model(seed)
    ours = Interpreter(model_content=content, experimental_delegates=[numpy_delegate(ops=ops)], fallback="silent")
    theirs = Official(model_content=content, experimental_op_resolver_type=_reference())
    rng = np.random.default_rng(seed)
    values = {d["index"]: rng.standard_normal(SHAPE).astype(np.float32) for d in theirs.get_input_details()}
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    for _ in range(2):
        for index, value in values.items():
            ours.set_tensor(index, value)
            theirs.set_tensor(index, value)
        ours.invoke()
        theirs.invoke()
        for detail in theirs.get_output_details():
            np.testing.assert_allclose(ours.get_tensor(detail["index"]), theirs.get_tensor(detail["index"]), rtol=1e-5)
        values = {index: value[::-1] * 2 for index, value in values.items()}


def _reference():
    from ai_edge_litert.interpreter import OpResolverType

    return OpResolverType.BUILTIN_REF


def test_two_delegates_share_a_graph(numpy_delegate) -> None:
    for seed in range(8):
        content = random_model(seed)
        found = division(content, numpy_delegate(ops=["MUL"]), numpy_delegate(ops=["ADD", "MUL", "RELU"]))
        check_division(content, found)
        names = {o.index: o.name for o in read_model(content).main.operators}
        assert all(names[n.index] == "MUL" for owner, p in found.partitions if owner == 0 for n in p.nodes)
        assert {owner for owner, _ in found.partitions} >= {0, 1}


def test_a_diamond_around_a_cpu_node_makes_no_cycle(numpy_delegate) -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    a = b.op("RELU", [x], SHAPE)
    middle = b.op("ABS", [a], SHAPE)
    b.output(b.op("ADD", [a, middle], SHAPE))
    content = b.build()
    found = division(content, numpy_delegate())
    check_division(content, found)
    assert [owner for owner, _ in found.partitions] == [0, ON_CPU, 0]


def test_an_independent_cpu_node_does_not_split_a_partition(numpy_delegate) -> None:
    # Taking the delegate's ready nodes first would give {RELU, RELU}, {ABS}, {ADD, MUL}.
    b = ModelBuilder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    a = b.op("RELU", [b.op("RELU", [x], SHAPE)], SHAPE)
    side = b.op("ABS", [y], SHAPE)
    b.output(b.op("MUL", [b.op("ADD", [a, side], SHAPE), a], SHAPE))
    found = division(b.build(), numpy_delegate())
    assert [(owner, len(p.nodes)) for owner, p in found.partitions] == [(ON_CPU, 1), (0, 4)]


def test_a_late_cpu_node_does_not_split_a_partition(numpy_delegate) -> None:
    # RELU(y) is ready at once but only needed late: run with the others behind ABS, one partition is larger.
    b = ModelBuilder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    late = b.op("RELU", [y], SHAPE)
    b.output(b.op("ADD", [b.op("RELU", [b.op("ABS", [x], SHAPE)], SHAPE), late], SHAPE))
    found = division(b.build(), numpy_delegate(max_delegated_partitions=1))
    assert [(owner, len(p.nodes)) for owner, p in found.partitions] == [(ON_CPU, 1), (0, 3)]


def test_the_largest_partitions_are_kept(numpy_delegate) -> None:
    content = chain("ADD", "ABS", "ADD", "MUL", "RELU", "ABS", "ADD", "MUL")
    found = division(content, numpy_delegate(max_delegated_partitions=1))
    assert [[n.index for n in p.nodes] for owner, p in found.partitions if owner == 0] == [[2, 3, 4]]
    left = found.report.nodes[0]
    assert left.owner == "CPU" and left.accepted and "max_delegated_partitions=1" in str(left.reason)
    found = division(content, numpy_delegate(min_nodes_per_partition=2))
    assert [[n.index for n in p.nodes] for owner, p in found.partitions if owner == 0] == [[2, 3, 4], [6, 7]]
    assert "min_nodes_per_partition=2" in str(found.report.nodes[0].reason)


def test_first_and_last_node_bound_what_is_delegated(numpy_delegate) -> None:
    content = chain(*["ADD"] * 6)
    found = division(content, numpy_delegate(first_delegate_node_index=2, last_delegate_node_index=3))
    assert [n.index for n in found.report.nodes if n.owner == "NumPy"] == [2, 3]
    assert "2..3" in str(found.report.nodes[0].reason)


def test_a_check_that_raises_refuses_its_node_only(numpy_delegate) -> None:
    class Broken(numpy_delegate):
        def check(self, model, subgraph, operator):
            if operator.index == 1:
                raise KeyError("stride")
            return super().check(model, subgraph, operator)

    found = division(chain("ADD", "ADD", "ADD"), Broken())
    assert [n.owner for n in found.report.nodes] == ["NumPy", "CPU", "NumPy"]
    assert "KeyError" in str(found.report.nodes[1].reason)


class Widening:
    """Takes ADD, and DEQUANTIZE of constants if `constants`; runs them with NumPy."""

    name = "wide"
    max_delegated_partitions = 0
    min_nodes_per_partition = 0
    first_delegate_node_index = 0
    last_delegate_node_index = 1000

    def __init__(self, constants: bool) -> None:
        self.names = ("ADD", "DEQUANTIZE") if constants else ("ADD",)

    def check(self, model, subgraph, operator):
        return None if operator.name in self.names else "No."

    def prepare(self, partition):
        constants = {t.index: t.data for t in partition.subgraph.tensors if t.is_constant}

        class Kernel:
            def invoke(self, inputs):
                values = constants | dict(zip(partition.inputs, inputs, strict=True))
                for node in partition.nodes:
                    given = [values[i] for i in node.inputs]
                    values[node.outputs[0]] = given[0].astype(np.float32) if len(given) == 1 else given[0] + given[1]
                return [values[i] for i in partition.outputs]

            def close(self):
                pass

        return Kernel()


def widened() -> bytes:
    """A float16 constant that an ADD, an ABS-then-MUL and again an ADD read."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    w = b.op("DEQUANTIZE", [b.constant(np.arange(6, dtype=np.float16).reshape(SHAPE))], SHAPE)
    first = b.op("ADD", [x, w], SHAPE)
    second = b.op("MUL", [first, w], SHAPE)
    b.output(b.op("ADD", [second, w], SHAPE))
    return b.build()


@pytest.mark.parametrize("constants", [True, False])
def test_widened_constants(constants: bool) -> None:
    content = widened()
    delegate = Widening(constants)
    found = division(content, delegate)
    weight = read_model(content).main.operators[0].outputs[0]
    crossing = [weight in p.inputs for _, p in found.partitions]
    if constants:  # every partition widens the constant for itself, and it is reported as the delegate's
        assert not any(crossing)
        assert [[n.index for n in p.nodes] for _, p in found.partitions] == [[0, 1], [0, 2], [0, 3]]
        assert found.report.nodes[0].owner == "wide"
    else:  # the CPU widens it for the delegate; its own partition still has a copy
        assert [[n.index for n in p.nodes] for _, p in found.partitions] == [[0], [1], [0, 2], [3]]
        assert crossing == [False, True, False, True]
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    interpreter.allocate_tensors()
    x = np.full(SHAPE, 2, np.float32)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    w = np.arange(6, dtype=np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), (x + w) * w + w)


def test_a_widened_constant_that_is_an_output_is_computed_once() -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    w = b.op("DEQUANTIZE", [b.constant(np.ones(SHAPE, np.float16))], SHAPE)
    b.output(b.op("ADD", [x, w], SHAPE), w)
    found = division(b.build(), Widening(True))
    assert [(owner, len(p.nodes), len(p.outputs)) for owner, p in found.partitions] == [(0, 2, 2)]


def test_report_counts_texts_and_data(numpy_delegate) -> None:
    report = division(chain("ADD", "ABS", "ADD", "MUL", "ABS", "COS"), numpy_delegate()).report
    assert report.counts == {"NumPy": 3, "CPU": 3} and report.delegated == 3 and not report.fully_delegated
    assert report.summary() == (
        "3/6 ops on NumPy in 2 partitions, 3 on the CPU: ABS x2, COS (Operation is not supported.)"
    )
    assert report.warnings() == [
        "op code #101 cannot be handled by this delegate. ABS: Operation is not supported. (nodes 1, 4)",
        "op code #108 cannot be handled by this delegate. COS: Operation is not supported. (node 5)",
    ]
    table = str(report).splitlines()
    assert len(table) == 8 and table[0].split() == ["node", "op", "owner", "partition", "reason"]
    assert table[2].split()[:4] == ["1", "ABS", "CPU", "1"]
    data = report.as_dict()
    assert data["nodes"][3] == {
        "index": 3, "op": "MUL", "code": 18, "owner": "NumPy", "partition": 2, "accepted": True, "reason": None,
    }  # fmt: skip
    assert data["partitions"][2]["nodes"] == [2, 3]
    full = division(chain("ADD", "MUL"), numpy_delegate()).report
    assert full.fully_delegated and full.summary() == "2/2 ops on NumPy in 1 partition" and full.warnings() == []


def test_widened_constants_count_to_a_partition() -> None:
    """ADD with the constant that it widens is two nodes."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    w = b.op("DEQUANTIZE", [b.constant(np.ones(SHAPE, np.float16))], SHAPE)
    b.output(b.op("ADD", [x, w], SHAPE))
    for least, delegated in ((2, 2), (3, 0)):
        delegate = Widening(True)
        delegate.min_nodes_per_partition = least
        assert division(b.build(), delegate).report.delegated == delegated


def test_two_delegates_each_widen_for_themselves(numpy_delegate) -> None:
    """What one delegate widened for its ADD the other's MUL does not read from it."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    w = b.op("DEQUANTIZE", [b.constant(np.ones(SHAPE, np.float16))], SHAPE)
    b.output(b.op("MUL", [b.op("ADD", [x, w], SHAPE), w], SHAPE))
    first, second = Widening(True), Widening(True)
    first.names, second.names = ("ADD", "DEQUANTIZE"), ("MUL", "DEQUANTIZE")
    found = division(b.build(), first, second)
    assert [(owner, [n.index for n in p.nodes]) for owner, p in found.partitions] == [(0, [0, 1]), (1, [0, 2])]
    assert not any(w in p.inputs for _, p in found.partitions)


@pytest.mark.parametrize("keeps", [None, False, True])
def test_only_delegates_that_keep_variables_get_them(keeps: bool | None) -> None:
    b = ModelBuilder()
    x, kept = b.input("x", SHAPE), b.variable("kept", SHAPE)
    b.output(b.op("ADD", [b.op("ADD", [x, kept], SHAPE), x], SHAPE))
    delegate = Widening(False)
    if keeps is not None:
        delegate.keeps_variables = keeps  # type: ignore[attr-defined]
    report = division(b.build(), delegate).report
    assert [n.owner for n in report.nodes] == ["wide" if keeps else "CPU", "wide"]
    assert report.nodes[0].reason == (None if keeps else "The node reads a variable, and the delegate keeps none.")


@pytest.mark.parametrize("answer", [False, True, 0, (), b"no", ["no"]])
def test_answers_that_are_neither_none_nor_a_reason(answer: object) -> None:
    delegate = Widening(True)
    delegate.check = lambda *_: answer  # type: ignore[method-assign]
    with pytest.raises(DelegateError, match=r"check\(\) of operator 0 ADD gave"):
        division(chain("ADD"), delegate)


def test_an_empty_reason_is_a_reason() -> None:
    delegate = Widening(True)
    delegate.check = lambda *_: ""  # type: ignore[method-assign]
    assert division(chain("ADD"), delegate).report.delegated == 0


@pytest.mark.parametrize("least, most, reasons", [
    (2, 1, ["min_nodes_per_partition=2", "max_delegated_partitions=1"]),
    (1, 1, ["max_delegated_partitions=1", "max_delegated_partitions=1"]),
    (2, 0, ["min_nodes_per_partition=2", None]),
])  # fmt: skip
def test_why_partitions_are_left(numpy_delegate, least: int, most: int, reasons: list[str | None]) -> None:
    """Of partitions of one, two and three nodes."""
    content = chain("ADD", "ABS", "ADD", "MUL", "ABS", "ADD", "MUL", "RELU")
    given = numpy_delegate(min_nodes_per_partition=least, max_delegated_partitions=most)
    report = division(content, given).report
    for node, reason in zip((0, 2), reasons, strict=True):
        found = report.nodes[node].reason
        assert found is None if reason is None else reason in (found or "") and (found or "").count("=") == 1
    assert report.nodes[5].owner == "NumPy"


def test_nodes_that_are_refused_beforehand(numpy_delegate) -> None:
    model = read_model(chain("ADD", "MUL", "ADD"))
    found = divide(model, model.main, [numpy_delegate()], {1: "Not this one."})
    assert [(n.owner, n.reason) for n in found.report.nodes] == [
        ("NumPy", None), ("CPU", "Not this one."), ("NumPy", None),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 7, 8, 9, 30])
def test_as_many_numbers_as_are_said(count: int) -> None:
    nodes = tuple(range(count))
    text = _numbers(nodes)
    shown = ", ".join(map(str, nodes[:8]))
    more = f" and {count - 8} more" if count > 8 else ""
    assert text == f"node{'' if count == 1 else 's'} {shown}{more}"


def test_a_reason_is_said_at_its_first_node(numpy_delegate) -> None:
    delegate = numpy_delegate()
    delegate.check = lambda model, graph, o: (
        None if o.name == "ADD" else "A reason of more than forty letters, as most."
    )
    rows = str(division(chain("ABS", "ADD", "ABS", "ABS"), delegate).report).splitlines()
    assert rows[1].endswith("as most.") and rows[3].endswith("as node 0") and rows[4].endswith("as node 0")


def test_a_delegate_that_failed_for_some_nodes_is_not_asked_for_them_again(numpy_delegate) -> None:
    delegate = NarrowedDelegate(numpy_delegate(max_delegated_partitions=3), {0: "It failed."})
    model = read_model(chain("ADD", "MUL", "ABS"))
    answers = [delegate.check(model, model.main, o) for o in model.main.operators]
    assert answers == ["It failed.", None, "Operation is not supported."]
    assert delegate.name == "NumPy" and delegate.max_delegated_partitions == 3


def test_of_equally_large_partitions_the_first_is_kept(numpy_delegate) -> None:
    """Each half has most of its nodes in one partition if they run as late as they can."""
    b = ModelBuilder()

    def half(x: int) -> int:
        early, middle = b.op("RELU", [x], SHAPE), b.op("ABS", [b.op("RELU", [x], SHAPE)], SHAPE)
        late, last = b.op("RELU", [middle], SHAPE), b.op("ABS", [b.op("RELU", [middle], SHAPE)], SHAPE)
        return b.op("ADD", [b.op("ADD", [last, early], SHAPE), late], SHAPE)

    b.output(half(b.op("ABS", [half(b.input("x", SHAPE))], SHAPE)))
    content = b.build()
    for most, kept in ((1, [[0, 3, 6, 7]]), (2, [[0, 3, 6, 7], [9, 12, 15, 16]])):
        found = division(content, numpy_delegate(max_delegated_partitions=most))
        check_division(content, found)
        assert [[n.index for n in p.nodes] for owner, p in found.partitions if owner == 0] == kept


def test_a_widened_constant_that_nothing_reads_has_its_place() -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    b.op("DEQUANTIZE", [b.constant(np.ones(SHAPE, np.float16))], SHAPE)
    b.output(b.op("ADD", [x, x], SHAPE))
    content = b.build()
    for constants in (False, True):
        found = division(content, Widening(constants))
        check_division(content, found)
        assert [n.op for n in found.report.nodes] == ["DEQUANTIZE", "ADD"]
