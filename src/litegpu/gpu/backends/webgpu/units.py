"""How many multiprocessors a GPU has, which WebGPU does not tell: by its name."""

from __future__ import annotations

import re

#: NVIDIA's, the more special name first. Kernels are divided among them, so that a guess is good enough; laptops'
#: namesakes have about two thirds of what their desktops' have.
_NVIDIA = {
    **{"GB200": 148, "B200": 148, "GH200": 132, "H200": 132, "H100": 132, "H800": 132, "H20": 78},
    **{"A100": 108, "A800": 108, "A40": 84, "A30": 56, "A10": 72, "A2": 10, "L40": 142, "L4": 58, "T4": 40, "V100": 80},
    **{"PRO 6000": 188, "6000 Ada": 142, "5000 Ada": 100, "4500 Ada": 60, "4000 Ada": 48, "A6000": 84, "A5000": 64},
    **{"5090": 170, "5080": 84, "5070 Ti": 70, "5070": 48, "5060": 30, "4090": 128, "4080": 76, "4070 Ti": 60},
    **{"4070": 46, "4060": 24, "3090": 82, "3080": 68, "3070": 46, "3060": 28, "3050": 20, "2080 Ti": 68, "2080": 46},
    **{"2070": 36, "2060": 30, "1660": 22, "1650": 14},
}
#: Of those that are not in the table.
_OTHER_NVIDIA = 40


def multiprocessors(name: str) -> int:
    """Of the GPU that its driver calls `name`; 0 if that is not known."""
    if "nvidia" not in name.lower():
        return 0
    for model, units in _NVIDIA.items():
        if re.search(rf"(?<![0-9A-Z]){re.escape(model)}(?![0-9])", name):
            return units * 2 // 3 if "Laptop" in name else units
    return _OTHER_NVIDIA
