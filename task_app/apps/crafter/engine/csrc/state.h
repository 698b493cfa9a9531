/* A world as bytes, in two forms. The canonical form (see protocol.py) is equal for equal states of any engine; the
 * snapshot is this struct's own bytes up to its last object, with a checksum. Nothing read from bytes is trusted. */
#ifndef CRAFTER_STATE_H
#define CRAFTER_STATE_H

#include "world.h"

enum { FORMAT = 1, OBJECT_WORDS = 7, MOST = 1000000 /* of any count that is read from bytes */ };

/* What may be wrong with bytes; native.py turns it into a sentence. NULL is fine. */
typedef const char *Fault;

/* Members of a chunk by arrival, as canonical numbers (0 the player, n the n-th other object). */
static int chunk_members(const World *w, int chunk, int32_t *numbers) {
    uint32_t joined[TILES];
    int count = 0, number = -1;
    for (int slot = 1; slot <= w->n_slots; slot++) {
        const Object *o = &w->objects[slot];
        if (o->kind == NONE) continue;
        number++;
        if (chunk_of(o->x, o->y) != chunk) continue;
        int at = count++;
        for (; at && joined[at - 1] > o->joined; at--) {
            joined[at] = joined[at - 1];
            numbers[at] = numbers[at - 1];
        }
        joined[at] = o->joined;
        numbers[at] = number;
    }
    return count;
}

/* Writing: `out` may be NULL to learn the length. */
typedef struct { uint8_t *out; size_t length; } Writer;

static void put_bytes(Writer *to, const void *bytes, size_t count) {
    if (to->out) memcpy(to->out + to->length, bytes, count);
    to->length += count;
}

static void put(Writer *to, int32_t value) { put_bytes(to, &value, sizeof value); }

static size_t write_canonical(const World *w, uint8_t *out) {
    Writer to = {out, 0};
    const Object *player = &w->objects[SLOT_PLAYER];
    int32_t numbers[TILES];
    put(&to, FORMAT), put(&to, w->step);
    put(&to, player->x), put(&to, player->y), put(&to, w->face_x), put(&to, w->face_y);
    put(&to, w->sleeping), put(&to, w->last_health);
    put(&to, w->hunger2), put(&to, w->thirst2), put(&to, w->fatigue), put(&to, w->recover2);
    put_bytes(&to, w->inventory, sizeof w->inventory);
    put_bytes(&to, w->achieved, sizeof w->achieved);
    put_bytes(&to, w->mat, sizeof w->mat);
    put(&to, w->n_slots - w->n_empty - 1);
    for (int slot = SLOT_PLAYER + 1; slot <= w->n_slots; slot++) {
        const Object *o = &w->objects[slot];
        if (o->kind == NONE) continue;
        put(&to, o->kind - PLAYER), put(&to, o->x), put(&to, o->y), put(&to, o->health), put(&to, o->counter);
        put(&to, o->face_x), put(&to, o->face_y);
    }
    put(&to, w->n_chunks);
    for (int n = 0; n < w->n_chunks; n++) {
        int count = chunk_members(w, w->chunk_order[n], numbers);
        put(&to, w->chunk_order[n]), put(&to, count);
        put_bytes(&to, numbers, (size_t)count * sizeof *numbers);
    }
    put_bytes(&to, w->key, sizeof w->key);
    put(&to, w->rng_pos);
    return to.length;
}

/* Reading: past the end it yields zeros and remembers that it ran short. */
typedef struct { const uint8_t *bytes; size_t left; int short_; } Reader;

static void get_bytes(Reader *from, void *into, size_t count) {
    if (from->left < count) {
        memset(into, 0, count);
        from->short_ = 1;
        from->left = 0;
        return;
    }
    memcpy(into, from->bytes, count);
    from->bytes += count;
    from->left -= count;
}

static int32_t get(Reader *from) {
    int32_t value;
    get_bytes(from, &value, sizeof value);
    return value;
}

static inline int between(int32_t value, int low, int high) { return low <= value && value <= high; }
static inline int a_way(int x, int y) { return between(x, -1, 1) && between(y, -1, 1) && iabs(x) + iabs(y) == 1; }

/* Fields that both forms hold alike. */
static Fault check_fields(const World *w) {
    uint8_t largest = 0;
    if (!between(w->step, 0, LAST_STEP)) return "step out of range";
    if (!between(w->rng_pos, 0, KEY)) return "position of the random generator out of range";
    if (!between(w->sleeping, 0, 1) || !a_way(w->face_x, w->face_y)) return "sleeping or facing out of range";
    if (!between(w->last_health, 0, RULES.item_max[HEALTH])) return "last health out of range";
    if (!between(w->hunger2, 0, 50) || !between(w->thirst2, 0, 40)) return "hunger or thirst out of range";
    if (!between(w->fatigue, -10, 30) || !between(w->recover2, -30, 50)) return "fatigue or recovery out of range";
    for (int i = 0; i < N_ITEMS; i++)
        if (!between(w->inventory[i], 0, RULES.item_max[i])) return "inventory out of range";
    for (int i = 0; i < N_ACHIEVEMENTS; i++)
        if (!between(w->achieved[i], 0, MOST)) return "achievement count out of range";
    for (int i = 0; i < TILES; i++) largest = w->mat[i] > largest ? w->mat[i] : largest;
    if (largest >= N_MATERIALS) return "unknown material";
    return NULL;
}

static Fault check_object(const Object *o) {
    if (!between(o->counter, 0, MOST)) return "counter of an object out of range";
    if (o->kind == ARROW ? !a_way(o->face_x, o->face_y) : o->face_x || o->face_y) return "facing of an object out of range";
    return NULL;
}

static Fault read_objects(Reader *from, World *w) {
    int count = get(from);
    if (!between(count, 0, CAPACITY - 2)) return "too many objects";
    for (int n = 0; n < count; n++) {
        int32_t f[OBJECT_WORDS];
        get_bytes(from, f, sizeof f);
        if (!between(f[0], COW - PLAYER, PLANT - PLAYER)) return "unknown kind of object";
        if (!inside(f[1], f[2]) || w->at[tile(f[1], f[2])]) return "object outside the world or on another";
        if (!between(f[3], 0, 255) || !between(f[5], -1, 1) || !between(f[6], -1, 1)) return "object out of range";
        Object *o = &w->objects[++w->n_slots];
        *o = (Object){(uint8_t)(f[0] + PLAYER), (uint8_t)f[1], (uint8_t)f[2], (uint8_t)f[3], (int8_t)f[5], (int8_t)f[6],
                      0, f[4], 0};
        w->at[tile(o->x, o->y)] = (uint16_t)w->n_slots;
        Fault fault = check_object(o);
        if (fault) return fault;
    }
    return NULL;
}

static Fault read_chunks(Reader *from, World *w) {
    uint8_t placed[CAPACITY] = {0};
    int count = get(from), members = 0;
    if (!between(count, 1, N_CHUNKS)) return "wrong number of chunks";
    for (int n = 0; n < count; n++) {
        int chunk = get(from), size = get(from);
        if (!between(chunk, 0, N_CHUNKS - 1) || w->chunk_known[chunk]) return "unknown or repeated chunk";
        if (!between(size, 0, w->n_slots)) return "wrong number of chunk members";
        w->chunk_known[chunk] = 1;
        w->chunk_order[w->n_chunks++] = (uint8_t)chunk;
        for (; size; size--, members++) {
            int number = get(from);
            if (!between(number, 0, w->n_slots - 1) || placed[number]) return "unknown or repeated chunk member";
            Object *o = &w->objects[number + 1];
            if (chunk_of(o->x, o->y) != chunk) return "chunk member that stands elsewhere";
            placed[number] = 1;
            join_chunk(w, o);
        }
    }
    return members == w->n_slots ? NULL : "an object in no chunk";
}

static void count_tiles(World *w) {
    memset(w->grass, 0, sizeof w->grass);
    memset(w->path, 0, sizeof w->path);
    for (int x = 0; x < AREA; x++)
        for (int y = 0; y < AREA; y++) {
            w->grass[chunk_of(x, y)] += w->mat[tile(x, y)] == GRASS;
            w->path[chunk_of(x, y)] += w->mat[tile(x, y)] == PATH;
        }
}

static Fault read_canonical(World *w, const uint8_t *bytes, size_t length) {
    Reader from = {bytes, length, 0};
    Object *player = &w->objects[SLOT_PLAYER];
    memset(w, 0, sizeof *w);
    w->version = STATE_VERSION;
    w->size = (int32_t)sizeof *w;
    if (get(&from) != FORMAT) return "another format";
    w->step = get(&from);
    int x = get(&from), y = get(&from);
    w->face_x = get(&from), w->face_y = get(&from);
    w->sleeping = get(&from), w->last_health = get(&from);
    w->hunger2 = get(&from), w->thirst2 = get(&from), w->fatigue = get(&from), w->recover2 = get(&from);
    get_bytes(&from, w->inventory, sizeof w->inventory);
    get_bytes(&from, w->achieved, sizeof w->achieved);
    get_bytes(&from, w->mat, sizeof w->mat);
    if (from.short_) return "too short";
    if (!inside(x, y)) return "player outside the world";
    player->kind = PLAYER;
    player->x = (uint8_t)x;
    player->y = (uint8_t)y;
    w->at[tile(x, y)] = SLOT_PLAYER;
    w->n_slots = 1;
    Fault fault = read_objects(&from, w);
    if (!fault) fault = read_chunks(&from, w);
    if (fault) return fault;
    get_bytes(&from, w->key, sizeof w->key);
    w->rng_pos = get(&from);
    if (from.short_ || from.left) return "wrong length";
    count_tiles(w);
    w->ready = 1;
    return check_fields(w);
}

/* Snapshots */

static inline size_t snapshot_length(const World *w) {
    return offsetof(World, objects) + (size_t)(w->n_slots + 1) * sizeof(Object);
}

/* Interleaved chains over 64-bit words; every single changed bit changes it. */
static uint64_t checksum(const uint8_t *bytes, size_t length) {
    enum { CHAINS = 8 };
    uint64_t chain[CHAINS] = {1, 2, 3, 4, 5, 6, 7, 8}, word[CHAINS];
    for (; length >= sizeof word; bytes += sizeof word, length -= sizeof word) {
        memcpy(word, bytes, sizeof word);
        for (int i = 0; i < CHAINS; i++) {
            chain[i] = (chain[i] ^ word[i]) * 0x9e3779b97f4a7c15u;
            chain[i] ^= chain[i] >> 32;
        }
    }
    memset(word, 0, sizeof word);
    memcpy(word, bytes, length);
    for (int i = 0; i < CHAINS; i++) chain[i] = (chain[i] ^ word[i]) * 0x9e3779b97f4a7c15u;
    uint64_t sum = 0;
    for (int i = 0; i < CHAINS; i++) sum = (sum ^ chain[i] ^ (sum >> 29)) * 0xbf58476d1ce4e5b9u;
    return sum ^ (sum >> 32);
}

static Fault check_slots(const World *w) {
    uint8_t creatures[N_KINDS][N_CHUNKS] = {{0}}, taken[TILES] = {0};
    int living = 0;
    for (int slot = 1; slot <= w->n_slots; slot++) {
        const Object *o = &w->objects[slot];
        if (o->kind == NONE) continue;
        living++;
        if (o->kind >= N_KINDS || (o->kind == PLAYER) != (slot == SLOT_PLAYER)) return "unknown kind of object";
        if (!inside(o->x, o->y) || taken[tile(o->x, o->y)]++) return "object outside the world or on another";
        if (o->joined >= w->next_join || !w->chunk_known[chunk_of(o->x, o->y)]) return "object in no chunk";
        Fault fault = check_object(o);
        if (fault) return fault;
        creatures[o->kind][chunk_of(o->x, o->y)]++;
    }
    if (w->objects[SLOT_PLAYER].kind != PLAYER) return "no player";
    if (w->n_empty != w->n_slots - living) return "wrong number of empty slots";
    return memcmp(creatures, w->creatures, sizeof creatures) ? "wrong counts of creatures" : NULL;
}

static Fault check_chunks(const World *w) {
    uint8_t known[N_CHUNKS] = {0};
    if (!between(w->n_chunks, 1, N_CHUNKS)) return "wrong number of chunks";
    for (int n = 0; n < w->n_chunks; n++) {
        if (w->chunk_order[n] >= N_CHUNKS || known[w->chunk_order[n]]) return "unknown or repeated chunk";
        known[w->chunk_order[n]] = 1;
    }
    return memcmp(known, w->chunk_known, sizeof known) ? "chunks and their order differ" : NULL;
}

/* Makes `w` the game `from`, whose places of objects need not be known. */
static void take_over(World *w, const World *from) {
    memcpy(w, from, snapshot_length(from));
    memset(w->at, 0, sizeof w->at);
    for (int slot = 1; slot <= w->n_slots; slot++) {
        const Object *o = &w->objects[slot];
        if (o->kind != NONE) w->at[tile(o->x, o->y)] = (uint16_t)slot;
    }
}

/* Takes a snapshot's struct into `w`, all but `at`. Whatever the bytes, a world that passes can be played on safely: a wrong
 * count of grass or path, the one thing not recounted, ends in ERROR_COUNTS. */
static Fault read_snapshot(World *w, const uint8_t *bytes, size_t length) {
    if (length < offsetof(World, objects) + 2 * sizeof(Object) || length > offsetof(World, at)) return "wrong length";
    memcpy(w, bytes, length);
    if (w->version != STATE_VERSION || w->size != (int32_t)sizeof *w) return "another layout";
    if (!between(w->n_slots, 1, CAPACITY - 1) || snapshot_length(w) != length) return "wrong length";
    if (w->ready != 1 || w->broken) return "not a world in play";
    Fault fault = check_fields(w);
    if (!fault) fault = check_chunks(w);
    return fault ? fault : check_slots(w);
}

#endif
