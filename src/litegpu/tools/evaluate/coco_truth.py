"""The ground truth of detection: COCO's instances file, or the binary message of the official tool."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litegpu.errors import OptionError
from litegpu.tools.evaluate.image_list import Item, item_of, list_images, read_lines


@dataclass(frozen=True)
class TrueObject:
    """`box`: x, y, width, height; of pixels, or with `normalized` of the image. `crowd`: one region for many objects,
    in which detections count neither as right nor as wrong. `keypoints`: x, y, visibility (0: not labelled) of each.
    """

    category: int
    box: tuple[float, float, float, float]
    area: float | None = None
    crowd: bool = False
    normalized: bool = False
    keypoints: tuple[float, ...] = ()


@dataclass(frozen=True)
class TrueImage:
    """`size`: (height, width) as the ground truth gives it, None where it gives none."""

    id: int
    item: Item
    objects: tuple[TrueObject, ...]
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class GroundTruth:
    """Images by rising id, and categories id -> name (those without any object too). `unlisted`: files of the folder
    that the ground truth does not know."""

    images: tuple[TrueImage, ...]
    categories: Mapping[int, str]
    unlisted: tuple[str, ...] = ()


def read_instances(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> GroundTruth:
    """COCO's instances_*.json. Images without objects are kept, as the metric wants them. Raises OptionError for what
    is missing or contradicts itself."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = json.load(file)
    except OSError as error:
        raise OptionError(f"Cannot read the annotations {os.fspath(path)}: {error.strerror}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise OptionError(f"{os.fspath(path)} is no JSON: {str(error) or type(error).__name__}") from None
    kept = content if isinstance(content, dict) else {}
    missing = [k for k in ("images", "annotations", "categories") if not isinstance(kept.get(k), list)]
    if missing:
        raise OptionError(f"{os.fspath(path)} is no COCO instances file: it has no {', '.join(missing)} (lists)")
    try:
        return _from_instances(content, os.fspath(path), folder)
    except OptionError:
        raise
    except Exception as error:  # whatever JSON of another shape makes of it
        raise OptionError(f"{os.fspath(path)} is no COCO instances file: {type(error).__name__} {error}") from None


def read_message(
    path: str | os.PathLike[str], folder: str | os.PathLike[str], categories: Mapping[int, str]
) -> GroundTruth:
    """The official tool's ObjectDetectionGroundTruth, for all images of the folder; those that it does not name have no
    objects. `categories` names ids; ids of objects that it lacks are added."""
    try:
        results = [_result(message) for number, message in _fields(Path(path).read_bytes()) if number == 1]
    except OSError as error:
        raise OptionError(f"Cannot read the ground truth {os.fspath(path)}: {error.strerror}") from None
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise OptionError(f"{os.fspath(path)} is no binary ObjectDetectionGroundTruth message: {error}") from None
    by_name = {name: (id_, objects) for name, id_, objects in results}
    items = list_images(folder)
    unknown = sorted(set(by_name) - {item.name for item in items})
    images = []
    used = {id_ for id_, _ in by_name.values()}
    free = iter(i for i in range(1, len(items) + len(used) + 2) if i not in used)
    distinct = len(used) == len(by_name)
    for item in [*items, *(item_of(folder, name) for name in unknown)]:
        id_, objects = by_name.get(item.name, (0, ()))
        images.append(TrueImage(id_ if item.name in by_name and distinct else next(free), item, objects))
    found = {o.category for image in images for o in image.objects}
    named = {**{i: f"class {i}" for i in sorted(found)}, **categories}
    return GroundTruth(tuple(sorted(images, key=lambda i: i.id)), named, ())


def picked(truth: GroundTruth, allowlist: str, num_images: int) -> GroundTruth:
    """The images whose ids a file names (one a line; "": all), and of these the first `num_images` (0: all)."""
    images: Sequence[TrueImage] = truth.images
    if allowlist:
        ids = _ids(allowlist, {image.id for image in images})
        images = [image for image in images if image.id in ids]
    if num_images < 0:
        raise OptionError(f"num_images is {num_images}; it must be 0 (all) or more")
    return GroundTruth(tuple(images[:num_images] if num_images else images), truth.categories, truth.unlisted)


def true_size(image: TrueImage, facts: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width of an image as it was decoded. Raises OptionError if the ground truth has another size."""
    size = (facts["height"], facts["width"])
    if image.size is not None and image.size != size:
        raise OptionError(
            f"{image.item.path} is {size[1]}x{size[0]}, but the ground truth says {image.size[1]}x{image.size[0]}: are "
            "these the images that were annotated?"
        )
    return size


def _ids(path: str, known: Collection[int]) -> set[int]:
    ids = set()
    for number, line in enumerate(read_lines(path, "the allowlist"), 1):
        if not line.strip().isdecimal() or int(line) not in known:
            raise OptionError(f"{path}, line {number}: {line!r} is no id of an image of the ground truth")
        ids.add(int(line))
    return ids


def _from_instances(content: Mapping[str, Any], path: str, folder: str | os.PathLike[str]) -> GroundTruth:
    categories = {int(c["id"]): str(c.get("name", f"class {c['id']}")) for c in content["categories"]}
    objects: dict[int, list[TrueObject]] = {int(image["id"]): [] for image in content["images"]}
    if len(objects) != len(content["images"]):
        raise OptionError(f"{path}: several images have the same id")
    for place, annotation in enumerate(content["annotations"]):
        where = f"{path}: annotation {annotation.get('id', place)}"
        image, category, box = int(annotation["image_id"]), int(annotation["category_id"]), annotation["bbox"]
        if image not in objects:
            raise OptionError(f"{where} is about image {image}, which is not among the images")
        if category not in categories:
            raise OptionError(f"{where} is of category {category}, which is not among the categories")
        if len(box) != 4 or not all(map(math.isfinite, box)) or min(box[2:]) < 0:
            raise OptionError(f"{where} has the box {box}, which is not x, y, width, height")
        x, y, width, height = (float(n) for n in box)
        area = float(annotation["area"]) if "area" in annotation else None
        if area is not None and not (math.isfinite(area) and area >= 0):
            raise OptionError(f"{where} has the area {area}")
        crowd, keypoints = bool(annotation.get("iscrowd", 0)), tuple(float(n) for n in annotation.get("keypoints", ()))
        objects[image].append(TrueObject(category, (x, y, width, height), area, crowd, keypoints=keypoints))
    images = []
    for entry in content["images"]:
        id_ = int(entry["id"])
        size = (int(entry["height"]), int(entry["width"])) if "height" in entry and "width" in entry else None
        images.append(TrueImage(id_, item_of(folder, str(entry["file_name"])), tuple(objects[id_]), size))
    listed = {image.item.name for image in images}
    unlisted = tuple(item.name for item in list_images(folder) if item.name not in listed)
    return GroundTruth(tuple(sorted(images, key=lambda i: i.id)), categories, unlisted)


def _result(message: Any) -> tuple[str, int, tuple[TrueObject, ...]]:
    """ObjectDetectionResult: file name, image id, objects."""
    name, id_, objects = "", 0, []
    for number, value in _fields(message):
        if number == 1:
            objects.append(_object(value))
        elif number == 2:
            name = bytes(value).decode()
        elif number == 3:
            id_ = value
    return name, id_, tuple(objects)


def _object(message: Any) -> TrueObject:
    """ObjectInstance with its NormalizedBoundingBox."""
    category, edges = 0, dict.fromkeys((1, 2, 3, 4), 0.0)
    for number, value in _fields(message):
        if number == 1:
            category = value
        elif number == 2:
            for edge, content in _fields(value):
                if edge in edges:
                    edges[edge] = struct.unpack("<f", content)[0]
    top, bottom, left, right = (edges[i] for i in (1, 2, 3, 4))
    return TrueObject(category, (left, top, right - left, bottom - top), normalized=True)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, int or bytes) of a protocol buffer."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > len(message):
            raise ValueError(f"a field ends beyond the end, at byte {at}")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
