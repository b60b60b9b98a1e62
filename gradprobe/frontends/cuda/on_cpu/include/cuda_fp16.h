#pragma once
#include "gradprobe_cuda.h"
