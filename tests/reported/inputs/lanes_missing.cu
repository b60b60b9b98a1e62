// Delta of each row by one warp of 24 threads: the mask names them alone, and the sum reads lanes 24 to 31.
__global__ void delta_kernel(const float* o, const float* dout, float* delta, int dim) {
    unsigned mask = (1u << 24) - 1;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < dim; i += 24) sum += o[blockIdx.x * dim + i] * dout[blockIdx.x * dim + i];
    for (int by = 16; by; by /= 2) sum += __shfl_down_sync(mask, sum, by);
    if (threadIdx.x == 0) delta[blockIdx.x] = sum;
}
// The same with 16 threads: what the upper lanes read comes to nothing.
__global__ void right_kernel(const float* o, const float* dout, float* delta, int dim) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < dim; i += 16) sum += o[blockIdx.x * dim + i] * dout[blockIdx.x * dim + i];
    for (int by = 8; by; by /= 2) sum += __shfl_down_sync(0xffffu, sum, by);
    if (threadIdx.x == 0) delta[blockIdx.x] = sum;
}
