// CUDA C++ on a CPU: what kernels name, as g++ understands it. The runtime beside it runs the threads.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "../runtime.h"

// As NVRTC has them: a source shows both compilers the same.
#define __CUDACC__
#define __CUDACC_RTC__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ thread_local
#define __managed__
#define __restrict __restrict__
#define __forceinline__ inline __attribute__((always_inline))
// Empty, as headers of the C++ library write it within an attribute.
#define __noinline__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_PI_F 3.141592654f
#define CUDART_L2E_F 1.442695041f
#define CUDART_LN2_F 0.6931471806f
#define CUDART_INF ((double)INFINITY)

// ---- vectors and places

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
static inline uint3 gp_place(gp_index at) { return {at.x, at.y, at.z}; }
#define threadIdx (gp_place(gp_thread_index()))
#define blockIdx (gp_place(gp_block_index()))
#define blockDim (gp_place(gp_block_size()))
#define gridDim (gp_place(gp_grid_size()))
constexpr int warpSize = 32;

#define GP_VECTORS(type, name, bytes)                                                                       \
    struct alignas(bytes * 2) name##2 { type x, y; };                                                       \
    struct name##3 { type x, y, z; };                                                                       \
    struct alignas(bytes * 4 > 16 ? 16 : bytes * 4) name##4 { type x, y, z, w; };                           \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                 \
    static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                      \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
GP_VECTORS(float, float, 4)
GP_VECTORS(double, double, 8)
GP_VECTORS(int, int, 4)
GP_VECTORS(short, short, 2)
GP_VECTORS(unsigned char, uchar, 1)
GP_VECTORS(long long, longlong, 8)
#undef GP_VECTORS
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- barriers, warps and fences

#define GP_INLINE static inline __attribute__((always_inline))
GP_INLINE void __syncthreads() { gp_barrier(0, 0); }
GP_INLINE int __syncthreads_count(int predicate) { return gp_barrier(1, predicate); }
GP_INLINE int __syncthreads_and(int predicate) { return gp_barrier(2, predicate); }
GP_INLINE int __syncthreads_or(int predicate) { return gp_barrier(3, predicate); }
GP_INLINE void __syncwarp(unsigned mask = 0xffffffffu) { gp_warp_barrier(mask); }
GP_INLINE unsigned __activemask() { return gp_active_mask(); }
GP_INLINE unsigned __ballot_sync(unsigned mask, int predicate) { return gp_vote(mask, predicate); }
GP_INLINE int __any_sync(unsigned mask, int predicate) { return gp_vote(mask, predicate) != 0; }
GP_INLINE int __all_sync(unsigned mask, int predicate) { return gp_vote(mask, !predicate) == 0; }
template <class T>
GP_INLINE T gp_shuffle(unsigned mask, T value, int source, int width, int how) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0, undefined = ~0ull;  // of integers -1, of 16 bits NaN
    __builtin_memcpy(&bits, &value, sizeof value);
    // Infinity shows in a maximum too, which NaN does not.
    const T infinite = std::numeric_limits<T>::infinity();
    if (std::numeric_limits<T>::has_infinity) __builtin_memcpy(&undefined, &infinite, sizeof infinite);
    bits = gp_exchange(mask, bits, undefined, source, width, how);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T> GP_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    return gp_shuffle(mask, value, lane, width, 0);
}
template <class T> GP_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    return gp_shuffle(mask, value, lanes, width, 1);
}
template <class T> GP_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return gp_shuffle(mask, value, int(by), width, 2);
}
template <class T> GP_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return gp_shuffle(mask, value, int(by), width, 3);
}
GP_INLINE void __threadfence() { gp_fence(); }
GP_INLINE void __threadfence_system() { gp_fence(); }
GP_INLINE void __threadfence_block() { gp_yield(); }
GP_INLINE void __nanosleep(unsigned) { gp_yield(); }
GP_INLINE void __trap() { gp_fail("__trap()"); }
GP_INLINE long long clock64() { return 0; }

// ---- atomics: each is one access, and no race with another atomic

template <class T> struct gp_atomic {
    T* address;
    // By the runtime, which is not watched: the atomic has been told of as one access.
    T get() const { T value; gp_copy(&value, address, sizeof(T)); return value; }
    void set(T value) const { gp_copy(address, &value, sizeof(T)); }
};
#define GP_ATOMIC_OF(name, type, expression)                                                                \
    GP_INLINE type name(type* address, type value) {                                                        \
        gp_touch_atomic(address, sizeof(type));                                                             \
        gp_atomic<type> at{address};                                                                        \
        type old = at.get();                                                                                \
        at.set(expression);                                                                                 \
        return old;                                                                                         \
    }
#define GP_ATOMICS_OF(type)                                                                                 \
    GP_ATOMIC_OF(atomicAdd, type, old + value)                                                              \
    GP_ATOMIC_OF(atomicExch, type, value)                                                                   \
    GP_ATOMIC_OF(atomicMax, type, old > value ? old : value)                                                \
    GP_ATOMIC_OF(atomicMin, type, old < value ? old : value)
#define GP_INTEGER_ATOMICS_OF(type)                                                                         \
    GP_ATOMICS_OF(type)                                                                                     \
    GP_ATOMIC_OF(atomicSub, type, old - value)                                                              \
    GP_ATOMIC_OF(atomicAnd, type, old & value)                                                              \
    GP_ATOMIC_OF(atomicOr, type, old | value)                                                               \
    GP_ATOMIC_OF(atomicXor, type, old ^ value)                                                              \
    GP_INLINE type atomicCAS(type* address, type compare, type value) {                                     \
        gp_touch_atomic(address, sizeof(type));                                                             \
        gp_atomic<type> at{address};                                                                        \
        type old = at.get();                                                                                \
        if (old == compare) at.set(value);                                                                  \
        else gp_yield();                                                                                    \
        return old;                                                                                         \
    }
GP_INTEGER_ATOMICS_OF(int)
GP_INTEGER_ATOMICS_OF(unsigned)
GP_INTEGER_ATOMICS_OF(unsigned long long)
GP_ATOMICS_OF(float)
GP_ATOMICS_OF(double)
GP_ATOMIC_OF(atomicInc, unsigned, old >= value ? 0u : old + 1)
GP_ATOMIC_OF(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)

// ---- mathematics

using std::max;
using std::min;
// Where one is NaN, CUDA's give the other.
GP_INLINE float max(float a, float b) { return fmaxf(a, b); }
GP_INLINE float min(float a, float b) { return fminf(a, b); }
GP_INLINE double max(double a, double b) { return fmax(a, b); }
GP_INLINE double min(double a, double b) { return fmin(a, b); }
template <class A, class B>
using gp_common = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value &&
                                       !std::is_same<A, B>::value, std::common_type_t<A, B>>;
template <class A, class B> constexpr gp_common<A, B> max(A a, B b) {
    return (max)(gp_common<A, B>(a), gp_common<A, B>(b));
}
template <class A, class B> constexpr gp_common<A, B> min(A a, B b) {
    return (min)(gp_common<A, B>(a), gp_common<A, B>(b));
}
// glibc has functions of these names for its own use.
#define __expf(x) expf(x)
#define __exp10f(x) exp2f((x) * 3.321928095f)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanhf(x) tanhf(x)
GP_INLINE float __fdividef(float x, float y) { return x / y; }
GP_INLINE float __fdiv_rn(float x, float y) { return x / y; }
GP_INLINE float __fadd_rn(float x, float y) { return x + y; }
GP_INLINE float __fsub_rn(float x, float y) { return x - y; }
GP_INLINE float __fmul_rn(float x, float y) { return x * y; }
GP_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
GP_INLINE float __frcp_rn(float x) { return 1.0f / x; }
GP_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
GP_INLINE float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
GP_INLINE float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
GP_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
GP_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
GP_INLINE float fdividef(float x, float y) { return x / y; }
template <class To, class From> GP_INLINE To gp_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
GP_INLINE float __int_as_float(int x) { return gp_as<float>(x); }
GP_INLINE float __uint_as_float(unsigned x) { return gp_as<float>(x); }
GP_INLINE int __float_as_int(float x) { return gp_as<int>(x); }
GP_INLINE unsigned __float_as_uint(float x) { return gp_as<unsigned>(x); }
GP_INLINE double __longlong_as_double(long long x) { return gp_as<double>(x); }
GP_INLINE long long __double_as_longlong(double x) { return gp_as<long long>(x); }
GP_INLINE int __float2int_rn(float x) { return int(nearbyintf(x)); }
GP_INLINE int __float2int_rz(float x) { return int(x); }
GP_INLINE int __float2int_rd(float x) { return int(floorf(x)); }
GP_INLINE int __float2int_ru(float x) { return int(ceilf(x)); }
GP_INLINE float __int2float_rn(int x) { return float(x); }
GP_INLINE float __uint2float_rn(unsigned x) { return float(x); }
GP_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
GP_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
GP_INLINE int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
GP_INLINE int __ffs(int x) { return __builtin_ffs(x); }
GP_INLINE int __mul24(int x, int y) { return x * y; }
GP_INLINE unsigned __umulhi(unsigned x, unsigned y) { return unsigned((uint64_t(x) * y) >> 32); }
template <class T> GP_INLINE T __ldg(const T* address) { return *address; }
template <class T> GP_INLINE T __ldcg(const T* address) { return *address; }
template <class T> GP_INLINE T __ldcs(const T* address) { return *address; }
template <class T> GP_INLINE T __ldca(const T* address) { return *address; }
template <class T> GP_INLINE void __stcg(T* address, T value) { *address = value; }
template <class T> GP_INLINE void __stcs(T* address, T value) { *address = value; }
template <class T> GP_INLINE void __stwt(T* address, T value) { *address = value; }

#include "gradprobe_half.h"

// ---- how a kernel is called, and what it takes

template <class T> constexpr char gp_type_of() {
    constexpr int size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return std::is_pointer<T>::value          ? 'P'
           : std::is_same<T, bool>::value     ? '?'
           : std::is_same<T, float>::value    ? 'f'
           : std::is_same<T, double>::value   ? 'd'
           : !std::is_integral<T>::value      ? 0
           : std::is_unsigned<T>::value       ? "BHIL"[size]
                                              : "bhil"[size];
}
template <class T> struct gp_bytes_of {
    static constexpr bool is_number = std::is_arithmetic<T>::value || std::is_pointer<T>::value ||
                                      std::is_same<T, __half>::value || std::is_same<T, __nv_bfloat16>::value;
    static constexpr int32_t value = is_number ? sizeof(T) : 0;
};
template <> struct gp_bytes_of<void> { static constexpr int32_t value = 0; };
template <class T> constexpr gp_parameter gp_parameter_of() {
    using U = std::remove_cv_t<std::remove_reference_t<T>>;
    using Of = std::conditional_t<std::is_pointer<U>::value, std::remove_cv_t<std::remove_pointer_t<U>>, void>;
    return {gp_type_of<U>(), gp_bytes_of<Of>::value};
}
template <class... A> int gp_describe(void (*)(A...), gp_parameter* out) {
    gp_parameter all[] = {gp_parameter_of<A>()..., {0, 0}};
    for (size_t i = 0; i < sizeof...(A); ++i) out[i] = all[i];
    return int(sizeof...(A));
}
template <class... A, size_t... I>
__attribute__((no_sanitize("thread"))) void gp_call_with(void (*kernel)(A...), void** a, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(a[I])...);
}
template <class... A> __attribute__((no_sanitize("thread"))) void gp_call(void (*kernel)(A...), void** arguments) {
    gp_call_with(kernel, arguments, std::index_sequence_for<A...>{});
}

// What the C library copies is not watched. (The header's own are __builtin_memcpy.)
namespace std {
using ::gp_printf;
using ::gp_memcpy;
using ::gp_memset;
}
#define printf gp_printf
#define memcpy gp_memcpy
#define memset gp_memset
// g++ takes no alignas behind thread_local, where kernels write it: `__shared__ alignas(16) float tile[64]`.
template <class T> constexpr size_t gp_alignment() { return alignof(T); }
template <size_t bytes> constexpr size_t gp_alignment() { return bytes; }
#define alignas(...) __attribute__((aligned(gp_alignment<__VA_ARGS__>())))

#undef GP_ATOMIC_OF
#undef GP_ATOMICS_OF
#undef GP_INTEGER_ATOMICS_OF
