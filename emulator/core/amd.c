// Executes the AMD machine instructions that Triton emits, according to AMD's ISA reference guides, with RDNA3's names.
// A case in amd_*.inc, or an entry of a table there, is one mnemonic without the suffix of its encoding; build.py
// collects them.
#include "amd.h"
#include "amd_memory.h"
#include "amd_vector.h"
#include "schedule.h"

static int unknown(Gpu *gpu, int pc, int warp) {
    report(gpu->model, UNKNOWN_INSTRUCTION, pc, warp, 0, 0, 0);
    return FAILED;
}

// Both halves of a dual instruction read their operands before either half writes.
static int run_dual(Gpu *gpu, Wave *wave, const Instruction *in, Mask exec) {
    u32 first[W], second[W];
    Mask exec2 = exec, mask = 0;
    if (!compute_vector(gpu, wave, in, first, &exec, &mask)) return 0;
    if (!compute_vector(gpu, wave, in + 1, second, &exec2, &mask)) return 0;
    set_vector(wave, in->result.reg, first, exec);
    set_vector(wave, in[1].result.reg, second, exec2);
    wave->pc += 2;
    return 1;
}

static int run(void *engine, int warp) {
    Gpu *const gpu = engine;
    Model *const model = gpu->model;
    Wave *const wave = &gpu->waves[warp];
    for (;;) {
        int pc = wave->pc, next = pc + 1;
        if (pc < 0 || pc >= gpu->n_instructions) return unknown(gpu, 0, warp);
        const Instruction *in = gpu->code + pc;
        const Operand *s = in->source;
        Mask exec = mask_at(wave, EXEC), mask = 0;
        u32 o[W], loaded[16] = {0};
        model->issued[pc]++;
        model->lanes[pc] += lane_count(exec);
        if (!step(model, pc, warp)) return FAILED;
        if (in->flags & DUAL) {
            if (!run_dual(gpu, wave, in, exec)) return unknown(gpu, pc, warp);
            continue;
        }
        switch (in->op) {
#include "amd_scalar.inc"
#include "amd_wide.inc"
#include "amd_lanes.inc"
#include "amd_memory.inc"
            default:
                if (!compute_vector(gpu, wave, in, o, &exec, &mask)) return unknown(gpu, pc, warp);
                set_result(wave, &in->result, o, exec);
                if (in->second_result.kind) set_mask(wave, &in->second_result, mask & mask_at(wave, EXEC));
        }
        wave->pc = next;
    }
}

static void start(void *engine, int warp) {
    Gpu *gpu = engine;
    Model *model = gpu->model;
    Wave *wave = &gpu->waves[warp];
    for (int r = 0; r < N_SCALAR; r++) wave->s[r] = POISON;
    for (int r = 0; r < N_VECTOR; r++) LANES wave->v[r][l] = POISON;
    wave->pc = wave->scc = 0;
    wave->scratch = gpu->scratch + (size_t)gpu->scratch_bytes * W * warp;
    wave->s[M0] = ~0u;
    set_mask_at(wave, EXEC, existing_lanes(model, warp));
    u32 r = 0;
    for (; r < gpu->n_user_registers; r++) wave->s[r] = gpu->user_registers[r];
    for (int axis = 0; axis < 3; axis++)
        if (gpu->rsrc2 >> (7 + axis) & 1) wave->s[r++] = model->position[axis];
    LANES wave->v[0][l] = warp * W + l;
}

static void release(void *engine, int *state) {
    for (int i = 0; i < ((Gpu *)engine)->model->n_warps; i++)
        if (state[i] == BARRIER) state[i] = 0;
}

int execute(Gpu *gpu) {
    static const Engine engine = {start, run, release};
    gpu->waves = calloc(gpu->model->n_warps, sizeof(Wave));
    gpu->scratch = malloc((size_t)gpu->scratch_bytes * W * gpu->model->n_warps + 16);
    int failed = run_programs(gpu->model, &engine, gpu);
    free(gpu->waves);
    free(gpu->scratch);
    return failed;
}

int sizes(int which) { return which == 0 ? sizeof(Instruction) : sizeof(Gpu); }
