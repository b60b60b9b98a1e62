"""Right attention that chooses by the GPU when it is imported, as kernels of AMD's do."""

import torch
import triton

TARGET = triton.runtime.driver.active.get_current_target()
WARPS = {"gfx942": 64, "gfx1100": 32, 75: 32, 90: 32}[TARGET.arch]
PROPERTIES = torch.cuda.get_device_properties(0)
MAJOR, MINOR = torch.cuda.get_device_capability()


def attend(q, k, v):
    arch = PROPERTIES.gcnArchName.partition(":")[0]
    print(TARGET.backend, WARPS, arch, MAJOR, MINOR, torch.version.hip is not None)
    return (q.shape[-1] ** -0.5 * q @ k.mT).softmax(-1) @ v
