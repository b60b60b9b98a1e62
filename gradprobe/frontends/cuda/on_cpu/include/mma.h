#pragma once
#error the matrix instructions of mma.h are not supported on a CPU
