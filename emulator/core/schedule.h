// Runs the programs of a launch one after the other. The warps of a program run in turn, up to the next barrier.
#pragma once
#include "model.h"

typedef struct {
    void (*start)(void *self, int warp);    // initializes a warp of a new program
    int (*run)(void *self, int warp);       // runs it up to the next barrier; returns its state
    void (*release)(void *self, int *state);  // releases all warps when they have reached the barrier
} Engine;

static u32 hash(u32 x) {
    x *= 0x9e3779b9u;
    x ^= x >> 15;
    x *= 0x85ebca6bu;
    return x ^ x >> 13;
}

static void start_program(Model *model, u32 program) {
    model->program = program;
    model->epoch = 0;
    if (model->trace) trace_start(model->trace);
    model->position[0] = program % model->grid[0];
    model->position[1] = program / model->grid[0] % model->grid[1];
    model->position[2] = program / model->grid[0] / model->grid[1];
    Region *shared = &model->shared;
    u64 tags = (shared->high >> shared->granule) + 1;
    if (shared->written) memset(shared->written, 0, shared->high);
    if (shared->writers) memset(shared->writers, 0, tags * 8), memset(shared->readers, 0, tags * 8);
    if (model->uninitialized)
        for (u64 i = 0; i + 4 <= shared->high; i += 4) memcpy(model->shared_bytes + i, &(u32){POISON}, 4);
}

// Returns 0, or 1 if a fault aborted the launch.
static int run_programs(Model *model, const Engine *engine, void *self) {
    int n = model->n_warps, state[64];
    u64 programs = (u64)model->grid[0] * model->grid[1] * model->grid[2];
    for (u64 k = 0; k < programs; k++) {
        start_program(model, model->order ? model->order[k] : k);
        for (int i = 0; i < n; i++) state[i] = 0, engine->start(self, i);
        for (;;) {
            int waiting = 0;
            u32 seed = model->shuffle_warps ? hash(model->program * 31 + model->epoch) : 0;
            for (int i = 0; i < n; i++) {
                int warp = (seed & 1 ? n - 1 - i : i) + (seed >> 1) % n;
                warp = warp < n ? warp : warp - n;
                if (!state[warp]) state[warp] = engine->run(self, warp);
                if (state[warp] == FAILED) return 1;
                waiting += state[warp] == BARRIER;
            }
            if (!waiting) break;
            engine->release(self, state);
            model->epoch++;
        }
        if (model->trace) trace_finish(model->trace, model->program);
    }
    return 0;
}
