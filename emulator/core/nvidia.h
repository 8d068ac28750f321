// State of an emulated NVIDIA GPU. nvidia/program.py mirrors Instruction and Gpu.
#pragma once
#include "memory.h"
#include "numbers.h"

// A place is the offset of an operand in the registers of a warp. An operand has 128 bytes for 32 lanes of 4 bytes, or
// 256 bytes for 8 bytes per lane. A predicate is in the first 4 of 128 bytes, with one bit per lane. -1 is none.
typedef struct {
    u16 op;
    u8 guard_negated, count, size, sign, wide, flag;
    i32 guard, place[6], list;  // list: index of further places in Gpu.lists
    i64 immediate;
    i32 target, uniform, space, spare;
} Instruction;

// Lanes at the same instruction. If `awaited` is not 0, they wait for these lanes at a convergence barrier.
typedef struct {
    i32 pc;
    u32 lanes, awaited;
    i32 barrier;
} Group;

typedef struct {
    Group groups[70];  // all except the running group
    i32 n, waiting_at;
    u32 exited, barriers[16][32];
    u8 *registers;
} Warp;

typedef struct {
    Model *model;
    const Instruction *code;
    const i32 *lists;
    const u8 *parameters;
    u8 *local, *registers;
    const u8 *constants;
    u64 register_bytes, constant_bytes, local_bytes;
    Warp *warps;
    i32 is_machine_code, spare;
} Gpu;

#define SHARED_BASE (1ull << 60)  // generic addresses of shared memory begin here
enum { GENERIC, GLOBAL, SHARED, LOCAL };

// Computes the address of each lane's data in this process; returns the lanes that may access it.
static u32 resolve(Gpu *gpu, int pc, int warp, int space, int kind, u32 on, u64 *address, int size, u8 **bytes,
                   u8 (*value)[16]) {
    Model *model = gpu->model;
    if (!on) return 0;
    if (space == GENERIC) {
        u64 base = address[first_lane(on)] >> 60;
        space = base == 1 ? SHARED : base == 2 ? LOCAL : GLOBAL;
        for (int l = 0; base && l < 32; l++) address[l] &= SHARED_BASE - 1;
    }
    if (space == GLOBAL) on = access_global(model, pc, warp, kind, on, address, size, size, value);
    if (space == SHARED) on = access_shared(model, pc, warp, kind, on, address, size, size, value);
    if (space == LOCAL && model->trace) trace_access(model->trace, warp, PRIVATE, 0, 0, lane_count(on));
    for (int l = 0; l < 32; l++) {
        if (space == LOCAL && (on >> l & 1) && address[l] + size > gpu->local_bytes) {
            report(model, OUT_OF_BOUNDS, pc, warp, l, address[l], size);
            on &= ~(1u << l);
        }
        bytes[l] = space == GLOBAL   ? (u8 *)address[l]
                   : space == SHARED ? model->shared_bytes + address[l]
                                     : gpu->local + (warp * 32 + l) * gpu->local_bytes + address[l];
    }
    return on;
}

// Returns a row of a tf32 matrix in shared memory, in the layout of a wgmma descriptor.
static void load_described(Gpu *gpu, int pc, int warp, u64 descriptor, int first_row, int rows, f32 (*to)[8]) {
    Model *model = gpu->model;
    u32 base = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    u32 stride = (descriptor >> 32 & 0x3fff) << 4, swizzle = descriptor >> 62;
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < 8; k++) {
            int row = first_row + i;
            u32 at = base + row / 8 * stride + k % 4 * 4, bits = 0;
            if (!swizzle) at += k / 4 * leading + row % 8 * 16;
            else {
                u32 pitch = swizzle == 1 ? 128 : swizzle == 2 ? 64 : 32;
                at += row % 8 * pitch + k / 4 * 16;
                at ^= (at >> 7 & (pitch / 16 - 1)) << 4;
            }
            if (at + 4 > model->shared.high) report(model, OUT_OF_BOUNDS, pc, warp, 0, at, 4);
            else {
                memcpy(&bits, model->shared_bytes + at, 4);
                track(model, &model->shared, READ, pc, warp, 0, at, 4, 0, 0);
            }
            to[i][k] = f32_of(bits & 0xffffe000u);
        }
}
