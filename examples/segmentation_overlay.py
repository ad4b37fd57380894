"""Draws what DeepLab finds over a picture; between the texture and the drawing nothing leaves the GPU.

    python examples/segmentation_overlay.py deeplabv3_257_mv_gpu.tflite photograph.jpg overlay.png

The photograph lies in a texture, as a frame of a camera or a game would. It is bound to the model's input (litegpu
resizes and scales it on the GPU), the output is bound to a storage buffer, and a fragment shader reads both. Only the
finished picture is read back, to save it.
"""

from __future__ import annotations

import sys

import numpy as np
import wgpu
from PIL import Image
from wgpu.classes import GPUBuffer, GPUDevice, GPUTexture

from litegpu import GpuDelegate, ImageInput, Interpreter

SHADER = """
@group(0) @binding(0) var photograph: texture_2d<f32>;
@group(0) @binding(1) var<storage, read> scores: array<f32>;  // height, width, classes

const SIZE = vec2<u32>({width}u, {height}u);
const CLASSES = {classes}u;

@vertex
fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {{
  return vec4<f32>(f32(i % 2u) * 4.0 - 1.0, f32(i / 2u) * 4.0 - 1.0, 0.0, 1.0);  // one triangle over everything
}}

fn colour(class_: u32) -> vec3<f32> {{  // of the PASCAL VOC devkit
  var c = class_;
  var found = vec3<u32>(0u);
  for (var bit = 7u; c > 0u; bit--) {{
    found |= ((vec3<u32>(c) >> vec3<u32>(0u, 1u, 2u)) & vec3<u32>(1u)) << vec3<u32>(bit);
    c >>= 3u;
  }}
  return vec3<f32>(found) / 255.0;
}}

@fragment
fn overlay(@builtin(position) position: vec4<f32>) -> @location(0) vec4<f32> {{
  let pixel = vec2<u32>(position.xy);
  let at = min(pixel * SIZE / textureDimensions(photograph), SIZE - 1u);
  let first = (at.y * SIZE.x + at.x) * CLASSES;
  var best = 0u;
  for (var c = 1u; c < CLASSES; c++) {{
    if scores[first + c] > scores[first + best] {{ best = c; }}
  }}
  let seen = textureLoad(photograph, pixel, 0).rgb;
  return vec4<f32>(select(mix(seen, colour(best), 0.6), seen, best == 0u), 1.0);
}}
"""


def main(model: str, photograph: str, result: str) -> None:
    delegate = GpuDelegate(backend="webgpu")
    device = delegate.wgpu_device
    texture = upload(device, np.asarray(Image.open(photograph).convert("RGBA")))

    interpreter = Interpreter(model, experimental_delegates=[delegate], fallback="strict")
    interpreter.allocate_tensors()
    interpreter.set_allow_buffer_handle_output(True)  # the mask stays on the GPU
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    delegate.bind_buffer_to_tensor(texture, x["index"], image=ImageInput(mean=127.5, scale=1 / 127.5))
    scores = interpreter.get_output_buffer(y["index"])

    interpreter.invoke()
    target = draw(device, texture, scores, *y["shape"][1:])
    Image.fromarray(download(device, target)).convert("RGB").save(result, optimize=True)


def upload(device: GPUDevice, rgba: np.ndarray) -> GPUTexture:
    height, width, _ = rgba.shape
    usage = wgpu.TextureUsage.TEXTURE_BINDING | wgpu.TextureUsage.COPY_SRC | wgpu.TextureUsage.COPY_DST
    texture = device.create_texture(size=(width, height, 1), format="rgba8unorm", usage=usage)
    layout = {"bytes_per_row": 4 * width, "rows_per_image": height}
    device.queue.write_texture({"texture": texture}, np.ascontiguousarray(rgba), layout, texture.size)
    return texture


def draw(
    device: GPUDevice, photograph: GPUTexture, scores: GPUBuffer, height: int, width: int, classes: int
) -> GPUTexture:
    """A texture of the photograph's size with the most likely class of each pixel over it."""
    shader = device.create_shader_module(code=SHADER.format(height=height, width=width, classes=classes))
    usage = wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_SRC
    target = device.create_texture(size=photograph.size, format="rgba8unorm", usage=usage)
    pipeline = device.create_render_pipeline(
        layout="auto",
        vertex={"module": shader, "entry_point": "corner"},
        primitive={"topology": "triangle-list"},
        fragment={"module": shader, "entry_point": "overlay", "targets": [{"format": "rgba8unorm"}]},
    )
    entries = [
        {"binding": 0, "resource": photograph.create_view()},
        {"binding": 1, "resource": {"buffer": scores, "offset": 0, "size": scores.size}},
    ]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = device.create_command_encoder()
    attachment = {"view": target.create_view(), "load_op": "clear", "store_op": "store", "clear_value": (0, 0, 0, 1)}
    drawing = encoder.begin_render_pass(color_attachments=[attachment])
    drawing.set_pipeline(pipeline)
    drawing.set_bind_group(0, group)
    drawing.draw(3)
    drawing.end()
    device.queue.submit([encoder.finish()])
    return target


def download(device: GPUDevice, texture: GPUTexture) -> np.ndarray:
    width, height, _ = texture.size
    layout = {"bytes_per_row": 4 * width, "rows_per_image": height}
    pixels = device.queue.read_texture({"texture": texture}, layout, texture.size)
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 4)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
