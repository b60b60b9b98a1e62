// dQ of one head from a given dS, by tiles of 8 keys in shared memory. KEY and FACTOR are what may be wrong.
#define TILE 8

__global__ void dq_kernel(const float* ds, const float* k, float* dq, int rows, int keys, int dim, float scale) {
    __shared__ float ds_tile[TILE][TILE], k_tile[TILE][TILE];
    int row = blockIdx.x * TILE + threadIdx.y, col = blockIdx.y * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < keys; first += TILE) {
        int key = first + threadIdx.x;
        ds_tile[threadIdx.y][threadIdx.x] = row < rows && key < keys ? ds[row * keys + key] : 0.0f;
        key = first + threadIdx.y;
        k_tile[threadIdx.y][threadIdx.x] = key < keys && col < dim ? k[key * dim + col] : 0.0f;
        __syncthreads();
        for (int n = 0; n < TILE; ++n)
            sum += ds_tile[threadIdx.y][n] * k_tile[KEY][threadIdx.x];
        __syncthreads();
    }
    if (row < rows && col < dim) dq[row * dim + col] = sum * scale * FACTOR;
}
