"""The WebGPU backend: Vulkan, Metal, Direct3D 12 and OpenGL through wgpu."""
