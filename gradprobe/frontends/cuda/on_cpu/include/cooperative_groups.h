#pragma once
#error cooperative groups are not supported on a CPU
