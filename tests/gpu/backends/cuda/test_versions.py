"""Which of NVIDIA's packages go with which driver and device, and what is said where they do not."""

from __future__ import annotations

import locale
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cuda12
import pytest

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda import driver_library, nvrtc, opening
from litegpu.gpu.backends.cuda.info import CudaDeviceInfo, CudaVersions
from litegpu.gpu.backends.cuda.kernels import tile
from litegpu.gpu.backends.cuda.requirements import (
    ALL,
    ASYNCHRONOUS,
    CONDITIONAL,
    LEAST_CAPABILITY,
    PROGRAMMATIC,
    WARPGROUPS,
    summary,
)

TESTS = Path(__file__).resolve().parents[3]
emulated = pytest.mark.skipif(
    shutil.which("g++") is None or not sys.platform.startswith("linux"), reason="the emulator needs g++ on Linux"
)


class Compiler:
    """One of a major version."""

    def __init__(self, path: str) -> None:
        if "broken" in path:
            raise OSError("not a library")
        self.version = int(path[-2:]), 1


@pytest.mark.parametrize(
    ("installed", "driver", "taken"),
    [
        ((12, 13), 13, 13), ((12, 13), 12, 12), ((12,), 13, 12), ((12,), 12, 12), ((13,), 13, 13),
        ((12, 13), None, 13), ((12, 13), 14, 13), ((12,), None, 12),
    ],
)  # fmt: skip
def test_the_newest_compiler_that_the_driver_takes_is_used(
    installed: tuple[int, ...], driver: int | None, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "find", lambda major: f"libnvrtc.so.{major}" if major in installed else None)
    monkeypatch.setattr(nvrtc, "Nvrtc", Compiler)
    assert nvrtc.choose(driver).version == (taken, 1)


def test_where_no_compiler_fits_the_right_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {13: "libnvrtc.so.13"}
    monkeypatch.setattr(nvrtc, "find", installed.get)
    monkeypatch.setattr(nvrtc, "Nvrtc", Compiler)
    with pytest.raises(
        DeviceError, match=r"for CUDA 13, and the NVIDIA driver .* CUDA 12: pip install litegpu\[cuda12\]"
    ):
        nvrtc.choose(12)
    installed.clear()
    with pytest.raises(DeviceError, match=r"NVRTC.* is missing: pip install litegpu\[cuda\]$"):
        nvrtc.choose(13)
    with pytest.raises(
        DeviceError, match=r"is missing: pip install litegpu\[cuda\] \(driver 580 .*\[cuda12\] \(driver 525"
    ):
        nvrtc.choose(None)
    installed[12] = "/broken/libnvrtc.so.12"
    with pytest.raises(DeviceError, match=r"is missing: .*broken/libnvrtc.so.12: not a library"):
        nvrtc.choose(12)


def test_packages_are_found_before_what_the_system_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders, name = nvrtc.PLACES[12]
    folder = tmp_path / "toolkit" / "lib64"
    folder.mkdir(parents=True)
    (folder / name).touch()
    monkeypatch.setattr(nvrtc, "_packages", lambda: iter([tmp_path / "nvidia"]))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setattr(nvrtc, "_loads", os.path.exists)
    assert nvrtc.find(12) == str(folder / name)
    (tmp_path / "nvidia" / folders[-1]).mkdir(parents=True)
    (tmp_path / "nvidia" / folders[-1] / name).touch()
    assert nvrtc.find(12) == str(tmp_path / "nvidia" / folders[-1] / name)


@pytest.mark.parametrize(
    ("driver", "bindings", "told"),
    [
        ("12020", "13.5.0", r"too old for .*13\.5\.0: .*CUDA 12\.2; pip install litegpu\[cuda12\], or .*580"),
        ("13000", "14.1.0", r"CUDA 13\.0; pip install litegpu\[cuda\], or update the driver, to the newest"),
        ("11080", "12.9.1", r"supports CUDA 11\.8; update the driver, to 525"),
        ("13000", "12.6.0", r"12\.6\.0 are too old: pip install litegpu\[cuda\]"),
        ("12040", "11.8.7", r"11\.8\.7 are too old: pip install litegpu\[cuda12\]"),
    ],
)
def test_bindings_that_do_not_go_with_the_driver(
    driver: str, bindings: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytest.importorskip("cuda.bindings")
    calls = type("Driver", (), {"cuDriverGetVersion": staticmethod(lambda: (0, int(driver)))})
    monkeypatch.setattr(opening, "_driver", lambda: calls)
    monkeypatch.setattr(package, "__version__", bindings)
    with pytest.raises(DeviceError, match=told):
        opening.versions()


def test_missing_bindings_are_named_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    for version, extra in (((12, 2), "litegpu[cuda12] ("), ((13, 1), "litegpu[cuda] ("), ((14, 0), "litegpu[cuda] (")):
        monkeypatch.setattr(driver_library, "driver_version", lambda version=version: version)
        assert f"missing: pip install {extra}" in str(opening.available())


def test_devices_that_are_too_old_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings")
    devices = [CudaDeviceInfo(i, f"GPU {i}", f"GPU-{i}", c, 1 << 30) for i, c in enumerate((61, 75, 70))]
    calls = type("Driver", (), {"cuDeviceGetCount": staticmethod(lambda: (0, len(devices)))})
    monkeypatch.setattr(opening, "_driver", lambda: calls)
    monkeypatch.setattr(opening, "versions", lambda: None)
    monkeypatch.setattr(opening, "_describe", lambda driver, index: devices[index])
    assert opening.list_devices() == [devices[1]]
    del devices[1]
    with pytest.raises(DeviceError, match=r"GPU 0 .*6\.1\) is too old: .* from compute capability 7\.5 on, WebGPU"):
        opening.list_devices()


def test_what_needs_which_driver() -> None:
    new, old = CudaVersions("13.0", "13.0", "13.0.0"), CudaVersions("12.2", "12.9", "12.9.1")
    assert [one.is_met(new, 90) for one in ALL] == [True] * len(ALL)
    assert PROGRAMMATIC.missing(old, 90) == CONDITIONAL.missing(old, 75) == "driver 545 or later"
    assert PROGRAMMATIC.missing(new, 89) == "compute capability 9.0 or later" and PROGRAMMATIC.is_met(new, 120)
    assert CONDITIONAL.missing(CudaVersions("12.9", "12.1", ""), 80) == "NVRTC 12.3 or later"
    assert WARPGROUPS.missing(new, 100) == WARPGROUPS.missing(new, 89) == "compute capability 9.0, and no later one"
    assert [line.split(": ")[1][:2] for line in summary(old, 86)] == ["no", "no", "ye", "no"]
    assert tile.LEAST_CAPABILITY == LEAST_CAPABILITY and ASYNCHRONOUS.capability == tile.COPYING_CAPABILITY
    assert WARPGROUPS.capability == tile.WARPGROUP_CAPABILITY


# ---------------------------------------------------------------------------------------------- with CUDA 12's packages


def run_with(driver: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Python with the packages of CUDA 12 in front, on an emulated driver."""
    path = os.pathsep.join(p for p in (str(cuda12.packages()), str(TESTS), *sys.path) if p)
    variables = {"PYTHONPATH": path, "EMULATED_DRIVER": str(driver), "LITEGPU_CUDA_EMULATOR": "1"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=os.environ | variables, cwd=TESTS.parent
    )


@emulated
@pytest.mark.sweep
@pytest.mark.parametrize("driver", [12000, 12040, 13000])
def test_sessions_with_the_bindings_of_cuda_12(driver: int) -> None:
    """On the oldest driver, without conditional nodes and early starts; on one that has these; on one of CUDA 13."""
    files = ("test_session.py", "test_binding.py", "test_copies.py", "../../control/test_regions.py")
    chosen = [str(Path(__file__).parent / name) for name in files]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "cuda and not slow"]
    done = run_with(driver, ["-m", "pytest", *options, *chosen])
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:] + done.stderr


@emulated
@pytest.mark.parametrize("driver, can", [(12000, False), (12040, True)])
def test_doctor_names_what_an_old_driver_lacks(driver: int, can: bool) -> None:
    script = (
        "from cuda_emulator import emulator; emulator.install();"
        "from litegpu.gpu.backends.cuda.doctor import DOCTOR;"
        "print(DOCTOR.list_devices().note, *DOCTOR.inspect({}).lines(), sep='\\n')"
    )
    done = run_with(driver, ["-c", script])
    assert done.returncode == 0, done.stderr
    note, *lines = done.stdout.splitlines()
    assert note.startswith(f"CUDA: driver for CUDA 12.{driver // 10 % 100}, bindings 12.") and "NVRTC 12." in note
    told = [line for line in lines if "conditional graph nodes" in line or "programmatic" in line]
    assert len(told) == 2 and all(line.startswith("compute capability 9.0: ") for line in told)
    assert all((": yes" in line) == can and ("driver 545" in line) != can for line in told), told


def test_the_compiler_of_cuda_12() -> None:
    compiler, encoding = cuda12.compiler(), locale.getencoding()
    assert compiler.version >= (12, 4) and {75, 80, 86, 89, 90} <= set(compiler.capabilities)
    good = 'extern "C" __global__ void good(float* x) { x[threadIdx.x] = 1; }'
    assert compiler.compile("good", good, ("--gpu-architecture=sm_90a",)).startswith(b"\x7fELF")
    assert b".entry good" in compiler.compile("good", good, ("--gpu-architecture=compute_75",))
    assert locale.getencoding() == encoding  # which NVRTC 12.4 leaves as that of "C"
    with pytest.raises(DeviceError, match=r"'bad' did not compile(.|\n)*nonsense"):
        compiler.compile("bad", "nonsense", ("--gpu-architecture=sm_75",))
