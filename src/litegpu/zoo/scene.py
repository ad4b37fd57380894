"""Draws photograph-like pictures, so that models can be built, calibrated and shown without any file."""

from __future__ import annotations

import numpy as np


def draw_scene(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A landscape with a sky, hills, a lit animal-like figure and noise; uint8 [height, width, 3].

    Smooth shading, sharp edges and fine texture in the mix that photographs have; every seed is another picture.
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    y, x = (y + 0.5) / height, (x + 0.5) / width
    horizon = rng.uniform(0.35, 0.65)
    picture = _sky(x, y, horizon, rng)
    for distance in (0.0, 0.5, 1.0):
        _add_hill(picture, x, y, horizon + 0.14 * distance, distance, rng)
    for _ in range(rng.integers(1, 4)):
        _add_figure(picture, x, y, rng)
    picture *= 1 + 0.08 * (_texture(y, rng)[..., None] - 0.5)
    picture += rng.normal(0, 0.012, picture.shape)
    drawn: np.ndarray = (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)
    return drawn


def _sky(x: np.ndarray, y: np.ndarray, horizon: float, rng: np.random.Generator) -> np.ndarray:
    top, bottom = rng.uniform((0.1, 0.3, 0.6), (0.4, 0.6, 1.0)), rng.uniform((0.7, 0.6, 0.5), (1.0, 0.9, 0.9))
    blend = np.clip(y / horizon, 0, 1)[..., None]
    sun_x, sun_y = rng.uniform(0.1, 0.9), rng.uniform(0.05, 0.3)
    glow = np.exp(-((x - sun_x) ** 2 + (y - sun_y) ** 2) / 0.02)[..., None]
    clouds = _texture(x, rng)[..., None] ** 2 * (1 - blend)
    sky: np.ndarray = top * (1 - blend) + bottom * blend + 0.5 * glow + 0.4 * clouds
    return sky


def _add_hill(
    picture: np.ndarray, x: np.ndarray, y: np.ndarray, level: float, nearness: float, rng: np.random.Generator
) -> None:
    ridge = np.full_like(x, level)
    for octave in range(1, 5):
        ridge += 0.05 / octave * np.sin(2 * np.pi * (octave * rng.uniform(0.6, 1.8) * x + rng.uniform()))
    colour = rng.uniform((0.1, 0.25, 0.05), (0.5, 0.55, 0.3)) * (1 - nearness * 0.3) + (1 - nearness) * 0.15
    shade = 0.6 + 0.5 * _texture(x, rng) - 0.3 * np.clip(y - ridge, 0, 1)
    inside = y > ridge
    picture[inside] = (colour * shade[..., None])[inside]


def _add_figure(picture: np.ndarray, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> None:
    """A body, a head and two ears: shaded ellipsoids with stripes."""
    centre_x, centre_y, size = rng.uniform(0.2, 0.8), rng.uniform(0.55, 0.8), rng.uniform(0.08, 0.2)
    colour = rng.uniform(0.2, 0.95, 3)
    stripes = rng.uniform(20, 70)
    parts = [(0, 0, 1.6, 1.0), (1.3, -0.9, 0.75, 0.7), (0.95, -1.6, 0.2, 0.4), (1.65, -1.6, 0.2, 0.4)]
    for offset_x, offset_y, radius_x, radius_y in parts:
        across = (x - centre_x - offset_x * size) / (radius_x * size)
        down = (y - centre_y - offset_y * size) / (radius_y * size)
        inside = across**2 + down**2 < 1
        light = 0.75 - 0.35 * down - 0.2 * across + 0.15 * np.sin(stripes * (x + 0.4 * y))
        picture[inside] = (colour * light[..., None])[inside]


def _texture(like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Noise of several scales, each half as strong as the next coarser one; float32 in 0..1, shaped as `like`."""
    total = np.zeros(like.shape, np.float32)
    for octave in range(5):
        cells = 3 * 2**octave
        grid = rng.random((cells + 1, cells + 1), dtype=np.float32)
        total += _stretched(grid, *like.shape) / 2**octave
    texture: np.ndarray = (total - total.min()) / (total.max() - total.min())
    return texture


def _stretched(grid: np.ndarray, height: int, width: int) -> np.ndarray:
    """The grid, interpolated linearly to height x width."""
    rows = np.linspace(0, grid.shape[0] - 1, height, dtype=np.float32)
    columns = np.linspace(0, grid.shape[1] - 1, width, dtype=np.float32)
    top = np.minimum(rows.astype(np.int64), grid.shape[0] - 2)
    left = np.minimum(columns.astype(np.int64), grid.shape[1] - 2)
    down, across = (rows - top)[:, None], (columns - left)[None, :]
    upper = grid[top][:, left] * (1 - across) + grid[top][:, left + 1] * across
    lower = grid[top + 1][:, left] * (1 - across) + grid[top + 1][:, left + 1] * across
    stretched: np.ndarray = upper * (1 - down) + lower * down
    return stretched
