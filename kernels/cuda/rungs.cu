// The smallest kernels of what an attention backward is made of: atomic adds, dots, and a backward of one head.

#ifndef SCALAR
#define SCALAR float
#endif
#define CAT(a, b) a##b
#define IS_HALF(scalar) CAT(IS_HALF_, scalar)
#define IS_HALF_float 0
#define IS_HALF___half 1
#define IS_HALF___nv_bfloat16 2

__device__ float widened(float x) { return x; }

#if IS_HALF(SCALAR) == 1
#include <cuda_fp16.h>
__device__ float widened(__half x) { return __half2float(x); }
#elif IS_HALF(SCALAR) == 2
#include <cuda_bf16.h>
__device__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

// Every block of a head adds its number to the head's one element. Grid (heads, blocks), one thread.
extern "C" __global__ void add_one(float* out, int stride_h) {
    atomicAdd(out + blockIdx.x * stride_h, blockIdx.y + 1.0f);
}

// Every block adds its number to all elements. Grid (blocks), a thread for each row.
extern "C" __global__ void add_strided(float* out, int stride_m, int stride_n, int n_cols) {
    for (int n = 0; n < n_cols; ++n)
        atomicAdd(out + threadIdx.x * stride_m + n * stride_n, blockIdx.x + 1.0f);
}

// out = a b. Grid (rows), a thread for each column.
extern "C" __global__ void dots(const SCALAR* a, const SCALAR* b, float* out, int depth) {
    const int m = blockIdx.x, n = threadIdx.x, size = blockDim.x;
    float sum = 0.0f;
    for (int at = 0; at < depth; ++at)
        sum += widened(a[m * depth + at]) * widened(b[at * size + n]);
    out[m * size + n] = sum;
}

#define MOST 64

// dQ, dK and dV [H, L, D], which hold 0, of contiguous q, k, v and dO. Grid (heads), a thread for each row.
extern "C" __global__ void one_head(const float* q, const float* k, const float* v, const float* d_o, float* dq,
                                    float* dk, float* dv, float scale, int n_ctx, int head_dim) {
    const int m = threadIdx.x;
    const long head = (long)blockIdx.x * n_ctx * head_dim, row = head + (long)m * head_dim;
    float p[MOST], dp[MOST], largest = -3.0e38f, sum = 0.0f, delta = 0.0f;
    for (int n = 0; n < n_ctx; ++n) {
        p[n] = dp[n] = 0.0f;
        for (int d = 0; d < head_dim; ++d) {
            p[n] += q[row + d] * k[head + n * head_dim + d];
            dp[n] += d_o[row + d] * v[head + n * head_dim + d];
        }
        p[n] *= scale;
        largest = fmaxf(largest, p[n]);
    }
    for (int n = 0; n < n_ctx; ++n) {
        p[n] = expf(p[n] - largest);
        sum += p[n];
    }
    for (int n = 0; n < n_ctx; ++n) {
        p[n] /= sum;
        delta += p[n] * dp[n];
    }
    for (int d = 0; d < head_dim; ++d) {
        float of_row = 0.0f;
        for (int n = 0; n < n_ctx; ++n) {
            const float ds = p[n] * (dp[n] - delta);
            of_row += ds * k[head + n * head_dim + d];
            atomicAdd(dk + head + n * head_dim + d, scale * ds * q[row + d]);
            atomicAdd(dv + head + n * head_dim + d, p[n] * d_o[row + d]);
        }
        dq[row + d] = scale * of_row;
    }
}
