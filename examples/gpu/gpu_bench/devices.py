"""What devices attain, for predictions.

Peaks are those of the vendor's data sheets (dense products, without sparsity). What a copy and a matrix product attain
was measured on an H100 80GB HBM3 and an H200 with torch 2.11 (see `Device.source`), and is estimated for the others by
the same shares of the peak, less for a product where the power limit is known to lower the clock. The times of a kernel
and of a launch are estimates from published measurements of CUDA graphs; `day.sh` measures the calls that
they add up to.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
        title: Its full name.
        bandwidth: Bytes per second, read and written, that a large copy attains.
        flops: Floating-point operations per second that a large bfloat16 product attains.
        kernel: Seconds that each kernel of a CUDA graph takes besides its bytes and operations.
        launch: Seconds that the host takes to launch a kernel outside of a graph.
        wait: Seconds that the host takes to wait for the device once.
        processors: Streaming multiprocessors.
        memory: Bytes.
        source: Where the figures are from.
    """

    title: str
    bandwidth: float
    flops: float
    kernel: float
    launch: float
    wait: float
    processors: int
    memory: int
    source: str


MEASURED = "a copy and an 8192 x 8192 x 8192 product measured with torch 2.11; kernel, launch and wait estimated"
ESTIMATED = "the data sheet's peaks, times the shares that an H100 attains; kernel, launch and wait estimated"
DEVICES = {
    "h100": Device("NVIDIA H100 SXM 80 GB", 3.0e12, 798e12, 1.7e-6, 5e-6, 12e-6, 132, 80 * 10**9, MEASURED),
    "h200": Device("NVIDIA H200 SXM", 4.3e12, 788e12, 1.7e-6, 5e-6, 12e-6, 132, 141 * 10**9, MEASURED),
    "a100": Device("NVIDIA A100 SXM 80 GB", 1.8e12, 250e12, 2.0e-6, 6e-6, 12e-6, 108, 80 * 10**9, ESTIMATED),
    "l4": Device("NVIDIA L4", 0.26e12, 65e12, 2.0e-6, 6e-6, 12e-6, 58, 24 * 10**9, ESTIMATED),
    "4090": Device("NVIDIA GeForce RTX 4090", 0.92e12, 150e12, 1.7e-6, 5e-6, 12e-6, 128, 24 * 10**9, ESTIMATED),
}
