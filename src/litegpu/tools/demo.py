"""`litegpu demo` and `make demo`: networks on the GPU and on the CPU, with a picture that is drawn on the spot."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.device_choice import best_gpu
from litegpu.errors import DeviceError, OptionError
from litegpu.tools.images import save_image
from litegpu.tools.model_run import RunReport, run_model, takes_picture
from litegpu.tools.outputs import require_folder
from litegpu.tools.run_text import print_report
from litegpu.whole_file import write_whole
from litegpu.zoo import build_model, draw_scene

_NETWORKS = ("mobilenet_v1", "deeplab_v3")
_SCENE = (360, 480, 7)  # height, width, seed


def demonstrate(
    model: str | os.PathLike[str] | None = None,
    image: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] = "demo-output",
) -> bool:
    """Run each network on the GPU, a software one if there is no other, and on the CPU, and print what went where, how
    fast, and how far apart.

    Without a model the zoo's MobileNet v1 and DeepLab v3 are built; without an image one is drawn. Everything written
    is in the folder `output`. Returns whether all results agree.
    """
    folder = Path(output)
    require_folder(folder)
    given = image is not None
    if image is None:
        image = folder / "scene.png"
        save_image(image, draw_scene(*_SCENE))
        print(f"drawn: {image}")
    try:
        device = best_gpu()
    except DeviceError:  # then "auto" says what is missing, and the CPU runs alone
        device = "auto"
    models = [Path(model)] if model is not None else [_built(name, folder) for name in _NETWORKS]
    reports: list[RunReport] = []
    for path in models:
        print()
        pictures = [image] if given or takes_picture(path) else []
        reports.append(run_model(path, pictures, device=device, output=folder))
        print_report(reports[-1])
    if model is None:
        print("\nThe weights are random: the labels mean nothing; where ops run, how fast, and how precisely, does.")
    problems = [problem for report in reports for problem in report.problems]
    if problems:
        raise OptionError("; ".join(problems))
    return all(report.agrees for report in reports)


def _built(name: str, folder: Path) -> Path:
    path = folder / f"{name}.tflite"
    write_whole(path, build_model(name))
    print(f"built: {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return path
