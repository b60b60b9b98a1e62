#pragma once
#error "gradprobe: cooperative groups are not supported on a CPU"
