// Shared memory, L1 of each SM, L2 in slices, and DRAM in channels. Lines have four sectors of 32 bytes.
#pragma once
#include "machine.h"

// Returns the line in L2, or the line that it replaces.
static L2Line *l2_find(Gpu *gpu, u32 line, int *hit) {
    L2Line *set = gpu->l2 + (u64)(hash(line) % gpu->l2_sets) * L2_WAYS, *victim = set;
    for (int i = 0; i < L2_WAYS; i++) {
        if (set[i].valid && set[i].tag == line) {
            set[i].used = ++gpu->l2_clock;
            *hit = 1;
            return &set[i];
        }
        if (victim->valid && (!set[i].valid || set[i].used < victim->used)) victim = &set[i];
    }
    *hit = 0;
    return victim;
}

static void l2_replace(Gpu *gpu, L2Line *victim, u32 line) {
    *victim = (L2Line){.tag = line, .used = ++gpu->l2_clock};
}

// Loads all memory that a launch accesses into L2, in the order of the grid.
static void warm_l2(Gpu *gpu) {
    for (i64 i = 0; i < gpu->work.programs * gpu->work.warps; i++) {
        const u32 *word = gpu->work.accesses + gpu->work.index[4 * i + 2], *end = word + gpu->work.index[4 * i + 3];
        while (word < end) {
            int n = *word & 255, what = *word >> 16 & 15, hit;
            word++;
            for (int j = 0; what == SECTORS && j < n; j++, word++) {
                L2Line *line = l2_find(gpu, *word >> 2, &hit);
                if (!hit) l2_replace(gpu, line, *word >> 2);
                line->valid |= 1 << (*word & 3);
            }
        }
    }
}

// Requests a sector from L2. Returns the time of the response; times are in 1/64 cycles.
static i64 l2_sector(Gpu *gpu, Sm *sm, u32 sector, i64 left64, int kind) {
    const Parameters *p = &gpu->p;
    u32 line = sector >> 2, slice = hash(line * 2654435761u + 12345) % p->slices;
    i32 channel = slice * p->channels / p->slices;
    int bit = 1 << (sector & 3), hit;
    i64 there = (i64)p->lat_l2 * 64 * 3 / 8, back = (i64)p->lat_l2 * 64 * 5 / 8;
    i64 arrival = left64 + there, start = arrival;
    if (is_atomic(kind)) {
        i64 *same = &gpu->same_sector_free64[sector % SAME_SECTOR_SLOTS];
        raise_to(&start, *same);
        *same = start + p->same_sector64;
    }
    // Queues are measured from the start of the quantum: SMs run one after the other within it, and must not wait for
    // later work of another SM.
    i64 base = gpu->quantum * 64 + there, service = later(base, gpu->slice_free64[slice]);
    gpu->slice_free64[slice] = service + (is_atomic(kind) ? p->atomic64 : p->slice64);
    raise_to(&start, service);
    gpu->result->l2_sectors++;
    L2Line *found = l2_find(gpu, line, &hit);
    i64 done = start;
    if (!hit) {
        int dirty = __builtin_popcount(found->dirty);
        gpu->channel_free64[channel] += dirty * p->dram64;
        gpu->result->dram_bytes += 32 * dirty;
        l2_replace(gpu, found, line);
    }
    if (!(found->valid & bit)) {
        found->valid |= bit;
        if (kind != STORE) {
            i64 extra = (i64)(p->lat_dram - p->lat_l2) * 64 - p->dram64, *busy = &gpu->channel_free64[channel];
            *busy = later(base + extra, *busy) + p->dram64;
            done = later(start + extra + p->dram64, *busy);
            gpu->result->dram_bytes += 32;
        }
    }
    if (kind != LOAD) found->dirty |= bit;
    // A slice with a long queue stalls the SM.
    i64 behind = service - arrival - (i64)p->slice_queue * 64;
    if (behind > 0) raise_to(&sm->request64, left64 + behind);
    return done + back;
}

// Returns the line in L1, or the line that it replaces.
static L1Line *l1_find(Sm *sm, u32 line, int *hit) {
    L1Line *set = sm->l1 + (u64)(hash(line) % sm->sets) * L1_WAYS, *victim = set;
    for (int i = 0; i < L1_WAYS; i++) {
        if (set[i].valid && set[i].tag == line) {
            *hit = 1;
            return &set[i];
        }
        if (!set[i].valid || (victim->valid && set[i].used < victim->used)) victim = &set[i];
    }
    *hit = 0;
    return victim;
}

// Stalls the load-store unit while requests wait for the network.
static void hold_up(Gpu *gpu, Sm *sm, i64 start64) {
    i64 lag = sm->request64 - start64 - (i64)gpu->p.request_queue * 64;
    if (lag > 0) raise_to(&sm->lsu64, start64 + lag);
}

// Stores a sector, or updates it by an atomic. Returns the cycle of the response, or 0 if nothing waits for it.
static i64 write_sector(Gpu *gpu, Sm *sm, int kind, u32 sector, i64 t, i64 start64) {
    int hit;
    L1Line *line = l1_find(sm, sector >> 2, &hit);
    if (hit && is_atomic(kind)) line->valid &= ~(1 << (sector & 3));
    if (hit) line->used = t;
    i64 request = later(start64, sm->request64);
    sm->request64 = request + gpu->p.request64;
    i64 back = l2_sector(gpu, sm, sector, request, kind);
    if (is_atomic(kind)) gpu->result->atomics++;
    else gpu->result->stores++;
    hold_up(gpu, sm, start64);
    return kind == ATOMIC ? back >> 6 : 0;
}

// Loads a sector. Returns the cycle of its arrival, or 0 if L1 has it.
static i64 read_sector(Gpu *gpu, Sm *sm, u32 sector, i64 t, i64 start64) {
    const Parameters *p = &gpu->p;
    int hit, k = sector & 3;
    L1Line *line = l1_find(sm, sector >> 2, &hit);
    gpu->result->l1_sectors++;
    int present = hit && line->valid >> k & 1;
    if (present || p->all_hit_l1) gpu->result->l1_hits++;
    if (p->all_hit_l1) return 0;
    if (present) {
        line->used = t;
        return line->filled[k];
    }
    if (!hit) line->tag = sector >> 2, line->valid = 0;
    line->valid |= 1 << k;
    line->used = t;
    i64 request = later(start64, sm->request64), soonest = request + (i64)p->lat_l2 * 64;
    sm->request64 = request + p->request64 / 2;
    i64 back = l2_sector(gpu, sm, sector, request, LOAD);
    // Responses share the network, but a response that waits for DRAM does not delay others.
    sm->response64 = later(sm->response64, soonest) + p->response64;
    line->filled[k] = later(back, sm->response64) >> 6;
    hold_up(gpu, sm, start64);
    return line->filled[k];
}

// Returns the number of distinct lines among sectors.
static int count_lines(const u32 *sectors, int n) {
    u32 lines[256];
    int count = 0;
    for (int i = 0; i < n; i++) {
        int j = count - 1;
        while (j >= 0 && lines[j] != sectors[i] >> 2) j--;
        if (j < 0) lines[count++] = sectors[i] >> 2;
    }
    return count;
}

// Issues a memory instruction at t. Returns the time of its result, and in *read the time when its operands are read.
static i64 memory_access(Gpu *gpu, Sm *sm, SubCore *sub, Warp *warp, int kind, i64 t, i64 *operands_read) {
    const Parameters *p = &gpu->p;
    u32 header = *warp->access++;
    int n = header & 255, passes = header >> 8 & 255, what = header >> 16 & 15;
    const u32 *sectors = warp->access;
    if (what == SECTORS) warp->access += n;
    *operands_read = t + 2;
    if (what == NOTHING) return t + 6;
    i64 start64 = later(t * 64, sm->lsu64), busy = 64;
    if (what == BANKS) busy = later(busy, 64 * passes);
    if (what == SECTORS) busy = later(busy, later((i64)p->l1_tag64 * count_lines(sectors, n), 64 * ((n + 3) / 4)));
    sm->lsu64 = start64 + busy;
    i64 start = start64 >> 6, done = start + p->lat_l1;
    if (start - t > p->mio_queue) raise_to(&sub->pipe_free[MIO_PIPE], start - p->mio_queue);
    *operands_read = start + 8;
    if (what == BANKS) return start + p->lat_shared + (busy - 64) / 64;
    if (what == PRIVATE) return done;
    int writes = kind == STORE || is_atomic(kind);
    for (int i = 0; i < n; i++)
        raise_to(&done, writes ? write_sector(gpu, sm, kind, sectors[i], t, start64)
                               : read_sector(gpu, sm, sectors[i], t, start64));
    if (!writes) gpu->result->loads++, gpu->result->load_latency += done - t;
    return done;
}
