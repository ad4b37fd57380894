"""What a process imports: only what it needs, as it otherwise takes longer to start than to run."""

from __future__ import annotations

import subprocess
import sys

import pytest

import litegpu
from litegpu.gpu import lang
from litegpu.model.builder import ModelBuilder

#: What builds a program, which a model from the cache does without.
BUILDING = (
    "litegpu.gpu.build",
    "litegpu.gpu.passes",
    "litegpu.gpu.kernels.builders",
    "litegpu.gpu.lang.kernel",
    "litegpu.gpu.evaluate",
    "litegpu.gpu.custom",
    "litegpu.gpu.backends.cuda.native",
    "litegpu.gpu.backends.cuda.printer",
    "litegpu.gpu.backends.cuda.kernels",
    "litegpu.gpu.backends.cuda.tune",
)
CHECKED = """
import sys
import litegpu.gpu.delegate.delegate
import litegpu.gpu.backends.cuda.backend
try:
    import litegpu.gpu.backends.cuda.device
except ImportError:
    pass  # without NVIDIA's bindings
from litegpu.model.reader import read_model
model = read_model(sys.argv[1])
from litegpu.gpu.lower import check_operator
assert all(check_operator(model.main, operator) is None for operator in model.main.operators)
print(*sorted(sys.modules))
"""


def test_what_a_model_from_the_cache_does_not_import(tmp_path: object) -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 4, 4, 4))
    b.output(b.op("RELU", [b.op("ADD", [x, x], (1, 4, 4, 4))], (1, 4, 4, 4)))
    path = f"{tmp_path}/model.tflite"
    with open(path, "wb") as file:
        file.write(b.build())
    done = subprocess.run([sys.executable, "-c", CHECKED, path], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "litegpu.gpu.lower.elementwise" in imported
    assert not imported & {*BUILDING, "litegpu.gpu.lower.recurrent", "litegpu.gpu.lower.convolution"}


def test_the_gpu_s_own_modules_come_with_a_gpu() -> None:
    """What litegpu itself imports delays the start of a GPU's driver."""
    code = "import sys, litegpu; sys.exit(bool({'litegpu.gpu.graph', 'litegpu.gpu.program'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("package", [lang, litegpu])
def test_every_name_of_a_package_is_there(package: object) -> None:
    names: list[str] = package.__all__  # type: ignore[attr-defined]
    assert all(not isinstance(getattr(package, name), type(sys)) for name in names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # type: ignore[attr-defined] # noqa: B018


def test_what_a_process_that_loads_a_model_does_not_import() -> None:
    """Each of them takes longer than a model of one operator."""
    unwanted = {"zipfile", "difflib", "tempfile", "subprocess", "secrets", "statistics", "importlib.metadata"}
    code = (
        "import sys, numpy, ai_edge_litert.interpreter; before = set(sys.modules); "
        "import litegpu, litegpu.gpu.delegate.delegate; print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not unwanted & set(done.stdout.split())
