"""The figures of inference-diff and of agreement: few numbers, computed by hand or another way."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu.model.builder import ModelBuilder
from litegpu.tools import agreement
from litegpu.tools.agreement import Agreement, judge
from litegpu.tools.inference_diff import compare
from litegpu.tools.inference_diff.compare import DiffOptions, DiffReport
from litegpu.tools.inference_diff.difference_inputs import file_feeds, gaussian_feeds
from litegpu.tools.inference_diff.measures import EDGES, Difference, histogram, measure, summarise
from litegpu.tools.json_text import plain
from litegpu.tools.statistics import Statistics

FLOAT = {"name": "y", "dtype": np.float32, "quantization": (0.0, 0)}
BYTES = {"name": "y", "dtype": np.int8, "quantization": (0.25, 3)}


def test_measures_of_floats() -> None:
    want = np.array([[3.0, 1.0, 4.0]], np.float32)
    got = np.array([[4.0, 1.0, 2.0]], np.float32)
    found = measure(got, want, FLOAT)
    assert found.mean_error == 1.0 and found.max_abs == 2.0 and found.max_quanta is None and found.top1 == 0.0
    assert found.relative_l2 == pytest.approx(math.sqrt(5) / math.sqrt(26))
    assert found.cosine == pytest.approx(21 / math.sqrt(26 * 21))
    assert found.psnr == pytest.approx(10 * math.log10(3**2 / (5 / 3)))


def test_measures_of_quanta() -> None:
    want, got = np.array([3, 7, -5], np.int8), np.array([4, 3, -5], np.int8)
    found = measure(got, want, BYTES)
    assert found.mean_error == pytest.approx(5 / 3) and found.max_quanta == 4.0 and found.max_abs == 1.0
    assert found.relative_l2 == pytest.approx(math.hypot(0.25, 1) / math.hypot(0, 1, 2))


def test_an_output_over_all_runs_has_its_worst() -> None:
    runs = [
        Difference(0.5, 2.0, 0.1, 5.0, 0.9, 30.0, 1.0),
        Difference(1.5, 7.0, 0.4, 9.0, 0.7, 12.0, 0.0),
        Difference(1.0, 1.0, 0.2, 1.0, 0.8, 20.0, 0.5),
    ]
    two = histogram(np.array([0, 0.5], np.float32), np.array([0, 0], np.float32), FLOAT) + histogram(
        np.array([0, 0.5], np.float32), np.array([np.nan, 0], np.float32), FLOAT
    )
    found = summarise(FLOAT, (1, 2), runs, two)
    assert (found.max_quanta, found.relative_l2, found.max_abs, found.cosine, found.psnr) == (7.0, 0.4, 9.0, 0.7, 12.0)
    assert found.top1 == pytest.approx(0.5) and found.avg_error == pytest.approx(1.0)
    assert found.std_dev == pytest.approx(math.sqrt(0.5 / 3)) and not found.identical
    assert (sum(found.histogram.counts), found.histogram.exact, found.histogram.not_finite) == (2, 1, 1)


def test_bins_are_half_a_decade_wide() -> None:
    assert len(EDGES) == 37 and EDGES[0] == pytest.approx(1e-12) and EDGES[-1] == pytest.approx(1e6)
    np.testing.assert_allclose(np.diff(np.log10(EDGES)), 0.5)
    counts = histogram(np.array([0.2, 0.5, 2, 1e9], np.float32), np.zeros(4, np.float32), FLOAT).counts
    # 10^-1 to 10^-0.5, then to 1, then to 10^0.5, and what is too large in the last.
    assert {i: n for i, n in enumerate(counts) if n} == {22: 1, 23: 1, 24: 1, 35: 1}


def test_json_has_no_infinities() -> None:
    found = plain({"a": [math.inf, -math.inf, 1.5], "b": {"c": math.nan}})
    assert found == {"a": ["inf", "-inf", 1.5], "b": {"c": "nan"}}
    json.dumps(found, allow_nan=False)


class Recorded:
    """Stands for an interpreter: gives its input times a factor, plus how often it ran since its variables were reset,
    and says what is done with it."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor, self.log, self.since = factor, [], 0  # type: ignore[var-annotated]

    def get_input_details(self) -> list[dict[str, Any]]:
        return [{"index": 0, "name": "x", "dtype": np.float32, "shape": np.array([2]), "quantization": (0.0, 0)}]

    get_output_details = get_input_details

    def reset_all_variables(self) -> None:
        self.log.append("reset")
        self.since = 0

    def set_tensor(self, index: int, array: np.ndarray) -> None:
        self.log.append("set")
        self.array = array

    def invoke(self) -> None:
        self.log.append("invoke")
        self.since += 1

    def get_tensor(self, index: int) -> np.ndarray:
        return np.asarray(self.array * np.float32(self.factor) + np.float32(self.since))


def test_each_input_runs_three_times_after_one_warm_up() -> None:
    reference, test = Recorded(), Recorded(1.5)
    runs = compare._Runs(reference, test)  # type: ignore[arg-type]
    worse = [runs.add([np.array([v, v], np.float32)]) for v in (1.0, 4.0, 2.0, 8.0)]
    one = ["reset", "set", "invoke"]
    three = [*one, "invoke", "invoke"]
    assert reference.log == test.log == one + three * 4
    assert len(runs.reference_seconds) == len(runs.test_seconds) == 12 and runs.count == 4
    assert worse == [True, True, False, True]  # v / 2 over v + 3, by v
    (output,) = runs.outputs()
    assert output.errors == (0.5, 2.0, 1.0, 4.0) and output.relative_l2 == pytest.approx(4 / 11)


def report(limit: float | None, *errors: float) -> DiffReport:
    outputs = tuple(SimpleNamespace(relative_l2=e) for e in errors)
    options = DiffOptions(max_relative_error=limit)
    nothing = Statistics(())
    return DiffReport("m", options, "", False, False, None, "", None, 1, nothing, nothing, outputs)  # type: ignore[arg-type]


def test_the_limit_is_that_of_the_worst_output() -> None:
    assert report(0.25, 0.125, 0.25, 0.0).worst == 0.25
    assert report(0.25, 0.125, 0.25).passed and not report(0.2, 0.125, 0.25).passed
    assert report(None, 1e9).passed and not report(0.5, math.nan).passed
    assert report(0.0, 0.0).passed


def test_what_is_opened_how_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    b = ModelBuilder()
    b.output(b.op("TANH", [b.input("x", (1, 4))], (1, 4)))
    opened: list[tuple[Any, Any]] = []
    closed: list[Any] = []
    real = litegpu.Interpreter

    class Watched(real):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            opened.append((options["num_threads"], options["experimental_op_resolver_type"]))
            super().__init__(*arguments, **options)

        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr(compare, "Interpreter", Watched)
    kinds = litegpu.OpResolverType
    plain_kernels = kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    for changes, reference, test in (
        ({"delegate": "cpu", "num_threads": 3}, (1, kinds.AUTO), (3, plain_kernels)),
        ({"delegate": "xnnpack"}, (1, plain_kernels), (1, kinds.AUTO)),
        ({"delegate": "cpu", "reference": "reference", "num_threads": 2}, (1, kinds.BUILTIN_REF), (2, plain_kernels)),
    ):
        opened.clear()
        closed.clear()
        found = compare.inference_diff(b.build(), DiffOptions(num_runs=2, **changes))  # type: ignore[arg-type]
        assert opened == [reference, test] and len(set(map(id, closed))) == 2
        assert found.num_runs == 2 and len(found.test_latency.values) == 6


def test_options_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def recording(options: Any, staging: Any) -> Any:
        given.append(options)
        return SimpleNamespace(open_device=lambda: None)

    monkeypatch.setattr(compare, "RecordingDelegate", recording)
    for partitions, wanted in ((0, 1), (1, 1), (5, 5)):
        options = DiffOptions(
            precision="float16", backend="gl", quantization=False, max_delegated_partitions=partitions
        )
        compare._gpu(options)
        made = given.pop()
        assert (made.max_delegated_partitions, made.precision, made.backend) == (wanted, "float16", "gl")
        assert made.quantization_enabled is False


def test_random_values_have_the_official_distribution() -> None:
    kinds = (np.float32, np.bool_, np.uint8, np.int8, np.int32)
    details = [{"name": str(i), "index": i, "shape": (60_000,), "dtype": d} for i, d in enumerate(kinds)]
    main: Any = SimpleNamespace(operators=())
    ((floats, bools, bytes_, signed, whole),) = gaussian_feeds(details, main, 1, 5)
    # Of a normal distribution (1/2, 1/3) between 0 and 1: the variance is s^2 (1 - 2 a p(a) / (2 P(a) - 1)), a = 1.5.
    density, mass = math.exp(-1.125) / math.sqrt(2 * math.pi), math.erf(1.5 / math.sqrt(2))
    deviation = math.sqrt(1 - 3 * density / mass) / 3
    assert floats.mean() == pytest.approx(0, abs=0.01) and floats.std() == pytest.approx(2 * deviation, rel=0.01)
    assert -1 <= floats.min() < -0.99 and 0.99 < floats.max() < 1
    assert bools.mean() == pytest.approx(0.5, abs=0.01)
    assert [(int(a.min()), int(a.max())) for a in (bytes_, signed, whole)] == [(0, 255), (-128, 127), (0, 99)]
    assert bytes_.astype(float).mean() == pytest.approx(127.5, abs=1) and signed.astype(float).mean() < 0.5


def test_samples_of_files_and_how_many_are_taken(tmp_path: Any) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "a.npy", rows)
    details = [{"name": "x", "shape": np.array([1, 3]), "dtype": np.float32, "index": 0}]
    found = file_feeds(details, [str(tmp_path / "a.npy")])
    assert [feed[0].tolist() for feed in found] == [[row] for row in rows.tolist()]
    interpreter: Any = SimpleNamespace(get_input_details=lambda: details)
    for count, wanted in ((None, 4), (2, 2), (9, 4)):
        feeds, number, _ = compare._feeds(interpreter, DiffOptions(num_runs=count, inputs=(str(tmp_path / "a.npy"),)))
        assert len(list(feeds)) == number == wanted


# Agreement


def test_how_far_two_results_are_apart() -> None:
    want, got = np.array([3, 0, 4], np.float32), np.array([3, 12, 4], np.float32)
    found = agreement.compare("y", got, want, 4.0)
    assert found.relative_l2 == pytest.approx(12 / 5) and found.max_abs == 12 and found.max_quanta == 3
    assert agreement.compare("y", got, np.zeros(3, np.float32)).relative_l2 == pytest.approx(13)
    zeros = agreement.compare("y", np.array([0.0, 1], np.float32), np.array([-0.0, 1], np.float32))
    assert zeros.relative_l2 == 0 and not zeros.identical, "bits count"
    for bad in (np.array([3, np.nan, 4], np.float32), np.array([3, np.inf, 4], np.float32)):
        assert agreement.compare("y", bad, want).relative_l2 == math.inf
        assert agreement.compare("y", want, bad).relative_l2 == math.inf
        assert agreement.compare("y", bad, bad).relative_l2 == 0


@pytest.mark.parametrize(
    ("precision", "error", "quanta", "agrees"),
    [
        ("float32", 1e-5, None, True), ("float32", 1.01e-5, None, False), ("float16", 1e-2, None, True),
        ("float16", 1.01e-2, None, False), ("auto", 1e-2, None, True), ("auto", 1.01e-2, None, False),
        ("float32", 0.5, 1.0, True), ("float32", 0.5, 1.1, False),
    ],
)  # fmt: skip
def test_what_is_near_enough(precision: str, error: float, quanta: float | None, agrees: bool) -> None:
    assert judge([Agreement("y", error, 1.0, False, True, quanta)], precision).agrees is agrees
