/* Module versions on this machine: which are remembered, what a wanted one calls for. */
#include "tests/unit/common/base/util.h"

#include "common/base/hash.h"
#include "common/outer/version.h"
#include "worker/order/modules.h"
#include "worker/order/task_model.h"
#include "worker/order/work.h"

enum { BLOBS = 5, BYTES = 100 };

static char *top, *file;
static struct cache *cache;
static struct modules *modules;
static uint8_t sums[BLOBS][32];

/* ---- a machine with a few files ---- */

static void blob_add(int i)
{
    char data[BYTES], path[CACHE_PATH_MAX];
    memset(data, 'a' + i, sizeof(data));
    cache_path(cache, sums[i], path);
    OK(cache_reserve(cache, sizeof(data), err));
    OK(file_write_atomic(path, data, sizeof(data), 0600, err));
    OK(cache_added(cache, sums[i], err));
}

static void blob_damage(int i)
{
    char path[CACHE_PATH_MAX];
    cache_path(cache, sums[i], path);
    OK(file_write_atomic(path, "cut", 3, 0600, err));
}

static int setup(void **state)
{
    (void)state;
    top = scratch_new();
    file = in(top, "held");
    char *dir = in(top, "blobs");
    OK(cache_open(dir, 0, &cache, err));
    mem_free(dir);
    for (int i = 0; i < BLOBS; i++) {
        char data[BYTES];
        memset(data, 'a' + i, sizeof(data));
        hash_sha256(data, sizeof(data), sums[i]);
    }
    modules = modules_open(file, cache);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    modules_close(modules);
    cache_close(cache);
    mem_free(file);
    scratch_free(top);
    return 0;
}

static void reopen(void)
{
    modules_close(modules);
    modules = modules_open(file, cache);
}

static Skerry__V1__ModuleRef ref_of(uint64_t id, uint64_t version, int blob)
{
    Skerry__V1__ModuleRef ref = SKERRY__V1__MODULE_REF__INIT;
    ref.module_id = id;
    ref.version = version;
    ref.sha256 = (ProtobufCBinaryData){32, sums[blob]};
    return ref;
}

/* The version's file is here: from now on it is one to build on. */
static void hold(uint64_t id, uint64_t version, int blob)
{
    const Skerry__V1__ModuleRef ref = ref_of(id, version, blob);
    struct work *w = NULL;
    OK(work_new_bare(cache, top, "hold", &w, err));
    OK(modules_make(modules, w, &ref, err));
    work_free(w);
}

static void holds(size_t n, const struct modules_version *expected)
{
    struct modules_version held[MODULES_MAX];
    assert_int_equal(modules_held(modules, held), n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(held[i].module_id, expected[i].module_id);
        assert_int_equal(held[i].version, expected[i].version);
    }
}

/* ---- what is held ---- */

static void one_version_of_each_over_a_restart(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        blob_add(i);
    hold(1, 5, 0);
    hold(2, 1, 1);
    holds(2, (struct modules_version[]){{1, 5}, {2, 1}});
    hold(1, 6, 2);
    holds(2, (struct modules_version[]){{2, 1}, {1, 6}});
    reopen();
    holds(2, (struct modules_version[]){{2, 1}, {1, 6}});
    cache_remove(cache, sums[1]); /* what is not here any more is not offered */
    holds(1, (struct modules_version[]){{1, 6}});
    reopen();
    holds(1, (struct modules_version[]){{1, 6}});
}

/* Lines that name nothing here are passed over, what is no list ends it. */
static void a_broken_file(void **state)
{
    (void)state;
    char hex[2][HASH_HEX_MAX], text[512];
    blob_add(0);
    snprintf(text, sizeof(text), "1 5 abc\n2 5 %s\n3 7 %s\nand so on\n4 7 %s\n",
             hash_hex(sums[1], 32, hex[1]), hash_hex(sums[0], 32, hex[0]), hex[0]);
    put(top, "held", text, strlen(text));
    reopen();
    holds(1, (struct modules_version[]){{3, 7}});
    put(top, "held", "\0\1\2", 3);
    reopen();
    holds(0, NULL);
}

static void the_longest_unused_is_forgotten(void **state)
{
    (void)state;
    struct modules_version held[MODULES_MAX];
    blob_add(0);
    for (uint64_t id = 1; id <= MODULES_MAX + 2; id++)
        hold(id, 1, 0);
    assert_int_equal(modules_held(modules, held), MODULES_MAX);
    assert_int_equal(held[0].module_id, 3);
    assert_int_equal(held[MODULES_MAX - 1].module_id, MODULES_MAX + 2);
}

/* Held files go after all others, so they take no more than half of the cache; the newest stays.
 * A task that needs their room has it. */
static void half_of_the_cache(void **state)
{
    (void)state;
    OK(cache_set_limit(cache, 4 * BYTES + 50, err));
    for (int i = 0; i < 3; i++) {
        blob_add(i);
        hold((uint64_t)i + 1, 1, i);
    }
    holds(2, (struct modules_version[]){{2, 1}, {3, 1}});
    blob_add(3);
    OK(cache_reserve(cache, 2 * BYTES, err)); /* of those that are not held */
    assert_true(cache_has(cache, sums[1]) && cache_has(cache, sums[2]));
    OK(cache_reserve(cache, 3 * BYTES, err));
    holds(1, (struct modules_version[]){{3, 1}});
    OK(cache_reserve(cache, 4 * BYTES, err));
    holds(0, NULL);
    blob_add(2);

    OK(cache_set_limit(cache, 2 * BYTES, err));
    hold(2, 2, 2); /* the same file as that of module 3: counted for both */
    holds(1, (struct modules_version[]){{2, 2}});
}

/* ---- what a version calls for ---- */

struct named {
    size_t n, fail_at; /* 0: does not fail */
    struct {
        uint8_t sha256[32];
        uint64_t size;
        char url[16], what[64];
    } need[4];
};

static int name_it(void *arg, const uint8_t sha256[32], uint64_t size, const char *url,
                   const char *what, struct err *err)
{
    struct named *l = arg;
    assert_true(l->n < COUNT(l->need));
    memcpy(l->need[l->n].sha256, sha256, 32);
    l->need[l->n].size = size;
    snprintf(l->need[l->n].url, sizeof(l->need[0].url), "%s", url);
    snprintf(l->need[l->n].what, sizeof(l->need[0].what), "%s", what);
    return ++l->n == l->fail_at ? err_set(err, -ERR_LIMIT, "need %zu", l->n) : 0;
}

/* Need i is this blob; size 0: it is here. */
static void is(const struct named *l, size_t i, int blob, uint64_t size, const char *url,
               const char *what)
{
    assert_true(i < l->n);
    assert_memory_equal(l->need[i].sha256, sums[blob], 32);
    assert_int_equal(l->need[i].size, size);
    assert_string_equal(l->need[i].url, url);
    assert_string_equal(l->need[i].what, what);
}

/* Version 7 of module 3 is blob 0; blob 1 is version 5; 2, 3 and 4 lead from version 4 to it. */
struct wanted {
    Skerry__V1__ModuleRef ref;
    Skerry__V1__Blob full, blob[3];
    Skerry__V1__Delta delta[3], *deltas[3];
};

static void wanted_init(struct wanted *x)
{
    x->ref = ref_of(3, 7, 0);
    skerry__v1__blob__init(&x->full);
    x->full.sha256 = (ProtobufCBinaryData){32, sums[0]};
    x->full.size = BYTES;
    x->full.url = (char *)"/full";
    x->ref.full = &x->full;
    for (int i = 0; i < 3; i++) {
        skerry__v1__blob__init(&x->blob[i]);
        x->blob[i].sha256 = (ProtobufCBinaryData){32, sums[2 + i]};
        x->blob[i].size = 10 + (uint64_t)i;
        x->blob[i].url = (char *)"/delta";
        skerry__v1__delta__init(&x->delta[i]);
        x->delta[i].from = 4 + (uint64_t)i;
        x->delta[i].to = 5 + (uint64_t)i;
        x->delta[i].blob = &x->blob[i];
        x->deltas[i] = &x->delta[i];
    }
    x->ref.deltas = x->deltas;
    x->ref.n_deltas = 3;
}

static void what_is_here_is_taken(void **state)
{
    (void)state;
    struct wanted x;
    struct named here = {0}, again = {0};
    wanted_init(&x);
    blob_add(0);
    OK(modules_needs(modules, &x.ref, false, name_it, &here, err));
    assert_int_equal(here.n, 1);
    is(&here, 0, 0, 0, "", "module");
    blob_damage(0); /* fetched again, and gone at once */
    OK(modules_needs(modules, &x.ref, false, name_it, &again, err));
    assert_int_equal(again.n, 1);
    is(&again, 0, 0, BYTES, "/full", "version 7 of module 3");
    assert_false(cache_has(cache, sums[0]));
}

static void deltas_from_what_is_held(void **state)
{
    (void)state;
    struct wanted x;
    struct named by_deltas = {0}, full = {0}, failing = {.fail_at = 2};
    wanted_init(&x);
    blob_add(1);
    hold(3, 5, 1);
    OK(modules_needs(modules, &x.ref, false, name_it, &by_deltas, err));
    assert_int_equal(by_deltas.n, 3); /* not the one from version 4 */
    is(&by_deltas, 0, 1, 0, "", "module");
    is(&by_deltas, 1, 3, 11, "/delta", "delta 6 of module 3");
    is(&by_deltas, 2, 4, 12, "/delta", "delta 7 of module 3");
    OK(modules_needs(modules, &x.ref, true, name_it, &full, err));
    assert_int_equal(full.n, 1);
    is(&full, 0, 0, BYTES, "/full", "version 7 of module 3");
    FAILS(modules_needs(modules, &x.ref, false, name_it, &failing, err), "need 2");
    assert_int_equal(failing.n, 2);
}

static void a_damaged_start_is_forgotten(void **state)
{
    (void)state;
    struct wanted x;
    struct named l = {0};
    wanted_init(&x);
    blob_add(1);
    hold(3, 5, 1);
    blob_damage(1);
    OK(modules_needs(modules, &x.ref, false, name_it, &l, err));
    assert_int_equal(l.n, 1);
    is(&l, 0, 0, BYTES, "/full", "version 7 of module 3");
    blob_add(1); /* the file is back, but nobody says whose it is */
    holds(0, NULL);
    reopen();
    holds(0, NULL);
}

static void what_cannot_be_had(void **state)
{
    (void)state;
    struct wanted x;
    struct named l = {0};
    wanted_init(&x);
    x.full.sha256.data = sums[1];
    FAILS(modules_needs(modules, &x.ref, false, name_it, &l, err),
          "module 3: the full blob's hash is not the version's");
    x.ref.full = NULL;
    FAILS(modules_needs(modules, &x.ref, false, name_it, &l, err),
          "module 3: version 7 can only be made from an older one, which is not here any more");
    assert_int_equal(l.n, 0);
}

/* ---- tasks ---- */

static const struct kind reads = {.id = SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT, .name = "reads"},
                         makes = {.id = SKERRY__V1__TASK_KIND__TASK_KIND_INIT,
                                  .name = "makes",
                                  .modules = KIND_MODULES_MADE};
static const struct kind *const kinds[] = {&reads, &makes, NULL};

static struct work *work_of(const struct kind *kind, Skerry__V1__ModuleRef *ref)
{
    Skerry__V1__Task t = SKERRY__V1__TASK__INIT;
    struct work *w = NULL;
    t.id = 5;
    t.kind = kind->id;
    t.n_classes = 2;
    t.classes = (char *[]){(char *)"a", (char *)"b"};
    t.modules = (Skerry__V1__ModuleRef *[]){ref};
    t.n_modules = 1;
    t.spec = (char *)"name: tiny\nseed: 3\ndata: {path: x, image_size: 8}\n"
                     "model: {type: dit, patch: 2, dim: 16, depth: 1, heads: 2}\n"
                     "train: {batch: 4, lr: 1e-3}\nouter: {rounds: 3, steps: 6}\n";
    OK(work_new(kinds, &t, cache, top, &w, err));
    return w;
}

/* Initial values of the task's network, from this seed. */
static void hash_of_values(const struct work *w, uint64_t seed, uint8_t ret[32])
{
    struct model *m;
    char *path = in(top, "values");
    OK(task_model(w, w->task->network, &m, err));
    float *flat = model_flat_new(m);
    model_init(m, seed, flat);
    OK(model_save(m, 0, flat, path, ret, NULL, err));
    mem_free(flat);
    model_free(m);
    mem_free(path);
}

/* Only what has the right hash is taken for version 0; all else is fetched. */
static void version_0_is_drawn(void **state)
{
    (void)state;
    for (uint64_t seed = 3; seed <= 4; seed++) {
        struct wanted x;
        uint8_t sha256[32];
        wanted_init(&x);
        x.ref.version = 0;
        x.ref.n_deltas = 0;
        struct work *w = work_of(&reads, &x.ref);
        hash_of_values(w, seed, sha256);
        work_free(w);
        x.ref.sha256.data = x.full.sha256.data = sha256;
        w = work_of(&reads, &x.ref);
        OK(modules_plan(modules, w, err));
        assert_int_equal(w->n_needs, 1);
        assert_memory_equal(w->needs[0].sha256, sha256, 32);
        assert_string_equal(w->needs[0].url, seed == 3 ? "" : "/full");
        assert_int_equal(cache_has(cache, sha256), seed == 3);
        work_free(w);
    }
}

static void made_modules_call_for_nothing(void **state)
{
    (void)state;
    Skerry__V1__ModuleRef ref = SKERRY__V1__MODULE_REF__INIT;
    ref.module_id = 3;
    struct work *w = work_of(&makes, &ref);
    OK(modules_plan(modules, w, err));
    OK(modules_rebuild(modules, w, err));
    assert_int_equal(w->n_needs, 0);
    work_free(w);
}

/* In place of common/outer's: what a delta makes is blob 0, if it is one. */
static bool are_deltas;
static bool written_over; /* by the last call */

int version_apply_delta(const char *full_path, const char *delta_path, uint64_t module_id,
                        uint64_t from, const char *out_path, const char *spare,
                        const uint8_t sha256[HASH_BYTES], uint8_t ret_sha256[HASH_BYTES],
                        struct err *err)
{
    char data[BYTES];
    memset(data, 'a', sizeof(data));
    assert_true(file_exists(full_path) && file_exists(delta_path));
    written_over = spare != NULL && file_exists(spare);
    if (ret_sha256)
        hash_sha256(data, sizeof(data), ret_sha256);
    return are_deltas ? file_write_put(out_path, data, sizeof(data), 0600, err)
                      : err_set(err, -ERR_FORMAT, "%s is no delta", delta_path);
}

/* Of the versions on the way to it none is left: each may be as large as the disk has room. */
static void one_version_after_another(void **state)
{
    (void)state;
    struct wanted x;
    char path[CACHE_PATH_MAX];
    wanted_init(&x);
    for (int i = 1; i < BLOBS; i++)
        blob_add(i);
    hold(3, 4, 1);
    struct work *w = work_of(&reads, &x.ref);
    are_deltas = true;
    OK(modules_rebuild(modules, w, err));
    are_deltas = false;
    assert_true(cache_has(cache, sums[0]));
    for (unsigned to = 5; to <= 7; to++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "module-3-%u", to);
        work_temp_path(w, name, path);
        assert_false(file_exists(path));
    }
    work_free(w);
}

/* A delta that came before a task says of which version it is; what is held stays. */
static void a_version_that_nobody_has_named(void **state)
{
    (void)state;
    char *temp = in(top, "temp");
    blob_add(1);
    blob_add(2);
    FAILS(modules_foresee(modules, 3, 6, sums[2], temp, err),
          "version 6 of module 3 is not held here");
    hold(3, 6, 1);
    FAILS(modules_foresee(modules, 3, 6, sums[2], temp, err), "is no delta");
    assert_false(file_exists(temp) || cache_has(cache, sums[0]));
    are_deltas = true;
    OK(modules_foresee(modules, 3, 6, sums[2], temp, err));
    are_deltas = false;
    assert_false(file_exists(temp));
    OK(cache_check(cache, sums[0], BYTES, err));
    holds(1, (struct modules_version[]){{3, 6}});
    struct wanted x;
    struct named here = {0};
    wanted_init(&x);
    OK(modules_needs(modules, &x.ref, false, name_it, &here, err));
    is(&here, 0, 0, 0, "", "module");
    OK(cache_reserve(cache, 0, err));
    OK(cache_set_limit(cache, BYTES, err)); /* nothing of it is pinned any more */
    mem_free(temp);
}

/* A version is written over the one before it, which has its place in memory and on the disk: not
 * while somebody reads that, and never over the one that it is made of. */
static void a_version_over_an_older_one(void **state)
{
    (void)state;
    char *temp = in(top, "temp"), *spare = in(top, "temp.spare");
    for (int i = 1; i < BLOBS; i++)
        blob_add(i);
    hold(3, 5, 1);
    hold(3, 6, 2);
    are_deltas = true;
    cache_pin(cache, sums[1]);
    OK(modules_foresee(modules, 3, 6, sums[3], temp, err));
    assert_true(!written_over && cache_has(cache, sums[1]));
    cache_unpin(cache, sums[1]);
    OK(modules_foresee(modules, 3, 6, sums[3], temp, err));
    assert_true(written_over && !cache_has(cache, sums[1]) && cache_has(cache, sums[2]));
    OK(modules_foresee(modules, 3, 6, sums[3], temp, err));
    assert_true(!written_over && cache_has(cache, sums[2]));
    assert_false(file_exists(temp) || file_exists(spare));
    blob_add(1); /* the same for a task that names the version, of the last delta alone */
    cache_remove(cache, sums[0]);
    struct wanted x;
    wanted_init(&x);
    struct work *w = work_of(&reads, &x.ref);
    OK(modules_rebuild(modules, w, err));
    assert_true(written_over && !cache_has(cache, sums[1]) && cache_has(cache, sums[2]));
    work_free(w);
    are_deltas = false;
    mem_free(spare);
    mem_free(temp);
}

/* Whatever was wrong, the held version is not built on a second time. */
static void a_version_that_cannot_be_made(void **state)
{
    (void)state;
    struct wanted x;
    wanted_init(&x);
    for (int i = 1; i < BLOBS; i++)
        blob_add(i);
    hold(3, 5, 1);
    struct work *w = work_of(&reads, &x.ref);
    struct err e = {0};
    assert_int_equal(modules_rebuild(modules, w, &e), -ERR_HASH); /* no delta is one */
    assert_int_equal(e.code, -ERR_HASH);
    holds(0, NULL);
    assert_false(cache_has(cache, sums[0]) || cache_has(cache, sums[1]));
    FAILS(modules_rebuild(modules, w, err), "module 3: the version to start from is gone");
    work_free(w);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_version_of_each_over_a_restart),
        TEST(a_broken_file),
        TEST(the_longest_unused_is_forgotten),
        TEST(half_of_the_cache),
        TEST(what_is_here_is_taken),
        TEST(deltas_from_what_is_held),
        TEST(a_damaged_start_is_forgotten),
        TEST(what_cannot_be_had),
        TEST(version_0_is_drawn),
        TEST(made_modules_call_for_nothing),
        TEST(one_version_after_another),
        TEST(a_version_that_nobody_has_named),
        TEST(a_version_over_an_older_one),
        TEST(a_version_that_cannot_be_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
