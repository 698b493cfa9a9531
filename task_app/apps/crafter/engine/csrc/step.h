/* One step of the game: the player, then every creature near it in the order of the object list, then balancing
 * every tenth step, then the draws of a night picture. Each function follows its namesake in the package. */
#ifndef CRAFTER_STEP_H
#define CRAFTER_STEP_H

#include "rng.h"
#include "worldgen.h"

typedef struct { int x, y; } Way;

static const Way WAYS[4] = {{-1, 0}, {1, 0}, {0, -1}, {0, 1}}; /* left, right, up, down */

/* What the player did this step beyond the state itself: achievements that rose, one bit each (none rises twice). */
typedef struct {
    World *w;
    Object *player;
    uint32_t rose;
} Turn;

static inline void achieve(Turn *t, int achievement) {
    t->w->achieved[achievement]++;
    t->rose |= 1u << achievement;
}

static inline void hurt(World *w, Object *o, int damage) {
    if (o->kind == PLAYER) w->inventory[HEALTH] = w->inventory[HEALTH] > damage ? w->inventory[HEALTH] - damage : 0;
    else o->health = (uint8_t)(o->health > damage ? o->health - damage : 0);
}

static inline Way random_way(World *w) { return WAYS[rng_below(w, 4)]; }

/* Along the longer (or the shorter) of the two axes towards (x, y); (0, 0) when that axis is level. */
static inline Way toward(const Object *o, const Object *other, int long_axis) {
    int dx = other->x - o->x, dy = other->y - o->y;
    int horizontal = long_axis ? iabs(dx) > iabs(dy) : iabs(dx) <= iabs(dy);
    return horizontal ? (Way){sign(dx), 0} : (Way){0, sign(dy)};
}

/* The player */

static int has_all(const World *w, const int32_t *amounts) {
    for (int i = 0; i < N_ITEMS; i++)
        if (w->inventory[i] < amounts[i]) return 0;
    return 1;
}

static void spend(World *w, const int32_t *amounts) {
    for (int i = 0; i < N_ITEMS; i++) w->inventory[i] -= amounts[i];
}

static void do_object(Turn *t, Object *o) {
    int32_t *inventory = t->w->inventory;
    int damage = inventory[IRON_SWORD] ? 5 : inventory[STONE_SWORD] ? 3 : inventory[WOOD_SWORD] ? 2 : 1;
    if (o->kind == PLANT && o->counter > RIPE_GROWN) {
        o->counter = 0;
        inventory[FOOD] += 4;
        achieve(t, EAT_PLANT);
    }
    if (o->kind != ZOMBIE && o->kind != SKELETON && o->kind != COW) return;
    hurt(t->w, o, damage);
    if (o->health > 0) return;
    if (o->kind == ZOMBIE) achieve(t, DEFEAT_ZOMBIE);
    if (o->kind == SKELETON) achieve(t, DEFEAT_SKELETON);
    if (o->kind == COW) {
        inventory[FOOD] += 6;
        achieve(t, EAT_COW);
        t->w->hunger2 = 0;
    }
}

static void do_material(Turn *t, int x, int y, int material) {
    World *w = t->w;
    if (material == WATER) w->thirst2 = 0;
    if (!RULES.collect[material].known || !has_all(w, RULES.collect[material].require)) return;
    set_material(w, x, y, RULES.collect[material].leaves);
    if (rng_uniform(w) > COLLECT_PROBABILITY[material]) return;
    w->inventory[RULES.collect[material].item] += RULES.collect[material].amount;
    achieve(t, RULES.collect[material].achievement);
}

static void place(Turn *t, int which, int x, int y, int material) {
    World *w = t->w;
    if (object_at(w, x, y) || !in_mask(RULES.place[which].where, material)) return;
    if (!has_all(w, RULES.place[which].uses)) return;
    spend(w, RULES.place[which].uses);
    if (RULES.place[which].material) set_material(w, x, y, RULES.place[which].material);
    else add_object(w, PLANT, x, y, PLANT_HEALTH);
    achieve(t, RULES.place[which].achievement);
}

/* Materials of the 3x3 around, as a mask. At x = 0 or y = 0 the package sees none: crafting fails there. */
static int nearby(const World *w, const Object *o) {
    int mask = 0;
    if (!o->x || !o->y) return 0;
    for (int x = o->x - 1; x <= imin(o->x + 1, AREA - 1); x++)
        for (int y = o->y - 1; y <= imin(o->y + 1, AREA - 1); y++) mask |= 1 << w->mat[tile(x, y)];
    return mask;
}

static void make(Turn *t, int which) {
    World *w = t->w;
    int needed = RULES.make[which].nearby;
    if ((nearby(w, t->player) & needed) != needed || !has_all(w, RULES.make[which].uses)) return;
    spend(w, RULES.make[which].uses);
    w->inventory[RULES.make[which].item] += RULES.make[which].gives;
    achieve(t, RULES.make[which].achievement);
}

static void life_stats(World *w) {
    int pace = w->sleeping ? 1 : 2;
    if ((w->hunger2 += pace) > 2 * 25) w->hunger2 = 0, w->inventory[FOOD]--;
    if ((w->thirst2 += pace) > 2 * 20) w->thirst2 = 0, w->inventory[DRINK]--;
    w->fatigue = w->sleeping ? imin(w->fatigue - 1, 0) : w->fatigue + 1;
    if (w->fatigue < -10) w->fatigue = 0, w->inventory[ENERGY]++;
    if (w->fatigue > 30) w->fatigue = 0, w->inventory[ENERGY]--;
}

static void heal_or_wither(World *w) {
    int needs_met = w->inventory[FOOD] > 0 && w->inventory[DRINK] > 0 && (w->inventory[ENERGY] > 0 || w->sleeping);
    if (needs_met) w->recover2 += w->sleeping ? 4 : 2;
    else w->recover2 -= w->sleeping ? 1 : 2;
    if (w->recover2 > 2 * 25) w->recover2 = 0, w->inventory[HEALTH]++;
    if (w->recover2 < -2 * 15) {
        w->recover2 = 0;
        if (w->inventory[HEALTH] > 0) w->inventory[HEALTH]--;
    }
}

static void act(Turn *t, int action) {
    World *w = t->w;
    int x = t->player->x + w->face_x, y = t->player->y + w->face_y;
    int material = material_at(w, x, y);
    if (w->sleeping) {
        if (w->inventory[ENERGY] < RULES.item_max[ENERGY]) {
            action = SLEEP;
        } else {
            w->sleeping = 0;
            achieve(t, WAKE_UP);
        }
    }
    if (action >= MOVE_LEFT && action <= MOVE_DOWN) {
        Way way = WAYS[action - MOVE_LEFT];
        w->face_x = way.x;
        w->face_y = way.y;
        move_object(w, t->player, way.x, way.y, RULES.walkable | 1 << LAVA);
        if (w->mat[tile(t->player->x, t->player->y)] == LAVA) w->inventory[HEALTH] = 0;
    } else if (action == DO) {
        Object *o = object_at(w, x, y);
        if (o) do_object(t, o);
        else do_material(t, x, y, material);
    } else if (action == SLEEP) {
        if (w->inventory[ENERGY] < RULES.item_max[ENERGY]) w->sleeping = 1;
    } else if (action >= PLACE_FIRST && action <= PLACE_LAST) {
        place(t, action - PLACE_FIRST, x, y, material);
    } else if (action >= MAKE_FIRST) {
        make(t, action - MAKE_FIRST);
    }
}

static void update_player(Turn *t, int action) {
    World *w = t->w;
    act(t, action);
    life_stats(w);
    heal_or_wither(w);
    for (int i = 0; i < N_ITEMS; i++) {
        int most = imin(w->inventory[i], RULES.item_max[i]);
        w->inventory[i] = most > 0 ? most : 0;
    }
    if (w->inventory[HEALTH] < w->last_health) w->sleeping = 0;
    w->last_health = w->inventory[HEALTH];
}

/* Creatures. One that dies is removed first and still takes its turn, without moving. */

static void update_cow(World *w, Object *o) {
    if (!o->health) remove_object(w, o);
    if (rng_uniform(w) < 0.5) {
        Way way = random_way(w);
        move_object(w, o, way.x, way.y, RULES.walkable);
    }
}

static void update_zombie(World *w, Object *o, Object *player) {
    Way way;
    if (!o->health) remove_object(w, o);
    if (distance(o, player->x, player->y) <= 8 && rng_uniform(w) < 0.9)
        way = toward(o, player, rng_uniform(w) < 0.8);
    else
        way = random_way(w);
    move_object(w, o, way.x, way.y, RULES.walkable);
    if (distance(o, player->x, player->y) > 1) return;
    if (o->counter) {
        o->counter--;
    } else {
        hurt(w, player, w->sleeping ? 7 : 2);
        o->counter = 5;
    }
}

static void shoot(World *w, Object *o, Way way) {
    int x = o->x + way.x, y = o->y + way.y;
    if (o->counter > 0 || (!way.x && !way.y)) return;
    if (!is_free(w, x, y, RULES.walkable | 1 << WATER | 1 << LAVA)) return;
    Object *arrow = add_object(w, ARROW, x, y, 0);
    if (!arrow) return;
    arrow->face_x = (int8_t)way.x;
    arrow->face_y = (int8_t)way.y;
    o->counter = 4;
}

static void update_skeleton(World *w, Object *o, Object *player) {
    if (!o->health) remove_object(w, o);
    if (o->counter > 0) o->counter--;
    int dist = distance(o, player->x, player->y);
    if (dist <= 3) {
        Way way = toward(o, player, rng_uniform(w) < 0.6);
        if (move_object(w, o, -way.x, -way.y, RULES.walkable)) return;
    }
    if (dist <= 5 && rng_uniform(w) < 0.5) {
        shoot(w, o, toward(o, player, 1));
    } else if (dist <= 8 && rng_uniform(w) < 0.3) {
        Way way = toward(o, player, rng_uniform(w) < 0.6);
        move_object(w, o, way.x, way.y, RULES.walkable);
    } else if (rng_uniform(w) < 0.2) {
        Way way = random_way(w);
        move_object(w, o, way.x, way.y, RULES.walkable);
    }
}

static void update_arrow(World *w, Object *o) {
    int x = o->x + o->face_x, y = o->y + o->face_y;
    int material = material_at(w, x, y);
    Object *hit = object_at(w, x, y);
    if (hit) {
        hurt(w, hit, 2);
        remove_object(w, o);
    } else if (!in_mask(RULES.walkable | 1 << WATER | 1 << LAVA, material)) {
        remove_object(w, o);
        if (material == TABLE || material == FURNACE) set_material(w, x, y, PATH);
    } else {
        move_object(w, o, o->face_x, o->face_y, RULES.walkable | 1 << WATER | 1 << LAVA);
    }
}

static void update_plant(World *w, Object *o) {
    int eaten = 0;
    o->counter++;
    for (int i = 0; i < 4; i++) {
        const Object *other = object_at(w, o->x + WAYS[i].x, o->y + WAYS[i].y);
        eaten |= other && (other->kind == ZOMBIE || other->kind == SKELETON || other->kind == COW);
    }
    if (eaten) hurt(w, o, 1);
    if (!o->health) remove_object(w, o);
}

static void update_object(World *w, Object *o, Object *player) {
    switch (o->kind) {
    case COW: update_cow(w, o); break;
    case ZOMBIE: update_zombie(w, o, player); break;
    case SKELETON: update_skeleton(w, o, player); break;
    case ARROW: update_arrow(w, o); break;
    case PLANT: update_plant(w, o); break;
    default: break;
    }
}

/* Balancing */

typedef struct { int kind, material, spawn_distance, despawn_distance, health; double spawn, despawn; } Species;

static const Species SPECIES[3] = {
    {ZOMBIE, GRASS, 6, 0, ZOMBIE_HEALTH, 0.3, 0.4},
    {SKELETON, PATH, 7, 7, SKELETON_HEALTH, 0.1, 0.1},
    {COW, GRASS, 5, 5, COW_HEALTH, 0.01, 0.1},
};

static void spawn(World *w, const Species *s, int chunk, int tiles, const Object *player) {
    int left = chunk / CHUNKS * CHUNK, top = chunk % CHUNKS * CHUNK;
    int right = imin(left + CHUNK, AREA), bottom = imin(top + CHUNK, AREA);
    int wanted = (int)rng_below(w, (uint32_t)tiles);
    for (int x = left; x < right; x++)
        for (int y = top; y < bottom; y++) {
            if (w->mat[tile(x, y)] != s->material || wanted-- > 0) continue;
            if (!w->at[tile(x, y)] && distance(player, x, y) >= s->spawn_distance)
                add_object(w, s->kind, x, y, s->health);
            return;
        }
    w->broken = ERROR_COUNTS;
}

/* The creature of that kind that is `rank`-th in the chunk by arrival. */
static Object *member(World *w, int kind, int chunk, int rank) {
    Object *best = NULL;
    uint32_t after = 0;
    for (int found = 0; found <= rank; found++) {
        best = NULL;
        for (int slot = 1; slot <= w->n_slots; slot++) {
            Object *o = &w->objects[slot];
            if (o->kind != kind || chunk_of(o->x, o->y) != chunk || (found && o->joined <= after)) continue;
            if (!best || o->joined < best->joined) best = o;
        }
        if (!best) break;
        after = best->joined;
    }
    return best;
}

static void despawn(World *w, const Species *s, int chunk, int creatures, const Object *player) {
    Object *o = member(w, s->kind, chunk, (int)rng_below(w, (uint32_t)creatures));
    if (!o) w->broken = ERROR_COUNTS;
    else if (distance(player, o->x, o->y) >= s->despawn_distance) remove_object(w, o);
}

static void balance_chunk(World *w, int chunk, double light, const Object *player) {
    for (int n = 0; n < 3; n++) {
        const Species *s = &SPECIES[n];
        int creatures = w->creatures[s->kind][chunk];
        int tiles = s->material == GRASS ? w->grass[chunk] : w->path[chunk];
        double least, most;
        if (s->kind == ZOMBIE) least = tiles < 50 ? 0 : 3.5 - 3 * light, most = 3.5 - 3 * light;
        else if (s->kind == SKELETON) least = tiles < 6 ? 0 : 1, most = 2;
        else least = tiles < 30 ? 0 : 1, most = 1.5 + light;
        if (creatures < (int)least && rng_uniform(w) < s->spawn) spawn(w, s, chunk, tiles, player);
        else if (creatures > (int)most && rng_uniform(w) < s->despawn) despawn(w, s, chunk, creatures, player);
    }
}

/* The whole step */

typedef struct {
    double reward;
    int dead;
    uint32_t rose;
} Outcome;

/* `light` is the daylight of the step to come. The world must be ready, alive and below LAST_STEP. */
static Outcome step_world(World *w, int action, double light, int night_draws) {
    Object *player = &w->objects[SLOT_PLAYER];
    Turn turn = {w, player, 0};
    int health = w->inventory[HEALTH];
    uint32_t before = 0;
    if (w->n_empty > (w->n_slots > CAPACITY / 2 ? 0 : 16 + w->n_slots / 4)) compact(w);
    for (int i = 0; i < N_ACHIEVEMENTS; i++) before |= (uint32_t)(w->achieved[i] > 0) << i;
    w->step++;
    int last = w->n_slots; /* what this step adds acts from the next one on */
    update_player(&turn, action);
    for (int slot = SLOT_PLAYER + 1; slot <= last; slot++) {
        Object *o = &w->objects[slot];
        if (o->kind != NONE && distance(player, o->x, o->y) < UPDATE_DISTANCE) update_object(w, o, player);
    }
    if (w->step % 10 == 0)
        for (int n = 0, known = w->n_chunks; n < known; n++) balance_chunk(w, w->chunk_order[n], light, player);
    if (night_draws && light < 0.5) rng_skip(w, NIGHT_WORDS);
    Outcome outcome = {(w->inventory[HEALTH] - health) / 10.0, w->inventory[HEALTH] <= 0, turn.rose};
    if (turn.rose & ~before) outcome.reward += 1.0;
    return outcome;
}

#endif
