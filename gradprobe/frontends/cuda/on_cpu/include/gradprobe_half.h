// The 16-bit types: values are rounded to nearest, ties to even, after each operation, which float32 computes.
#pragma once

static inline uint16_t gp_half_bits(float value) {
    uint32_t bits = gp_as<uint32_t>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
    if (magnitude >= 0x47800000u) return uint16_t(sign | 0x7c00u);  // 65536 and above
    if (magnitude < 0x38800000u) {                                   // below 2^-14: a multiple of 2^-24
        float steps = gp_as<float>(magnitude) * 16777216.0f;
        return uint16_t(sign | uint32_t(nearbyintf(steps)));
    }
    uint32_t kept = magnitude - 0x38000000u;
    return uint16_t(sign | ((kept + 0xfffu + (kept >> 13 & 1u)) >> 13));
}
static inline float gp_half_value(uint16_t bits) {
    uint32_t sign = uint32_t(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, fraction = bits & 1023u;
    if (exponent == 0) return gp_as<float>(sign | gp_as<uint32_t>(float(fraction) / 16777216.0f));
    if (exponent == 31) return gp_as<float>(sign | 0x7f800000u | fraction << 13);
    return gp_as<float>(sign | (exponent + 112u) << 23 | fraction << 13);
}
static inline uint16_t gp_bfloat_bits(float value) {
    uint32_t bits = gp_as<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40u);
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
static inline float gp_bfloat_value(uint16_t bits) { return gp_as<float>(uint32_t(bits) << 16); }

#define GP_HALF_TYPE(type, two, to_bits, to_value)                                                          \
    struct alignas(2) type {                                                                                \
        uint16_t bits;                                                                                      \
        type() = default;                                                                                   \
        type(float value) : bits(to_bits(value)) {}                                                         \
        type(double value) : bits(to_bits(float(value))) {}                                                 \
        template <class T, class = std::enable_if_t<std::is_integral<T>::value>>                            \
        type(T value) : bits(to_bits(float(value))) {}                                                      \
        operator float() const { return to_value(bits); }                                                   \
        type& operator+=(type other) { return *this = type(float(*this) + float(other)); }                  \
        type& operator-=(type other) { return *this = type(float(*this) - float(other)); }                  \
        type& operator*=(type other) { return *this = type(float(*this) * float(other)); }                  \
        type& operator/=(type other) { return *this = type(float(*this) / float(other)); }                  \
    };                                                                                                      \
    static inline type operator+(type a, type b) { return type(float(a) + float(b)); }                      \
    static inline type operator-(type a, type b) { return type(float(a) - float(b)); }                      \
    static inline type operator*(type a, type b) { return type(float(a) * float(b)); }                      \
    static inline type operator/(type a, type b) { return type(float(a) / float(b)); }                      \
    static inline type operator-(type a) { return type(-float(a)); }                                        \
    static inline bool operator==(type a, type b) { return float(a) == float(b); }                          \
    static inline bool operator!=(type a, type b) { return float(a) != float(b); }                          \
    static inline bool operator<(type a, type b) { return float(a) < float(b); }                            \
    static inline bool operator>(type a, type b) { return float(a) > float(b); }                            \
    static inline bool operator<=(type a, type b) { return float(a) <= float(b); }                          \
    static inline bool operator>=(type a, type b) { return float(a) >= float(b); }                          \
    struct alignas(4) two { type x, y; };                                                                   \
    static inline type __hadd(type a, type b) { return a + b; }                                             \
    static inline type __hsub(type a, type b) { return a - b; }                                             \
    static inline type __hmul(type a, type b) { return a * b; }                                             \
    static inline type __hdiv(type a, type b) { return a / b; }                                             \
    static inline type __hneg(type a) { return -a; }                                                        \
    static inline type __habs(type a) { return type(fabsf(float(a))); }                                     \
    static inline type __hmax(type a, type b) { return type(fmaxf(float(a), float(b))); }                   \
    static inline type __hmin(type a, type b) { return type(fminf(float(a), float(b))); }                   \
    static inline type __hfma(type a, type b, type c) {                                                     \
        return type(float(double(float(a)) * double(float(b)) + double(float(c))));                         \
    }                                                                                                       \
    static inline bool __hlt(type a, type b) { return a < b; }                                              \
    static inline bool __hgt(type a, type b) { return a > b; }                                              \
    static inline bool __hle(type a, type b) { return a <= b; }                                             \
    static inline bool __hge(type a, type b) { return a >= b; }                                             \
    static inline bool __heq(type a, type b) { return a == b; }                                             \
    static inline bool __hisnan(type a) { return float(a) != float(a); }                                    \
    static inline type hexp(type a) { return type(expf(float(a))); }                                        \
    static inline type hexp2(type a) { return type(exp2f(float(a))); }                                      \
    static inline type hlog(type a) { return type(logf(float(a))); }                                        \
    static inline type hsqrt(type a) { return type(sqrtf(float(a))); }                                      \
    static inline type hrsqrt(type a) { return type(1.0f / sqrtf(float(a))); }                              \
    static inline type hrcp(type a) { return type(1.0f / float(a)); }                                       \
    static inline two __hadd2(two a, two b) { return {a.x + b.x, a.y + b.y}; }                              \
    static inline two __hsub2(two a, two b) { return {a.x - b.x, a.y - b.y}; }                              \
    static inline two __hmul2(two a, two b) { return {a.x * b.x, a.y * b.y}; }                              \
    static inline two __hfma2(two a, two b, two c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
    GP_INLINE type atomicAdd(type* address, type value) {                                                   \
        gp_touch_atomic(address, sizeof(type));                                                             \
        gp_atomic<type> at{address};                                                                        \
        type old = at.get();                                                                                \
        at.set(old + value);                                                                                \
        return old;                                                                                         \
    }

GP_HALF_TYPE(__half, __half2, gp_half_bits, gp_half_value)
GP_HALF_TYPE(__nv_bfloat16, __nv_bfloat162, gp_bfloat_bits, gp_bfloat_value)
#undef GP_HALF_TYPE
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

static inline float __half2float(__half a) { return float(a); }
static inline __half __float2half(float a) { return __half(a); }
static inline __half __float2half_rn(float a) { return __half(a); }
static inline __half __double2half(double a) { return __half(float(a)); }
static inline __half __int2half_rn(int a) { return __half(float(a)); }
static inline unsigned short __half_as_ushort(__half a) { return a.bits; }
static inline __half __ushort_as_half(unsigned short bits) { return gp_as<__half>(uint16_t(bits)); }
static inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
static inline __half2 __float2half2_rn(float a) { return {__half(a), __half(a)}; }
static inline __half2 __float22half2_rn(float2 a) { return {__half(a.x), __half(a.y)}; }
static inline float2 __half22float2(__half2 a) { return {float(a.x), float(a.y)}; }
static inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
static inline __half2 __half2half2(__half a) { return {a, a}; }
static inline __half __low2half(__half2 a) { return a.x; }
static inline __half __high2half(__half2 a) { return a.y; }
static inline float __low2float(__half2 a) { return float(a.x); }
static inline float __high2float(__half2 a) { return float(a.y); }
static inline __half2 make_half2(__half a, __half b) { return {a, b}; }
static inline float __bfloat162float(__nv_bfloat16 a) { return float(a); }
static inline __nv_bfloat16 __float2bfloat16(float a) { return __nv_bfloat16(a); }
static inline __nv_bfloat16 __float2bfloat16_rn(float a) { return __nv_bfloat16(a); }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {float(a.x), float(a.y)}; }
