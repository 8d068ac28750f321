// Bits of numbers, and arithmetic that is the same on all GPUs.
#pragma once
#include "model.h"

static inline f32 f32_of(u32 bits) { f32 x; memcpy(&x, &bits, 4); return x; }
static inline u32 bits_of(f32 x) { u32 bits; memcpy(&bits, &x, 4); return bits; }
static inline f64 f64_of(u64 bits) { f64 x; memcpy(&x, &bits, 8); return x; }
static inline u64 bits_of64(f64 x) { u64 bits; memcpy(&bits, &x, 8); return bits; }
static inline f32 f32_of_f16(u16 bits) { f16 x; memcpy(&x, &bits, 2); return (f32)x; }
static inline u16 f16_bits(f32 x) { f16 y = (f16)x; u16 bits; memcpy(&bits, &y, 2); return bits; }
static inline f32 f32_of_bf16(u16 bits) { return f32_of((u32)bits << 16); }

static inline u32 reversed(u32 x) {
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(x);
}

// Approximate instructions may be off by one unit in the last place; with jitter, a third of the results are.
static inline f32 jittered(int seed, f32 x) {
    u32 bits = bits_of(x);
    if (!seed || !(fabsf(x) < INFINITY) || !(bits & 0x7fffff)) return x;
    u32 h = (bits ^ seed * 0x9e3779b9u) * 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return f32_of(bits + ((h >> 30) == 0 ? 1 : (h >> 30) == 1 ? -1 : 0));
}

// 2^x by a polynomial: exp2f in a loop over lanes is ten times as slow.
static inline f32 power_of_two(f32 x) {
    f64 v = x < -200 ? -200 : x > 200 ? 200 : x, k = __builtin_rint(v), f = (v - k) * 0.693147180559945309417;
    f64 p = f * (1.0 / 9);
    for (int n = 8; n > 0; n--) p = (1 + p) * f * (1.0 / n);
    return (f32)((1 + p) * f64_of((u64)((i64)k + 1023) << 52));
}
