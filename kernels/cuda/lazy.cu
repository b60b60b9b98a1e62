// Lazy attention in CUDA C++: forward, and a backward of three kernels (preprocess, dq, dkdv) and one that adds up.
//
// Notation, for query row m and key n of one batch b and head h (natural logarithms throughout):
//
//     S = scale * Q K^T + bias[h, m - n] for m - n < window      LSE = log sum_n exp(S)      P = exp(S - LSE)
//     Z = P + tau[h] / (m + 1)       PE = relu(Z)       O = PE V       valid: n <= m, n < length, m < length
//
//     dP = [Z > 0] * (dO V^T)        delta = rowsum(P * dP)            dS = P * (dP - delta)
//     dQ = scale * dS K      dK = scale * dS^T Q      dV = PE^T dO
//     dBias[h, w] = sum dS[m, m - w]                  dTau[h] = sum dP / (m + 1)
//
// relu does not commute with the softmax's normalisation, so nothing here is computed online: every kernel but the
// forward reads LSE, and the forward passes over the keys twice.
//
// A block is 16 x 16 threads. The thread (x, y) has the rows y, y + 16, ... of a tile and its columns x, x + 16, ...
// Tiles in shared memory are float32, with zeros outside their tensor, and rows one element longer than they hold.
// bias_ptr is null for no bias, seqlens_ptr null for no padding.

#define CAT(a, b) a##b
#define NEEDS_FP16(scalar) CAT(NEEDS_FP16_, scalar)
#define NEEDS_FP16_float 0
#define NEEDS_FP16___half 1

#ifndef SCALAR
#define SCALAR float
#endif
#ifndef BLOCK_M
#define BLOCK_M 32
#endif
#ifndef BLOCK_N
#define BLOCK_N 32
#endif
// The head dim, rounded up to a multiple of 16.
#ifndef BLOCK_D
#define BLOCK_D 64
#endif

#define THREADS 16
#define NEG_INFINITY __int_as_float(0xff800000)

#if NEEDS_FP16(SCALAR)
#include <cuda_fp16.h>

__device__ float widened(__half x) { return __half2float(x); }
__device__ void store(__half* ptr, float x) { *ptr = __float2half(x); }
#endif

__device__ float widened(float x) { return x; }
__device__ void store(float* ptr, float x) { *ptr = x; }

struct ForwardTiles {
    float q[BLOCK_M][BLOCK_D + 1];
    float k[BLOCK_N][BLOCK_D + 1];
    float v[BLOCK_N][BLOCK_D + 1];
    float s[BLOCK_M][BLOCK_N + 1];
    float row_max[BLOCK_M];
    float row_sum[BLOCK_M];
    float lse[BLOCK_M];
};

struct BackwardTiles {
    float q[BLOCK_M][BLOCK_D + 1];
    float k[BLOCK_N][BLOCK_D + 1];
    float v[BLOCK_N][BLOCK_D + 1];
    float dout[BLOCK_M][BLOCK_D + 1];
    float pe[BLOCK_M][BLOCK_N + 1];
    float ds[BLOCK_M][BLOCK_N + 1];
    float part[THREADS * THREADS];
    float lse[BLOCK_M];
    float delta[BLOCK_M];
};

template <int ROWS, int PITCH>
__device__ void load_tile(
    float (&tile)[ROWS][PITCH], const SCALAR* ptr, long long stride_row, long long stride_col,
    long long n_rows, int n_cols
) {
    for (int i = threadIdx.y; i < ROWS; i += THREADS) {
        for (int d = threadIdx.x; d < PITCH - 1; d += THREADS) {
            tile[i][d] = i < n_rows && d < n_cols ? widened(ptr[i * stride_row + d * stride_col]) : 0.0f;
        }
    }
}

template <int ROWS>
__device__ void load_rows(float (&rows)[ROWS], const float* ptr, long long stride, long long n_rows) {
    const int i = threadIdx.y * THREADS + threadIdx.x;
    if (i < ROWS) {
        rows[i] = i < n_rows ? ptr[i * stride] : 0.0f;
    }
}

template <int PITCH>
__device__ float dot(const float (&x)[PITCH], const float (&y)[PITCH]) {
    float sum = 0.0f;
    for (int d = 0; d < PITCH - 1; ++d) {
        sum += x[d] * y[d];
    }
    return sum;
}

extern "C" __global__ void lazy_forward(
    const SCALAR* q_ptr, const SCALAR* k_ptr, const SCALAR* v_ptr, const float* bias_ptr, const float* tau_ptr,
    const int* seqlens_ptr,
    SCALAR* o_ptr, float* lse_ptr,
    long long stride_qb, long long stride_qh, long long stride_qm, long long stride_qd,
    long long stride_kb, long long stride_kh, long long stride_kn, long long stride_kd,
    long long stride_vb, long long stride_vh, long long stride_vn, long long stride_vd,
    long long stride_biash, long long stride_biasw, long long stride_tauh, long long stride_seqlensb,
    long long stride_ob, long long stride_oh, long long stride_om, long long stride_od,
    long long stride_lseb, long long stride_lseh, long long stride_lsem,
    float scale, int n_heads, long long n_ctx, int head_dim, int window
) {
    extern __shared__ float memory[];
    ForwardTiles& tile = *(ForwardTiles*)memory;
    const int thread = threadIdx.y * THREADS + threadIdx.x;

    const long long n_tiles = (n_ctx + BLOCK_M - 1) / BLOCK_M;
    const long long start_m = blockIdx.x % n_tiles * BLOCK_M;
    const long long h = blockIdx.x / n_tiles % n_heads;
    const long long b = blockIdx.x / n_tiles / n_heads;
    const long long length = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx;
    const float tau = tau_ptr[h * stride_tauh];
    q_ptr += b * stride_qb + h * stride_qh;
    k_ptr += b * stride_kb + h * stride_kh;
    v_ptr += b * stride_vb + h * stride_vh;
    bias_ptr += h * stride_biash;
    o_ptr += b * stride_ob + h * stride_oh;
    lse_ptr += b * stride_lseb + h * stride_lseh;

    load_tile(tile.q, q_ptr + start_m * stride_qm, stride_qm, stride_qd, length - start_m, head_dim);
    if (thread < BLOCK_M) {
        tile.row_max[thread] = NEG_INFINITY;
        tile.row_sum[thread] = 0.0f;
    }

    // First pass: LSE, with the running maximum.
    const long long end_n = start_m < length ? min(start_m + BLOCK_M, length) : 0;
    for (long long start_n = 0; start_n < end_n; start_n += BLOCK_N) {
        load_tile(tile.k, k_ptr + start_n * stride_kn, stride_kn, stride_kd, length - start_n, head_dim);
        __syncthreads();

        for (int i = threadIdx.y; i < BLOCK_M; i += THREADS) {
            for (int j = threadIdx.x; j < BLOCK_N; j += THREADS) {
                const long long m = start_m + i, n = start_n + j;
                const long long distance = m - n;
                const bool valid = distance >= 0 && m < length && n < length;
                float s = scale * dot(tile.q[i], tile.k[j]);
                if (bias_ptr && valid && distance < window) {
                    s += bias_ptr[distance * stride_biasw];
                }
                tile.s[i][j] = valid ? s : NEG_INFINITY;
            }
        }
        __syncthreads();

        // One thread a row.
        if (thread < BLOCK_M) {
            float new_max = tile.row_max[thread];
            for (int j = 0; j < BLOCK_N; ++j) {
                new_max = fmaxf(new_max, tile.s[thread][j]);
            }
            const float lowest = new_max == NEG_INFINITY ? 0.0f : new_max;
            float sum = tile.row_sum[thread] * expf(tile.row_max[thread] - lowest);
            for (int j = 0; j < BLOCK_N; ++j) {
                sum += expf(tile.s[thread][j] - lowest);
            }
            tile.row_max[thread] = new_max;
            tile.row_sum[thread] = sum;
        }
        __syncthreads();
    }
    if (thread < BLOCK_M) {
        const long long m = start_m + thread;
        const float lse = m < length ? tile.row_max[thread] + logf(tile.row_sum[thread]) : NEG_INFINITY;
        tile.lse[thread] = lse;
        if (m < n_ctx) {
            lse_ptr[m * stride_lsem] = lse;
        }
    }

    // Second pass: O, now that P is known.
    float o[BLOCK_M / THREADS][BLOCK_D / THREADS] = {};
    for (long long start_n = 0; start_n < end_n; start_n += BLOCK_N) {
        load_tile(tile.k, k_ptr + start_n * stride_kn, stride_kn, stride_kd, length - start_n, head_dim);
        load_tile(tile.v, v_ptr + start_n * stride_vn, stride_vn, stride_vd, length - start_n, head_dim);
        __syncthreads();

        for (int i = threadIdx.y; i < BLOCK_M; i += THREADS) {
            for (int j = threadIdx.x; j < BLOCK_N; j += THREADS) {
                const long long m = start_m + i, n = start_n + j;
                const long long distance = m - n;
                const bool valid = distance >= 0 && m < length && n < length;
                float s = scale * dot(tile.q[i], tile.k[j]);
                if (bias_ptr && valid && distance < window) {
                    s += bias_ptr[distance * stride_biasw];
                }
                const float p = valid ? expf(s - tile.lse[i]) : 0.0f;
                const float z = p + tau / (float)(m + 1);
                tile.s[i][j] = valid && !(z < 0.0f) ? z : 0.0f;
            }
        }
        __syncthreads();

        for (int r = 0; r < BLOCK_M / THREADS; ++r) {
            const int i = threadIdx.y + r * THREADS;
            for (int c = 0; c < BLOCK_D / THREADS; ++c) {
                const int d = threadIdx.x + c * THREADS;
                float sum = 0.0f;
                for (int j = 0; j < BLOCK_N; ++j) {
                    sum += tile.s[i][j] * tile.v[j][d];
                }
                o[r][c] += sum;
            }
        }
        __syncthreads();
    }

    for (int r = 0; r < BLOCK_M / THREADS; ++r) {
        const long long m = start_m + threadIdx.y + r * THREADS;
        for (int c = 0; c < BLOCK_D / THREADS; ++c) {
            const int d = threadIdx.x + c * THREADS;
            if (m < n_ctx && d < head_dim) {
                store(o_ptr + m * stride_om + d * stride_od, o[r][c]);
            }
        }
    }
}

extern "C" __global__ void lazy_preprocess(
    const SCALAR* q_ptr, const SCALAR* k_ptr, const SCALAR* v_ptr, const SCALAR* do_ptr,
    const float* bias_ptr, const float* tau_ptr, const int* seqlens_ptr, const float* lse_ptr,
    float* delta_ptr,
    long long stride_qb, long long stride_qh, long long stride_qm, long long stride_qd,
    long long stride_kb, long long stride_kh, long long stride_kn, long long stride_kd,
    long long stride_vb, long long stride_vh, long long stride_vn, long long stride_vd,
    long long stride_dob, long long stride_doh, long long stride_dom, long long stride_dod,
    long long stride_biash, long long stride_biasw, long long stride_tauh, long long stride_seqlensb,
    long long stride_lseb, long long stride_lseh, long long stride_lsem,
    long long stride_deltab, long long stride_deltah, long long stride_deltam,
    float scale, int n_heads, long long n_ctx, int head_dim, int window
) {
    extern __shared__ float memory[];
    BackwardTiles& tile = *(BackwardTiles*)memory;
    const int thread = threadIdx.y * THREADS + threadIdx.x;

    const long long n_tiles = (n_ctx + BLOCK_M - 1) / BLOCK_M;
    const long long start_m = blockIdx.x % n_tiles * BLOCK_M;
    const long long h = blockIdx.x / n_tiles % n_heads;
    const long long b = blockIdx.x / n_tiles / n_heads;
    const long long length = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx;
    const float tau = tau_ptr[h * stride_tauh];
    q_ptr += b * stride_qb + h * stride_qh;
    k_ptr += b * stride_kb + h * stride_kh;
    v_ptr += b * stride_vb + h * stride_vh;
    do_ptr += b * stride_dob + h * stride_doh;
    bias_ptr += h * stride_biash;
    lse_ptr += b * stride_lseb + h * stride_lseh;
    delta_ptr += b * stride_deltab + h * stride_deltah;

    load_tile(tile.q, q_ptr + start_m * stride_qm, stride_qm, stride_qd, length - start_m, head_dim);
    load_tile(tile.dout, do_ptr + start_m * stride_dom, stride_dom, stride_dod, length - start_m, head_dim);
    load_rows(tile.lse, lse_ptr + start_m * stride_lsem, stride_lsem, length - start_m);
    if (thread < BLOCK_M) {
        tile.delta[thread] = 0.0f;
    }

    const long long end_n = start_m < length ? min(start_m + BLOCK_M, length) : 0;
    for (long long start_n = 0; start_n < end_n; start_n += BLOCK_N) {
        load_tile(tile.k, k_ptr + start_n * stride_kn, stride_kn, stride_kd, length - start_n, head_dim);
        load_tile(tile.v, v_ptr + start_n * stride_vn, stride_vn, stride_vd, length - start_n, head_dim);
        __syncthreads();

        for (int i = threadIdx.y; i < BLOCK_M; i += THREADS) {
            for (int j = threadIdx.x; j < BLOCK_N; j += THREADS) {
                const long long m = start_m + i, n = start_n + j;
                const long long distance = m - n;
                const bool valid = distance >= 0 && m < length && n < length;
                float s = scale * dot(tile.q[i], tile.k[j]);
                if (bias_ptr && valid && distance < window) {
                    s += bias_ptr[distance * stride_biasw];
                }
                const float p = valid ? expf(s - tile.lse[i]) : 0.0f;
                const float z = p + tau / (float)(m + 1);
                const float dp = valid && z > 0.0f ? dot(tile.dout[i], tile.v[j]) : 0.0f;
                tile.ds[i][j] = p * dp;
            }
        }
        __syncthreads();

        // One thread a row.
        if (thread < BLOCK_M) {
            float sum = 0.0f;
            for (int j = 0; j < BLOCK_N; ++j) {
                sum += tile.ds[thread][j];
            }
            tile.delta[thread] += sum;
        }
        __syncthreads();
    }

    if (thread < BLOCK_M && start_m + thread < n_ctx) {
        delta_ptr[(start_m + thread) * stride_deltam] = tile.delta[thread];
    }
}

// Each block adds its own part of dBias and of dTau into [grid, window] and [grid] elements that hold 0.
extern "C" __global__ void lazy_dq(
    const SCALAR* q_ptr, const SCALAR* k_ptr, const SCALAR* v_ptr, const SCALAR* do_ptr,
    const float* bias_ptr, const float* tau_ptr, const int* seqlens_ptr, const float* lse_ptr, const float* delta_ptr,
    SCALAR* dq_ptr, float* dbias_parts_ptr, float* dtau_parts_ptr, float* p_ptr, float* dp_ptr, float* ds_ptr,
    long long stride_qb, long long stride_qh, long long stride_qm, long long stride_qd,
    long long stride_kb, long long stride_kh, long long stride_kn, long long stride_kd,
    long long stride_vb, long long stride_vh, long long stride_vn, long long stride_vd,
    long long stride_dob, long long stride_doh, long long stride_dom, long long stride_dod,
    long long stride_biash, long long stride_biasw, long long stride_tauh, long long stride_seqlensb,
    long long stride_lseb, long long stride_lseh, long long stride_lsem,
    long long stride_deltab, long long stride_deltah, long long stride_deltam,
    long long stride_dqb, long long stride_dqh, long long stride_dqm, long long stride_dqd,
    long long stride_pb, long long stride_ph, long long stride_pm, long long stride_pn,
    long long stride_dpb, long long stride_dph, long long stride_dpm, long long stride_dpn,
    long long stride_dsb, long long stride_dsh, long long stride_dsm, long long stride_dsn,
    float scale, int n_heads, long long n_ctx, int head_dim, int window
) {
    extern __shared__ float memory[];
    BackwardTiles& tile = *(BackwardTiles*)memory;
    const int thread = threadIdx.y * THREADS + threadIdx.x;

    const long long n_tiles = (n_ctx + BLOCK_M - 1) / BLOCK_M;
    const long long start_m = blockIdx.x % n_tiles * BLOCK_M;
    const long long h = blockIdx.x / n_tiles % n_heads;
    const long long b = blockIdx.x / n_tiles / n_heads;
    const long long length = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx;
    const float tau = tau_ptr[h * stride_tauh];
    q_ptr += b * stride_qb + h * stride_qh;
    k_ptr += b * stride_kb + h * stride_kh;
    v_ptr += b * stride_vb + h * stride_vh;
    do_ptr += b * stride_dob + h * stride_doh;
    bias_ptr += h * stride_biash;
    lse_ptr += b * stride_lseb + h * stride_lseh;
    delta_ptr += b * stride_deltab + h * stride_deltah;
    dq_ptr += b * stride_dqb + h * stride_dqh;
    const bool is_exported = p_ptr != nullptr;
    p_ptr += b * stride_pb + h * stride_ph;
    dp_ptr += b * stride_dpb + h * stride_dph;
    ds_ptr += b * stride_dsb + h * stride_dsh;
    dbias_parts_ptr += (long long)blockIdx.x * window;
    dtau_parts_ptr += blockIdx.x;

    load_tile(tile.q, q_ptr + start_m * stride_qm, stride_qm, stride_qd, length - start_m, head_dim);
    load_tile(tile.dout, do_ptr + start_m * stride_dom, stride_dom, stride_dod, length - start_m, head_dim);
    load_rows(tile.lse, lse_ptr + start_m * stride_lsem, stride_lsem, length - start_m);
    load_rows(tile.delta, delta_ptr + start_m * stride_deltam, stride_deltam, length - start_m);

    float dq[BLOCK_M / THREADS][BLOCK_D / THREADS] = {};
    float dtau = 0.0f;
    const long long end_n = start_m < length ? min(start_m + BLOCK_M, length) : 0;
    for (long long start_n = 0; start_n < end_n; start_n += BLOCK_N) {
        load_tile(tile.k, k_ptr + start_n * stride_kn, stride_kn, stride_kd, length - start_n, head_dim);
        load_tile(tile.v, v_ptr + start_n * stride_vn, stride_vn, stride_vd, length - start_n, head_dim);
        __syncthreads();

        for (int i = threadIdx.y; i < BLOCK_M; i += THREADS) {
            for (int j = threadIdx.x; j < BLOCK_N; j += THREADS) {
                const long long m = start_m + i, n = start_n + j;
                const long long distance = m - n;
                const bool valid = distance >= 0 && m < length && n < length;
                float s = scale * dot(tile.q[i], tile.k[j]);
                if (bias_ptr && valid && distance < window) {
                    s += bias_ptr[distance * stride_biasw];
                }
                const float p = valid ? expf(s - tile.lse[i]) : 0.0f;
                const float z = p + tau / (float)(m + 1);
                const float dp = valid && z > 0.0f ? dot(tile.dout[i], tile.v[j]) : 0.0f;
                const float ds = p * (dp - tile.delta[i]);
                tile.ds[i][j] = ds;
                dtau += dp / (float)(m + 1);
                if (is_exported && m < length && n < length) {
                    p_ptr[m * stride_pm + n * stride_pn] = p;
                    dp_ptr[m * stride_dpm + n * stride_dpn] = dp;
                    ds_ptr[m * stride_dsm + n * stride_dsn] = ds;
                }
            }
        }
        __syncthreads();

        for (int r = 0; r < BLOCK_M / THREADS; ++r) {
            const int i = threadIdx.y + r * THREADS;
            for (int c = 0; c < BLOCK_D / THREADS; ++c) {
                const int d = threadIdx.x + c * THREADS;
                float sum = 0.0f;
                for (int j = 0; j < BLOCK_N; ++j) {
                    sum += tile.ds[i][j] * tile.k[j][d];
                }
                dq[r][c] += sum;
            }
        }
        if (bias_ptr) {
            // One thread a diagonal of the tile: no other thread of the grid adds to the same element meanwhile.
            for (int e = thread; e < BLOCK_M + BLOCK_N - 1; e += THREADS * THREADS) {
                const long long distance = start_m - start_n + e - (BLOCK_N - 1);
                if (distance >= 0 && distance < window) {
                    float sum = 0.0f;
                    for (int i = max(0, e - (BLOCK_N - 1)); i < min(BLOCK_M, e + 1); ++i) {
                        sum += tile.ds[i][i + BLOCK_N - 1 - e];
                    }
                    dbias_parts_ptr[distance] += sum;
                }
            }
        }
        __syncthreads();
    }

    for (int r = 0; r < BLOCK_M / THREADS; ++r) {
        const long long m = start_m + threadIdx.y + r * THREADS;
        for (int c = 0; c < BLOCK_D / THREADS; ++c) {
            const int d = threadIdx.x + c * THREADS;
            if (m < n_ctx && d < head_dim) {
                store(dq_ptr + m * stride_dqm + d * stride_dqd, scale * dq[r][c]);
            }
        }
    }
    tile.part[thread] = dtau;
    __syncthreads();
    if (thread == 0) {
        float sum = 0.0f;
        for (int t = 0; t < THREADS * THREADS; ++t) {
            sum += tile.part[t];
        }
        *dtau_parts_ptr = sum;
    }
}

extern "C" __global__ void lazy_dkdv(
    const SCALAR* q_ptr, const SCALAR* k_ptr, const SCALAR* v_ptr, const SCALAR* do_ptr,
    const float* bias_ptr, const float* tau_ptr, const int* seqlens_ptr, const float* lse_ptr, const float* delta_ptr,
    SCALAR* dk_ptr, SCALAR* dv_ptr,
    long long stride_qb, long long stride_qh, long long stride_qm, long long stride_qd,
    long long stride_kb, long long stride_kh, long long stride_kn, long long stride_kd,
    long long stride_vb, long long stride_vh, long long stride_vn, long long stride_vd,
    long long stride_dob, long long stride_doh, long long stride_dom, long long stride_dod,
    long long stride_biash, long long stride_biasw, long long stride_tauh, long long stride_seqlensb,
    long long stride_lseb, long long stride_lseh, long long stride_lsem,
    long long stride_deltab, long long stride_deltah, long long stride_deltam,
    long long stride_dkb, long long stride_dkh, long long stride_dkn, long long stride_dkd,
    long long stride_dvb, long long stride_dvh, long long stride_dvn, long long stride_dvd,
    float scale, int n_heads, long long n_ctx, int head_dim, int window
) {
    extern __shared__ float memory[];
    BackwardTiles& tile = *(BackwardTiles*)memory;

    const long long n_tiles = (n_ctx + BLOCK_N - 1) / BLOCK_N;
    const long long start_n = blockIdx.x % n_tiles * BLOCK_N;
    const long long h = blockIdx.x / n_tiles % n_heads;
    const long long b = blockIdx.x / n_tiles / n_heads;
    const long long length = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx;
    const float tau = tau_ptr[h * stride_tauh];
    q_ptr += b * stride_qb + h * stride_qh;
    k_ptr += b * stride_kb + h * stride_kh;
    v_ptr += b * stride_vb + h * stride_vh;
    do_ptr += b * stride_dob + h * stride_doh;
    bias_ptr += h * stride_biash;
    lse_ptr += b * stride_lseb + h * stride_lseh;
    delta_ptr += b * stride_deltab + h * stride_deltah;
    dk_ptr += b * stride_dkb + h * stride_dkh;
    dv_ptr += b * stride_dvb + h * stride_dvh;

    load_tile(tile.k, k_ptr + start_n * stride_kn, stride_kn, stride_kd, length - start_n, head_dim);
    load_tile(tile.v, v_ptr + start_n * stride_vn, stride_vn, stride_vd, length - start_n, head_dim);

    float dk[BLOCK_N / THREADS][BLOCK_D / THREADS] = {};
    float dv[BLOCK_N / THREADS][BLOCK_D / THREADS] = {};
    for (long long start_m = start_n / BLOCK_M * BLOCK_M; start_m < length; start_m += BLOCK_M) {
        load_tile(tile.q, q_ptr + start_m * stride_qm, stride_qm, stride_qd, length - start_m, head_dim);
        load_tile(tile.dout, do_ptr + start_m * stride_dom, stride_dom, stride_dod, length - start_m, head_dim);
        load_rows(tile.lse, lse_ptr + start_m * stride_lsem, stride_lsem, length - start_m);
        load_rows(tile.delta, delta_ptr + start_m * stride_deltam, stride_deltam, length - start_m);
        __syncthreads();

        for (int i = threadIdx.y; i < BLOCK_M; i += THREADS) {
            for (int j = threadIdx.x; j < BLOCK_N; j += THREADS) {
                const long long m = start_m + i, n = start_n + j;
                const long long distance = m - n;
                const bool valid = distance >= 0 && m < length && n < length;
                float s = scale * dot(tile.q[i], tile.k[j]);
                if (bias_ptr && valid && distance < window) {
                    s += bias_ptr[distance * stride_biasw];
                }
                const float p = valid ? expf(s - tile.lse[i]) : 0.0f;
                const float z = p + tau / (float)(m + 1);
                const float dp = valid && z > 0.0f ? dot(tile.dout[i], tile.v[j]) : 0.0f;
                tile.pe[i][j] = valid && !(z < 0.0f) ? z : 0.0f;
                tile.ds[i][j] = p * (dp - tile.delta[i]);
            }
        }
        __syncthreads();

        for (int r = 0; r < BLOCK_N / THREADS; ++r) {
            const int j = threadIdx.y + r * THREADS;
            for (int c = 0; c < BLOCK_D / THREADS; ++c) {
                const int d = threadIdx.x + c * THREADS;
                float dk_sum = 0.0f, dv_sum = 0.0f;
                for (int i = 0; i < BLOCK_M; ++i) {
                    dk_sum += tile.ds[i][j] * tile.q[i][d];
                    dv_sum += tile.pe[i][j] * tile.dout[i][d];
                }
                dk[r][c] += dk_sum;
                dv[r][c] += dv_sum;
            }
        }
        __syncthreads();
    }

    for (int r = 0; r < BLOCK_N / THREADS; ++r) {
        const long long n = start_n + threadIdx.y + r * THREADS;
        for (int c = 0; c < BLOCK_D / THREADS; ++c) {
            const int d = threadIdx.x + c * THREADS;
            if (n < n_ctx && d < head_dim) {
                store(dk_ptr + n * stride_dkn + d * stride_dkd, scale * dk[r][c]);
                store(dv_ptr + n * stride_dvn + d * stride_dvd, dv[r][c]);
            }
        }
    }
}

// out[h, w] = the sum over batches and tiles of parts [n_batch, n_heads, n_tiles, width]. A thread has one (h, w).
extern "C" __global__ void lazy_add_parts(
    const float* parts_ptr, float* out_ptr, int n_batch, int n_heads, long long n_tiles, int width
) {
    const long long place = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long h = place / width;
    const long long w = place % width;
    if (h < n_heads) {
        float sum = 0.0f;
        for (long long b = 0; b < n_batch; ++b) {
            for (long long t = 0; t < n_tiles; ++t) {
                sum += parts_ptr[((b * n_heads + h) * n_tiles + t) * width + w];
            }
        }
        out_ptr[place] = sum;
    }
}
