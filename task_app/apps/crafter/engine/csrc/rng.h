/* The Mersenne Twister as NumPy's RandomState uses it: same seeding, doubles, bounded integers and positions. */
#ifndef CRAFTER_RNG_H
#define CRAFTER_RNG_H

#include "world.h"

enum { SHIFT = 397 };

static void rng_seed(World *w, uint32_t seed) {
    for (int i = 0; i < KEY; i++) {
        w->key[i] = seed;
        seed = 1812433253u * (seed ^ (seed >> 30)) + (uint32_t)i + 1u;
    }
    w->rng_pos = KEY;
}

static inline uint32_t twisted(uint32_t here, uint32_t next, uint32_t far) {
    uint32_t mixed = (here & 0x80000000u) | (next & 0x7fffffffu);
    return far ^ (mixed >> 1) ^ (-(next & 1u) & 0x9908b0dfu);
}

/* The next 624 words. The two loops vectorise: every word they read lies ahead or 227 behind. */
#if defined(__GNUC__)
__attribute__((always_inline))
#endif
static inline void twist_words(uint32_t *restrict key) {
    for (int i = 0; i < KEY - SHIFT; i++) key[i] = twisted(key[i], key[i + 1], key[i + SHIFT]);
    for (int i = KEY - SHIFT; i < KEY - 1; i++) key[i] = twisted(key[i], key[i + 1], key[i + SHIFT - KEY]);
    key[KEY - 1] = twisted(key[KEY - 1], key[0], key[SHIFT - 1]);
}

static void twist_plain(uint32_t *key) { twist_words(key); }

/* The same code for wider registers, chosen at import. Integers only: no flag changes the result. */
#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx2"))) static void twist_wide(uint32_t *key) { twist_words(key); }
static inline int wide_registers(void) { return __builtin_cpu_supports("avx2"); }
#else
#define twist_wide twist_plain
static inline int wide_registers(void) { return 0; }
#endif

static void (*twist)(uint32_t *key) = twist_plain;

static inline uint32_t rng_word(World *w) {
    if (w->rng_pos == KEY) {
        twist(w->key);
        w->rng_pos = 0;
    }
    uint32_t y = w->key[w->rng_pos++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* Passes over `words` outputs without making them. */
static void rng_skip(World *w, int words) {
    while (words > KEY - w->rng_pos) {
        words -= KEY - w->rng_pos;
        twist(w->key);
        w->rng_pos = 0;
    }
    w->rng_pos += words;
}

/* RandomState.uniform(): [0, 1) in steps of 2**-53. */
static inline double rng_uniform(World *w) {
    uint32_t high = rng_word(w) >> 5, low = rng_word(w) >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
}

/* RandomState.randint(0, n), n >= 1: masked words until one is below n; none drawn when n is 1. */
static inline uint32_t rng_below(World *w, uint32_t n) {
    uint32_t last = n - 1, mask = last, value;
    if (!last) return 0;
    mask |= mask >> 1;
    mask |= mask >> 2;
    mask |= mask >> 4;
    mask |= mask >> 8;
    mask |= mask >> 16;
    do value = rng_word(w) & mask;
    while (value > last);
    return value;
}

#endif
