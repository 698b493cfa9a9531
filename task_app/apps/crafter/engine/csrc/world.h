/* One world of ordered Crafter as a flat struct: names, limits, and the calls that keep it consistent.
 *
 * The names below are positions in the package's lists; native.py compares them with data.yaml before
 * anything is played. Numbers of the rules (costs, requirements, limits) arrive in the Rules table.
 * No pointers inside World, so that a copy of its bytes is a copy of the game.
 */
#ifndef CRAFTER_WORLD_H
#define CRAFTER_WORLD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    AREA = 64, TILES = AREA * AREA, CENTER = AREA / 2,
    CHUNK = 12, CHUNKS = 6, N_CHUNKS = CHUNKS * CHUNKS,
    UPDATE_DISTANCE = 18, RIPE_GROWN = 300, LAST_STEP = 10000,
    NIGHT_WORDS = 63 * 49 * 2,
    CAPACITY = 2048, /* slots of objects, the empty slot 0 included */
    KEY = 624,
    STATE_VERSION = 1
};

/* Kinds, in the protocol's order; 0 marks an empty slot here, hence + 1. */
enum { NONE, PLAYER, COW, ZOMBIE, SKELETON, ARROW, PLANT, N_KINDS };
enum { SLOT_PLAYER = 1 };

enum { VOID, WATER, GRASS, STONE, PATH, SAND, TREE, LAVA, COAL, IRON, DIAMOND, TABLE, FURNACE, N_MATERIALS };
static const char *const MATERIAL_NAMES[] = {
    "water", "grass", "stone", "path", "sand", "tree", "lava", "coal", "iron", "diamond", "table", "furnace"};

enum {
    HEALTH, FOOD, DRINK, ENERGY, I_SAPLING, I_WOOD, I_STONE, I_COAL, I_IRON, I_DIAMOND,
    WOOD_PICKAXE, STONE_PICKAXE, IRON_PICKAXE, WOOD_SWORD, STONE_SWORD, IRON_SWORD, N_ITEMS
};
static const char *const ITEM_NAMES[] = {
    "health", "food", "drink", "energy", "sapling", "wood", "stone", "coal", "iron", "diamond",
    "wood_pickaxe", "stone_pickaxe", "iron_pickaxe", "wood_sword", "stone_sword", "iron_sword"};

enum {
    NOOP, MOVE_LEFT, MOVE_RIGHT, MOVE_UP, MOVE_DOWN, DO, SLEEP,
    PLACE_FIRST, PLACE_LAST = PLACE_FIRST + 3,
    MAKE_FIRST, MAKE_LAST = MAKE_FIRST + 5, N_ACTIONS
};
enum { N_PLACES = 4, N_MAKES = 6 };
static const char *const ACTION_NAMES[] = {
    "noop", "move_left", "move_right", "move_up", "move_down", "do", "sleep",
    "place_stone", "place_table", "place_furnace", "place_plant",
    "make_wood_pickaxe", "make_stone_pickaxe", "make_iron_pickaxe",
    "make_wood_sword", "make_stone_sword", "make_iron_sword"};

enum {
    COLLECT_COAL, COLLECT_DIAMOND, COLLECT_DRINK, COLLECT_IRON, COLLECT_SAPLING, COLLECT_STONE, COLLECT_WOOD,
    DEFEAT_SKELETON, DEFEAT_ZOMBIE, EAT_COW, EAT_PLANT, MAKE_IRON_PICKAXE, MAKE_IRON_SWORD, MAKE_STONE_PICKAXE,
    MAKE_STONE_SWORD, MAKE_WOOD_PICKAXE, MAKE_WOOD_SWORD, PLACE_FURNACE, PLACE_PLANT, PLACE_STONE, PLACE_TABLE,
    WAKE_UP, N_ACHIEVEMENTS
};
static const char *const ACHIEVEMENT_NAMES[] = {
    "collect_coal", "collect_diamond", "collect_drink", "collect_iron", "collect_sapling", "collect_stone",
    "collect_wood", "defeat_skeleton", "defeat_zombie", "eat_cow", "eat_plant", "make_iron_pickaxe",
    "make_iron_sword", "make_stone_pickaxe", "make_stone_sword", "make_wood_pickaxe", "make_wood_sword",
    "place_furnace", "place_plant", "place_stone", "place_table", "wake_up"};

/* The rules' numbers, filled by native.py from data.yaml. Masks have bit m set for material m. */
typedef struct {
    int32_t item_max[N_ITEMS], item_start[N_ITEMS];
    int32_t walkable;
    struct { int32_t known, leaves, item, amount, achievement, require[N_ITEMS]; } collect[N_MATERIALS];
    struct { int32_t where, material, achievement, uses[N_ITEMS]; } place[N_PLACES]; /* material 0: a plant */
    struct { int32_t nearby, item, gives, achievement, uses[N_ITEMS]; } make[N_MAKES];
} Rules;

typedef struct {
    uint8_t kind, x, y, health;
    int8_t face_x, face_y; /* an arrow's direction */
    uint16_t unused;
    int32_t counter;  /* a zombie's cooldown, a skeleton's reload, a plant's grown */
    uint32_t joined;  /* order of arrival in its chunk */
} Object;

typedef struct {
    int32_t version, size; /* of this struct: a snapshot of another layout is refused */
    int32_t ready, broken;
    int32_t step, rng_pos;
    int32_t sleeping, face_x, face_y, last_health;
    int32_t hunger2, thirst2, fatigue, recover2; /* halves count as one */
    int32_t inventory[N_ITEMS], achieved[N_ACHIEVEMENTS];
    uint32_t next_join;
    int32_t n_slots, n_empty; /* slots in use from 1 on, and how many of them are empty */
    int32_t n_chunks;
    uint8_t chunk_order[N_CHUNKS], chunk_known[N_CHUNKS];
    uint8_t grass[N_CHUNKS], path[N_CHUNKS]; /* tiles of it in each chunk */
    uint8_t creatures[N_KINDS][N_CHUNKS];
    uint32_t key[KEY];
    uint8_t mat[TILES];
    Object objects[CAPACITY];
    uint16_t at[TILES]; /* slot of the object standing there, 0 for none; follows from the objects */
} World;

enum { FINE, ERROR_FULL, ERROR_OLD, ERROR_COUNTS }; /* what may stop a world; kept in World.broken */

static Rules RULES;
static double COLLECT_PROBABILITY[N_MATERIALS];

static inline int inside(int x, int y) { return (unsigned)x < AREA && (unsigned)y < AREA; }
static inline int tile(int x, int y) { return x * AREA + y; }
static inline int chunk_of(int x, int y) { return x / CHUNK * CHUNKS + y / CHUNK; }
static inline int in_mask(int mask, int material) { return (mask >> material) & 1; }
static inline int iabs(int value) { return value < 0 ? -value : value; }
static inline int sign(int value) { return (value > 0) - (value < 0); }
static inline int imin(int a, int b) { return a < b ? a : b; }

static inline int distance(const Object *o, int x, int y) { return iabs(o->x - x) + iabs(o->y - y); }

static inline int material_at(const World *w, int x, int y) { return inside(x, y) ? w->mat[tile(x, y)] : VOID; }

static inline Object *object_at(World *w, int x, int y) {
    int slot = inside(x, y) ? w->at[tile(x, y)] : 0;
    return slot ? &w->objects[slot] : NULL;
}

static inline int is_free(const World *w, int x, int y, int mask) {
    return inside(x, y) && !w->at[tile(x, y)] && in_mask(mask, w->mat[tile(x, y)]);
}

static inline void set_material(World *w, int x, int y, int material) {
    uint8_t *here = &w->mat[tile(x, y)];
    int chunk = chunk_of(x, y);
    w->grass[chunk] += (material == GRASS) - (*here == GRASS);
    w->path[chunk] += (material == PATH) - (*here == PATH);
    *here = (uint8_t)material;
}

/* Makes `o` the newest member of the chunk it stands in; a chunk's first object gives it its place in the order. */
static inline void join_chunk(World *w, Object *o) {
    int chunk = chunk_of(o->x, o->y);
    if (!w->chunk_known[chunk]) {
        w->chunk_known[chunk] = 1;
        w->chunk_order[w->n_chunks++] = (uint8_t)chunk;
    }
    if (w->next_join == UINT32_MAX) w->broken = ERROR_OLD;
    else o->joined = w->next_join++;
    w->creatures[o->kind][chunk]++;
}

/* Appends an object; NULL, and a broken world, when all slots are taken. */
static inline Object *add_object(World *w, int kind, int x, int y, int health) {
    if (w->n_slots + 1 >= CAPACITY) {
        w->broken = ERROR_FULL;
        return NULL;
    }
    int slot = ++w->n_slots;
    Object *o = &w->objects[slot];
    memset(o, 0, sizeof *o);
    o->kind = (uint8_t)kind;
    o->x = (uint8_t)x;
    o->y = (uint8_t)y;
    o->health = (uint8_t)health;
    w->at[tile(x, y)] = (uint16_t)slot;
    join_chunk(w, o);
    return o;
}

/* Empties a slot. The object's other fields stay: a removed creature finishes its turn. */
static inline void remove_object(World *w, Object *o) {
    w->at[tile(o->x, o->y)] = 0;
    w->creatures[o->kind][chunk_of(o->x, o->y)]--;
    o->kind = NONE;
    w->n_empty++;
}

/* True when the tile there is free, even for a removed object, which then stays where it was. */
static inline int move_object(World *w, Object *o, int dx, int dy, int mask) {
    int x = o->x + dx, y = o->y + dy;
    if (!is_free(w, x, y, mask)) return 0;
    if (o->kind == NONE) return 1;
    int from = chunk_of(o->x, o->y);
    w->at[tile(x, y)] = w->at[tile(o->x, o->y)];
    w->at[tile(o->x, o->y)] = 0;
    o->x = (uint8_t)x;
    o->y = (uint8_t)y;
    if (chunk_of(x, y) != from) {
        w->creatures[o->kind][from]--;
        join_chunk(w, o);
    }
    return 1;
}

/* Closes the gaps that removed objects left, keeping the order. Only between updates. */
static void compact(World *w) {
    int kept = 0;
    for (int slot = 1; slot <= w->n_slots; slot++) {
        if (w->objects[slot].kind == NONE) continue;
        if (++kept == slot) continue;
        Object *o = &w->objects[kept];
        *o = w->objects[slot];
        w->at[tile(o->x, o->y)] = (uint16_t)kept;
    }
    w->n_slots = kept;
    w->n_empty = 0;
}

#endif
