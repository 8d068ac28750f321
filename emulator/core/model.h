// The common part of all emulated GPUs: memory regions, findings, counters, and one launch.
// machine.py mirrors these structures with ctypes, and checks their sizes with `layout`.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
typedef double f64;
typedef _Float16 f16;
typedef unsigned __int128 u128;
typedef __int128 i128;

#ifndef W
#define W 32  // lanes of a warp
#endif
#if W == 64
typedef u64 Mask;  // one bit per lane
#define first_lane(m) __builtin_ctzll(m)
#define lane_count(m) __builtin_popcountll(m)
#else
typedef u32 Mask;
#define first_lane(m) __builtin_ctz(m)
#define lane_count(m) __builtin_popcount(m)
#endif
#define ALL_LANES ((Mask) ~(Mask)0)
#define EACH_LANE(m, l) for (Mask k_ = (m), l = 0; k_ && (l = first_lane(k_), 1); k_ &= k_ - 1)

// Value of registers and scratch memory that have not been written: a NaN, and an unlikely integer.
#define POISON 0x7FC0DEADu

// Memory that a launch may access. Each tag of `writers` and `readers` covers 1 << granule bytes.
typedef struct {
    u64 low, high, base;     // base: start address in the address space of traces
    u8 *written;           // for each byte, 1 if it was written; 0 if all were
    u64 *writers, *readers;  // see memory.h; 0 if races are not checked
    u32 *touched;          // for each sector, the last program that accessed it, plus 1
    i32 granule, readonly;
} Region;

typedef struct {
    i32 kind, pc, program, warp, lane, other;
    u64 address, count;
} Finding;

typedef struct {
    Region *regions, shared;
    u8 *shared_bytes;
    // Per instruction: number of issues, sum of active lanes, number of divergences; for memory instructions number of
    // accesses with data, sectors (bank passes for shared memory), sectors that a program accesses for the first time
    // (passes without bank conflicts for shared memory); and distinct addresses of atomics.
    u64 *issued, *lanes, *diverged, *requests, *sectors, *first, *distinct;
    Finding *findings;
    const u32 *order;  // order of programs; 0 for ascending
    Trace *trace;      // 0 if nothing is recorded
    u64 steps, limit;  // number of branches, and its limit
    i32 n_regions, last_region, n_findings, max_findings, sector_shift;
    i32 races, uninitialized, jitter, shuffle_warps;
    i32 n_threads, n_warps, program, epoch;
    i32 block[3], grid[3], position[3];
} Model;

enum { DONE = 1, BARRIER, FAILED };  // states of a warp; 0 is ready
enum {
    OUT_OF_BOUNDS = 1,
    MISALIGNED,
    UNINITIALIZED,
    RACE_WRITES,
    RACE_READ,
    LANES_DIFFER,
    NOT_CONVERGED,
    UNKNOWN_INSTRUCTION,
    DEADLOCK,
    ENDLESS,
    READ_ONLY,
    POISON_STORED,
    TRAP,
};

static void report(Model *model, int kind, int pc, int warp, int lane, u64 address, int other) {
    for (int i = 0; i < model->n_findings; i++) {
        Finding *found = &model->findings[i];
        if (found->kind == kind && found->pc == pc) {
            found->count++;
            return;
        }
    }
    if (model->n_findings < model->max_findings)
        model->findings[model->n_findings++] = (Finding){kind, pc, model->program, warp, lane, other, address, 1};
}

// Counts a branch; returns 0 if the limit is reached.
static inline int step(Model *model, int pc, int warp) {
    if (++model->steps <= model->limit) return 1;
    report(model, ENDLESS, pc, warp, 0, 0, 0);
    return 0;
}

static inline Mask existing_lanes(const Model *model, int warp) {
    int rest = model->n_threads - warp * W;
    return rest >= W ? ALL_LANES : ((Mask)1 << rest) - 1;
}

int layout(int which) { return which == 0 ? sizeof(Region) : which == 1 ? sizeof(Finding) : sizeof(Model); }
