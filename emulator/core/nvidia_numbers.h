// Arithmetic of NVIDIA GPUs: flushing of subnormals, minimum and maximum, conversions.
#pragma once
#include "numbers.h"

static inline f32 flushed(f32 x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

// If one operand is NaN, returns the other; -0 is less than 0.
#define MINIMUM_MAXIMUM(T)                                                                                         \
    static inline T min_##T(T a, T b) {                                                                            \
        return a != a ? b : b != b ? a : (a < b || (a == b && signbit(a))) ? a : b;                                \
    }                                                                                                              \
    static inline T max_##T(T a, T b) {                                                                            \
        return a != a ? b : b != b ? a : (a > b || (a == b && !signbit(a))) ? a : b;                               \
    }
MINIMUM_MAXIMUM(f32)
MINIMUM_MAXIMUM(f64)

static inline u32 permuted_bytes(u32 a, u32 b, u32 selector) {
    u64 all = (u64)b << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        u32 s = selector >> 4 * i & 15, byte = all >> 8 * (s & 7) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}

// Returns whether all steps of a division by Newton's method have normal numbers. The ranges of the hardware are not
// documented. Outside of the ranges here, the slow path is taken, which is correct for all operands.
static inline int divides_quickly(u32 a, u32 b) {
    int above = a >> 23 & 255, below = b >> 23 & 255;
    return above > 26 && above < 253 && below > 1 && below < 253 && above - below > -125 && above - below < 126;
}

// Evaluates a function of three bits, given by its table of eight results.
static inline u32 table_of_three(u32 a, u32 b, u32 c, u32 table) {
    u32 result = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
}

static inline u32 extracted(u32 a, u32 start, u32 length) {
    start &= 255, length &= 255;
    return (u64)a >> (start > 32 ? 32 : start) & ((1ull << (length > 32 ? 32 : length)) - 1);
}

static inline i32 extracted_signed(i32 a, u32 start, u32 length) {
    start &= 255, length &= 255;
    i64 v = (i64)a >> (start > 32 ? 32 : start);
    if (length > 32) length = 32;
    return length ? (i32)(v << (64 - length) >> (64 - length)) : 0;
}

static inline u32 inserted(u32 a, u32 b, u32 start, u32 length) {
    start &= 255, length &= 255;
    u64 bits = start > 31 ? 0 : ((1ull << (length > 32 ? 32 : length)) - 1) << start;
    return (b & ~bits) | ((u64)a << (start > 31 ? 31 : start) & bits);
}

// Types of `cvt`: unsigned integers of 1, 2, 4, 8 bytes, signed integers of the same sizes, and floats.
enum { T_U8, T_U16, T_U32, T_U64, T_S8, T_S16, T_S32, T_S64, T_F16 = 10, T_F32, T_F64, T_BF16 };
enum { NEAREST, TOWARD_ZERO, DOWN, UP, TO_INTEGER };  // TO_INTEGER is added if a float is rounded to an integer

// The exact result is sum + rest; the sign of `rest` determines the direction of rounding.
static f32 fma_rounded(f32 a, f32 b, f32 c, int rounding) {
    f64 product = (f64)a * b, sum = product + c, added = sum - product;
    f64 rest = (product - (sum - added)) + (c - added);
    f32 nearest = fmaf(a, b, c);
    f64 missing = sum != nearest ? sum - nearest : rest;
    if (rounding == TOWARD_ZERO && nearest * missing < 0) return nextafterf(nearest, 0);
    if (rounding == DOWN && missing < 0) return nextafterf(nearest, -INFINITY);
    if (rounding == UP && missing > 0) return nextafterf(nearest, INFINITY);
    return nearest;
}

// Products of doubles are exact in 113 bits; `rest` has the rounding error of sums.
static f64 fma_rounded_f64(f64 a, f64 b, f64 c, int rounding) {
    __float128 product = (__float128)a * b, sum = product + c, added = sum - product;
    __float128 rest = (product - (sum - added)) + (c - added);
    f64 nearest = fma(a, b, c);
    __float128 missing = sum != nearest ? sum - nearest : rest;
    if (rounding == TOWARD_ZERO && ((nearest < 0 && missing > 0) || (nearest > 0 && missing < 0))) return nextafter(nearest, 0);
    if (rounding == DOWN && missing < 0) return nextafter(nearest, -INFINITY);
    if (rounding == UP && missing > 0) return nextafter(nearest, INFINITY);
    return nearest;
}

static i64 integer_of(u64 v, int type) {
    switch (type) {
        case T_U8: return (u8)v;
        case T_U16: return (u16)v;
        case T_U32: return (u32)v;
        case T_S8: return (i8)v;
        case T_S16: return (i16)v;
        case T_S32: return (i32)v;
        default: return (i64)v;
    }
}

static f64 float_of(u64 v, int type) {
    return type == T_F64 ? f64_of(v) : type == T_F32 ? f32_of(v) : type == T_F16 ? f32_of_f16(v) : f32_of_bf16(v);
}

static u64 float_of_integer(u64 v, int to, int from, int rounding) {
    i64 x = integer_of(v, from);
    if (to == T_F64) return bits_of64(from == T_U64 ? (f64)v : (f64)x);
    f32 f = from == T_U64 ? (f32)v : (f32)x;
    f64 error = (f64)f - (f64)x;
    if (rounding == TOWARD_ZERO && (x > 0 ? error > 0 : error < 0)) f = nextafterf(f, 0);
    if (rounding == DOWN && error > 0) f = nextafterf(f, -INFINITY);
    if (rounding == UP && error < 0) f = nextafterf(f, INFINITY);
    return bits_of(f);
}

static u64 integer_of_float(f64 x, int to) {
    static const f64 most[] = {255, 65535, 4294967295., 18446744073709551615.,
                               127, 32767, 2147483647., 9223372036854775807.};
    static const f64 least[] = {0, 0, 0, 0, -128, -32768, -2147483648., -9223372036854775808.};
    if (x != x) return to == T_S64 ? 1ull << 63 : 0;
    if (x >= most[to]) return to == T_S64 ? INT64_MAX : to == T_U64 ? UINT64_MAX : (u64)(i64)most[to];
    if (x <= least[to]) return (u64)(i64)least[to];
    return to == T_U64 ? (u64)x : (u64)(i64)x;
}

static u64 convert(u64 v, int to, int from, int rounding, int flush, int saturate) {
    if (from <= T_S64) {
        if (to > T_S64) return float_of_integer(v, to, from, rounding);
        i64 x = integer_of(v, from);
        return saturate && to == T_S32 ? (u64)(x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x) : (u64)x;
    }
    f64 x = float_of(v, from);
    if (flush && from == T_F32) x = flushed((f32)x);
    if (to <= T_S64 || rounding >= TO_INTEGER) {
        int how = rounding & 3;
        x = how == TOWARD_ZERO ? trunc(x) : how == DOWN ? floor(x) : how == UP ? ceil(x) : nearbyint(x);
        if (to <= T_S64) return integer_of_float(x, to);
    }
    if (saturate) x = x > 1 ? 1 : x > 0 ? x : 0;
    if (to == T_F64) return bits_of64(x);
    if (to == T_F16) { f16 h = (f16)x; u16 bits; memcpy(&bits, &h, 2); return bits; }
    f32 f = (f32)x;
    if (to == T_F32) {
        if (rounding == TOWARD_ZERO && fabs((f64)f) > fabs(x)) f = nextafterf(f, 0);
        return bits_of(flush ? flushed(f) : f);
    }
    if (f != f) return 0x7fff;
    return (bits_of(f) + 0x7fff + (bits_of(f) >> 16 & 1)) >> 16;  // bf16
}

static inline u64 sign_extended(u64 v, int size) {
    int unused = 64 - 8 * size;
    return (u64)((i64)(v << unused) >> unused);
}

static inline u32 shifted_pair(u32 low, u32 high, u32 by, int flag) {
    u64 pair = (u64)high << 32 | low;
    u32 n = flag & 16 ? by & (flag & 8 ? 31 : 63) : by > 63 ? 63 : by;
    if (flag & 8 && n > 32) n = 32;
    pair = !(flag & 1) ? pair << n : flag & 2 ? (u64)((i64)pair >> n) : pair >> n;
    return flag & 4 ? pair >> 32 : pair;
}

// flag: 0 sum, 1 and 2 signed minimum and maximum, 3 and 4 unsigned ones, 5 and, 6 or, 7 xor.
static u32 reduced(int flag, const u32 *values, u32 lanes) {
    u32 r = values[first_lane(lanes)];
    EACH_LANE(lanes & (lanes - 1), l) {
        u32 v = values[l];
        switch (flag) {
            case 0: r += v; break;
            case 1: r = (i32)v < (i32)r ? v : r; break;
            case 2: r = (i32)v > (i32)r ? v : r; break;
            case 3: r = v < r ? v : r; break;
            case 4: r = v > r ? v : r; break;
            case 5: r &= v; break;
            case 6: r |= v; break;
            default: r ^= v;
        }
    }
    return r;
}

// Returns the new value of memory after an atomic. type: 0 unsigned, 1 signed, 2 float.
static u64 updated(int flag, int type, int size, u64 old, u64 b, u64 c) {
    i64 signed_old = size == 8 ? (i64)old : (i32)old, signed_b = size == 8 ? (i64)b : (i32)b;
    switch (flag) {
        case 0:
            if (type < 2) return old + b;
            return size == 8 ? bits_of64(f64_of(old) + f64_of(b)) : bits_of(f32_of(old) + f32_of(b));
        case 1: return type ? (signed_old < signed_b ? old : b) : (old < b ? old : b);
        case 2: return type ? (signed_old > signed_b ? old : b) : (old > b ? old : b);
        case 3: return old & b;
        case 4: return old | b;
        case 5: return old ^ b;
        case 6: return b;
        case 7: return old == b ? c : old;
        case 8: return old >= b ? 0 : old + 1;
        default: return old == 0 || old > b ? b : old - 1;
    }
}

// Returns an element of a matrix from a register. type: 0 tf32, 1 f16, 2 bf16.
static inline f32 element(u32 bits, int type, int upper) {
    if (!type) return f32_of(bits & 0xffffe000u);
    u16 half = bits >> 16 * upper;
    return type == 1 ? f32_of_f16(half) : f32_of_bf16(half);
}
