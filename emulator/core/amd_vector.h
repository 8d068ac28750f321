// Vector instructions with 32-bit results.
#pragma once
#include "amd.h"
#include "amd_numbers.h"

#define FLOAT(name, x) case OP_##name: LANES o[l] = bits_of(x); break;
#define BITS(name, x) case OP_##name: LANES o[l] = (u32)(x); break;
#define CARRY(name, sum, carry) case OP_##name: *mask = 0; LANES { o[l] = (sum); *mask |= (Mask)(carry) << l; } break;
#define A f32_of(a[l])
#define B f32_of(b[l])
#define D f32_of(d[l])

// Writes the result to o, and lanes that carry or must be scaled to *mask. Returns 0 for other instructions.
static int compute(Gpu *gpu, Wave *wave, const Instruction *in, const u32 *a, const u32 *b, const u32 *d, u32 *o,
                   Mask *mask) {
    const u32 *old = wave->v[in->result.reg];
    const int jitter = gpu->model->jitter;
    Mask carries = in->n_sources > 2 ? mask_source(wave, &in->source[2]) : mask_at(wave, VCC);
    u32 scaled;
    switch (in->op) {
        BITS(v_mov_b32, a[l])
        FLOAT(v_add_f32, A + B)
        FLOAT(v_sub_f32, A - B)
        FLOAT(v_subrev_f32, B - A)
        FLOAT(v_mul_f32, A * B)
        FLOAT(v_fma_f32, fmaf(A, B, D))
        FLOAT(v_fmac_f32, fmaf(A, B, f32_of(old[l])))
        FLOAT(v_fmaak_f32, fmaf(A, B, D))
        FLOAT(v_fmamk_f32, fmaf(A, B, D))
        BITS(v_min_f32, min_f32(a[l], b[l]))
        BITS(v_max_f32, max_f32(a[l], b[l]))
        BITS(v_max3_f32, max_f32(max_f32(a[l], b[l]), d[l]))
        BITS(v_min3_f32, min_f32(min_f32(a[l], b[l]), d[l]))
        BITS(v_maxmin_f32, min_f32(max_f32(a[l], b[l]), d[l]))
        BITS(v_minmax_f32, max_f32(min_f32(a[l], b[l]), d[l]))
        BITS(v_med3_f32, med_f32(a[l], b[l], d[l]))
        FLOAT(v_rcp_f32, jittered(jitter, 1.0f / A))
        FLOAT(v_rcp_iflag_f32, jittered(jitter, 1.0f / A))
        BITS(v_rsq_f32, flush(bits_of(jittered(jitter, (f32)(1.0 / sqrt((f64)f32_of(flush(a[l]))))))))
        FLOAT(v_sqrt_f32, jittered(jitter, sqrtf(f32_of(flush(a[l])))))
        BITS(v_exp_f32, flush(bits_of(jittered(jitter, power_of_two(A)))))
        FLOAT(v_log_f32, jittered(jitter, log2f(f32_of(flush(a[l])))))
        FLOAT(v_floor_f32, floorf(A))
        FLOAT(v_ceil_f32, ceilf(A))
        FLOAT(v_trunc_f32, truncf(A))
        FLOAT(v_rndne_f32, rintf(A))
        FLOAT(v_fract_f32, A - floorf(A))
        FLOAT(v_ldexp_f32, ldexpf(A, (i32)b[l] > 1000 ? 1000 : (i32)b[l] < -1000 ? -1000 : (i32)b[l]))
        FLOAT(v_cvt_f32_i32, (f32)(i32)a[l])
        FLOAT(v_cvt_f32_u32, (f32)a[l])
        BITS(v_cvt_i32_f32, i32_of(A))
        BITS(v_cvt_u32_f32, u32_of(A))
        FLOAT(v_cvt_f32_ubyte0, (f32)(a[l] & 255))
        FLOAT(v_cvt_f32_ubyte1, (f32)(a[l] >> 8 & 255))
        FLOAT(v_cvt_f32_ubyte2, (f32)(a[l] >> 16 & 255))
        FLOAT(v_cvt_f32_ubyte3, (f32)(a[l] >> 24))
        FLOAT(v_cvt_f32_f16, f32_of_f16(a[l]))
        BITS(v_cvt_f16_f32, (old[l] & 0xFFFF0000) | f16_bits(A))
        BITS(v_add_nc_u32, a[l] + b[l])
        BITS(v_sub_nc_u32, (in->flags & CLAMP) && a[l] < b[l] ? 0 : a[l] - b[l])
        BITS(v_subrev_nc_u32, b[l] - a[l])
        BITS(v_add3_u32, a[l] + b[l] + d[l])
        BITS(v_lshl_add_u32, (a[l] << (b[l] & 31)) + d[l])
        BITS(v_add_lshl_u32, (a[l] + b[l]) << (d[l] & 31))
        BITS(v_lshl_or_b32, (a[l] << (b[l] & 31)) | d[l])
        BITS(v_and_or_b32, (a[l] & b[l]) | d[l])
        BITS(v_or3_b32, a[l] | b[l] | d[l])
        BITS(v_xad_u32, (a[l] ^ b[l]) + d[l])
        BITS(v_xor3_b32, a[l] ^ b[l] ^ d[l])
        BITS(v_and_b32, a[l] & b[l])
        BITS(v_or_b32, a[l] | b[l])
        BITS(v_xor_b32, a[l] ^ b[l])
        BITS(v_not_b32, ~a[l])
        BITS(v_xnor_b32, ~(a[l] ^ b[l]))
        BITS(v_lshlrev_b32, b[l] << (a[l] & 31))
        BITS(v_lshrrev_b32, b[l] >> (a[l] & 31))
        BITS(v_ashrrev_i32, (i32)b[l] >> (a[l] & 31))
        BITS(v_mov_b16, a[l])
        BITS(v_and_b16, a[l] & b[l])
        BITS(v_or_b16, a[l] | b[l])
        BITS(v_xor_b16, a[l] ^ b[l])
        BITS(v_not_b16, ~a[l])
        BITS(v_cndmask_b16, carries >> l & 1 ? b[l] : a[l])
        BITS(v_lshlrev_b16, (u16)(b[l] << (a[l] & 15)))
        BITS(v_lshrrev_b16, (u16)b[l] >> (a[l] & 15))
        BITS(v_add_nc_u16, (u16)(a[l] + b[l]))
        BITS(v_sub_nc_u16, (u16)(a[l] - b[l]))
        BITS(v_subrev_nc_u16, (u16)(b[l] - a[l]))
        BITS(v_mul_lo_u16, (u16)(a[l] * b[l]))
        BITS(v_mul_lo_u32, a[l] * b[l])
        BITS(v_mul_hi_u32, (u64)a[l] * b[l] >> 32)
        BITS(v_mul_hi_i32, (i64)(i32)a[l] * (i32)b[l] >> 32)
        BITS(v_mul_u32_u24, (a[l] & 0xFFFFFF) * (b[l] & 0xFFFFFF))
        BITS(v_mul_i32_i24, ((i32)(a[l] << 8) >> 8) * ((i32)(b[l] << 8) >> 8))
        BITS(v_mad_u16, (u16)(a[l] * b[l] + d[l]))
        BITS(v_mad_u32_u24, (a[l] & 0xFFFFFF) * (b[l] & 0xFFFFFF) + d[l])
        BITS(v_mad_i32_i24, ((i32)(a[l] << 8) >> 8) * ((i32)(b[l] << 8) >> 8) + (i32)d[l])
        BITS(v_min_i32, (i32)a[l] < (i32)b[l] ? a[l] : b[l])
        BITS(v_max_i32, (i32)a[l] > (i32)b[l] ? a[l] : b[l])
        BITS(v_min_u32, a[l] < b[l] ? a[l] : b[l])
        BITS(v_max_u32, a[l] > b[l] ? a[l] : b[l])
        BITS(v_bfe_u32, (d[l] & 31) ? a[l] >> (b[l] & 31) & ((1u << (d[l] & 31)) - 1) : 0)
        BITS(v_bfe_i32, (d[l] & 31) ? (i32)((u32)(a[l] >> (b[l] & 31)) << (32 - (d[l] & 31))) >> (32 - (d[l] & 31)) : 0)
        BITS(v_perm_b32, permuted_bytes(a[l], b[l], d[l]))
        BITS(v_bfi_b32, (a[l] & b[l]) | (~a[l] & d[l]))
        BITS(v_alignbit_b32, (((u64)a[l] << 32) | b[l]) >> (d[l] & 31))
        BITS(v_bfrev_b32, reversed(a[l]))
        BITS(v_bcnt_u32_b32, __builtin_popcount(a[l]) + b[l])
        BITS(v_mbcnt_lo_u32_b32, __builtin_popcount(a[l] & (l < 32 ? (1u << l) - 1 : ~0u)) + b[l])
        BITS(v_mbcnt_hi_u32_b32, (l < 32 ? 0 : __builtin_popcount(a[l] & ((1u << (l & 31)) - 1))) + b[l])
        BITS(v_clz_i32_u32, a[l] ? __builtin_clz(a[l]) : -1)
        BITS(v_ctz_i32_b32, a[l] ? __builtin_ctz(a[l]) : -1)
        BITS(v_cls_i32, a[l] == 0 || a[l] == ~0u ? -1 : __builtin_clrsb((i32)a[l]) + 1)
        BITS(v_div_fixup_f32, div_fixup(a[l], b[l], d[l]))
        BITS(v_div_fmas_f32, div_fmas(a[l], b[l], d[l], mask_at(wave, VCC) >> l & 1))
        BITS(v_min3_i32, smaller(smaller(a[l], b[l]), d[l]))
        BITS(v_max3_i32, larger(larger(a[l], b[l]), d[l]))
        BITS(v_minmax_i32, larger(smaller(a[l], b[l]), d[l]))
        BITS(v_maxmin_i32, smaller(larger(a[l], b[l]), d[l]))
        BITS(v_cndmask_b32, carries >> l & 1 ? b[l] : a[l])
        CARRY(v_div_scale_f32, div_scale(a[l], b[l], d[l], &scaled), scaled)
        CARRY(v_add_co_u32, a[l] + b[l], o[l] < a[l])
        CARRY(v_sub_co_u32, a[l] - b[l], a[l] < b[l])
        CARRY(v_subrev_co_u32, b[l] - a[l], b[l] < a[l])
        CARRY(v_add_co_ci_u32, a[l] + b[l] + (carries >> l & 1), (u64)a[l] + b[l] + (carries >> l & 1) > 0xFFFFFFFF)
        CARRY(v_sub_co_ci_u32, a[l] - b[l] - (carries >> l & 1), a[l] < (u64)b[l] + (carries >> l & 1))
        CARRY(v_subrev_co_ci_u32, b[l] - a[l] - (carries >> l & 1), b[l] < (u64)a[l] + (carries >> l & 1))
        default: return 0;
    }
    return 1;
}

// Reads the first operand from other lanes, and restricts exec to the lanes that have one.
static const u32 *dpp_source(const Instruction *in, const u32 *a, u32 *buffer, Mask *exec) {
    Mask on = *exec, out = 0;
    LANES {
        if (!(in->imm[1] >> (l >> 4) & 1) || !(in->imm[2] >> (l >> 2 & 3) & 1)) continue;
        int from = dpp_lane(in->imm[0], l);
        int valid = from >= 0 && ((in->flags & FETCH_INACTIVE) || (on >> from & 1));
        if (!valid && !(in->flags & BOUND_CTRL)) continue;
        buffer[l] = valid ? a[from] : 0;
        out |= (Mask)1 << l;
    }
    *exec = on & out;
    return buffer;
}

// Does the same and reads the other operands; restricts exec to the lanes that are written.
static int compute_vector(Gpu *gpu, Wave *wave, const Instruction *in, u32 *o, Mask *exec, Mask *mask) {
    u32 buffers[4][W];
    const u32 *x[3] = {buffers[0], buffers[1], buffers[2]};
    for (int k = 0; k < in->n_sources && k < 3; k++) x[k] = vector_source(wave, &in->source[k], buffers[k]);
    if (in->flags & DPP) x[0] = dpp_source(in, x[0], buffers[3], exec);
    if (!compute(gpu, wave, in, x[0], x[1], x[2], o, mask)) return 0;
    if ((in->flags & CLAMP) && (in->flags & IS_FLOAT)) LANES {
        f32 f = f32_of(o[l]);
        o[l] = bits_of(!(f > 0) ? 0 : f > 1 ? 1 : f);
    }
    return 1;
}
