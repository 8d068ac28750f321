// State of an emulated AMD GPU (RDNA3: 32 lanes per wave; CDNA3: 64), and access to operands.
// amd/program.py mirrors Operand, Instruction and Gpu; amd/instructions.py mirrors the flags.
#pragma once
#include "amd_operations.h"
#include "memory.h"
#include "numbers.h"

#define LANES for (int l = 0; l < W; l++)

enum { NONE, VECTOR, SCALAR, CONSTANT };  // kinds of operands
enum { NEGATED = 1, ABSOLUTE = 2 };
enum { VCC = 106, ZERO = 124, M0 = 125, EXEC = 126, N_SCALAR = 128 };  // scalar registers
enum { N_VECTOR = 512 };  // vector registers, then accumulation registers
enum {
    DUAL = 1,              // the next instruction is the other half of this one
    CLAMP = 2,
    IS_FLOAT = 4,
    DPP = 8,               // reads its first operand from other lanes
    BOUND_CTRL = 16,       // reads 0 from invalid lanes
    FETCH_INACTIVE = 32,
    RETURNS = 64,          // an atomic returns the old value
    OFFSET_REGISTER = 128  // a buffer access has an offset register; an LDS access has two addresses
};

typedef struct {
    u8 kind, modifiers, count, part;  // part of a register: 1 to 4 a byte, 5 and 6 a half; 7 to 12 with its sign
    u32 reg, low, high;
} Operand;

typedef struct {
    i32 op, n_sources, target, flags, imm[4];
    Operand result, second_result, source[4];
} Instruction;

typedef struct {
    u32 s[N_SCALAR + 16], v[N_VECTOR][W], scc;
    i32 pc;
    u8 *scratch;
} Wave;

typedef struct {
    Model *model;
    const Instruction *code;
    const u32 *user_registers;
    Wave *waves;
    u8 *scratch;
    i32 n_instructions;
    u32 n_user_registers, rsrc2, scratch_bytes;
} Gpu;

// --- source operands

static inline u32 modified(u32 x, u8 modifiers) {
    if (modifiers & ABSOLUTE) x &= 0x7FFFFFFF;
    return modifiers & NEGATED ? x ^ 0x80000000 : x;
}

static inline u32 part_of(u32 x, u8 part) {
    if (part > 10) return (u32)(i32)(i16)(x >> 16 * (part - 11));
    if (part > 6) return (u32)(i32)(i8)(x >> 8 * (part - 7));
    return !part ? x : part < 5 ? x >> 8 * (part - 1) & 255 : x >> 16 * (part - 5) & 0xFFFF;
}

static const u32 *vector_source(const Wave *wave, const Operand *o, u32 *buffer) {
    if (o->kind == VECTOR) {
        if (!o->modifiers && !o->part) return wave->v[o->reg];
        LANES buffer[l] = modified(part_of(wave->v[o->reg][l], o->part), o->modifiers);
        return buffer;
    }
    u32 x = modified(part_of(o->kind == SCALAR ? wave->s[o->reg] : o->low, o->part), o->modifiers);
    LANES buffer[l] = x;
    return buffer;
}

static inline u32 scalar(const Wave *wave, const Operand *o) { return o->kind == SCALAR ? wave->s[o->reg] : o->low; }

static inline u64 scalar64(const Wave *wave, const Operand *o) {
    return o->kind == SCALAR ? wave->s[o->reg] | (u64)wave->s[o->reg + 1] << 32 : o->low | (u64)o->high << 32;
}

static void vector_source64(const Wave *wave, const Operand *o, u64 *buffer) {
    if (o->kind == VECTOR) LANES buffer[l] = wave->v[o->reg][l] | (o->count > 1 ? (u64)wave->v[o->reg + 1][l] << 32 : 0);
    else LANES buffer[l] = scalar64(wave, o);
    if (o->modifiers & ABSOLUTE) LANES buffer[l] &= ~(1ull << 63);
    if (o->modifiers & NEGATED) LANES buffer[l] ^= 1ull << 63;
}

// A mask of lanes is one scalar register for 32 lanes, two for 64.
static inline Mask mask_at(const Wave *wave, u32 reg) {
    return W == 64 ? (Mask)(wave->s[reg] | (u64)wave->s[reg + 1] << 32) : wave->s[reg];
}

static inline Mask mask_source(const Wave *wave, const Operand *o) {
    if (o->kind == SCALAR) return mask_at(wave, o->reg);
    return W == 64 ? (Mask)(o->low | (u64)o->high << 32) : o->low;
}

// --- results

static inline void keep_fixed(Wave *wave) {
    wave->s[ZERO] = 0;
    if (W == 32) wave->s[EXEC + 1] = 0;
}

static inline void set_scalar(Wave *wave, const Operand *o, u32 x) {
    wave->s[o->reg] = x;
    keep_fixed(wave);
}

static inline void set_scalar64(Wave *wave, const Operand *o, u64 x) {
    wave->s[o->reg] = (u32)x;
    wave->s[o->reg + 1] = x >> 32;
    keep_fixed(wave);
}

static inline void set_mask_at(Wave *wave, u32 reg, Mask x) {
    wave->s[reg] = (u32)x;
    if (W == 64) wave->s[reg + 1] = (u64)x >> 32;
    keep_fixed(wave);
}

static inline void set_mask(Wave *wave, const Operand *o, Mask x) { set_mask_at(wave, o->reg, x); }

static inline void set_vector(Wave *wave, u32 reg, const u32 *x, Mask exec) {
    u32 *d = wave->v[reg];
    LANES {
        u32 m = -(u32)(exec >> l & 1);
        d[l] = (x[l] & m) | (d[l] & ~m);
    }
}

// If the result is a half of a register, the other half does not change.
static inline void set_result(Wave *wave, const Operand *o, u32 *x, Mask exec) {
    const u32 *old = wave->v[o->reg];
    if (o->part == 5) LANES x[l] = (old[l] & 0xFFFF0000) | (x[l] & 0xFFFF);
    if (o->part == 6) LANES x[l] = (old[l] & 0xFFFF) | x[l] << 16;
    set_vector(wave, o->reg, x, exec);
}

static inline void set_vector64(Wave *wave, u32 reg, const u64 *x, Mask exec) {
    u32 low[W], high[W];
    LANES low[l] = (u32)x[l], high[l] = x[l] >> 32;
    set_vector(wave, reg, low, exec);
    set_vector(wave, reg + 1, high, exec);
}
