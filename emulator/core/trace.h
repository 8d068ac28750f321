// The trace of each warp of a launch for timing models: executed instructions and memory accesses, in order.
// tracing.py reads it.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t *values;
    uint64_t count, capacity;
} Growing;

enum { NOTHING, SECTORS, BANKS, PRIVATE };  // kinds of accesses: see trace_access

// One array per warp of the running program, and the concatenated arrays of all previous programs.
typedef struct {
    Growing *runs, *accesses, all_runs, all_accesses;
    uint64_t *index;  // per warp of the launch: first run, number of runs, first word of accesses, number of words
    uint64_t *head;   // per warp: index of the header of its last access
    int32_t *first, *next, warps;
} Trace;

static void append(Growing *to, uint32_t value) {
    if (to->count == to->capacity) {
        to->capacity = to->capacity ? 2 * to->capacity : 1024;
        to->values = realloc(to->values, to->capacity * sizeof *to->values);
    }
    to->values[to->count++] = value;
}

static void append_all(Growing *to, Growing *from) {
    for (uint64_t i = 0; i < from->count; i++) append(to, from->values[i]);
    from->count = 0;
}

static void end_run(Trace *trace, int warp) {
    int first = trace->first[warp];
    if (first >= 0) append(&trace->runs[warp], (uint32_t)first << 16 | (trace->next[warp] - first));
    trace->first[warp] = -1, trace->next[warp] = -2;
}

// Records that a warp issues an instruction. Consecutive instructions are one run: first << 16 | number.
static inline void trace_issue(Trace *trace, int warp, int pc) {
    if (pc != trace->next[warp]) {
        end_run(trace, warp);
        trace->first[warp] = pc;
    }
    trace->next[warp] = pc + 1;
}

// Removes the last instruction of a warp: a barrier that it does not reach.
static inline void trace_retract(Trace *trace, int warp) {
    if (--trace->next[warp] == trace->first[warp]) trace->first[warp] = -1, trace->next[warp] = -2;
}

// Records the start of a memory instruction. When lanes access memory, its header becomes
// sectors | bank passes << 8 | kind << 16 | (lanes - 1) << 20, followed by the sectors.
static inline void trace_begin(Trace *trace, int warp) {
    trace->head[warp] = trace->accesses[warp].count;
    append(&trace->accesses[warp], NOTHING);
}

static inline void trace_access(Trace *trace, int warp, int what, int sectors, int passes, int lanes) {
    uint32_t *header = &trace->accesses[warp].values[trace->head[warp]];
    int before = *header >> 8 & 255;  // matrices are accessed one by one
    *header = sectors | (uint32_t)(before + passes) << 8 | (uint32_t)what << 16 | (uint32_t)(lanes - 1) << 20;
}

static inline void trace_sector(Trace *trace, int warp, uint32_t sector) { append(&trace->accesses[warp], sector); }

static void trace_start(Trace *trace) {
    for (int i = 0; i < trace->warps; i++) trace->first[i] = -1, trace->next[i] = -2;
}

static void trace_finish(Trace *trace, uint64_t program) {
    for (int i = 0; i < trace->warps; i++) {
        uint64_t *at = trace->index + 4 * (program * trace->warps + i);
        end_run(trace, i);
        at[0] = trace->all_runs.count, at[1] = trace->runs[i].count;
        at[2] = trace->all_accesses.count, at[3] = trace->accesses[i].count;
        append_all(&trace->all_runs, &trace->runs[i]);
        append_all(&trace->all_accesses, &trace->accesses[i]);
    }
}

Trace *trace_new(uint64_t programs, int warps) {
    Trace *trace = calloc(1, sizeof *trace);
    trace->warps = warps;
    trace->index = calloc(4 * programs * warps, sizeof *trace->index);
    trace->runs = calloc(warps, sizeof *trace->runs), trace->accesses = calloc(warps, sizeof *trace->accesses);
    trace->first = calloc(warps, sizeof *trace->first), trace->next = calloc(warps, sizeof *trace->next);
    trace->head = calloc(warps, sizeof *trace->head);
    return trace;
}

uint64_t trace_size(const Trace *trace, int of_accesses) {
    return of_accesses ? trace->all_accesses.count : trace->all_runs.count;
}

// Copies the trace.
void trace_copy(const Trace *trace, uint32_t *runs, uint32_t *accesses, uint64_t *index, uint64_t programs) {
    if (trace->all_runs.count) memcpy(runs, trace->all_runs.values, trace->all_runs.count * sizeof *runs);
    if (trace->all_accesses.count)
        memcpy(accesses, trace->all_accesses.values, trace->all_accesses.count * sizeof *accesses);
    memcpy(index, trace->index, 4 * programs * trace->warps * sizeof *index);
}

void trace_free(Trace *trace) {
    for (int i = 0; i < trace->warps; i++) free(trace->runs[i].values), free(trace->accesses[i].values);
    free(trace->all_runs.values), free(trace->all_accesses.values);
    free(trace->runs), free(trace->accesses), free(trace->index), free(trace->head), free(trace->first);
    free(trace->next), free(trace);
}
