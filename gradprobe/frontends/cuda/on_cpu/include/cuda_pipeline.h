#pragma once
#error "gradprobe: asynchronous copies (cuda_pipeline.h) are not supported on a CPU"
