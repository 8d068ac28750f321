// The memory model: bounds, alignment, bytes never written, races, sectors and bank conflicts.
#pragma once
#include "model.h"

enum { READ, WRITE, ATOMIC };

static Region *find_region(Model *model, u64 low, u64 high) {
    Region *last = &model->regions[model->last_region];
    if (model->n_regions && low >= last->low && high <= last->high) return last;
    for (int i = 0; i < model->n_regions; i++)
        if (low >= model->regions[i].low && high <= model->regions[i].high) {
            model->last_region = i;
            return &model->regions[i];
        }
    return 0;
}

// --- races and bytes never written
//
// A tag states who accessed memory last: program + 1 in the upper 32 bits, then 24 bits of the number of barriers that
// it had passed, then flags, and 5 bits of the warp. Two accesses are ordered if they are by the same warp, or if a
// barrier is between them.

enum { BY_ATOMIC = 32, SEVERAL_PROGRAMS = 64, SEVERAL_WARPS = 128, FLAGS = 224 };

static inline u64 tag_of(const Model *model, int warp) {
    return (u64)(model->program + 1) << 32 | (u64)(model->epoch & 0xffffff) << 8 | warp;
}

static inline int unordered(u64 tag, u64 mine) {
    u64 differ = (tag & ~(u64)FLAGS) ^ mine;
    return tag && (differ >> 32 || (!(differ >> 8) && differ));
}

static void track_race(Model *model, Region *region, int kind, int pc, int warp, int lane, u64 offset, int size,
                       int same_value) {
    u64 mine = tag_of(model, warp);
    for (u64 i = offset >> region->granule; i <= (offset + size - 1) >> region->granule; i++) {
        u64 writer = region->writers[i], reader = region->readers[i];
        int both_atomic = kind == ATOMIC && (writer & BY_ATOMIC);
        // Storing equal bits again is no race: Triton stores values that several warps have several times.
        if (unordered(writer, mine) && !both_atomic && !same_value)
            report(model, kind == READ ? RACE_READ : RACE_WRITES, pc, warp, lane, region->low + offset,
                   (int)(writer >> 32) - 1);
        int since_barrier = reader >> 8 == mine >> 8;
        if (kind == READ) {
            u64 flags = reader & SEVERAL_PROGRAMS;
            if (reader && (reader ^ mine) >> 32) flags |= SEVERAL_PROGRAMS;
            if (since_barrier && ((reader & SEVERAL_WARPS) || ((reader ^ mine) & 31))) flags |= SEVERAL_WARPS;
            region->readers[i] = mine | flags;
            continue;
        }
        if (reader && !same_value && (unordered(reader, mine) || (reader & SEVERAL_PROGRAMS) ||
                       ((reader & SEVERAL_WARPS) && since_barrier)))
            report(model, RACE_READ, pc, warp, lane, region->low + offset, (int)(reader >> 32) - 1);
        region->writers[i] = mine | (kind == ATOMIC ? BY_ATOMIC : 0);
    }
}

static inline int all_written(const u8 *written, int size) {
    for (int i = 0; i < size; i++)
        if (!written[i]) return 0;
    return 1;
}

// The access of one lane: `bytes` is its address in this process, `value` the value that a store will write.
static void track(Model *model, Region *region, int kind, int pc, int warp, int lane, u64 address, int size,
                  const u8 *bytes, const u8 *value) {
    u64 offset = address - region->low;
    if (region->written && model->uninitialized) {
        u8 *written = region->written + offset;
        if (kind != WRITE && !all_written(written, size))
            report(model, UNINITIALIZED, pc, warp, lane, address, 0);
        if (kind != READ) memset(written, 1, size);
    }
    if (region->writers && model->races) {
        int same_value = kind == WRITE && value && !memcmp(bytes, value, size);
        track_race(model, region, kind, pc, warp, lane, offset, size, same_value);
    }
}

// --- global memory

static void touch(Model *model, Region *region, int pc, u64 sector) {
    if (!region || !region->touched) return;
    u32 *program = &region->touched[sector];
    if (*program == (u32)model->program + 1) return;
    *program = model->program + 1;
    model->first[pc]++;
}

static void trace_sectors(Model *model, Region *region, int warp, int lanes, const u64 *sectors, int n) {
    trace_access(model->trace, warp, SECTORS, n, 0, lanes);
    for (int i = 0; i < n; i++) {
        u64 offset = sectors[i] << model->sector_shift;
        Region *own = region ? region : find_region(model, offset, offset + 1);
        u64 origin = region || !own ? 0 : own->low;
        trace_sector(model->trace, warp, own ? (own->base + offset - origin) >> model->sector_shift : 0);
    }
}

// Sectors are counted from the start of a tensor's storage, as GPUs allocate memory in multiples of sectors.
static void count_sectors(Model *model, Region *region, int pc, int warp, Mask on, const u64 *address, int size) {
    u64 seen[2 * W], origin = region ? region->low : 0;
    int n = 0;
    EACH_LANE(on, lane) {
        u64 offset = address[lane] - origin, last = (offset + size - 1) >> model->sector_shift;
        for (u64 sector = offset >> model->sector_shift; sector <= last && n < 2 * W; sector++) {
            int i = n - 1;
            while (i >= 0 && seen[i] != sector) i--;
            if (i < 0) seen[n++] = sector, touch(model, region, pc, sector);
        }
    }
    model->sectors[pc] += n;
    if (model->trace) trace_sectors(model, region, warp, lane_count(on), seen, n);
}

static void check_poison(Model *model, int pc, int warp, int lane, u64 address, int size, const u8 *value) {
    for (int i = 0; i + 4 <= size; i += 4) {
        u32 word;
        memcpy(&word, value + i, 4);
        if (word == POISON) report(model, POISON_STORED, pc, warp, lane, address, 0);
    }
}

// Checks and counts an access; returns the lanes for which it is valid. `value` has the stored values, or is 0.
static Mask access_global(Model *model, int pc, int warp, int kind, Mask on, const u64 *address, int size, int align,
                          u8 (*value)[16]) {
    u64 low = ~0ull, high = 0;
    EACH_LANE(on, lane) {
        u64 a = address[lane];
        if (a & (align - 1)) {
            report(model, MISALIGNED, pc, warp, lane, a, 0);
            on &= ~((Mask)1 << lane);
            continue;
        }
        low = a < low ? a : low;
        high = a > high ? a : high;
    }
    if (!on) return 0;
    Region *region = find_region(model, low, high + size);
    if (!region) {
        EACH_LANE(on, lane) if (!find_region(model, address[lane], address[lane] + size)) {
            report(model, OUT_OF_BOUNDS, pc, warp, lane, address[lane], size);
            on &= ~((Mask)1 << lane);
        }
        if (!on) return 0;
    }
    model->requests[pc]++;
    count_sectors(model, region, pc, warp, on, address, size);
    int same_place = low == high && kind == READ;  // it is enough to check one lane
    EACH_LANE(on, lane) {
        Region *own = region ? region : find_region(model, address[lane], address[lane] + size);
        if (own->readonly && kind != READ) report(model, READ_ONLY, pc, warp, lane, address[lane], 0);
        u8 *bytes = (u8 *)address[lane];
        if (value && model->uninitialized) check_poison(model, pc, warp, lane, address[lane], size, value[lane]);
        track(model, own, kind, pc, warp, lane, address[lane], size, bytes, value ? value[lane] : 0);
        if (same_place) break;
    }
    return on;
}

// --- shared memory

// Returns the number of passes over 32 banks of 4 bytes, in groups of lanes that move 128 bytes.
static int bank_passes(Mask on, const u64 *address, int size) {
    int lanes = size <= 4 ? 32 : 128 / size, total = 0;
    for (int first = 0; first < W; first += lanes) {
        u32 words[32][32];
        int n[32] = {0}, worst = 0;
        for (int lane = first; lane < first + lanes; lane++) {
            if (!(on >> lane & 1)) continue;
            for (int i = 0; i < (size + 3) / 4; i++) {
                u32 word = (address[lane] >> 2) + i, bank = word & 31;
                int j = 0;
                while (j < n[bank] && words[bank][j] != word) j++;
                if (j == n[bank]) words[bank][n[bank]++] = word, worst = n[bank] > worst ? n[bank] : worst;
            }
        }
        total += worst;
    }
    return total;
}

static int one_address(Mask on, const u64 *address) {
    EACH_LANE(on, lane) if (address[lane] != address[first_lane(on)]) return 0;
    return 1;
}

static Mask access_shared(Model *model, int pc, int warp, int kind, Mask on, const u64 *address, int size, int align,
                          u8 (*value)[16]) {
    EACH_LANE(on, lane) {
        u64 a = address[lane];
        int kind_of_error = a & (align - 1) ? MISALIGNED : a + size > model->shared.high ? OUT_OF_BOUNDS : 0;
        if (kind_of_error) {
            report(model, kind_of_error, pc, warp, lane, a, size);
            on &= ~((Mask)1 << lane);
            continue;
        }
        track(model, &model->shared, kind, pc, warp, lane, a, size, model->shared_bytes + a, value ? value[lane] : 0);
    }
    if (!on) return 0;
    model->requests[pc]++;
    int passes = bank_passes(on, address, size);
    model->sectors[pc] += passes;
    if (model->trace) trace_access(model->trace, warp, BANKS, 0, one_address(on, address) ? 1 : passes, lane_count(on));
    int lanes = size <= 4 ? 32 : 128 / size;
    for (int first = 0; first < W; first += lanes)
        model->first[pc] += (on >> first & (((Mask)1 << (lanes - 1) << 1) - 1)) != 0;
    return on;
}

static void count_distinct(Model *model, int pc, Mask on, const u64 *address) {
    EACH_LANE(on, lane) {
        int earlier = 0;
        while (earlier < lane && !((on >> earlier & 1) && address[earlier] == address[lane])) earlier++;
        model->distinct[pc] += earlier == lane;
    }
}

// Reports lanes of one store that write different values to one address.
static void check_lanes(Model *model, int pc, int warp, Mask on, const u64 *address, int size, u8 (*value)[16],
                        u8 *const *bytes) {
    EACH_LANE(on, lane) if (memcmp(bytes[lane], value[lane], size))
        report(model, LANES_DIFFER, pc, warp, lane, address[lane], 0);
}
