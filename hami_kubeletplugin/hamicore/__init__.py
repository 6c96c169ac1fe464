"""HAMi-core's contract: which variables and files `libvgpu.so` reads, and how they come to the host."""
