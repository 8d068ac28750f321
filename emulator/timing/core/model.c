// Models the time that a launch takes on a GPU. Warps of a trace run on SMs with four sub-cores. A sub-core issues in
// order, one instruction per cycle, as the compiler's control bits prescribe: stall counts and six scoreboards. The
// memory system is in memory.h. The model computes no values: instructions and memory accesses come from the trace.
#include "memory.h"

static void wake(SubCore *sub, i64 t) { if (t < sub->next) sub->next = t; }

// Moves a warp to its next machine instruction; 0 at its end.
static int advance(const Gpu *gpu, Warp *warp) {
    do {
        if (!warp->left) {
            if (warp->run == warp->run_end) return 0;
            warp->row = *warp->run >> 16, warp->left = *warp->run & 0xffff, warp->run++;
        }
        warp->instruction = gpu->work.rows[warp->row];
        warp->row++, warp->left--;
    } while (warp->instruction < 0);
    return 1;
}

static void show(Gpu *gpu, Warp *warp) {
    SubCore *sub = &gpu->sms[warp->sm].subs[warp->sub];
    sub->ready[warp->slot] = warp->at_barrier ? NEVER : warp->ready;
    sub->pipe_of[warp->slot] = gpu->work.code[warp->instruction].pipe;
}

// Sets the earliest time at which the warp's next instruction may issue: t, for the given cause, or when the scoreboards
// that it waits for are done.
static void prepare(Gpu *gpu, Warp *warp, i64 t, int why) {
    const Instruction *in = &gpu->work.code[warp->instruction];
    warp->ready = t, warp->why = why;
    for (u32 wait = in->wait; wait; wait &= wait - 1) {
        int i = __builtin_ctz(wait);
        if (warp->scoreboard[i] > warp->ready) warp->ready = warp->scoreboard[i], warp->why = warp->cause[i];
    }
    if (in->kind == DEPBAR) {  // waits for all but the last `left` operations of a scoreboard
        int i = in->left >> 4, left = in->left & 15;
        i64 until = left ? 0 : warp->scoreboard[i];
        for (int j = left; left && j < warp->n_recent[i]; j++) raise_to(&until, warp->recent[i][j]);
        if (until > warp->ready) warp->ready = until, warp->why = warp->cause[i];
    }
    show(gpu, warp);
}

// Records that an operation of a scoreboard is done at t.
static void mark(Warp *warp, int i, i64 t, u8 cause) {
    if (t >= warp->scoreboard[i]) warp->scoreboard[i] = t, warp->cause[i] = cause;
    memmove(&warp->recent[i][1], &warp->recent[i][0], (HISTORY - 1) * sizeof(i64));
    warp->recent[i][0] = t;
    if (warp->n_recent[i] < HISTORY) warp->n_recent[i]++;
}

// --- programs

static int room(const Gpu *gpu, const Sm *sm) {
    int free_slots = 0;
    for (int i = 0; i < SUBS; i++) free_slots += gpu->work.warps_per_sub - sm->subs[i].n;
    return sm->programs < gpu->work.programs_per_sm && free_slots >= gpu->work.warps;
}

static void place_warp(Gpu *gpu, Program *program, Warp *warp, i64 start) {
    Sm *sm = &gpu->sms[program->sm];
    int best = 0;
    for (int i = 1; i < SUBS; i++)
        if (sm->subs[(sm->rotate + i) % SUBS].n < sm->subs[(sm->rotate + best) % SUBS].n) best = i;
    warp->sub = (sm->rotate + best) % SUBS;
    sm->rotate = (warp->sub + 1) % SUBS;
    if (!advance(gpu, warp)) {
        program->alive--;
        return;
    }
    SubCore *sub = &sm->subs[warp->sub];
    i64 idle_since = later(sub->empty, sub->done);
    if (!sub->n && start > idle_since) sub->causes[EMPTY] += start - idle_since, sub->done = start;
    warp->slot = sub->n;
    sub->warps[sub->n++] = warp;
    prepare(gpu, warp, start, START);
    wake(sub, warp->ready);
}

static void place(Gpu *gpu, i32 number, i64 t) {
    const Work *work = &gpu->work;
    Sm *sm = &gpu->sms[number];
    i64 id = gpu->next_program++;
    Program *program = &gpu->programs[id];
    *program = (Program){.n = work->warps, .alive = work->warps, .sm = number};
    program->warps = calloc(work->warps, sizeof(Warp));
    sm->programs++;
    i64 start = later(later(t, sm->next_launch), gpu->launch_gate64 >> 6);
    gpu->launch_gate64 = later(gpu->launch_gate64, t * 64) + gpu->p.launch_rate64;
    sm->next_launch = start + gpu->p.launch_sm;
    for (int i = 0; i < work->warps; i++) {
        const u64 *at = work->index + 4 * (id * work->warps + i);
        program->warps[i] = (Warp){
            .run = work->runs + at[0], .run_end = work->runs + at[0] + at[1], .access = work->accesses + at[2],
            .access_end = work->accesses + at[2] + at[3], .program = id, .sm = number, .order = gpu->next_order++,
        };
        place_warp(gpu, program, &program->warps[i], start + gpu->p.lat_launch);
    }
}

// Starts programs while they fit on an SM, on the SM with the fewest programs; ties are resolved round robin.
static void launch(Gpu *gpu, i64 t) {
    while (gpu->next_program < gpu->work.programs) {
        i32 best = -1;
        for (i32 i = 0; i < gpu->p.sms; i++) {
            i32 g = (gpu->cursor + i) % gpu->p.sms;
            if ((best < 0 || gpu->sms[g].programs < gpu->sms[best].programs) && room(gpu, &gpu->sms[g])) best = g;
        }
        if (best < 0) return;
        place(gpu, best, t);
        gpu->cursor = (best + 1) % gpu->p.sms;
    }
}

// Releases all warps of a program that wait at a barrier. The warp that issues wakes its sub-core itself.
static void release(Gpu *gpu, Program *program, i64 t, const Warp *issuing) {
    program->arrived = 0;
    for (int i = 0; i < program->n; i++) {
        Warp *warp = &program->warps[i];
        if (!warp->at_barrier) continue;
        warp->at_barrier = 0;
        prepare(gpu, warp, later(t, warp->ready), AT_BARRIER);
        if (warp != issuing) wake(&gpu->sms[warp->sm].subs[warp->sub], warp->ready);
    }
}

static void finish(Gpu *gpu, SubCore *sub, Warp *warp, i64 t) {
    Program *program = &gpu->programs[warp->program];
    gpu->result->unread += warp->access_end - warp->access;
    for (int i = warp->slot + 1; i < sub->n; i++) {  // slots stay ordered by age
        sub->warps[i - 1] = sub->warps[i], sub->warps[i - 1]->slot = i - 1;
        sub->ready[i - 1] = sub->ready[i], sub->pipe_of[i - 1] = sub->pipe_of[i];
    }
    sub->ready[--sub->n] = NEVER;
    if (sub->last_slot > warp->slot) sub->last_slot--;
    if (!sub->n) sub->empty = t;
    raise_to(&gpu->end, t);
    program->alive--;
    // Other warps may wait at a barrier that this one will not reach.
    if (program->alive && program->arrived == program->alive)
        release(gpu, program, program->latest + gpu->p.lat_barrier, 0);
    if (program->alive) return;
    gpu->sms[program->sm].programs--;
    free(program->warps);
    launch(gpu, t);
}

// --- issue

// Returns the mask of a sub-core's warps that can issue at t, and in *first the earliest time at which any warp can.
static inline u32 able(const SubCore *sub, i64 t, i64 *first) {
    u32 mask = 0;
    i64 least = NEVER;
    for (int i = 0; i < sub->n; i++) {
        i64 when = later(sub->ready[i], sub->pipe_free[sub->pipe_of[i]]);
        mask |= (u32)(when <= t) << i;
        least = when < least ? when : least;
    }
    *first = least;
    return mask;
}

// Returns the slot of the warp that issues. Unless the scheduler is IN_TURN, the last warp continues while it can.
static int choose(const SubCore *sub, int scheduler, u32 can) {
    int last = sub->last_slot, oldest = __builtin_ctz(can);
    if (scheduler == IN_TURN) {
        u32 after = last < 0 ? 0 : can & ~((2u << last) - 1);
        return after ? __builtin_ctz(after) : oldest;
    }
    if (last >= 0 && last < sub->n && sub->warps[last]->order == sub->last_order && can >> last & 1) return last;
    return scheduler == OLDEST ? oldest : 31 - __builtin_clz(can);
}

// Occupies the resources of an instruction, and sets its scoreboards: when its result is ready and its operands read.
static void execute(Gpu *gpu, Sm *sm, SubCore *sub, Warp *warp, const Instruction *in, i64 t) {
    const Parameters *p = &gpu->p;
    i64 busy = (i64)p->interval[in->pipe] * (in->slots ? in->slots : 1), done = 0, read = 0;
    u8 cause = SHORT;
    if (in->pipe == XU_PIPE) {
        i64 start = later(t, sub->xu_free);
        sub->xu_free = start + busy;
        sub->pipe_free[XU_PIPE] = later(sub->xu_free - p->xu_queue * busy, t + 2);
        done = start + p->lat_xu, read = start + 4;
    } else sub->pipe_free[in->pipe] = t + busy;
    switch (in->kind) {
        case LOAD: case STORE: case ATOMIC: case REDUCTION:
            cause = MEMORY;  // fall through
        case SHARED_LOAD: case SHARED_STORE: case LOCAL_LOAD: case LOCAL_STORE:
            done = memory_access(gpu, sm, sub, warp, in->kind, t, &read);
            break;
        case SHUFFLE: {
            i64 start64 = later(t * 64, sm->lsu64), start = start64 >> 6;
            sm->lsu64 = start64 + 64;
            if (start - t > p->mio_queue) raise_to(&sub->pipe_free[MIO_PIPE], start - p->mio_queue);
            done = start + p->lat_shuffle, read = start + 4;
            break;
        }
        case SPECIAL: done = t + p->lat_special, read = t + 4; break;
        case ALU: if (!done) done = t + 12, read = t + 6;
    }
    if (in->write < SCOREBOARDS) mark(warp, in->write, done, cause);
    if (in->read < SCOREBOARDS) mark(warp, in->read, read, cause);
}

// Returns the cycles until the warp's next instruction, as the compiler encoded them.
static int stall_cycles(const Parameters *p, const Instruction *in) {
    int stall = in->stall;
    if (p->stall_percent != 100 && stall > 2) stall = (stall * p->stall_percent + 50) / 100;
    return stall < 1 || (p->fma_every_cycle && stall == 2 && in->pipe == FMA_PIPE) ? 1 : stall;
}

static void arrive(Gpu *gpu, Warp *warp, i64 t, i64 next) {
    Program *program = &gpu->programs[warp->program];
    program->latest = program->arrived ? later(program->latest, t) : t;
    program->arrived++;
    warp->at_barrier = 1, warp->ready = next;
    show(gpu, warp);
    if (program->arrived == program->alive) release(gpu, program, t + gpu->p.lat_barrier, warp);
}

// Simulates a sub-core's cycle at t.
static void step(Gpu *gpu, Sm *sm, SubCore *sub, i64 t) {
    i64 next;
    u32 can = able(sub, t, &next);
    if (!can) {
        if (next < NEVER) wake(sub, next);
        return;
    }
    int slot = choose(sub, gpu->p.scheduler, can);
    Warp *warp = sub->warps[slot];
    const Instruction *in = &gpu->work.code[warp->instruction];
    sub->last_order = warp->order, sub->last_slot = slot;
    i64 waited = t - sub->done, pipe = sub->pipe_free[in->pipe];
    if (waited > 0) sub->causes[pipe >= warp->ready && pipe > sub->done ? PIPE : warp->why] += waited;
    sub->causes[ISSUE]++, sub->done = t + 1;
    gpu->result->instructions++;
    execute(gpu, sm, sub, warp, in, t);
    i64 ready = t + stall_cycles(&gpu->p, in);
    int row = warp->row, ends_run = !warp->left;
    if (!advance(gpu, warp)) finish(gpu, sub, warp, t + 1);
    else {
        if (in->kind == BRANCH && ends_run && warp->row != row + 1) ready += gpu->p.lat_branch;
        if (in->kind == BARRIER) arrive(gpu, warp, t, ready);
        else prepare(gpu, warp, ready, FIXED);
    }
    able(sub, t, &next);
    if (next < NEVER) wake(sub, later(next, t + 1));
}

// --- a launch

static void run(Gpu *gpu) {
    launch(gpu, 0);
    for (;;) {
        gpu->quantum = NEVER;
        for (i32 g = 0; g < gpu->p.sms; g++)
            for (int i = 0; i < SUBS; i++)
                if (gpu->sms[g].subs[i].next < gpu->quantum) gpu->quantum = gpu->sms[g].subs[i].next;
        if (gpu->quantum == NEVER) return;
        for (i32 g = 0; g < gpu->p.sms; g++) {
            Sm *sm = &gpu->sms[g];
            for (;;) {
                SubCore *sub = sm->subs;
                for (int i = 1; i < SUBS; i++)
                    if (sm->subs[i].next < sub->next) sub = &sm->subs[i];
                i64 t = sub->next;
                if (t >= gpu->quantum + QUANTUM) break;
                sub->next = NEVER;
                step(gpu, sm, sub, t);
            }
        }
    }
}

static void start_sms(Gpu *gpu) {
    for (i32 g = 0; g < gpu->p.sms; g++) {
        Sm *sm = &gpu->sms[g];
        sm->sets = gpu->work.l1_bytes / 128 / L1_WAYS;
        if (sm->sets < 4) sm->sets = 4;
        sm->l1 = calloc((u64)sm->sets * L1_WAYS, sizeof(L1Line));
        for (int i = 0; i < SUBS; i++) {
            SubCore *sub = &sm->subs[i];
            sub->next = NEVER, sub->last_order = ~0ull, sub->last_slot = -1;
            for (int j = 0; j < SLOTS; j++) sub->ready[j] = NEVER;
        }
    }
}

static void collect(Gpu *gpu, i64 *sub_done) {
    const SubCore *last = gpu->sms[0].subs;
    for (i32 i = 0; i < gpu->p.sms * SUBS; i++) {
        SubCore *sub = &gpu->sms[i / SUBS].subs[i % SUBS];
        if (sub->done > last->done) last = sub;
        sub_done[i] = sub->done;
    }
    memcpy(gpu->result->last_causes, last->causes, sizeof last->causes);
    for (i32 i = 0; i < gpu->p.sms * SUBS; i++) {
        SubCore *sub = &gpu->sms[i / SUBS].subs[i % SUBS];
        if (gpu->end > sub->done) sub->causes[TAIL] += gpu->end - sub->done;
        for (int j = 0; j < CAUSES; j++) gpu->result->causes[j] += sub->causes[j];
    }
    gpu->result->cycles = gpu->end;
}

// Simulates a launch. sub_done: the time of the last issue of each sub-core.
void simulate(const Parameters *parameters, const Work *work, Result *result, i64 *sub_done) {
    Gpu gpu = {.p = *parameters, .work = *work, .result = result};
    *result = (Result){0};
    gpu.sms = calloc(gpu.p.sms, sizeof(Sm));
    gpu.programs = calloc(work->programs, sizeof(Program));
    gpu.l2_sets = gpu.p.l2_kb * 8 / L2_WAYS;
    gpu.l2 = calloc((u64)gpu.l2_sets * L2_WAYS, sizeof(L2Line));
    gpu.slice_free64 = calloc(gpu.p.slices, sizeof(i64));
    gpu.channel_free64 = calloc(gpu.p.channels, sizeof(i64));
    gpu.same_sector_free64 = calloc(SAME_SECTOR_SLOTS, sizeof(i64));
    if (gpu.p.l2_warm) warm_l2(&gpu);
    start_sms(&gpu);
    run(&gpu);
    collect(&gpu, sub_done);
    for (i32 g = 0; g < gpu.p.sms; g++) free(gpu.sms[g].l1);
    free(gpu.sms), free(gpu.programs), free(gpu.l2);
    free(gpu.slice_free64), free(gpu.channel_free64), free(gpu.same_sector_free64);
}

int layout(int which) {
    static const int sizes[] = {sizeof(Parameters), sizeof(Instruction), sizeof(Work), sizeof(Result)};
    return sizes[which];
}
