#pragma once
#error "gradprobe: 8-bit floating point (cuda_fp8.h) are not supported on a CPU"
