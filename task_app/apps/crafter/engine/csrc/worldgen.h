/* World generation: terrain from noise, then creatures, drawing uniforms in the package's order and only where it does. */
#ifndef CRAFTER_WORLDGEN_H
#define CRAFTER_WORLDGEN_H

#include <math.h>

#include "noise.h"
#include "rng.h"

enum { COW_HEALTH = 3, ZOMBIE_HEALTH = 5, SKELETON_HEALTH = 3, PLANT_HEALTH = 1 };

static double layer(const Noise *noise, double x, double y, int z, double size) {
    return noise3(noise, x / size, y / size, z);
}

/* What lies in the mountains at (x, y); `tunnel` is set where skeletons may live. */
static int mountain_material(World *w, const Noise *n, int x, int y, double mountain, uint8_t *tunnel) {
    if (layer(n, x, y, 6, 7) > 0.15 && mountain > 0.3) return PATH; /* cave */
    if (layer(n, 2 * x, y / 5.0, 7, 3) > 0.4 || layer(n, x / 5.0, 2 * y, 7, 3) > 0.4) {
        *tunnel = 1;
        return PATH;
    }
    if (layer(n, x, y, 1, 8) > 0 && rng_uniform(w) > 0.85) return COAL;
    if (layer(n, x, y, 2, 6) > 0.4 && rng_uniform(w) > 0.75) return IRON;
    if (mountain > 0.18 && rng_uniform(w) > 0.994) return DIAMOND;
    if (mountain > 0.3 && layer(n, x, y, 6, 5) > 0.35) return LAVA;
    return STONE;
}

static int terrain(World *w, const Noise *n, int x, int y, uint8_t *tunnel) {
    int dx = x - CENTER, dy = y - CENTER;
    double start = 4 - sqrt(dx * dx + dy * dy);
    start += 2 * layer(n, x, y, 8, 3);
    start = 1 / (1 + exp(-start));
    if (start > 0.5) return GRASS;
    double water = layer(n, x, y, 3, 15) + 0.15 * layer(n, x, y, 3, 5) + 0.1;
    water -= 2 * start;
    double mountain = (layer(n, x, y, 0, 15) + 0.3 * layer(n, x, y, 0, 5)) / (1 + 0.3);
    mountain -= 4 * start + 0.3 * water;
    if (mountain > 0.15) return mountain_material(w, n, x, y, mountain, tunnel);
    if (0.25 < water && water <= 0.35 && layer(n, x, y, 4, 9) > -0.2) return SAND;
    if (0.3 < water) return WATER;
    return layer(n, x, y, 5, 7) > 0 && rng_uniform(w) > 0.8 ? TREE : GRASS;
}

static void settle(World *w, int x, int y, int tunnel) {
    int dx = x - CENTER, dy = y - CENTER, squared = dx * dx + dy * dy;
    int material = w->mat[tile(x, y)];
    if (!in_mask(RULES.walkable, material)) return;
    if (squared > 3 * 3 && material == GRASS && rng_uniform(w) > 0.985) add_object(w, COW, x, y, COW_HEALTH);
    else if (squared > 10 * 10 && rng_uniform(w) > 0.993) add_object(w, ZOMBIE, x, y, ZOMBIE_HEALTH);
    else if (material == PATH && tunnel && rng_uniform(w) > 0.95) add_object(w, SKELETON, x, y, SKELETON_HEALTH);
}

/* The world whose generator is seeded with `seed`. */
static void generate(World *w, uint32_t seed) {
    uint8_t tunnels[TILES] = {0};
    Noise noise;
    memset(w, 0, sizeof *w);
    w->version = STATE_VERSION;
    w->size = (int32_t)sizeof *w;
    w->face_y = 1;
    memcpy(w->inventory, RULES.item_start, sizeof w->inventory);
    w->last_health = w->inventory[HEALTH];
    rng_seed(w, seed);
    add_object(w, PLAYER, CENTER, CENTER, 0);
    noise_seed(&noise, rng_below(w, 2147483647u));
    for (int x = 0; x < AREA; x++)
        for (int y = 0; y < AREA; y++)
            set_material(w, x, y, terrain(w, &noise, x, y, &tunnels[tile(x, y)]));
    for (int x = 0; x < AREA; x++)
        for (int y = 0; y < AREA; y++) settle(w, x, y, tunnels[tile(x, y)]);
    w->ready = 1;
}

#endif
