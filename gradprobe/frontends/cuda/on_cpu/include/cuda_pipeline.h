#pragma once
#error asynchronous copies (cuda_pipeline.h) are not supported on a CPU
