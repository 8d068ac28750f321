// The modeled GPU: its parameters and state. Times are cycles of the SM clock; names that end in 64 are in 1/64 cycles,
// for resources that serve several requests in a cycle. model.py mirrors Parameters, Instruction, Work and Result.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;

enum { SUBS = 4, SLOTS = 16, SCOREBOARDS = 6, HISTORY = 8, L1_WAYS = 4, L2_WAYS = 16 };
#define NEVER (1ll << 60)
#define QUANTUM 32  // cycles that an SM advances before the next one does; much less than the latency of L2

enum {
    ALU, LOAD, STORE, ATOMIC, SHARED_LOAD, SHARED_STORE, SHUFFLE, MUFU, BARRIER, EXIT, BRANCH, DEPBAR, SPECIAL,
    LOCAL_LOAD, LOCAL_STORE, REDUCTION
};  // classes of instructions, KINDS in trace.py
enum { FMA_PIPE, ALU_PIPE, XU_PIPE, MIO_PIPE, UNIFORM_PIPE, BRANCH_PIPE, TENSOR_PIPE, NO_PIPE, PIPES };
enum { NOTHING, SECTORS, BANKS, PRIVATE };  // kinds of memory accesses; see the emulator's trace.h
enum { ISSUE, PIPE, FIXED, MEMORY, SHORT, AT_BARRIER, START, EMPTY, TAIL, CAUSES };  // see CAUSES in model.py
enum { OLDEST, IN_TURN, YOUNGEST };  // see `scheduler` in model.py

typedef struct {
    i32 sms, max_warps, max_programs, registers, shared_bytes, l1_bytes, clock_mhz;
    i32 interval[PIPES];  // cycles between two warp instructions of a sub-core
    i32 lat_shared, lat_shuffle, lat_xu, lat_special, lat_l1, lat_l2, lat_dram, lat_barrier, lat_branch;
    i32 xu_queue, mio_queue, scheduler, launch_rate64, launch_sm, lat_launch;
    i32 slices, slice64, atomic64, same_sector64, channels, dram64, response64, request64;
    i32 l2_kb, l2_warm, slice_queue, request_queue, shared_extra, stall_percent, l1_tag64, all_hit_l1, fma_every_cycle;
} Parameters;

// A machine instruction: its pipe and class, and the compiler's control bits. `left` of a DEPBAR: scoreboard << 4 |
// number of operations that may remain.
typedef struct {
    u8 pipe, slots, kind, stall, write, read, wait, left;
} Instruction;

// A launch: its trace, and its occupancy.
typedef struct {
    const Instruction *code;
    const i32 *rows;  // the machine instruction of each row of the trace, or -1
    const u32 *runs, *accesses;
    const u64 *index;  // see the emulator's tracing.py
    i64 programs, warps, l1_bytes, programs_per_sm, warps_per_sub;
} Work;

typedef struct {
    i64 cycles, instructions, l1_sectors, l1_hits, l2_sectors, dram_bytes, atomics, stores, loads, load_latency;
    i64 causes[CAUSES], last_causes[CAUSES];  // of all sub-cores; of the one that issued last
    i64 unread;  // words of the trace's accesses that no instruction has read: not 0 if the trace is wrong
} Result;

typedef struct {
    const u32 *run, *run_end, *access, *access_end;
    i32 row, left, instruction, sm, sub, program, slot, at_barrier;
    u64 order;
    i64 ready, scoreboard[SCOREBOARDS], recent[SCOREBOARDS][HISTORY];
    i32 n_recent[SCOREBOARDS];
    u8 cause[SCOREBOARDS], why;
} Warp;

typedef struct {
    Warp *warps[SLOTS];
    i64 ready[SLOTS], pipe_of[SLOTS], pipe_free[PIPES];
    i32 n, last_slot;
    u64 last_order;
    i64 xu_free, next, done, empty, causes[CAUSES];
} SubCore;

typedef struct {
    u32 tag;
    u8 valid;
    i64 used, filled[4];
} L1Line;

typedef struct {
    SubCore subs[SUBS];
    i64 lsu64, request64, response64, next_launch;
    i32 programs, sets, rotate;
    L1Line *l1;
} Sm;

typedef struct {
    u32 tag, used;
    u8 valid, dirty;
} L2Line;

typedef struct {
    Warp *warps;
    i32 n, alive, arrived, sm;
    i64 latest;
} Program;

enum { SAME_SECTOR_SLOTS = 1 << 20 };

typedef struct {
    Parameters p;
    Work work;
    Result *result;
    Sm *sms;
    Program *programs;
    L2Line *l2;
    i32 l2_sets, cursor;
    u32 l2_clock;
    i64 *slice_free64, *channel_free64, *same_sector_free64;
    i64 next_program, launch_gate64, end, quantum;
    u64 next_order;
} Gpu;

static u32 hash(u32 x) {
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return x ^ x >> 15;
}

static inline i64 later(i64 a, i64 b) { return a > b ? a : b; }
static inline void raise_to(i64 *a, i64 b) { if (*a < b) *a = b; }
static inline int is_atomic(int kind) { return kind == REDUCTION || kind == ATOMIC; }
