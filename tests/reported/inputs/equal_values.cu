// Delta of each row: one warp a row, and every lane stores the sum that all of them have.
__global__ void delta_kernel(const float* o, const float* dout, float* delta, int rows, int dim) {
    __shared__ float sums[2];
    __shared__ int width;
    width = dim;  // by the lanes of two warps
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * 2 + warp;
    float sum = 0.0f;
    for (int i = lane; i < width && row < rows; i += 32) sum += o[row * width + i] * dout[row * width + i];
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    sums[warp] = sum;
    __syncthreads();
    if (row < rows && lane == 0) delta[row] = sums[warp];
}
