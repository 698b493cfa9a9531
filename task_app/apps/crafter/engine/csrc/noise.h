/* OpenSimplex noise in three dimensions, from its published algorithm; equal to the `opensimplex` package's to the bit.
 *
 * Space is cut into cubes, stretched along the main diagonal. In each, a point lies in the tetrahedron at one of two
 * opposite corners or in the octahedron between them; the corners of that cell and two more lattice points nearby
 * contribute. Corners are small integer triples (i, j, k) relative to the cube. Sums keep the published order, and the
 * compiler must not fuse multiplications with additions (-ffp-contract=off), or the last bit changes.
 */
#ifndef CRAFTER_NOISE_H
#define CRAFTER_NOISE_H

#include <stdint.h>

#define STRETCH (-1.0 / 6)
#define SQUISH (1.0 / 3)
#define NORM 103

typedef struct {
    uint8_t perm[256];
    uint8_t gradient[256]; /* index into GRADIENTS of each permuted value */
} Noise;

/* Towards the vertices of a rhombicuboctahedron: the long axis varies fastest, then the signs of x, y, z. */
static const double GRADIENTS[24][3] = {
    {-11, 4, 4}, {-4, 11, 4}, {-4, 4, 11}, {11, 4, 4}, {4, 11, 4}, {4, 4, 11},
    {-11, -4, 4}, {-4, -11, 4}, {-4, -4, 11}, {11, -4, 4}, {4, -11, 4}, {4, -4, 11},
    {-11, 4, -4}, {-4, 11, -4}, {-4, 4, -11}, {11, 4, -4}, {4, 11, -4}, {4, 4, -11},
    {-11, -4, -4}, {-4, -11, -4}, {-4, -4, -11}, {11, -4, -4}, {4, -11, -4}, {4, -4, -11}};

typedef struct { int8_t i, j, k; } Corner;

/* The two further points, by the corner or corners closest. Index: a set of axes, x = 1, y = 2, z = 4. */
static const Corner LOW_ONE[8][2] = { /* tetrahedron at (0,0,0), which is itself among the closest two */
    [1] = {{1, -1, 0}, {1, 0, -1}}, [2] = {{-1, 1, 0}, {0, 1, -1}}, [4] = {{-1, 0, 1}, {0, -1, 1}}};
static const Corner LOW_TWO[8][2] = { /* the same when two other corners are closer */
    [3] = {{1, 1, 0}, {1, 1, -1}}, [5] = {{1, 0, 1}, {1, -1, 1}}, [6] = {{0, 1, 1}, {-1, 1, 1}}};
static const Corner HIGH_ONE[8][2] = { /* tetrahedron at (1,1,1), by the closest pair of axes */
    [3] = {{2, 1, 0}, {1, 2, 0}}, [5] = {{2, 0, 1}, {1, 0, 2}}, [6] = {{0, 2, 1}, {0, 1, 2}}};
static const Corner HIGH_TWO[8][2] = { /* the same, by the axis two closest corners share */
    [1] = {{1, 0, 0}, {2, 0, 0}}, [2] = {{0, 1, 0}, {0, 2, 0}}, [4] = {{0, 0, 1}, {0, 0, 2}}};
static const Corner OPPOSITE[8] = { /* octahedron: beyond the side that has these two axes */
    [3] = {1, 1, -1}, [5] = {1, -1, 1}, [6] = {-1, 1, 1}};
static const Corner TWICE[8] = {[1] = {2, 0, 0}, [2] = {0, 2, 0}, [4] = {0, 0, 2}};

static uint64_t noise_next(uint64_t state) { return state * 6364136223846793005u + 1442695040888963407u; }

static void noise_seed(Noise *noise, uint64_t seed) {
    uint8_t source[256];
    for (int i = 0; i < 256; i++) source[i] = (uint8_t)i;
    seed = noise_next(noise_next(noise_next(seed)));
    for (int i = 255; i >= 0; i--) {
        seed = noise_next(seed);
        int64_t n = i + 1, r = ((int64_t)seed % n + n + 31) % n;
        noise->perm[i] = source[r];
        noise->gradient[i] = (uint8_t)(source[r] % 24);
        source[r] = source[i];
    }
}

typedef struct {
    const Noise *noise;
    int i, j, k;      /* the cube */
    double x, y, z;   /* the point, from the cube's origin */
    double sum;
} Cell;

/* What the lattice point `corner` adds, (dx, dy, dz) being the way from it to the point. Far ones add 0; no branch, as
 * none could be foreseen. */
static inline void add_gradient(Cell *c, Corner corner, double dx, double dy, double dz) {
    const uint8_t *perm = c->noise->perm;
    double near = 2 - dx * dx - dy * dy - dz * dz;
    int hashed = perm[(c->i + corner.i) & 0xFF];
    hashed = perm[(hashed + c->j + corner.j) & 0xFF];
    const double *g = GRADIENTS[c->noise->gradient[(hashed + c->k + corner.k) & 0xFF]];
    near = near > 0 ? near : 0;
    near *= near;
    c->sum += near * near * (g[0] * dx + g[1] * dy + g[2] * dz);
}

static inline void add_corner(Cell *c, Corner corner) {
    double squish = (corner.i + corner.j + corner.k) * SQUISH;
    add_gradient(c, corner, c->x - corner.i - squish, c->y - corner.j - squish, c->z - corner.k - squish);
}

/* The point two steps along one axis in the octahedron's mixed case, where the published order of subtraction differs. */
static inline void add_twice(Cell *c, Corner corner) {
    double squish = 2 * SQUISH;
    add_gradient(c, corner, c->x - squish - corner.i, c->y - squish - corner.j, c->z - squish - corner.k);
}

static inline void add_both(Cell *c, const Corner further[2]) {
    add_corner(c, further[0]);
    add_corner(c, further[1]);
}

#define OWN(i, j, k) add_corner(c, (Corner){i, j, k}) /* spelled out: constants make it a third faster */

static void low_tetrahedron(Cell *c, double x, double y, double z, double total) {
    OWN(0, 0, 0); OWN(1, 0, 0); OWN(0, 1, 0); OWN(0, 0, 1);
    int a = 1, b = 2;
    double a_score = x, b_score = y, rest = 1 - total;
    if (a_score >= b_score && z > b_score) b_score = z, b = 4;
    else if (a_score < b_score && z > a_score) a_score = z, a = 4;
    add_both(c, rest > a_score || rest > b_score ? LOW_ONE[b_score > a_score ? b : a] : LOW_TWO[a | b]);
}

static void high_tetrahedron(Cell *c, double x, double y, double z, double total) {
    OWN(1, 1, 0); OWN(1, 0, 1); OWN(0, 1, 1); OWN(1, 1, 1);
    int a = 6, b = 5;
    double a_score = x, b_score = y, rest = 3 - total;
    if (a_score <= b_score && z < b_score) b_score = z, b = 3;
    else if (a_score > b_score && z < a_score) a_score = z, a = 3;
    add_both(c, rest < a_score || rest < b_score ? HIGH_ONE[b_score < a_score ? b : a] : HIGH_TWO[a & b]);
}

static void octahedron(Cell *c, double x, double y, double z) {
    OWN(1, 0, 0); OWN(0, 1, 0); OWN(0, 0, 1); OWN(1, 1, 0); OWN(1, 0, 1); OWN(0, 1, 1);
    static const Corner ORIGIN = {0, 0, 0}, FAR = {1, 1, 1};
    /* Of each pair of opposite corners the closer one; then the farther of the first two gives way to a closer third. */
    double xy = x + y, xz = x + z, yz = y + z;
    int a_far = xy > 1, b_far = xz > 1, third_far = yz > 1;
    double a_score = a_far ? xy - 1 : 1 - xy, b_score = b_far ? xz - 1 : 1 - xz;
    double score = third_far ? yz - 1 : 1 - yz;
    int a = a_far ? 3 : 4, b = b_far ? 5 : 2, third = third_far ? 6 : 1;
    if (a_score <= b_score && a_score < score) a = third, a_far = third_far;
    else if (a_score > b_score && b_score < score) b = third, b_far = third_far;
    if (a_far && b_far) {
        add_corner(c, FAR);
        add_corner(c, TWICE[a & b]);
    } else if (!a_far && !b_far) {
        add_corner(c, ORIGIN);
        add_corner(c, OPPOSITE[a | b]);
    } else {
        add_corner(c, OPPOSITE[a_far ? a : b]);
        add_twice(c, TWICE[a_far ? b : a]);
    }
}

static inline int floor_int(double value) {
    int whole = (int)value;
    return whole - (value < whole);
}

static double noise3(const Noise *noise, double x, double y, double z) {
    double stretch = (x + y + z) * STRETCH;
    double xs = x + stretch, ys = y + stretch, zs = z + stretch;
    Cell c = {noise, floor_int(xs), floor_int(ys), floor_int(zs), 0, 0, 0, 0};
    double squish = (c.i + c.j + c.k) * SQUISH;
    double x_in = xs - c.i, y_in = ys - c.j, z_in = zs - c.k;
    double total = x_in + y_in + z_in;
    c.x = x - (c.i + squish);
    c.y = y - (c.j + squish);
    c.z = z - (c.k + squish);
    if (total <= 1) low_tetrahedron(&c, x_in, y_in, z_in, total);
    else if (total >= 2) high_tetrahedron(&c, x_in, y_in, z_in, total);
    else octahedron(&c, x_in, y_in, z_in);
    return c.sum / NORM;
}

#endif
