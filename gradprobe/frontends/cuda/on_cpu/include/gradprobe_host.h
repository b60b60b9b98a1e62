// The CUDA runtime as host code calls it. Launches, allocations and copies go to Python, which runs them on a device.
#pragma once
#include "gradprobe_cuda.h"

#include <stdlib.h>

#include <tuple>

enum cudaError_t {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorNotSupported = 801,
    cudaErrorLaunchFailure = 719,
};
typedef cudaError_t cudaError;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
enum cudaMemcpyKind {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault,
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout,
};
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };

// What Python does: each gives 0, or a cudaError_t.
struct gp_host {
    // The caller takes the address of the kernel, then its arguments.
    int (*launch)(
        const char* name, const uint32_t* grid, const uint32_t* block, uint64_t shared_bytes, void (*caller)(void**),
        void** arguments
    );
    int (*allocate)(void** out, uint64_t bytes);
    int (*store)(void* to, const void* from, int value, uint64_t bytes);  // a value from 0 on, or a copy
};
inline gp_host gp_python;
extern "C" void gp_set_python(
    decltype(gp_host::launch) launch, decltype(gp_host::allocate) allocate, decltype(gp_host::store) store
) {
    gp_python = {launch, allocate, store};
}
inline cudaError_t gp_last = cudaSuccess;
inline cudaError_t gp_told(int code) {
    if (code) gp_last = cudaError_t(code);
    return cudaError_t(code);
}

template <class... A> struct gp_launcher {
    const char* name;
    void (*kernel)(A...);
    dim3 grid, block;
    size_t shared_bytes;
    __attribute__((no_sanitize("thread"))) static void call(void** a) {
        gp_call(*static_cast<void (**)(A...)>(a[0]), a + 1);
    }
    void operator()(std::remove_cv_t<A>... values) {
        void* arguments[] = {&kernel, &values...};
        gp_told(gp_python.launch(name, &grid.x, &block.x, shared_bytes, call, arguments));
    }
};
template <class... A>
gp_launcher<A...> gp_launching(
    const char* name, void (*kernel)(A...), dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t = nullptr
) {
    return {name, kernel, grid, block, shared_bytes};
}

inline cudaError_t cudaGetLastError() { cudaError_t last = gp_last; gp_last = cudaSuccess; return last; }
inline cudaError_t cudaPeekAtLastError() { return gp_last; }
inline const char* cudaGetErrorString(cudaError_t e) { return e ? "a CUDA error, which Python tells" : "no error"; }
inline const char* cudaGetErrorName(cudaError_t e) { return cudaGetErrorString(e); }
inline cudaError_t cudaDeviceSynchronize() { return gp_last; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return gp_last; }
template <class T> cudaError_t cudaMalloc(T** out, size_t bytes) {
    return gp_told(gp_python.allocate(reinterpret_cast<void**>(out), bytes));
}
template <class T> cudaError_t cudaMallocAsync(T** out, size_t bytes, cudaStream_t = nullptr) {
    return cudaMalloc(out, bytes);
}
// What was allocated lives as long as the call from Python.
inline cudaError_t cudaFree(void*) { return cudaSuccess; }
inline cudaError_t cudaFreeAsync(void*, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    return gp_told(gp_python.store(to, nullptr, value & 0xff, bytes));
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t = nullptr) {
    return cudaMemset(to, value, bytes);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind = cudaMemcpyDefault) {
    return gp_told(gp_python.store(to, from, -1, bytes));
}
inline cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, cudaMemcpyKind = cudaMemcpyDefault, cudaStream_t = nullptr
) {
    return cudaMemcpy(to, from, bytes);
}
template <class F> cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int) { return cudaSuccess; }
template <class F> cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* out) { *out = 0; return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* out) { *out = nullptr; return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* out) { *out = nullptr; return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

// The next of some arguments; streams are not among them.
template <class A> std::remove_reference_t<A>* gp_next(void**& a) {
    static cudaStream_t none = nullptr;
    return static_cast<std::remove_reference_t<A>*>(std::is_same<A, cudaStream_t>::value ? &none : *a++);
}
// How Python calls a function of the host: its result, where that is a cudaError_t.
template <class R, class... A, size_t... I> int gp_call_host_with(R (*f)(A...), void** a, std::index_sequence<I...>) {
    gp_last = cudaSuccess;
    std::tuple<std::remove_reference_t<A>*...> all{gp_next<A>(a)...};
    if constexpr (std::is_same<R, cudaError_t>::value) return f(*std::get<I>(all)...);
    f(*std::get<I>(all)...);
    return 0;
}
template <class R, class... A> int gp_call_host(R (*f)(A...), void** arguments) {
    return gp_call_host_with(f, arguments, std::index_sequence_for<A...>{});
}
