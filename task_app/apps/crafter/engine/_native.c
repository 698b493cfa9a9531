/* The native Crafter engine's Python module: argument checks and conversions around csrc/, which holds the game.
 *
 * World is one game, Batch many that step in one call. native.py builds the engine protocol on them; what a rule
 * costs, the daylight of each step and the exception to raise are handed in by its call of configure().
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>

#include "csrc/state.h"
#include "csrc/step.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the native engine writes states as they lie in memory and needs a little-endian machine"
#endif
#if FLT_EVAL_METHOD != 0
#error "doubles must be computed as doubles, or worlds differ"
#endif

#ifndef TASK_APP_SOURCE_HASH
#define TASK_APP_SOURCE_HASH ""
#endif

enum { SEAL = 16, SUM = 8, HEADER = SEAL + SUM };

static double DAYLIGHT[LAST_STEP + 1]; /* of each step */
static int light_known;
static PyObject *daylight_source, *EnvError, *NOTHING;
static int configured;

/* Errors and preparations shared by both types */

static PyObject *refuse(const char *what) {
    PyErr_SetString(EnvError, what);
    return NULL;
}

static int ready_to_make(void) {
    if (!configured) PyErr_SetString(PyExc_RuntimeError, "the native engine was not configured: import engine.native");
    return configured;
}

/* The table of daylight, from Python when first needed: its values must be NumPy's to the bit. */
static int have_light(void) {
    if (light_known) return 1;
    PyObject *bytes = PyObject_CallNoArgs(daylight_source);
    if (!bytes) return 0;
    light_known = PyBytes_Check(bytes) && PyBytes_GET_SIZE(bytes) == (Py_ssize_t)sizeof DAYLIGHT;
    if (light_known) memcpy(DAYLIGHT, PyBytes_AS_STRING(bytes), sizeof DAYLIGHT);
    else PyErr_SetString(PyExc_RuntimeError, "the source of daylight gave the wrong number of bytes");
    Py_DECREF(bytes);
    return light_known;
}

static int ready_to_read(const World *w) {
    if (!w->ready) refuse("no world yet, or a step before reset: call reset(seed) first");
    return w->ready;
}

static int broken(const World *w) {
    if (w->broken == ERROR_FULL)
        PyErr_Format(EnvError, "the world holds more than %d objects, the native engine's limit: call reset(seed)", CAPACITY - 2);
    if (w->broken == ERROR_OLD) refuse("objects changed chunks too often to be kept in order: call reset(seed)");
    if (w->broken == ERROR_COUNTS) refuse("the restored snapshot's counts of tiles were wrong: call reset(seed)");
    return w->broken;
}

static int ready_to_step(const World *w) {
    if (!ready_to_read(w) || broken(w)) return 0;
    if (w->inventory[HEALTH] <= 0) return !!refuse("step after the player's death: call reset(seed) first");
    if (w->step >= LAST_STEP) {
        PyErr_Format(EnvError, "step after the last one, %d: call reset(seed) first", LAST_STEP);
        return 0;
    }
    return have_light();
}

/* An action's number, or -1 with an exception. */
static int action_of(PyObject *value) {
    if (PyLong_Check(value) && !PyBool_Check(value)) {
        long action = PyLong_AsLong(value);
        if (0 <= action && action < N_ACTIONS) return (int)action;
        PyErr_Clear();
    } else if (PyIndex_Check(value) && !PyBool_Check(value)) { /* NumPy's integers */
        PyObject *plain = PyNumber_Index(value);
        int action = plain ? action_of(plain) : -1;
        Py_XDECREF(plain);
        return action;
    }
    PyErr_Format(EnvError, "unknown action %R: actions are numbered from 0 to %d", value, N_ACTIONS - 1);
    return -1;
}

static int seed_of(PyObject *value, uint32_t *seed) {
    long long number = PyLong_Check(value) ? PyLong_AsLongLong(value) : -1;
    if (number < 0 || number > UINT32_MAX) {
        PyErr_Clear();
        PyErr_Format(EnvError, "a world's seed must be an integer from 0 to 2**32 - 1, got %R", value);
        return 0;
    }
    *seed = (uint32_t)number;
    return 1;
}

/* Worlds to and from bytes */

static PyObject *canonical_of(const World *w) {
    if (!ready_to_read(w)) return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)write_canonical(w, NULL));
    if (bytes) write_canonical(w, (uint8_t *)PyBytes_AS_STRING(bytes));
    return bytes;
}

/* Layout of protocol.seal: magic, format, engine (2, native), night draws (0 stock, 1 none), length of the rest. */
static void write_seal(uint8_t *out, int night_draws, size_t length) {
    uint16_t format = FORMAT;
    uint32_t rest = (uint32_t)length;
    memcpy(out, "ORDCRAFT", 8);
    memcpy(out + 8, &format, 2);
    out[10] = 2;
    out[11] = night_draws ? 0 : 1;
    memcpy(out + 12, &rest, 4);
}

static PyObject *snapshot_of(const World *w, int night_draws) {
    if (!ready_to_read(w) || broken(w)) return NULL;
    size_t length = snapshot_length(w);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(HEADER + length));
    if (!bytes) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(bytes);
    memcpy(out + HEADER, w, length);
    uint64_t sum = checksum(out + HEADER, length);
    write_seal(out, night_draws, SUM + length);
    memcpy(out + SEAL, &sum, SUM);
    return bytes;
}

static int fault_found(Fault fault, const char *what) {
    if (fault) PyErr_Format(EnvError, "%s: %s", what, fault);
    return fault != NULL;
}

/* False with EnvError; `w` is changed only on success. Bytes with another seal are left to Python to explain. */
static int restore_world(World *w, PyObject *payload, int night_draws) {
    static World scratch;
    uint8_t expected[SEAL];
    uint64_t sum;
    if (!PyBytes_Check(payload)) {
        refuse("a snapshot must be bytes");
        return 0;
    }
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(payload);
    size_t length = (size_t)PyBytes_GET_SIZE(payload);
    write_seal(expected, night_draws, length - SEAL);
    if (length < SEAL || memcmp(expected, bytes, SEAL)) {
        refuse("not a snapshot of this engine");
        return 0;
    }
    if (length < HEADER) return !fault_found("too short", "damaged snapshot");
    memcpy(&sum, bytes + SEAL, SUM);
    if (sum != checksum(bytes + HEADER, length - HEADER))
        return !fault_found("its checksum does not fit", "damaged snapshot");
    if (fault_found(read_snapshot(&scratch, bytes + HEADER, length - HEADER), "damaged snapshot")) return 0;
    take_over(w, &scratch);
    return 1;
}

static int load_world(World *w, PyObject *state) {
    static World scratch;
    if (!PyBytes_Check(state)) {
        refuse("a canonical state must be bytes");
        return 0;
    }
    Fault fault = read_canonical(&scratch, (const uint8_t *)PyBytes_AS_STRING(state), (size_t)PyBytes_GET_SIZE(state));
    if (fault_found(fault, "not a canonical Crafter state")) return 0;
    take_over(w, &scratch);
    return 1;
}

/* What a player sees */

enum { VIEW_X = 9, VIEW_Y = 7, HALF_X = VIEW_X / 2, HALF_Y = VIEW_Y / 2, RIPE = PLANT - PLAYER + 1 };

static PyObject *materials_seen(const World *w, const Object *player) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, VIEW_X * VIEW_Y);
    if (!bytes) return NULL;
    char *out = PyBytes_AS_STRING(bytes);
    for (int x = player->x - HALF_X; x <= player->x + HALF_X; x++)
        for (int y = player->y - HALF_Y; y <= player->y + HALF_Y; y++) *out++ = (char)material_at(w, x, y);
    return bytes;
}

static PyObject *objects_seen(const World *w, const Object *player) {
    uint16_t slots[VIEW_X * VIEW_Y];
    int count = 0;
    for (int x = player->x - HALF_X; x <= player->x + HALF_X; x++)
        for (int y = player->y - HALF_Y; y <= player->y + HALF_Y; y++) {
            int slot = inside(x, y) ? w->at[tile(x, y)] : 0, at = count;
            if (slot <= SLOT_PLAYER) continue;
            for (count++; at && slots[at - 1] > slot; at--) slots[at] = slots[at - 1];
            slots[at] = (uint16_t)slot;
        }
    PyObject *seen = PyTuple_New(count);
    for (int n = 0; seen && n < count; n++) {
        const Object *o = &w->objects[slots[n]];
        int kind = o->kind == PLANT && o->counter > RIPE_GROWN ? RIPE : o->kind - PLAYER;
        PyObject *one = Py_BuildValue("(iii)", kind, o->x - player->x, o->y - player->y);
        if (!one) Py_CLEAR(seen);
        else PyTuple_SET_ITEM(seen, n, one);
    }
    return seen;
}

static PyObject *counts(const int32_t *values, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *value = PyLong_FromLong(values[i]);
        if (!value) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

/* The fields of protocol.EngineView, in its order. */
static PyObject *view_of(const World *w) {
    if (!ready_to_read(w) || !have_light()) return NULL;
    const Object *player = &w->objects[SLOT_PLAYER];
    return Py_BuildValue("(iNN(ii)NN(ii)dO)", w->step, materials_seen(w, player), objects_seen(w, player), w->face_x,
                         w->face_y, counts(w->inventory, N_ITEMS), counts(w->achieved, N_ACHIEVEMENTS),
                         player->x - CENTER, player->y - CENTER, DAYLIGHT[w->step], w->sleeping ? Py_True : Py_False);
}

/* Steps */

static PyObject *events_of(uint32_t rose) {
    int count = 0;
    for (int i = 0; i < N_ACHIEVEMENTS; i++) count += rose >> i & 1;
    if (!count) return Py_NewRef(NOTHING);
    PyObject *events = PyTuple_New(count);
    for (int i = 0, at = 0; events && i < N_ACHIEVEMENTS; i++)
        if (rose >> i & 1) PyTuple_SET_ITEM(events, at++, PyLong_FromLong(i)); /* small integers always exist */
    return events;
}

static PyObject *outcome_of(Outcome outcome) {
    PyObject *reward = PyFloat_FromDouble(outcome.reward), *events = events_of(outcome.rose);
    PyObject *tuple = reward && events ? PyTuple_New(3) : NULL;
    if (!tuple) {
        Py_XDECREF(reward);
        Py_XDECREF(events);
        return NULL;
    }
    PyTuple_SET_ITEM(tuple, 0, reward);
    PyTuple_SET_ITEM(tuple, 1, Py_NewRef(outcome.dead ? Py_True : Py_False));
    PyTuple_SET_ITEM(tuple, 2, events);
    return tuple;
}

static PyObject *step_one(World *w, PyObject *value, int night_draws) {
    int action = action_of(value);
    if (action < 0 || !ready_to_step(w)) return NULL;
    Outcome outcome = step_world(w, action, DAYLIGHT[w->step + 1], night_draws);
    return broken(w) ? NULL : outcome_of(outcome);
}

/* One game */

typedef struct {
    PyObject_HEAD
    int night_draws;
    World world;
} WorldObject;

#define SELF (&((WorldObject *)self)->world)
#define NIGHT (((WorldObject *)self)->night_draws)

static PyObject *world_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"night_draws", NULL};
    int night_draws;
    if (!ready_to_make() || !PyArg_ParseTupleAndKeywords(args, kwargs, "p", names, &night_draws)) return NULL;
    PyObject *self = type->tp_alloc(type, 0); /* zeroed: a world that is not ready */
    if (self) NIGHT = night_draws;
    return self;
}

static void world_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *world_generate(PyObject *self, PyObject *value) {
    uint32_t seed;
    if (!seed_of(value, &seed)) return NULL;
    generate(SELF, seed);
    Py_RETURN_NONE;
}

static PyObject *world_step(PyObject *self, PyObject *value) { return step_one(SELF, value, NIGHT); }

static PyObject *world_step_many(PyObject *self, PyObject *values) {
    PyObject *actions = PySequence_Fast(values, "actions must be a sequence of integers");
    if (!actions) return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(actions);
    PyObject *outcomes = PyList_New(0);
    for (Py_ssize_t i = 0; outcomes && i < count; i++)
        if (action_of(PySequence_Fast_GET_ITEM(actions, i)) < 0) Py_CLEAR(outcomes); /* before any is run */
    for (Py_ssize_t i = 0; outcomes && i < count; i++) {
        PyObject *one = step_one(SELF, PySequence_Fast_GET_ITEM(actions, i), NIGHT);
        if (!one || PyList_Append(outcomes, one) < 0) Py_CLEAR(outcomes);
        Py_XDECREF(one);
        if (SELF->inventory[HEALTH] <= 0) break;
    }
    Py_DECREF(actions);
    return outcomes;
}

static PyObject *world_snapshot(PyObject *self, PyObject *unused) {
    (void)unused;
    return snapshot_of(SELF, NIGHT);
}

static PyObject *world_restore(PyObject *self, PyObject *payload) {
    if (!restore_world(SELF, payload, NIGHT)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *world_canonical(PyObject *self, PyObject *unused) {
    (void)unused;
    return canonical_of(SELF);
}

static PyObject *world_load(PyObject *self, PyObject *state) {
    if (!load_world(SELF, state)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *world_view(PyObject *self, PyObject *unused) {
    (void)unused;
    return view_of(SELF);
}

static PyMethodDef WORLD_METHODS[] = {
    {"generate", world_generate, METH_O, "Make the world whose generator is seeded with this number."},
    {"step", world_step, METH_O, "Run one action: (reward, dead, events)."},
    {"step_many", world_step_many, METH_O, "Run actions until the player dies."},
    {"snapshot", world_snapshot, METH_NOARGS, "The whole state, sealed."},
    {"_restore", world_restore, METH_O, "Return to a snapshot."},
    {"canonical_bytes", world_canonical, METH_NOARGS, "The full state in the protocol's layout."},
    {"load", world_load, METH_O, "Take over a state given as canonical bytes."},
    {"_view", world_view, METH_NOARGS, "The fields of an EngineView."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot WORLD_SLOTS[] = {
    {Py_tp_new, world_new}, {Py_tp_dealloc, world_dealloc}, {Py_tp_methods, WORLD_METHODS}, {0, NULL}};
static PyType_Spec WORLD_SPEC = {"task_app.apps.crafter.engine._native.World", sizeof(WorldObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, WORLD_SLOTS};

/* Many games */

typedef struct {
    PyObject_HEAD
    int night_draws;
    Py_ssize_t count;
    World *worlds;
} BatchObject;

#define BATCH ((BatchObject *)self)

static PyObject *batch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"count", "night_draws", NULL};
    Py_ssize_t count;
    int night_draws;
    if (!ready_to_make() || !PyArg_ParseTupleAndKeywords(args, kwargs, "np", names, &count, &night_draws)) return NULL;
    if (count < 1 || count > 65536) return refuse("a batch holds 1 to 65536 worlds");
    PyObject *self = type->tp_alloc(type, 0);
    if (!self) return NULL;
    BATCH->night_draws = night_draws;
    BATCH->count = count;
    BATCH->worlds = PyMem_Calloc((size_t)count, sizeof(World));
    if (!BATCH->worlds) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return self;
}

static void batch_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(BATCH->worlds);
    type->tp_free(self);
    Py_DECREF(type);
}

static World *world_at(PyObject *self, PyObject *index) {
    Py_ssize_t i = PyNumber_AsSsize_t(index, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred()) return NULL;
    if (i < 0 || i >= BATCH->count) {
        PyErr_Format(EnvError, "the batch has worlds 0 to %zd, not %zd", BATCH->count - 1, i);
        return NULL;
    }
    return &BATCH->worlds[i];
}

static int two_arguments(Py_ssize_t count) {
    if (count != 2) PyErr_Format(PyExc_TypeError, "two arguments expected, got %zd", count);
    return count == 2;
}

static PyObject *batch_generate(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint32_t seed;
    World *w = two_arguments(count) ? world_at(self, args[0]) : NULL;
    if (!w || !seed_of(args[1], &seed)) return NULL;
    generate(w, seed);
    Py_RETURN_NONE;
}

static PyObject *batch_restore(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    World *w = two_arguments(count) ? world_at(self, args[0]) : NULL;
    if (!w || !restore_world(w, args[1], BATCH->night_draws)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *batch_snapshot(PyObject *self, PyObject *index) {
    World *w = world_at(self, index);
    return w ? snapshot_of(w, BATCH->night_draws) : NULL;
}

static PyObject *batch_canonical(PyObject *self, PyObject *index) {
    World *w = world_at(self, index);
    return w ? canonical_of(w) : NULL;
}

static PyObject *batch_view(PyObject *self, PyObject *index) {
    World *w = world_at(self, index);
    return w ? view_of(w) : NULL;
}

static int resting(const World *w) { return w->inventory[HEALTH] <= 0 || w->step >= LAST_STEP; }

/* Every world must be able to step, or rest, before any is stepped. */
static int batch_ready(BatchObject *batch, const uint8_t *actions) {
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        const World *w = &batch->worlds[i];
        if (actions[i] >= N_ACTIONS) {
            PyErr_Format(EnvError, "unknown action %d for world %zd: actions are numbered from 0 to %d", actions[i], i,
                         N_ACTIONS - 1);
            return 0;
        }
        if (!ready_to_read(w) || broken(w) || !have_light()) return 0;
    }
    return 1;
}

static int batch_run(BatchObject *batch, const uint8_t *actions, double *rewards, uint8_t *dead, uint32_t *events) {
    if (!batch_ready(batch, actions)) return 0;
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        World *w = &batch->worlds[i];
        Outcome outcome = {0, w->inventory[HEALTH] <= 0, 0};
        if (!resting(w)) outcome = step_world(w, actions[i], DAYLIGHT[w->step + 1], batch->night_draws);
        rewards[i] = outcome.reward;
        dead[i] = (uint8_t)outcome.dead;
        events[i] = outcome.rose;
    }
    for (Py_ssize_t i = 0; i < batch->count; i++)
        if (broken(&batch->worlds[i])) return 0;
    return 1;
}

/* step(actions, rewards, dead, events): buffers of uint8, float64, uint8 and uint32, one item a world. */
static PyObject *batch_step(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    static const Py_ssize_t SIZES[4] = {1, sizeof(double), 1, sizeof(uint32_t)};
    Py_buffer buffers[4];
    int held = 0, fine = count == 4;
    if (!fine) PyErr_SetString(PyExc_TypeError, "step takes actions, rewards, dead and events");
    for (; fine && held < 4; held++) {
        int flags = held ? PyBUF_CONTIG : PyBUF_CONTIG_RO;
        if (PyObject_GetBuffer(args[held], &buffers[held], flags) < 0) break;
        if (buffers[held].len != BATCH->count * SIZES[held] || buffers[held].itemsize != SIZES[held] ||
            (uintptr_t)buffers[held].buf % (size_t)SIZES[held]) {
            PyErr_Format(EnvError, "buffer %d of a batch step must hold %zd aligned items of %zd bytes", held,
                         BATCH->count, SIZES[held]);
            held++;
            fine = 0;
            break;
        }
    }
    fine = fine && held == 4 && batch_run(BATCH, buffers[0].buf, buffers[1].buf, buffers[2].buf, buffers[3].buf);
    while (held) PyBuffer_Release(&buffers[--held]);
    if (!fine) return NULL;
    Py_RETURN_NONE;
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef BATCH_METHODS[] = {
    {"generate", FAST(batch_generate), METH_FASTCALL, "generate(i, seed): as World.generate."},
    {"_step", FAST(batch_step), METH_FASTCALL, "step(actions, rewards, dead, events): step every living world."},
    {"_restore", FAST(batch_restore), METH_FASTCALL, "restore(i, payload): as World.restore."},
    {"snapshot", batch_snapshot, METH_O, "snapshot(i): as World.snapshot."},
    {"canonical_bytes", batch_canonical, METH_O, "canonical_bytes(i): as World.canonical_bytes."},
    {"_view", batch_view, METH_O, "The fields of an EngineView of world i."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot BATCH_SLOTS[] = {
    {Py_tp_new, batch_new}, {Py_tp_dealloc, batch_dealloc}, {Py_tp_methods, BATCH_METHODS}, {0, NULL}};
static PyType_Spec BATCH_SPEC = {"task_app.apps.crafter.engine._native.Batch", sizeof(BatchObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, BATCH_SLOTS};

/* The module */

static int rules_are_sane(const Rules *rules) {
    for (int m = 0; m < N_MATERIALS; m++) {
        if (!between(rules->collect[m].leaves, 0, N_MATERIALS - 1) || !between(rules->collect[m].item, 0, N_ITEMS - 1) ||
            !between(rules->collect[m].achievement, 0, N_ACHIEVEMENTS - 1))
            return 0;
    }
    for (int p = 0; p < N_PLACES; p++)
        if (!between(rules->place[p].material, 0, N_MATERIALS - 1) ||
            !between(rules->place[p].achievement, 0, N_ACHIEVEMENTS - 1))
            return 0;
    for (int m = 0; m < N_MAKES; m++)
        if (!between(rules->make[m].item, 0, N_ITEMS - 1) ||
            !between(rules->make[m].achievement, 0, N_ACHIEVEMENTS - 1))
            return 0;
    return 1;
}

static PyObject *configure(PyObject *module, PyObject *args) {
    Py_buffer rules, probabilities;
    PyObject *source, *error;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*OO", &rules, &probabilities, &source, &error)) return NULL;
    int fits = rules.len == sizeof RULES && probabilities.len == sizeof COLLECT_PROBABILITY;
    if (fits) {
        memcpy(&RULES, rules.buf, sizeof RULES);
        memcpy(COLLECT_PROBABILITY, probabilities.buf, sizeof COLLECT_PROBABILITY);
        fits = rules_are_sane(&RULES);
    }
    PyBuffer_Release(&rules);
    PyBuffer_Release(&probabilities);
    if (!fits || !PyCallable_Check(source) || !PyExceptionClass_Check(error)) {
        PyErr_SetString(PyExc_ValueError, "the rules do not have the layout of csrc/world.h");
        return NULL;
    }
    Py_XSETREF(daylight_source, Py_NewRef(source));
    Py_XSETREF(EnvError, Py_NewRef(error));
    light_known = 0;
    configured = 1;
    Py_RETURN_NONE;
}

/* noise(seed, x, y, z): one value, for tests against the opensimplex package. */
static PyObject *noise_value(PyObject *module, PyObject *args) {
    long long seed;
    double x, y, z;
    Noise noise;
    (void)module;
    if (!PyArg_ParseTuple(args, "Lddd", &seed, &x, &y, &z)) return NULL;
    if (!(fabs(x) < 1e6 && fabs(y) < 1e6 && fabs(z) < 1e6)) {
        PyErr_SetString(PyExc_ValueError, "noise is defined here for coordinates below a million");
        return NULL;
    }
    noise_seed(&noise, (uint64_t)seed);
    return PyFloat_FromDouble(noise3(&noise, x, y, z));
}

/* draws(seed, plan): what a generator gives for each entry: n > 0 randint(0, n), 0 uniform(), -n skips n words. Then
 * its key and position. For tests against NumPy. */
static PyObject *draws(PyObject *module, PyObject *args) {
    static World w;
    PyObject *plan;
    unsigned int seed;
    (void)module;
    if (!PyArg_ParseTuple(args, "IO!", &seed, &PyList_Type, &plan)) return NULL;
    rng_seed(&w, seed);
    PyObject *values = PyList_New(0);
    for (Py_ssize_t i = 0; values && i < PyList_GET_SIZE(plan); i++) {
        long long n = PyLong_AsLongLong(PyList_GET_ITEM(plan, i));
        PyObject *value = NULL;
        if (PyErr_Occurred() || n > UINT32_MAX || n < -1000000) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "draw out of range");
        } else if (n < 0) {
            rng_skip(&w, (int)-n);
            value = Py_NewRef(Py_None);
        } else {
            value = n ? PyLong_FromUnsignedLong(rng_below(&w, (uint32_t)n)) : PyFloat_FromDouble(rng_uniform(&w));
        }
        if (!value || PyList_Append(values, value) < 0) Py_CLEAR(values);
        Py_XDECREF(value);
    }
    return values ? Py_BuildValue("(Ny#i)", values, (char *)w.key, (Py_ssize_t)sizeof w.key, w.rng_pos) : NULL;
}

static PyMethodDef FUNCTIONS[] = {
    {"configure", configure, METH_VARARGS, "configure(rules, probabilities, daylight_source, error)"},
    {"noise", noise_value, METH_VARARGS, "noise(seed, x, y, z)"},
    {"draws", draws, METH_VARARGS, "draws(seed, plan)"},
    {NULL, NULL, 0, NULL}};

static int add_names(PyObject *module, const char *key, const char *const *names, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) PyTuple_SET_ITEM(tuple, i, PyUnicode_FromString(names[i]));
    return tuple && !PyErr_Occurred() ? PyModule_AddObject(module, key, tuple) : -1;
}

static int add_type(PyObject *module, const char *key, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    return type ? PyModule_AddObject(module, key, type) : -1;
}

#define COUNT(names) (int)(sizeof(names) / sizeof *(names))

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_native", "Ordered Crafter in C.", -1, FUNCTIONS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&MODULE);
    if (!module) return NULL;
    if (wide_registers()) twist = twist_wide;
    NOTHING = PyTuple_New(0);
    if (!NOTHING || PyModule_AddStringConstant(module, "SOURCE_HASH", TASK_APP_SOURCE_HASH) < 0 ||
        PyModule_AddIntConstant(module, "WORLD_BYTES", sizeof(World)) < 0 ||
        PyModule_AddIntConstant(module, "CAPACITY", CAPACITY - 2) < 0 ||
        add_names(module, "MATERIALS", MATERIAL_NAMES, COUNT(MATERIAL_NAMES)) < 0 ||
        add_names(module, "ITEMS", ITEM_NAMES, COUNT(ITEM_NAMES)) < 0 ||
        add_names(module, "ACTIONS", ACTION_NAMES, COUNT(ACTION_NAMES)) < 0 ||
        add_names(module, "ACHIEVEMENTS", ACHIEVEMENT_NAMES, COUNT(ACHIEVEMENT_NAMES)) < 0 ||
        add_type(module, "World", &WORLD_SPEC) < 0 || add_type(module, "Batch", &BATCH_SPEC) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
