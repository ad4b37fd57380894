"""Delegates by name: litegpu's own, a package's, those of other systems, and libraries for the official runtime."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import litegpu
from litegpu import delegate_registry
from litegpu.cli.application import app
from litegpu.delegate_registry import known_delegates, load_delegate, with_values
from litegpu.delegates.elsewhere import ELSEWHERE, recognised
from litegpu.device_choice import is_device
from litegpu.errors import DelegateLoadError, DelegateTypeError, OptionError
from litegpu.model.builder import ModelBuilder
from litegpu.tools.benchmark.configurations import configurations
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.parse import parse_flags
from litegpu.tools.evaluate.choice import open_model, parse_choice
from litegpu.tools.inference_diff.compare import DiffOptions, inference_diff

PACKAGE = Path(__file__).resolve().parents[1] / "examples" / "delegate_package"
X = np.array([[-1.5, 0, 2]], np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """logistic(tanh(x) * x): the sample takes the first and the last op."""
    b = ModelBuilder()
    x = b.input("x", (1, 3))
    b.output(b.op("LOGISTIC", [b.op("MUL", [b.op("TANH", [x], (1, 3)), x], (1, 3))], (1, 3)))
    path = tmp_path / "model.tflite"
    path.write_bytes(b.build())
    return path


def wheel(folder: Path) -> Path:
    """The sample as a wheel: by its own build system if that is here, else put together by its pyproject.toml."""
    try:
        importlib.metadata.version("hatchling")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-build-isolation", "--no-deps"]
        copy = shutil.copytree(PACKAGE, folder / "source")
        subprocess.run([*command, "-w", str(folder), str(copy)], check=True, capture_output=True)
        return next(folder.glob("*.whl"))
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items())
        for group, found in project["entry-points"].items()
    )
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    for source in PACKAGE.glob("litegpu_*/*.py"):
        files[str(source.relative_to(PACKAGE))] = source.read_text()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sample installed."""
    folder = tmp_path_factory.mktemp("package")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--target",
        str(folder / "site"),
    ]
    subprocess.run([*command, str(wheel(folder))], check=True, capture_output=True)
    return folder / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("litegpu_activations", None)


def point(name: str, value: str) -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(name, value, delegate_registry.GROUP)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[importlib.metadata.EntryPoint]:
    """What is appended to it is registered."""
    points: list[importlib.metadata.EntryPoint] = []
    monkeypatch.setattr(delegate_registry, "_points", lambda: tuple(points))
    return points


# ------------------------------------------------------------------------------------------------ names


def test_ours_by_name() -> None:
    delegate = load_delegate("gpu", {"precision": "float16", "max_delegated_partitions": 4})
    assert isinstance(delegate, litegpu.GpuDelegate)
    assert delegate.options.precision == "float16" and delegate.max_delegated_partitions == 4
    with pytest.raises(OptionError, match="did you mean 'precision'"):
        load_delegate("gpu", {"precison": "float16"})
    with pytest.raises(OptionError, match="have names, not 3"):
        load_delegate("gpu", {3: 4})


@pytest.mark.usefixtures("installed")
def test_a_package_adds_one(model: Path) -> None:
    found = {known.name: known for known in known_delegates()}
    assert "litegpu-activations" in found["activations"].source and "litegpu_activations" not in sys.modules
    with litegpu.load(model, "cpu") as loaded:
        expected = loaded(X)
    options: dict[str, Any]
    for options in ({"device": "activations"}, {"delegate": "activations"}, {"delegate": load_delegate("activations")}):
        with litegpu.load(model, **options) as loaded:
            assert [n.owner for n in loaded.report.nodes] == ["Activations", "CPU", "Activations"]
            assert loaded.device == "activations" and loaded.hardware == "Activations" and not loaded.is_software
            assert loaded.delegate is None
            np.testing.assert_allclose(loaded(X), expected, rtol=1e-5)
            np.testing.assert_allclose(loaded(np.concatenate([X, X])), np.concatenate([expected] * 2), rtol=1e-5)
            np.testing.assert_allclose(list(loaded.stream([X, X])), [expected] * 2, rtol=1e-5)
    with litegpu.load(model, "activations", ops="TANH") as loaded:
        assert [n.owner for n in loaded.report.nodes] == ["Activations", "CPU", "CPU"]
    with pytest.raises(OptionError, match="ops has NOTHING"):
        litegpu.load(model, "activations", ops="NOTHING")
    with pytest.raises(OptionError, match=r"'activations'.*unexpected keyword argument 'operators'"):
        load_delegate("activations", {"operators": "TANH"})
    with pytest.raises(OptionError, match=r"'activations'.*'precision'"):  # which it does not have: no silent float32
        litegpu.load(model, "activations", "float16")


@pytest.mark.usefixtures("installed")
def test_tools_take_its_name(model: Path) -> None:
    run = CliRunner().invoke(app, ["run", str(model), "--device", "activations"])
    assert run.exit_code == 0, run.output
    assert "Activations" in run.output
    report = inference_diff(model, DiffOptions("activations", num_runs=2))
    assert report.device == "Activations" and report.worst < 1e-5 and report.delegation.delegated
    result = litegpu.benchmark(
        model, external_delegate_path="activations", external_delegate_options="ops:TANH", num_runs=1, min_secs=0.0,
        warmup_min_secs=0.0,
    )  # fmt: skip
    assert result.device == "Activations" and result.delegation.counts["Activations"] == 1
    (found,) = configurations(BenchmarkFlags(graph="m"), "activations:ops=TANH:threads=2")
    assert (found.flags.external_delegate_path, found.flags.external_delegate_options) == ("activations", "ops:TANH")
    assert found.flags.num_threads == 2 and not found.flags.use_gpu
    opened = open_model(str(model), parse_choice("activations/float32"))
    assert opened.loaded.hardware == "Activations"
    opened.loaded.close()


def test_what_a_broken_package_does(registered: list[Any], model: Path) -> None:
    registered.append(point("absent", "no_such_module_anywhere:Delegate"))
    with pytest.raises(DelegateLoadError, match=r"'absent'.*cannot be imported.*no_such_module_anywhere"):
        load_delegate("absent")
    registered.append(point("dict", "builtins:dict"))
    with pytest.raises(DelegateTypeError, match=r"'dict'.* lacks .*check"):
        load_delegate("dict")
    registered.append(point("zero", "operator:truediv"))
    with pytest.raises(OptionError, match="Options of the delegate 'zero'"):
        load_delegate("zero", {"a": 1})
    registered.append(point("exit", "test_delegate_registry_raises:Raises"))
    module = type(sys)("test_delegate_registry_raises")
    module.Raises = lambda: 1 / 0  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    with pytest.raises(DelegateLoadError, match="'exit' cannot be made: ZeroDivisionError"):
        load_delegate("exit")
    registered += [point("twice", "a:A"), point("twice", "b:B")]
    with pytest.raises(DelegateLoadError, match="Several packages have a delegate 'twice'"):
        litegpu.load(model, "twice")
    registered.append(point("gpu", "builtins:dict"))  # ours stays ours
    assert isinstance(load_delegate("gpu"), litegpu.GpuDelegate)
    assert [known.name for known in known_delegates()].count("gpu") == 1


def test_unknown_names_say_what_there_is(registered: list[Any], model: Path) -> None:
    registered.append(point("other", "other_package:Delegate"))
    with pytest.raises(DelegateLoadError, match="did you mean 'other'") as raised:
        load_delegate("othr")
    text = str(raised.value)
    assert "'gpu'" in text and "pip install" in text and delegate_registry.GROUP in text and "by its path" in text
    for kind in (litegpu.DelegateError, OptionError, OSError, ValueError, RuntimeError):
        assert isinstance(raised.value, kind)
    with pytest.raises(OptionError, match="or the delegate of a package: other"):
        litegpu.load(model, "nothing")
    with pytest.raises(OptionError, match=r"unknown: use .*other"):
        parse_choice("nothing")
    with pytest.raises(OptionError, match=r"begins with none of .*other"):
        configurations(BenchmarkFlags(graph="m"), "nothing")
    with pytest.raises(OptionError, match=r"use one of .*other"):
        DiffOptions("nothing")
    assert not is_device("other:") and is_device("other:2") and not is_device("gpu")


def test_a_device_and_a_delegate_exclude_each_other(model: Path) -> None:
    with pytest.raises(OptionError, match="give one of them"):
        litegpu.load(model, "cpu", delegate="gpu")
    with pytest.raises(OptionError, match="backend: the delegate is there already"):
        litegpu.load(model, delegate=litegpu.GpuDelegate(), backend="webgpu")
    with pytest.raises(DelegateTypeError):
        litegpu.load(model, delegate=3)


def test_values_of_a_command_line() -> None:
    given = {"a": "true", "b": "False", "c": "3", "d": "0.5", "e": "GPU", "f": "-1"}
    assert with_values(given) == {"a": True, "b": False, "c": 3, "d": 0.5, "e": "GPU", "f": -1}


# ------------------------------------------------------------------------------------------------ other systems


@pytest.mark.parametrize("name", ["nnapi", "NNAPI", "nnapi_delegate", "hexagon", "coreml_delegate"])
def test_delegates_of_other_systems_are_answered(name: str, model: Path) -> None:
    foreign = recognised(name)
    assert foreign is not None
    with pytest.raises(DelegateLoadError) as raised:
        load_delegate(name)
    for part in (foreign.title, foreign.why, foreign.instead):
        assert part in str(raised.value)
    with pytest.raises(DelegateLoadError, match=foreign.why):
        litegpu.load(model, delegate=name)
    with pytest.raises(DelegateLoadError, match=foreign.why):
        parse_choice(name)
    with pytest.raises(DelegateLoadError, match=f"Unsupported TFLite delegate: {name}.*{foreign.why}"):
        DiffOptions(name)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_official_flags_of_other_systems_are_answered(name: str, model: Path) -> None:
    with pytest.raises(OptionError, match=f"--use_{name}=true cannot be had: {ELSEWHERE[name].why}"):
        parse_flags([f"--use_{name}=true"])
    result = CliRunner().invoke(app, ["inference-diff", str(model), f"--use_{name}=true"])
    assert isinstance(result.exception, OptionError) and ELSEWHERE[name].why in str(result.exception)


LIBRARY = """
#include <cstdio>
#include <cstring>
extern "C" void* tflite_plugin_create_delegate(char** keys, char** values, size_t n, void (*report)(const char*)) {
  for (size_t i = 0; i < n; ++i) {
    if (!std::strcmp(keys[i], "fail")) { report(values[i]); return nullptr; }
    std::fprintf(stderr, "made with %s=%s\\n", keys[i], values[i]);
  }
  static char one[256];
  return one;
}
extern "C" void tflite_plugin_destroy_delegate(void*) {}
"""

TRIAL = """
import litegpu
from litegpu.tools.benchmark.parse import parse_flags
from litegpu.tools.evaluate.choice import parse_choice
from litegpu.tools.inference_diff.compare import DiffOptions
from litegpu.cli.official_flags import without_official
made = litegpu.load_delegate("nnapi", {"accelerator": "npu"})
assert isinstance(made, litegpu.Delegate), made
assert parse_flags(["--use_nnapi=true"]).flags.external_delegate_path == "nnapi"
assert without_official(["--use_nnapi=true", "m"]) == ["--delegate=nnapi", "m"]
assert parse_choice("nnapi").delegated and not parse_choice("nnapi").on_gpu
DiffOptions("nnapi")
try:
    litegpu.load_delegate("nnapi", {"fail": "no such accelerator"})
except litegpu.DelegateError as error:
    assert "NNAPI" in str(error) and "no such accelerator" in str(error), error
else:
    raise SystemExit("it does not fail")
try:
    litegpu.load_delegate("hexagon")
except litegpu.DelegateError as error:
    assert "Qualcomm" in str(error), error
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="compiles a library with g++")
def test_where_nnapi_is_here_the_official_loader_gets_it(tmp_path: Path) -> None:
    source = tmp_path / "delegate.cpp"
    source.write_text(LIBRARY)
    library = tmp_path / ELSEWHERE["nnapi"].libraries[0]
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    environment["PYTHONPATH"] = str(Path(litegpu.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", TRIAL], env=environment, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
    assert "made with accelerator=npu" in done.stderr
    by_path = litegpu.load_delegate(library)
    assert isinstance(by_path, litegpu.Delegate)
    with pytest.raises(DelegateLoadError, match=r"(?s)cannot be loaded.*the reason"):
        litegpu.load_delegate(str(library), {"fail": "the reason"})


def test_a_library_without_the_entry_points(tmp_path: Path) -> None:
    import ctypes.util

    library = ctypes.util.find_library("m")
    if library is None or ".so" not in library:
        pytest.skip("no C library by that name")
    with pytest.raises(
        DelegateLoadError, match=f"{library} is no external delegate: it has no function tflite_plugin_create"
    ):
        load_delegate(library)


def test_the_import_of_litegpu_asks_no_package() -> None:
    code = "import sys, litegpu; sys.exit(bool({'importlib.metadata', 'openvino'} & set(sys.modules)))"
    before = "import sys, numpy, ai_edge_litert.interpreter; sys.exit('importlib.metadata' in sys.modules)"
    if subprocess.run([sys.executable, "-c", before], check=False).returncode:
        pytest.skip("what litegpu stands on imports it anyway")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    for device in ("cpu", "cuda", "cuda:1", "webgpu:Radeon", "auto"):
        asked = (
            f"import litegpu.device_choice as c; assert c.is_device({device!r}) and not c.names_delegate({device!r})"
        )
        checked = f"{asked}; import sys; sys.exit('importlib.metadata' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", checked], check=False).returncode == 0
