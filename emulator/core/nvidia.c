// Executes PTX and SASS: one warp of 32 lanes at a time, instruction by instruction. A line of nvidia_*.inc that begins
// with OP, UNARY, BINARY, TERNARY, COMPARE, SHIFT or PAIR defines an instruction; build.py collects them.
#include "nvidia.h"
#include "nvidia_numbers.h"
#include "schedule.h"

static u32 existing(const Gpu *gpu, const Warp *self, int warp) {
    return ~self->exited & existing_lanes(gpu->model, warp);
}

// Returns whether group b waits at the same barrier as group a. Lanes may reach a barrier in different groups.
static int waits_with(const Group *a, const Group *b) {
    return b->awaited && b->barrier == a->barrier && b->pc == a->pc && !(b->lanes & ~a->awaited);
}

// Merges and releases groups that wait at a barrier which all awaited lanes have reached.
static void converge(Warp *self) {
    Group *g = self->groups;
    for (int i = 0; i < self->n; i++) {
        if (!g[i].awaited) continue;
        u32 arrived = g[i].lanes;
        for (int j = 0; j < self->n; j++)
            if (waits_with(&g[i], &g[j])) arrived |= g[j].lanes;
        if (g[i].awaited & ~self->exited & ~arrived) continue;
        for (int j = self->n - 1; j > i; j--)
            if (waits_with(&g[i], &g[j])) g[i].lanes |= g[j].lanes, g[j] = g[--self->n];
        g[i].awaited = 0;
    }
}

// Chooses the group with the lowest pc. If `merge` is set (PTX), it merges with all groups at this pc: as loops are
// contiguous in the order of blocks, lanes reconverge as early as possible. Machine code has convergence barriers for
// this. Returns the lowest pc of the other groups.
static int pick(Warp *self, int *pc, u32 *active, int merge) {
    Group *g = self->groups;
    if (*active) g[self->n++] = (Group){*pc, *active};
    int n = 0, least = INT32_MAX, next = INT32_MAX, chosen = -1;
    for (int i = 0; i < self->n; i++)
        if (g[i].lanes &= ~self->exited) g[n++] = g[i];
    self->n = n;
    converge(self);
    for (int i = 0; i < self->n; i++)
        if (!g[i].awaited && g[i].pc < least) least = g[i].pc, chosen = i;
    u32 lanes = 0;
    n = 0;
    for (int i = 0; i < self->n; i++) {
        if (i == chosen || (merge && !g[i].awaited && g[i].pc == least)) {
            lanes |= g[i].lanes;
            continue;
        }
        if (!g[i].awaited && g[i].pc < next) next = g[i].pc;
        g[n++] = g[i];
    }
    self->n = n, *pc = least, *active = lanes;
    return merge ? next : INT32_MAX;
}

// Inside of an instruction, `in` is the instruction, `on` are the lanes that execute it, and l is a lane.
#define PLACE(k, T) ((T *)(R + in->place[k]))
#define LISTED(k, T) ((T *)(R + list[k]))
#define NEXT goto next
#define LANES _Pragma("GCC ivdep") for (int l = 0; l < 32; l++)
#define ON(mask) ((mask) >> l & 1)
#define A a[l]
#define B b[l]
#define C c[l]
#define SET(T, e)                                   \
    {                                               \
        T *d = PLACE(0, T);                         \
        if (on == ALL_LANES) LANES d[l] = (e);      \
        else LANES if (ON(on)) d[l] = (e);          \
        NEXT;                                       \
    }
#define RECORD if (trace) trace_begin(trace, warp);
#define SET_BITS(place, bits) { u32 *p_ = (place), b_ = (bits); *p_ = (*p_ & ~on) | (b_ & on); }
#define OP(n) L_##n:
#define UNARY(n, T, S, e) L_##n: { const S *a = PLACE(1, S); (void)a; SET(T, e) }
#define BINARY(n, T, S, e) L_##n: { const S *a = PLACE(1, S), *b = PLACE(2, S); SET(T, e) }
#define TERNARY(n, T, S, e) L_##n: { const S *a = PLACE(1, S), *b = PLACE(2, S); const T *c = PLACE(3, T); SET(T, e) }
#define SHIFT(n, T, e) L_##n: { const T *a = PLACE(1, T); const u32 *b = PLACE(2, u32); SET(T, e) }
#define COMPARE(n, S, e)                                                                        \
    L_##n: {                                                                                    \
        const S *a = PLACE(1, S), *b = PLACE(2, S);                                             \
        u32 r = 0;                                                                              \
        LANES r |= (u32)(e) << l;                                                               \
        if (in->place[3] >= 0) {                                                                \
            u32 q = *PLACE(3, u32);                                                             \
            r = in->flag == 1 ? r & q : in->flag == 2 ? r | q : r ^ q;                          \
        }                                                                                       \
        SET_BITS(PLACE(0, u32), r)                                                              \
        if (in->place[4] >= 0) SET_BITS(PLACE(4, u32), ~r)                                      \
        NEXT;                                                                                   \
    }
#define PAIR(n, e)                                                              \
    L_##n: {                                                                    \
        const f32 *a = PLACE(1, f32), *b = PLACE(2, f32), *c = PLACE(3, f32);   (void)c;\
        f32 *d = PLACE(0, f32);                                                 \
        for (int l = 0; l < 64; l++) if (on >> (l >> 1) & 1) d[l] = (e);        \
        NEXT;                                                                   \
    }

static int run(void *engine, int warp) {
    static const void *const table[] = {
#include "nvidia_labels.inc"
    };
    Gpu *const gpu = engine;
    Model *const model = gpu->model;
    Trace *const trace = model->trace;
    Warp *const self = &gpu->warps[warp];
    u8 *const R = self->registers;
    const Instruction *const code = gpu->code, *in;
    const i32 *list;
    const int jitter = model->jitter, merge = !gpu->is_machine_code;
    u32 active = 0, on;
    int pc = 0, until = pick(self, &pc, &active, merge);
    goto check;
next:
    pc++;
check:
    if (pc >= until || !active) {
        until = pick(self, &pc, &active, merge);
        if (!active) {
            if (!self->n) return DONE;
            report(model, DEADLOCK, self->groups[0].pc, warp, 0, self->groups[0].lanes, 0);
            return FAILED;
        }
    }
    in = &code[pc];
    list = gpu->lists + in->list;
    on = active;
    if (in->guard >= 0) on &= *(u32 *)(R + in->guard) ^ -(u32)in->guard_negated;
    if (in->uniform && on) on = ALL_LANES;
    model->issued[pc]++;
    model->lanes[pc] += lane_count(on);
    if (trace) trace_issue(trace, warp, pc);
    goto *table[in->op];

#include "nvidia_integer.inc"
#include "nvidia_float.inc"
#include "nvidia_compare.inc"
#include "nvidia_control.inc"
#include "nvidia_memory.inc"
#include "nvidia_matrix.inc"
#include "nvidia_sass.inc"
}

// --- launch

static void start(void *engine, int warp) {
    Gpu *gpu = engine;
    Warp *self = &gpu->warps[warp];
    u32 lanes = existing_lanes(gpu->model, warp);
    self->registers = gpu->registers + warp * gpu->register_bytes;
    memcpy(self->registers, gpu->constants, gpu->constant_bytes);
    if (gpu->model->uninitialized)
        for (u64 i = gpu->constant_bytes; i < gpu->register_bytes; i += 4) memcpy(self->registers + i, &(u32){POISON}, 4);
    self->groups[0] = (Group){0, lanes};
    self->n = 1;
    self->exited = ~lanes;
}

enum { SYNC, COUNT, ALL, ANY };  // results of a barrier

static void release(void *engine, int *state) {
    Gpu *gpu = engine;
    int n = gpu->model->n_warps, count = 0, all = 1, any = 0;
    for (int i = 0; i < n; i++) {
        Warp *self = &gpu->warps[i];
        const Instruction *in = &gpu->code[self->waiting_at];
        if (state[i] != BARRIER || in->flag == SYNC) continue;
        u32 on = existing(gpu, self, i), p = (*(u32 *)(self->registers + in->place[1]) ^ -(u32)in->count) & on;
        count += lane_count(p), all &= p == on, any |= p != 0;
    }
    for (int i = 0; i < n; i++) {
        Warp *self = &gpu->warps[i];
        const Instruction *in = &gpu->code[self->waiting_at];
        if (state[i] != BARRIER) continue;
        u32 *result = (u32 *)(self->registers + in->place[0]);
        if (in->flag == COUNT)
            for (int l = 0; l < 32; l++) result[l] = count;
        else if (in->flag != SYNC) *result = -(u32)(in->flag == ALL ? all : any);
        state[i] = 0;
    }
}

int execute(Gpu *gpu) {
    static const Engine engine = {start, run, release};
    gpu->warps = calloc(gpu->model->n_warps, sizeof(Warp));
    int failed = run_programs(gpu->model, &engine, gpu);
    free(gpu->warps);
    return failed;
}

int sizes(int which) { return which == 0 ? sizeof(Instruction) : sizeof(Gpu); }
