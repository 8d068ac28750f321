// Addresses of AMD memory instructions, and conversions of their data.
#pragma once
#include "amd.h"

// The offset of lanes that Triton masks out of a buffer access.
#define MASKED_OUT 0x80000000u

static int is_buffer(const Instruction *in) {
    if (in->op == OP_buffer_load || in->op == OP_buffer_store) return 1;
    return in->op != OP_global_load && in->op != OP_global_store && in->op != OP_scratch_load &&
           in->op != OP_scratch_store && in->imm[3];  // atomics of a buffer are marked
}

// Computes the address of each lane; returns the lanes that access memory.
static Mask addresses(Gpu *gpu, Wave *wave, const Instruction *in, int pc, int warp, Mask exec, int size, u64 *address) {
    const Operand *s = in->source;
    const u32 *v = wave->v[s[0].reg];
    Mask ok = exec;
    if (is_buffer(in)) {  // source 1: the resource, with base and size; hardware drops accesses beyond the size
        int atomic = in->op != OP_buffer_load && in->op != OP_buffer_store;
        u64 base = wave->s[s[1].reg] | (u64)(wave->s[s[1].reg + 1] & 0xFFFF) << 32;
        u32 records = wave->s[s[1].reg + 2], offset = scalar(wave, &s[atomic ? 3 : 2]);
        int stride = wave->s[s[1].reg + 1] >> 16 & 0x3FFF;
        if (stride) report(gpu->model, UNKNOWN_INSTRUCTION, pc, warp, 0, stride, 0);
        LANES {
            u64 at = (u64)(in->flags & OFFSET_REGISTER ? v[l] : 0) + (u32)in->imm[2];
            address[l] = base + at + offset;
            if (at + size <= records) continue;
            if ((ok >> l & 1) && v[l] != MASKED_OUT) report(gpu->model, OUT_OF_BOUNDS, pc, warp, l, address[l], size);
            ok &= ~((Mask)1 << l);
        }
    } else if (in->op == OP_scratch_load || in->op == OP_scratch_store) {
        LANES {
            u64 at = (u64)in->imm[2] + (s[0].kind == VECTOR ? v[l] : 0) + (s[1].kind == SCALAR ? wave->s[s[1].reg] : 0);
            address[l] = (u64)(wave->scratch + (size_t)l * gpu->scratch_bytes) + at;
            if (!(ok >> l & 1) || at + size <= gpu->scratch_bytes) continue;
            report(gpu->model, OUT_OF_BOUNDS, pc, warp, l, at, size);
            ok &= ~((Mask)1 << l);
        }
    } else if (s[1].kind == SCALAR) {
        LANES address[l] = scalar64(wave, &s[1]) + v[l] + (i64)in->imm[2];
    } else {
        LANES address[l] = (v[l] | (u64)v[l + W] << 32) + (i64)in->imm[2];
    }
    return ok;
}

// Returns the value of a register after a load: sign-extended, or with one half replaced.
static inline u32 loaded_value(u32 x, int size, int half, u32 old) {
    if (size == -1) x = (u32)(i32)(i8)x;
    if (size == -2) x = (u32)(i32)(i16)x;
    return half == 1 ? (old & 0xFFFF) | x << 16 : half == 2 ? (old & 0xFFFF0000) | (x & 0xFFFF) : x;
}

static u32 updated(int op, u32 old, u32 x, u32 y) {
    switch (op) {
        case OP_global_atomic_add_f32: return bits_of(f32_of(old) + f32_of(x));
        case OP_global_atomic_add_u32: return old + x;
        case OP_global_atomic_sub_u32: return old - x;
        case OP_global_atomic_swap_b32: return x;
        case OP_global_atomic_cmpswap_b32: return old == y ? x : old;
        case OP_global_atomic_and_b32: return old & x;
        case OP_global_atomic_or_b32: return old | x;
        case OP_global_atomic_xor_b32: return old ^ x;
        case OP_global_atomic_min_i32: return (i32)old < (i32)x ? old : x;
        case OP_global_atomic_max_i32: return (i32)old > (i32)x ? old : x;
        case OP_global_atomic_min_u32: return old < x ? old : x;
        default: return old > x ? old : x;
    }
}

// Returns an element of a matrix from a register. type: 4 f32, 2 f16, -2 bf16.
static inline f32 matrix_element(u32 bits, int type, int upper) {
    if (type == 4) return f32_of(bits);
    u16 half = bits >> 16 * upper;
    return type == 2 ? f32_of_f16(half) : f32_of_bf16(half);
}
