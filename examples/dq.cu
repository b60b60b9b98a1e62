// dQ of softmax attention, 16 rows a block, one thread a (row, key) of a tile. Head dims up to 32.
// To try: `gradprobe check examples/dq.py:dq --head-dim 32`. The barrier at the end of the loop is missing.

const int TILE = 16, DIM = 32;

extern "C" __global__ void dq_kernel(const float* q, const float* k, const float* v, const float* dout, const float* lse,
                                     const float* delta, float* dq, float scale, int n_ctx, int head_dim) {
  __shared__ float k_tile[TILE][DIM], v_tile[TILE][DIM], ds[TILE][TILE];
  const int j = threadIdx.x, i = threadIdx.y, row = blockIdx.x * TILE + i;
  const long head = (long)blockIdx.y * n_ctx * head_dim, head_rows = (long)blockIdx.y * n_ctx;
  float sum[2] = {0.0f, 0.0f};
  for (int start = 0; start < n_ctx; start += TILE) {
    for (int d = j; d < head_dim; d += TILE) {
      k_tile[i][d] = start + i < n_ctx ? k[head + (start + i) * head_dim + d] : 0.0f;
      v_tile[i][d] = start + i < n_ctx ? v[head + (start + i) * head_dim + d] : 0.0f;
    }
    __syncthreads();
    float s = 0.0f, dp = 0.0f;
    for (int d = 0; row < n_ctx && d < head_dim; ++d) {
      s += q[head + row * head_dim + d] * k_tile[j][d];
      dp += dout[head + row * head_dim + d] * v_tile[j][d];
    }
    const bool in = row < n_ctx && start + j < n_ctx;
    ds[i][j] = in ? expf(s * scale - lse[head_rows + row]) * (dp - delta[head_rows + row]) : 0.0f;
    __syncthreads();
    for (int n = 0; n < TILE; ++n)
      for (int c = 0; c * TILE + j < head_dim; ++c) sum[c] += ds[i][n] * k_tile[n][c * TILE + j];
  }
  for (int c = 0; row < n_ctx && c * TILE + j < head_dim; ++c) dq[head + row * head_dim + c * TILE + j] = sum[c] * scale;
}
