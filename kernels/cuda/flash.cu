// Softmax attention in CUDA C++, tile by tile: forward, and a backward of three kernels (preprocess, dq, dkdv).
//
// Notation, for query row m and key n of one batch b and query head h, which reads key head h / group:
//
//     S = scale * Q K^T          T = softcap * tanh(S / softcap), -inf where hidden
//     LSE = log sum_n exp(T)     P = exp(T - LSE)                 O = P V
//
//     dP = dO V^T                delta = rowsum(dO * O)           dT = P * (dP - delta)
//     dS = dT * (1 - tanh(S / softcap)^2)
//     dQ = scale * dS K          dK = scale * dS^T Q              dV = P^T dO, dK and dV summed over the group
//
//     seen: -right <= distance <= left; distance = m + shift - n; shift = N - M (bottom-right) or 0 (top-left)
//
// A block is 16 x 16 threads. The thread (x, y) has the rows y, y + 16, ... of a tile and its columns x, x + 16, ...
// Tiles in shared memory are float32, with zeros outside their tensor, and rows one element longer than they hold.
// softcap is 0 for none, seqlens_ptr null for none. left and right are at least M + N for no limit.

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
// The head dims of q and k, and of v, rounded up to multiples of 16.
#ifndef BLOCK_D
#define BLOCK_D 64
#endif
#ifndef BLOCK_DV
#define BLOCK_DV 64
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
    float v[BLOCK_N][BLOCK_DV + 1];
    float p[BLOCK_M][BLOCK_N + 1];
    float row_max[BLOCK_M];
    float row_sum[BLOCK_M];
    float decay[BLOCK_M];
};

struct BackwardTiles {
    float q[BLOCK_M][BLOCK_D + 1];
    float k[BLOCK_N][BLOCK_D + 1];
    float v[BLOCK_N][BLOCK_DV + 1];
    float dout[BLOCK_M][BLOCK_DV + 1];
    float p[BLOCK_M][BLOCK_N + 1];
    float ds[BLOCK_M][BLOCK_N + 1];
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

extern "C" __global__ void flash_forward(
    const SCALAR* q_ptr, const SCALAR* k_ptr, const SCALAR* v_ptr, const int* seqlens_ptr,
    SCALAR* o_ptr, float* lse_ptr,
    long long stride_qb, long long stride_qh, long long stride_qm, long long stride_qd,
    long long stride_kb, long long stride_kh, long long stride_kn, long long stride_kd,
    long long stride_vb, long long stride_vh, long long stride_vn, long long stride_vd,
    long long stride_seqlensb,
    long long stride_ob, long long stride_oh, long long stride_om, long long stride_od,
    long long stride_lseb, long long stride_lseh, long long stride_lsem,
    float scale, float softcap, int n_heads, int group, long long n_ctx_m, long long n_ctx_n,
    int head_dim, int head_dim_v, long long left, long long right, int bottom_right
) {
    extern __shared__ float memory[];
    ForwardTiles& tile = *(ForwardTiles*)memory;
    const int thread = threadIdx.y * THREADS + threadIdx.x;

    const long long n_tiles = (n_ctx_m + BLOCK_M - 1) / BLOCK_M;
    const long long start_m = blockIdx.x % n_tiles * BLOCK_M;
    const long long h = blockIdx.x / n_tiles % n_heads;
    const long long b = blockIdx.x / n_tiles / n_heads;
    const long long kv_h = h / group;
    const long long live_m = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx_m;
    const long long live_n = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx_n;
    const long long shift = bottom_right ? n_ctx_n - n_ctx_m : 0;
    q_ptr += b * stride_qb + h * stride_qh;
    k_ptr += b * stride_kb + kv_h * stride_kh;
    v_ptr += b * stride_vb + kv_h * stride_vh;
    o_ptr += b * stride_ob + h * stride_oh;
    lse_ptr += b * stride_lseb + h * stride_lseh;

    load_tile(tile.q, q_ptr + start_m * stride_qm, stride_qm, stride_qd, live_m - start_m, head_dim);
    if (thread < BLOCK_M) {
        tile.row_max[thread] = NEG_INFINITY;
        tile.row_sum[thread] = 0.0f;
    }
    __syncthreads();

    float o[BLOCK_M / THREADS][BLOCK_DV / THREADS] = {};
    const long long last_m = min(start_m + BLOCK_M, live_m) - 1;
    const long long first_n = max(start_m + shift - left, 0LL) / BLOCK_N * BLOCK_N;
    const long long end_n = start_m < live_m ? min(last_m + shift + right + 1, live_n) : 0;
    for (long long start_n = first_n; start_n < end_n; start_n += BLOCK_N) {
        load_tile(tile.k, k_ptr + start_n * stride_kn, stride_kn, stride_kd, live_n - start_n, head_dim);
        load_tile(tile.v, v_ptr + start_n * stride_vn, stride_vn, stride_vd, live_n - start_n, head_dim_v);
        __syncthreads();

        for (int i = threadIdx.y; i < BLOCK_M; i += THREADS) {
            for (int j = threadIdx.x; j < BLOCK_N; j += THREADS) {
                const long long m = start_m + i, n = start_n + j;
                const long long distance = m + shift - n;
                const bool seen = m < live_m && n < live_n && distance <= left && distance >= -right;
                float s = scale * dot(tile.q[i], tile.k[j]);
                if (softcap > 0.0f) {
                    s = softcap * tanhf(s / softcap);
                }
                tile.p[i][j] = seen ? s : NEG_INFINITY;
            }
        }
        __syncthreads();

        // One thread a row.
        if (thread < BLOCK_M) {
            float new_max = tile.row_max[thread];
            for (int j = 0; j < BLOCK_N; ++j) {
                new_max = fmaxf(new_max, tile.p[thread][j]);
            }
            const float lowest = new_max == NEG_INFINITY ? 0.0f : new_max;
            const float decay = expf(tile.row_max[thread] - lowest);
            float sum = tile.row_sum[thread] * decay;
            for (int j = 0; j < BLOCK_N; ++j) {
                const float p = expf(tile.p[thread][j] - lowest);
                tile.p[thread][j] = p;
                sum += p;
            }
            tile.row_max[thread] = new_max;
            tile.row_sum[thread] = sum;
            tile.decay[thread] = decay;
        }
        __syncthreads();

        for (int r = 0; r < BLOCK_M / THREADS; ++r) {
            const int i = threadIdx.y + r * THREADS;
            for (int c = 0; c < BLOCK_DV / THREADS; ++c) {
                const int d = threadIdx.x + c * THREADS;
                float sum = 0.0f;
                for (int j = 0; j < BLOCK_N; ++j) {
                    sum += tile.p[i][j] * tile.v[j][d];
                }
                o[r][c] = o[r][c] * tile.decay[i] + sum;
            }
        }
        __syncthreads();
    }

    for (int r = 0; r < BLOCK_M / THREADS; ++r) {
        const int i = threadIdx.y + r * THREADS;
        const long long m = start_m + i;
        const float safe_sum = tile.row_sum[i] == 0.0f ? 1.0f : tile.row_sum[i];
        for (int c = 0; c < BLOCK_DV / THREADS; ++c) {
            const int d = threadIdx.x + c * THREADS;
            if (m < n_ctx_m && d < head_dim_v) {
                store(o_ptr + m * stride_om + d * stride_od, o[r][c] / safe_sum);
            }
        }
        if (threadIdx.x == 0 && m < n_ctx_m) {
            lse_ptr[m * stride_lsem] = tile.row_max[i] + logf(safe_sum);
        }
    }
}

// A block is BLOCK_M threads, each of which has one row.
extern "C" __global__ void flash_preprocess(
    const SCALAR* o_ptr, const SCALAR* do_ptr, const int* seqlens_ptr, float* delta_ptr,
    long long stride_ob, long long stride_oh, long long stride_om, long long stride_od,
    long long stride_dob, long long stride_doh, long long stride_dom, long long stride_dod,
    long long stride_seqlensb,
    long long stride_deltab, long long stride_deltah, long long stride_deltam,
    int n_heads, long long n_ctx_m, int head_dim_v
) {
    const long long n_tiles = (n_ctx_m + BLOCK_M - 1) / BLOCK_M;
    const long long m = blockIdx.x % n_tiles * BLOCK_M + threadIdx.x;
    const long long h = blockIdx.x / n_tiles % n_heads;
    const long long b = blockIdx.x / n_tiles / n_heads;
    const long long live_m = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx_m;
    o_ptr += b * stride_ob + h * stride_oh + m * stride_om;
    do_ptr += b * stride_dob + h * stride_doh + m * stride_dom;
    delta_ptr += b * stride_deltab + h * stride_deltah + m * stride_deltam;

    float delta = 0.0f;
    if (m < live_m) {
        for (int d = 0; d < head_dim_v; ++d) {
            delta += widened(do_ptr[d * stride_dod]) * widened(o_ptr[d * stride_od]);
        }
    }
    if (m < n_ctx_m) {
        *delta_ptr = delta;
    }
}

extern "C" __global__ void flash_dq(
    const SCALAR* q_ptr, const SCALAR* k_ptr, const SCALAR* v_ptr, const SCALAR* do_ptr, const int* seqlens_ptr,
    const float* lse_ptr, const float* delta_ptr,
    SCALAR* dq_ptr, float* p_ptr, float* dp_ptr, float* ds_ptr,
    long long stride_qb, long long stride_qh, long long stride_qm, long long stride_qd,
    long long stride_kb, long long stride_kh, long long stride_kn, long long stride_kd,
    long long stride_vb, long long stride_vh, long long stride_vn, long long stride_vd,
    long long stride_dob, long long stride_doh, long long stride_dom, long long stride_dod,
    long long stride_seqlensb,
    long long stride_lseb, long long stride_lseh, long long stride_lsem,
    long long stride_deltab, long long stride_deltah, long long stride_deltam,
    long long stride_dqb, long long stride_dqh, long long stride_dqm, long long stride_dqd,
    long long stride_pb, long long stride_ph, long long stride_pm, long long stride_pn,
    long long stride_dpb, long long stride_dph, long long stride_dpm, long long stride_dpn,
    long long stride_dsb, long long stride_dsh, long long stride_dsm, long long stride_dsn,
    float scale, float softcap, int n_heads, int group, long long n_ctx_m, long long n_ctx_n,
    int head_dim, int head_dim_v, long long left, long long right, int bottom_right
) {
    extern __shared__ float memory[];
    BackwardTiles& tile = *(BackwardTiles*)memory;

    const long long n_tiles = (n_ctx_m + BLOCK_M - 1) / BLOCK_M;
    const long long start_m = blockIdx.x % n_tiles * BLOCK_M;
    const long long h = blockIdx.x / n_tiles % n_heads;
    const long long b = blockIdx.x / n_tiles / n_heads;
    const long long kv_h = h / group;
    const long long live_m = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx_m;
    const long long live_n = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx_n;
    const long long shift = bottom_right ? n_ctx_n - n_ctx_m : 0;
    q_ptr += b * stride_qb + h * stride_qh;
    k_ptr += b * stride_kb + kv_h * stride_kh;
    v_ptr += b * stride_vb + kv_h * stride_vh;
    do_ptr += b * stride_dob + h * stride_doh;
    lse_ptr += b * stride_lseb + h * stride_lseh;
    delta_ptr += b * stride_deltab + h * stride_deltah;
    dq_ptr += b * stride_dqb + h * stride_dqh;
    const bool is_exported = p_ptr != nullptr;
    p_ptr += b * stride_pb + h * stride_ph;
    dp_ptr += b * stride_dpb + h * stride_dph;
    ds_ptr += b * stride_dsb + h * stride_dsh;

    load_tile(tile.q, q_ptr + start_m * stride_qm, stride_qm, stride_qd, live_m - start_m, head_dim);
    load_tile(tile.dout, do_ptr + start_m * stride_dom, stride_dom, stride_dod, live_m - start_m, head_dim_v);
    load_rows(tile.lse, lse_ptr + start_m * stride_lsem, stride_lsem, live_m - start_m);
    load_rows(tile.delta, delta_ptr + start_m * stride_deltam, stride_deltam, live_m - start_m);

    float dq[BLOCK_M / THREADS][BLOCK_D / THREADS] = {};
    const long long last_m = min(start_m + BLOCK_M, live_m) - 1;
    const long long first_n = max(start_m + shift - left, 0LL) / BLOCK_N * BLOCK_N;
    const long long end_n = start_m < live_m ? min(last_m + shift + right + 1, live_n) : 0;
    for (long long start_n = first_n; start_n < end_n; start_n += BLOCK_N) {
        load_tile(tile.k, k_ptr + start_n * stride_kn, stride_kn, stride_kd, live_n - start_n, head_dim);
        load_tile(tile.v, v_ptr + start_n * stride_vn, stride_vn, stride_vd, live_n - start_n, head_dim_v);
        __syncthreads();

        for (int i = threadIdx.y; i < BLOCK_M; i += THREADS) {
            for (int j = threadIdx.x; j < BLOCK_N; j += THREADS) {
                const long long m = start_m + i, n = start_n + j;
                const long long distance = m + shift - n;
                const bool seen = m < live_m && n < live_n && distance <= left && distance >= -right;
                float s = scale * dot(tile.q[i], tile.k[j]);
                float steepness = 1.0f;
                if (softcap > 0.0f) {
                    const float t = tanhf(s / softcap);
                    s = softcap * t;
                    steepness = 1.0f - t * t;
                }
                const float p = seen ? expf(s - tile.lse[i]) : 0.0f;
                const float dp = seen ? dot(tile.dout[i], tile.v[j]) : 0.0f;
                const float dt = p * (dp - tile.delta[i]);
                const float ds = dt * steepness;
                tile.ds[i][j] = ds;
                if (is_exported && m < live_m && n < live_n) {
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
        __syncthreads();
    }

    for (int r = 0; r < BLOCK_M / THREADS; ++r) {
        const long long m = start_m + threadIdx.y + r * THREADS;
        for (int c = 0; c < BLOCK_D / THREADS; ++c) {
            const int d = threadIdx.x + c * THREADS;
            if (m < n_ctx_m && d < head_dim) {
                store(dq_ptr + m * stride_dqm + d * stride_dqd, scale * dq[r][c]);
            }
        }
    }
}

extern "C" __global__ void flash_dkdv(
    const SCALAR* q_ptr, const SCALAR* k_ptr, const SCALAR* v_ptr, const SCALAR* do_ptr, const int* seqlens_ptr,
    const float* lse_ptr, const float* delta_ptr,
    SCALAR* dk_ptr, SCALAR* dv_ptr,
    long long stride_qb, long long stride_qh, long long stride_qm, long long stride_qd,
    long long stride_kb, long long stride_kh, long long stride_kn, long long stride_kd,
    long long stride_vb, long long stride_vh, long long stride_vn, long long stride_vd,
    long long stride_dob, long long stride_doh, long long stride_dom, long long stride_dod,
    long long stride_seqlensb,
    long long stride_lseb, long long stride_lseh, long long stride_lsem,
    long long stride_deltab, long long stride_deltah, long long stride_deltam,
    long long stride_dkb, long long stride_dkh, long long stride_dkn, long long stride_dkd,
    long long stride_dvb, long long stride_dvh, long long stride_dvn, long long stride_dvd,
    float scale, float softcap, int n_heads, int group, long long n_ctx_m, long long n_ctx_n,
    int head_dim, int head_dim_v, long long left, long long right, int bottom_right
) {
    extern __shared__ float memory[];
    BackwardTiles& tile = *(BackwardTiles*)memory;

    const int n_kv_heads = n_heads / group;
    const long long n_tiles = (n_ctx_n + BLOCK_N - 1) / BLOCK_N;
    const long long start_n = blockIdx.x % n_tiles * BLOCK_N;
    const long long kv_h = blockIdx.x / n_tiles % n_kv_heads;
    const long long b = blockIdx.x / n_tiles / n_kv_heads;
    const long long live_m = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx_m;
    const long long live_n = seqlens_ptr ? seqlens_ptr[b * stride_seqlensb] : n_ctx_n;
    const long long shift = bottom_right ? n_ctx_n - n_ctx_m : 0;
    k_ptr += b * stride_kb + kv_h * stride_kh;
    v_ptr += b * stride_vb + kv_h * stride_vh;
    dk_ptr += b * stride_dkb + kv_h * stride_dkh;
    dv_ptr += b * stride_dvb + kv_h * stride_dvh;

    load_tile(tile.k, k_ptr + start_n * stride_kn, stride_kn, stride_kd, live_n - start_n, head_dim);
    load_tile(tile.v, v_ptr + start_n * stride_vn, stride_vn, stride_vd, live_n - start_n, head_dim_v);

    float dk[BLOCK_N / THREADS][BLOCK_D / THREADS] = {};
    float dv[BLOCK_N / THREADS][BLOCK_DV / THREADS] = {};
    const long long last_n = min(start_n + BLOCK_N, live_n) - 1;
    const long long first_m = max(start_n - shift - right, 0LL) / BLOCK_M * BLOCK_M;
    const long long end_m = start_n < live_n ? min(last_n - shift + left + 1, live_m) : 0;
    // Every query head that reads this key head adds to the same sums: no atomics.
    for (int member = 0; member < group; ++member) {
        const long long h = kv_h * group + member;
        const SCALAR* q_head = q_ptr + b * stride_qb + h * stride_qh;
        const SCALAR* do_head = do_ptr + b * stride_dob + h * stride_doh;
        const float* lse_head = lse_ptr + b * stride_lseb + h * stride_lseh;
        const float* delta_head = delta_ptr + b * stride_deltab + h * stride_deltah;
        for (long long start_m = first_m; start_m < end_m; start_m += BLOCK_M) {
            load_tile(tile.q, q_head + start_m * stride_qm, stride_qm, stride_qd, live_m - start_m, head_dim);
            load_tile(tile.dout, do_head + start_m * stride_dom, stride_dom, stride_dod, live_m - start_m, head_dim_v);
            load_rows(tile.lse, lse_head + start_m * stride_lsem, stride_lsem, live_m - start_m);
            load_rows(tile.delta, delta_head + start_m * stride_deltam, stride_deltam, live_m - start_m);
            __syncthreads();

            for (int i = threadIdx.y; i < BLOCK_M; i += THREADS) {
                for (int j = threadIdx.x; j < BLOCK_N; j += THREADS) {
                    const long long m = start_m + i, n = start_n + j;
                    const long long distance = m + shift - n;
                    const bool seen = m < live_m && n < live_n && distance <= left && distance >= -right;
                    float s = scale * dot(tile.q[i], tile.k[j]);
                    float steepness = 1.0f;
                    if (softcap > 0.0f) {
                        const float t = tanhf(s / softcap);
                        s = softcap * t;
                        steepness = 1.0f - t * t;
                    }
                    const float p = seen ? expf(s - tile.lse[i]) : 0.0f;
                    const float dp = seen ? dot(tile.dout[i], tile.v[j]) : 0.0f;
                    const float dt = p * (dp - tile.delta[i]);
                    tile.p[i][j] = p;
                    tile.ds[i][j] = dt * steepness;
                }
            }
            __syncthreads();

            for (int r = 0; r < BLOCK_N / THREADS; ++r) {
                const int j = threadIdx.y + r * THREADS;
                for (int c = 0; c < BLOCK_D / THREADS; ++c) {
                    const int d = threadIdx.x + c * THREADS;
                    float sum = 0.0f;
                    for (int i = 0; i < BLOCK_M; ++i) {
                        sum += tile.ds[i][j] * tile.q[i][d];
                    }
                    dk[r][c] += sum;
                }
                for (int c = 0; c < BLOCK_DV / THREADS; ++c) {
                    const int d = threadIdx.x + c * THREADS;
                    float sum = 0.0f;
                    for (int i = 0; i < BLOCK_M; ++i) {
                        sum += tile.p[i][j] * tile.dout[i][d];
                    }
                    dv[r][c] += sum;
                }
            }
            __syncthreads();
        }
    }

    for (int r = 0; r < BLOCK_N / THREADS; ++r) {
        const long long n = start_n + threadIdx.y + r * THREADS;
        for (int c = 0; c < BLOCK_D / THREADS; ++c) {
            const int d = threadIdx.x + c * THREADS;
            if (n < n_ctx_n && d < head_dim) {
                store(dk_ptr + n * stride_dkn + d * stride_dkd, scale * dk[r][c]);
            }
        }
        for (int c = 0; c < BLOCK_DV / THREADS; ++c) {
            const int d = threadIdx.x + c * THREADS;
            if (n < n_ctx_n && d < head_dim_v) {
                store(dv_ptr + n * stride_dvn + d * stride_dvd, dv[r][c]);
            }
        }
    }
}
