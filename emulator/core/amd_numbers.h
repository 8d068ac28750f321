// Arithmetic of AMD GPUs: minimum and maximum, conversions, steps of a division, classes, comparisons, DPP.
#pragma once
#include "numbers.h"

static inline int is_nan(u32 x) { return (x & 0x7FFFFFFF) > 0x7F800000; }
static inline u32 quiet(u32 x) { return x | 0x400000; }
static inline u32 flush(u32 x) { return (x & 0x7F800000) ? x : x & 0x80000000; }
static inline int denormal(u32 x) { return !(x & 0x7F800000) && (x & 0x7FFFFF); }
static inline int exponent(u32 x) { return x >> 23 & 255; }

// If one operand is NaN, returns the other; -0 is less than 0.
static inline u32 min_f32(u32 a, u32 b) {
    if (is_nan(a)) return is_nan(b) ? quiet(a) : b;
    if (is_nan(b)) return a;
    if (!((a | b) & 0x7FFFFFFF)) return a | b;
    return f32_of(a) < f32_of(b) ? a : b;
}
static inline u32 max_f32(u32 a, u32 b) {
    if (is_nan(a)) return is_nan(b) ? quiet(a) : b;
    if (is_nan(b)) return a;
    if (!((a | b) & 0x7FFFFFFF)) return a & b;
    return f32_of(a) > f32_of(b) ? a : b;
}
static u32 med_f32(u32 a, u32 b, u32 c) {
    if (is_nan(a) || is_nan(b) || is_nan(c)) return min_f32(min_f32(a, b), c);
    return max_f32(min_f32(a, b), min_f32(max_f32(a, b), c));
}

static inline u32 smaller(i32 a, i32 b) { return a < b ? a : b; }
static inline u32 larger(i32 a, i32 b) { return a > b ? a : b; }
static u32 u32_of(f32 f) { return !(f > 0) ? 0 : f >= 4294967296.0f ? ~0u : (u32)f; }
static i32 i32_of(f32 f) { return f != f ? 0 : f >= 2147483648.0f ? INT32_MAX : f < -2147483648.0f ? INT32_MIN : (i32)f; }

// --- division: v_div_scale, v_div_fmas and v_div_fixup

static u32 div_scale(u32 s0, u32 s1, u32 s2, u32 *vcc) {
    *vcc = 0;
    f32 a = f32_of(s0), d = f32_of(s1), n = f32_of(s2);
    if (n == 0 || d == 0) return 0x7FC00000;
    if (is_nan(s1) || is_nan(s2)) return s0;
    if (exponent(s2) - exponent(s1) >= 96) return *vcc = 1, a == d ? bits_of(ldexpf(a, 64)) : s0;
    if (denormal(s1)) return bits_of(ldexpf(a, 64));
    if (denormal(bits_of(n / d)) || (n / d == 0 && isfinite(d))) return *vcc = 1, a == n ? bits_of(ldexpf(a, 64)) : s0;
    if (exponent(s2) <= 23) return bits_of(ldexpf(a, 64));
    return s0;
}

static u32 div_fmas(u32 a, u32 b, u32 c, u32 vcc) {
    if (!vcc) return bits_of(fmaf(f32_of(a), f32_of(b), f32_of(c)));
    return bits_of((f32)ldexp(fma((f64)f32_of(a), f32_of(b), f32_of(c)), exponent(c) > 127 ? 64 : -64)); // rounded once
}

static u32 div_fixup(u32 q, u32 d, u32 n) {
    u32 sign = (d ^ n) & 0x80000000;
    f32 fd = fabsf(f32_of(d)), fn = fabsf(f32_of(n));
    if (is_nan(n)) return quiet(n);
    if (is_nan(d)) return quiet(d);
    if ((fd == 0 && fn == 0) || (isinf(fd) && isinf(fn))) return 0xFFC00000;
    if (fd == 0 || isinf(fn)) return sign | 0x7F800000;
    if (isinf(fd) || fn == 0) return sign;
    if (exponent(n) - exponent(d) < -150) return sign; // underflow
    if (is_nan(q)) return sign | 0x7F800000;
    return sign | (q & 0x7FFFFFFF);
}

static inline f64 min_f64(f64 a, f64 b) { return a != a ? b : b != b ? a : a == 0 && b == 0 ? (signbit(a) ? a : b) : a < b ? a : b; }
static inline f64 max_f64(f64 a, f64 b) { return a != a ? b : b != b ? a : a == 0 && b == 0 ? (signbit(a) ? b : a) : a > b ? a : b; }
static f64 mantissa_of(f64 a) { int e; return isfinite(a) ? frexp(a, &e) : a; }
static u64 div_scale64(u64 s0, u64 s1, u64 s2, u32 *vcc) {
    *vcc = 0;
    f64 a = f64_of(s0), d = f64_of(s1), n = f64_of(s2), q = n / d, r = 1 / d;
    int gap = (int)(s2 >> 52 & 2047) - (int)(s1 >> 52 & 2047);
    if (n == 0 || d == 0) return 0x7FF8000000000000;
    if (n != n || d != d) return s0;
    if (gap >= 768) return *vcc = 1, a == d ? bits_of64(ldexp(a, 128)) : s0;
    if (fpclassify(d) == FP_SUBNORMAL) return bits_of64(ldexp(a, 128));
    int small = fpclassify(q) == FP_SUBNORMAL || (q == 0 && isfinite(d));
    if (fpclassify(r) == FP_SUBNORMAL) return bits_of64(ldexp(a, -128));
    if (small) return *vcc = 1, a == n ? bits_of64(ldexp(a, 128)) : s0;
    if ((s2 >> 52 & 2047) <= 53) return bits_of64(ldexp(a, 128));
    return s0;
}
static f64 div_fixup64(f64 q, f64 d, f64 n) {
    f64 sign = (signbit(d) != 0) ^ (signbit(n) != 0) ? -1.0 : 1.0;
    if (n != n) return n;
    if (d != d) return d;
    if ((d == 0 && n == 0) || (isinf(d) && isinf(n))) return f64_of(0xFFF8000000000000);
    if (d == 0 || isinf(n)) return sign * INFINITY;
    if (isinf(d) || n == 0) return sign * 0.0;
    if ((int)(bits_of64(n) >> 52 & 2047) - (int)(bits_of64(d) >> 52 & 2047) < -1075) return sign * 0.0;
    if (q != q) return sign * INFINITY;
    return copysign(q, sign);
}


static f64 div_fmas64(f64 a, f64 b, f64 c, u32 vcc) {
    if (!vcc) return fma(a, b, c);
    if ((bits_of64(c) >> 52 & 2047) > 1023) return ldexp(fma(a, b, c), 128);
    return (f64)ldexpl(fmal(a, b, c), -128);
}

// --- classes and comparisons

// Bits of a class mask: quiet and signaling NaN, then -inf, -normal, -denormal, -0, 0, denormal, normal, inf.
static int class_bit(int negative, int exponent, int most, u64 mantissa, u64 quiet_bit) {
    if (exponent == most) return mantissa ? (mantissa & quiet_bit ? 1 : 0) : negative ? 2 : 9;
    if (exponent) return negative ? 3 : 8;
    return mantissa ? (negative ? 4 : 7) : negative ? 5 : 6;
}
static int classify(u32 x, u32 mask) {
    return mask >> class_bit(x >> 31, exponent(x), 255, x & 0x7FFFFF, 0x400000) & 1;
}
static int classify64(u64 x, u32 mask) {
    return mask >> class_bit(x >> 63, x >> 52 & 2047, 2047, x & ((1ull << 52) - 1), 1ull << 51) & 1;
}

enum { F32, I32, U32, F64, I64, U64, I16, U16, F16 };  // as TYPES in amd/instructions.py
enum { C_F, C_LT, C_EQ, C_LE, C_GT, C_LG, C_GE, C_O, C_U, C_NGE, C_NLG, C_NGT, C_NLE, C_NEQ, C_NLT, C_T };

// Evaluates a condition from the results less, equal, greater and unordered.
static int holds(int condition, int less, int equal, int more) {
    switch (condition) {
        case C_LT: return less;
        case C_EQ: return equal;
        case C_LE: return less || equal;
        case C_GT: return more;
        case C_LG: return less || more;
        case C_GE: return more || equal;
        case C_O: return less || equal || more;
        case C_U: return !(less || equal || more);
        case C_NGE: return !(more || equal);
        case C_NLG: return !(less || more);
        case C_NGT: return !more;
        case C_NLE: return !(less || equal);
        case C_NEQ: return !equal;
        case C_NLT: return !less;
        case C_T: return 1;
        default: return 0;
    }
}

static int compare(int type, int condition, u64 x, u64 y) {
#define AS(T, ...) { T a = __VA_ARGS__(x), b = __VA_ARGS__(y); return holds(condition, a < b, a == b, a > b); }
    switch (type) {
        case F32: AS(f32, f32_of)
        case F64: AS(f64, f64_of)
        case F16: AS(f32, f32_of_f16)
        case I32: AS(i32, (i32))
        case U32: AS(u32, (u32))
        case I64: AS(i64, (i64))
        case U64: AS(u64, (u64))
        case I16: AS(i16, (i16))
        default: AS(u16, (u16))
    }
#undef AS
}

// --- bytes and lanes

static u32 permuted_bytes(u32 a, u32 b, u32 selector) {
    u64 all = (u64)a << 32 | b;
    u32 result = 0;
    for (int k = 0; k < 4; k++) {
        u32 n = selector >> 8 * k & 255, byte;
        if (n < 8) byte = all >> 8 * n & 255;
        else if (n < 12) byte = all >> (16 * (n - 8) + 15) & 1 ? 255 : 0;
        else byte = n == 12 ? 0 : 255;
        result |= byte << 8 * k;
    }
    return result;
}

// Returns the source lane of a DPP control, or -1 if it is outside of the row of 16 lanes.
static int dpp_lane(int control, int l) {
    int row = l & ~15, i = l & 15, n = control & 15;
    if (control < 0x100) return (l & ~3) | (control >> 2 * (l & 3) & 3);
    if (control == 0x142) return l < 16 ? -1 : row - 1;  // row_bcast:15, from the last lane of the previous row
    if (control == 0x143) return l < 32 ? -1 : 31;       // row_bcast:31
    if (control == 0x130) return l == W - 1 ? -1 : l + 1;  // wave_shl:1
    if (control == 0x138) return l - 1;                    // wave_shr:1
    switch (control & 0x1F0) {
        case 0x100: return i + n > 15 ? -1 : l + n;                                     // row_shl
        case 0x110: return i - n < 0 ? -1 : l - n;                                      // row_shr
        case 0x120: return row | ((i - n) & 15);                                        // row_ror
        case 0x140: return control == 0x140 ? row | (15 - i) : (l & ~7) | (7 - (l & 7));  // row_mirror, row_half_mirror
        case 0x150: return row | n;                                                     // row_share
        case 0x160: return row | (i ^ n);                                               // row_xmask
        default: return -1;
    }
}
