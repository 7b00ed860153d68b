#include "worker/external/tensors.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/outer/layout.h"
#include "tests/unit/common/base/util.h"

typedef Skerry__Trainer__V1__Tensor tensor_message;

/* A hello of up to 8 tensors. */
struct greeting {
    Skerry__Trainer__V1__Hello hello;
    tensor_message items[8], *list[8];
    uint64_t shapes[8][2];
};

static void greet(struct greeting *g)
{
    skerry__trainer__v1__hello__init(&g->hello);
    g->hello.tensors = g->list;
    g->hello.n_tensors = 0;
}

static tensor_message *add(struct greeting *g, const char *name, int dtype, uint64_t rows,
                           uint64_t columns)
{
    const size_t i = g->hello.n_tensors++;
    g->list[i] = &g->items[i];
    skerry__trainer__v1__tensor__init(g->list[i]);
    g->items[i].name = (char *)(uintptr_t)name;
    g->items[i].dtype = (Skerry__Trainer__V1__Dtype)dtype;
    g->items[i].shape = g->shapes[i];
    g->items[i].n_shape = 2;
    g->shapes[i][0] = rows;
    g->shapes[i][1] = columns;
    return &g->items[i];
}

enum { F32 = SKERRY__TRAINER__V1__DTYPE__DTYPE_F32, BF16, F16, I64, I32 };

static const struct tensors_cut one = {.n_levels = 1};

static int load(const struct tensors *t, const char *path, uint8_t *shared, bool users,
                size_t *count, const uint64_t *seal, struct err *err)
{
    const struct tensors_source from = {.path = path, .users = users, .seal = seal};
    return tensors_load(t, &from, shared, 2, count, err);
}

/* mem_free it. */
static uint64_t *sealed(const struct tensors *t, const uint8_t *shared)
{
    uint64_t *seal = mem_alloc(t->n_pieces * sizeof(*seal));
    tensors_seal(t, -1, shared, 2, seal);
    return seal;
}

static int read_end(const struct tensors_item *item, const uint8_t *shared, const uint64_t *seal,
                    uint64_t first, size_t n, float *out, struct err *err)
{
    const struct tensors_end end = {.item = item, .shared = shared, .seal = seal, .base = -1};
    return tensors_read_end(&end, first, n, out, err);
}

/* Two blocks of 16 bits and 32, a buffer. */
static void model(struct greeting *g, struct tensors *ret)
{
    greet(g);
    (void)add(g, "a.weight", BF16, 3, 1);
    (void)add(g, "b.weight", F32, 2, 5);
    (void)add(g, "b.bias", F16, 1, 5);
    add(g, "b.count", I64, 1, 1)->buffer = true;
    OK(tensors_from_hello(&g->hello, ret, err));
}

static void places_what_is_synchronised(void **state)
{
    struct greeting g;
    struct tensors t;
    model(&g, &t);
    OK(tensors_choose(&t, &(struct job_trainer){0}, &one, err));
    assert_int_equal(tensors_chosen(&t, -1), 3);
    assert_int_equal(t.items[3].level, -1);
    assert_int_equal(t.items[1].offset % 4, 0);
    assert_true(t.items[0].offset > t.items[1].offset); /* the wide ones first */
    assert_int_equal(t.bytes, t.header.len + 40 + 6 + 10);
    assert_ptr_equal(tensors_find(&t, "b.bias"), &t.items[2]);
    assert_null(tensors_find(&t, "c"));
    tensors_release(&t);
}

static void chooses_buffers(void **state)
{
    char *patterns[] = {(char *)(uintptr_t) "b.*"}, *weights[] = {(char *)(uintptr_t) "*.weight"};
    struct job_trainer job = {.buffers = JOB_BUFFERS_MEAN};
    struct greeting g;
    struct tensors t;
    model(&g, &t);
    OK(tensors_choose(&t, &job, &one, err));
    assert_int_equal(tensors_chosen(&t, -1), 4);
    assert_int_equal(t.items[3].offset % 8, 0);
    assert_true(t.items[3].offset < t.items[1].offset); /* the widest first */
    tensors_release(&t);
    job.tensors = (struct conf_strs){patterns, 1};
    model(&g, &t);
    OK(tensors_choose(&t, &job, &one, err));
    assert_int_equal(tensors_chosen(&t, -1), 3);
    tensors_release(&t);
    job.tensors = (struct conf_strs){weights, 1};
    model(&g, &t);
    FAILS(tensors_choose(&t, &job, &one, err), "trainer.buffers is given, but none of");
    tensors_release(&t);
    greet(&g);
    add(&g, "n", I64, 2, 2)->buffer = true;
    OK(tensors_from_hello(&g.hello, &t, err)); /* nothing there is trained */
    FAILS(tensors_choose(&t, &(struct job_trainer){.buffers = JOB_BUFFERS_FIRST}, &one, err),
          "level 0 of 1 has none");
    tensors_release(&t);
}

/* A model of a weight, a mean and two counts, the one of 32 bits without being declared. */
static void with_buffers(enum job_buffers buffers, struct tensors *ret)
{
    struct greeting g;
    greet(&g);
    (void)add(&g, "w", F32, 1, 2);
    add(&g, "mean", BF16, 1, 2)->buffer = true;
    add(&g, "count", I64, 1, 1)->buffer = true;
    (void)add(&g, "order", I32, 1, 3);
    OK(tensors_from_hello(&g.hello, ret, err));
    OK(tensors_choose(ret, &(struct job_trainer){.buffers = buffers}, &one, err));
}

/* Buffers are named in version 0, integers come back as they were and means to the nearest. */
static void keeps_buffers(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "m");
    struct tensors t;
    struct layout l = {0};
    size_t count = 0;
    with_buffers(JOB_BUFFERS_FIRST, &t);
    uint8_t *shared = mem_alloc(t.bytes), *again = mem_alloc(t.bytes);
    int64_t *number = (int64_t *)(void *)(shared + t.items[2].offset);
    int32_t *order = (int32_t *)(void *)(shared + t.items[3].offset);
    *number = ST_EXACT_MAX;
    order[0] = -5;
    order[2] = -ST_EXACT_MAX;
    OK(tensors_save(&t, 0, shared, path, NULL, NULL, err));
    OK(layout_open(path, &l, err));
    const size_t at = (size_t)(st_find(&l.st, "count") - l.st.tensors);
    assert_int_equal(l.role[at], LAYOUT_FIRST);
    assert_false(layout_is_buffer(&l, (size_t)(st_find(&l.st, "w") - l.st.tensors)));
    assert_int_equal(st_dtype_at_home(&l.st, st_find(&l.st, "count")), ST_I64);
    assert_int_equal(st_dtype_at_home(&l.st, st_find(&l.st, "order")), ST_I32);
    OK(load(&t, path, again, false, &count, NULL, err));
    assert_int_equal(count, 4);
    assert_memory_equal(shared + t.header.len, again + t.header.len, t.bytes - t.header.len);
    float end[3];
    OK(read_end(&t.items[3], shared, NULL, 0, 3, end, err));
    assert_true(end[0] == -5 && end[1] == 0 && end[2] == -ST_EXACT_MAX);
    *number = ST_EXACT_MAX + 1;
    FAILS(tensors_save(&t, 0, shared, path, NULL, NULL, err), "count holds 16777217");
    FAILS(read_end(&t.items[2], shared, NULL, 0, 1, end, err), "leave it out by trainer.tensors");
    layout_release(&l);
    mem_free(shared);
    mem_free(again);
    tensors_release(&t);
    free(path);
    scratch_free(dir);
}

/* A file of the user's has integers of their own type. */
static void takes_users_integers(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "m");
    struct tensors t;
    size_t count = 0;
    with_buffers(JOB_BUFFERS_MEAN, &t);
    uint8_t *shared = mem_alloc(t.bytes);
    for (int same = 0; same < 2; same++) {
        struct st_writer *w = st_writer_new();
        const int64_t number = 77;
        OK(st_writer_add(w, "count", same ? ST_I64 : ST_U64, 2, (uint64_t[]){1, 1}, err));
        OK(st_writer_open(w, path, err));
        OK(st_writer_write(w, &number, sizeof(number), err));
        OK(st_writer_commit(w, NULL, NULL, err));
        st_writer_free(w);
        if (!same)
            FAILS(load(&t, path, shared, true, &count, NULL, err), "count is of type U64");
    }
    OK(load(&t, path, shared, true, &count, NULL, err));
    assert_int_equal(*(int64_t *)(void *)(shared + t.items[2].offset), 77);
    mem_free(shared);
    tensors_release(&t);
    free(path);
    scratch_free(dir);
}

static void cuts_levels(void **state)
{
    char *levels[] = {(char *)(uintptr_t) "a.*", (char *)(uintptr_t) "x.* b.w*"};
    const struct tensors_cut cut = {.n_levels = 3, .block_level = {0, 1}, .rest_level = 2};
    const struct job_trainer job = {.levels = {levels, 2}};
    struct greeting g;
    struct tensors t;
    model(&g, &t);
    OK(tensors_choose(&t, &job, &cut, err));
    assert_int_equal(tensors_find(&t, "a.weight")->level, 0);
    assert_int_equal(tensors_find(&t, "b.weight")->level, 1);
    assert_int_equal(tensors_find(&t, "b.bias")->level, 2);
    tensors_release(&t);
}

/* Without trainer.levels: portions of about one size, in order, none of them empty. */
static void cuts_tensors(void **state)
{
    static const struct {
        uint64_t sizes[5];
        int n, levels[5];
    } cases[] = {
        {{10, 10, 10, 10, 10}, 2, {0, 0, 1, 1, 1}},
        {{90, 1, 1, 1, 1}, 3, {0, 1, 2, 2, 2}},
        {{1, 1, 1, 1, 90}, 3, {0, 0, 0, 1, 2}},
        {{1, 1, 1, 1, 1}, 5, {0, 1, 2, 3, 4}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        static const char *const names[] = {"a", "b", "c", "d", "e"};
        const struct tensors_cut cut = {
            .n_levels = cases[i].n, .n_blocks = cases[i].n, .block_level = {0, 1, 2, 3, 4}};
        struct greeting g;
        struct tensors t;
        greet(&g);
        for (int k = 0; k < 5; k++)
            (void)add(&g, names[k], F32, 1, cases[i].sizes[k]);
        OK(tensors_from_hello(&g.hello, &t, err));
        OK(tensors_choose(&t, &(struct job_trainer){0}, &cut, err));
        for (int k = 0; k < 5; k++)
            assert_int_equal(t.items[k].level, cases[i].levels[k]);
        tensors_release(&t);
    }
    const struct tensors_cut many = {.n_levels = 4, .n_blocks = 4, .block_level = {0, 1, 2, 3}};
    struct greeting g;
    struct tensors t;
    model(&g, &t);
    FAILS(tensors_choose(&t, &(struct job_trainer){0}, &many, err), "level 3 of 4 has none");
    tensors_release(&t);
}

/* What is there keeps its share, in double; bits that are kept on this machine come back. */
static void mixes_and_keeps(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "m"), *kept = in(dir, "kept");
    struct greeting g;
    struct tensors t;
    model(&g, &t);
    OK(tensors_choose(&t, &(struct job_trainer){.buffers = JOB_BUFFERS_MEAN}, &one, err));
    uint8_t *shared = mem_alloc(t.bytes), *again = mem_alloc(t.bytes);
    float *w = (float *)(void *)(shared + t.items[1].offset);
    uint16_t *half = (uint16_t *)(void *)(shared + t.items[0].offset);
    int64_t *number = (int64_t *)(void *)(shared + t.items[3].offset);
    for (int i = 0; i < 10; i++)
        w[i] = (float)i / 3;
    half[0] = 0x3f80; /* 1 */
    *number = 4;
    OK(tensors_save(&t, 0, shared, path, NULL, NULL, err));
    for (int i = 0; i < 10; i++)
        w[i] = (float)i * 0.7f;
    half[0] = 0x4040; /* 3 */
    *number = 8;
    const struct tensors_source from = {.path = path, .mix = 0.25};
    size_t count = 0;
    OK(tensors_load(&t, &from, shared, 2, &count, err));
    assert_int_equal(count, 4);
    for (int i = 0; i < 10; i++)
        assert_true(w[i] ==
                    (float)(0.25 * (double)((float)i * 0.7f) + 0.75 * (double)((float)i / 3)));
    assert_int_equal(half[0], 0x3fc0); /* 1.5 */
    assert_int_equal(*number, 5);
    *number = (1ll << 40) + 1; /* which no version has */
    const struct st_meta pair = {(char *)(uintptr_t) "skerry.step", (char *)(uintptr_t) "12"};
    struct st st;
    uint64_t step = 0;
    OK(tensors_keep(&t, shared, &pair, 1, kept, err));
    OK(st_open(kept, &st, err));
    OK(st_meta_number(&st, kept, "skerry.step", &step, err));
    assert_int_equal(step, 12);
    st_release(&st);
    count = 0;
    OK(load(&t, kept, again, true, &count, NULL, err));
    assert_int_equal(count, 4);
    assert_memory_equal(shared + t.header.len, again + t.header.len, t.bytes - t.header.len);
    uint64_t *seal = sealed(&t, again);
    OK(load(&t, kept, again, true, &count, seal, err));
    again[t.items[3].offset] ^= 1;
    FAILS(load(&t, kept, again, true, &count, seal, err), "handed them over (b.count)");
    mem_free(seal);
    mem_free(shared);
    mem_free(again);
    tensors_release(&t);
    free(path);
    free(kept);
    scratch_free(dir);
}

static void refuse(const struct job_trainer *job, const struct tensors_cut *cut, const char *said)
{
    struct greeting g;
    struct tensors t;
    model(&g, &t);
    FAILS(tensors_choose(&t, job, cut, err), said);
    tensors_release(&t);
}

static void refuses_choices(void **state)
{
    char *lora[] = {(char *)(uintptr_t) "*lora*"},
         *twice[] = {(char *)(uintptr_t) "b.*", (char *)(uintptr_t) "*.bias"};
    char *all[] = {(char *)(uintptr_t) "*"};
    const struct tensors_cut two = {.n_levels = 2, .block_level = {0}, .rest_level = 1};
    refuse(&(struct job_trainer){.tensors = {lora, 1}}, &one, "matches none of the trainer's 4");
    refuse(&(struct job_trainer){.levels = {twice, 2}}, &one, "b.bias in entry 0 and in entry 1");
    refuse(&(struct job_trainer){.levels = {all, 1}}, &two, "level 1 of 2 has none");
}

static void refuses_hellos(void **state)
{
    static const struct {
        const char *name, *said;
        int dtype;
        uint64_t rows;
    } cases[] = {
        {"", "expected 1 to 255 bytes", F32, 1},
        {"a\xff", "of UTF-8", F32, 1},
        {"x", "there twice", F32, 1},
        {"y", "has dtype 9", 9, 1},
        {"z", "has a side of 0", F32, 0},
        {"z", "has a side of", F32, 1ull << 41},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct greeting g;
        struct tensors t;
        greet(&g);
        (void)add(&g, "x", F32, 1, 1);
        (void)add(&g, cases[i].name, cases[i].dtype, cases[i].rows, 1);
        FAILS(tensors_from_hello(&g.hello, &t, err), cases[i].said);
    }
    struct greeting g;
    struct tensors t;
    greet(&g);
    FAILS(tensors_from_hello(&g.hello, &t, err), "0 tensors");
    (void)add(&g, "n", I64, 2, 2);
    OK(tensors_from_hello(&g.hello, &t, err));
    FAILS(tensors_choose(&t, &(struct job_trainer){0}, &one, err),
          "or say what becomes of it by trainer.buffers");
    tensors_release(&t);
}

/* Every half-precision number comes back from a module file as it was; and what did not change is
 * no contribution. */
static void keeps_values(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "m");
    struct greeting g;
    struct tensors t;
    greet(&g);
    (void)add(&g, "h", F16, 1, 63488); /* all finite ones: 2 x 31 x 1024 */
    (void)add(&g, "b", BF16, 1, 4);
    OK(tensors_from_hello(&g.hello, &t, err));
    OK(tensors_choose(&t, &(struct job_trainer){0}, &one, err));
    uint8_t *shared = mem_alloc(t.bytes), *again = mem_alloc(t.bytes), sha256[HASH_BYTES];
    uint16_t *h = (uint16_t *)(void *)(shared + t.items[0].offset);
    for (unsigned i = 0; i < 63488; i++)
        h[i] = (uint16_t)(i < 31744 ? i : 0x8000 + i - 31744);
    uint64_t bytes = 0;
    size_t count = 0;
    OK(tensors_save(&t, 0, shared, path, sha256, &bytes, err));
    OK(load(&t, path, again, false, &count, NULL, err));
    uint64_t *seal = sealed(&t, again);
    OK(load(&t, path, again, false, &count, seal, err));
    assert_int_equal(count, 4);
    assert_memory_equal(shared + t.header.len, again + t.header.len, t.bytes - t.header.len);
    again[t.items[1].offset] ^= 1;
    FAILS(load(&t, path, again, false, &count, seal, err), "after it had handed them over (b)");
    mem_free(seal);
    h[5] = 0x7e00;
    FAILS(tensors_save(&t, 0, shared, path, sha256, &bytes, err), "no finite number");
    mem_free(shared);
    mem_free(again);
    tensors_release(&t);
    free(path);
    scratch_free(dir);
}

/* A bit of any piece, the last byte among them; a level of which nothing is sealed has no say. */
static void notices_every_bit(void **state)
{
    struct greeting g;
    struct tensors t;
    float *out = mem_alloc(TENSORS_PIECE * sizeof(*out));
    greet(&g);
    (void)add(&g, "a", F32, 2 * TENSORS_PIECE / 4 + 1, 4);
    (void)add(&g, "b", F32, 1, 3);
    OK(tensors_from_hello(&g.hello, &t, err));
    OK(tensors_choose(&t, &(struct job_trainer){0}, &one, err));
    assert_int_equal(t.n_pieces, 4);
    uint8_t *shared = mem_alloc(t.bytes);
    uint64_t *seal = sealed(&t, shared);
    const struct tensors_item *a = &t.items[0], *b = &t.items[1];
    const uint64_t at[] = {0, 4ull * TENSORS_PIECE + 9, a->count * 4 - 1};
    for (size_t i = 0; i < COUNT(at); i++) {
        const size_t n = i < 2 ? TENSORS_PIECE : 4;
        OK(read_end(a, shared, seal, i * TENSORS_PIECE, n, out, err));
        for (int bit = 0; bit < 8; bit++) {
            shared[a->offset + at[i]] ^= (uint8_t)(1 << bit);
            FAILS(read_end(a, shared, seal, i * TENSORS_PIECE, n, out, err),
                  "handed them over (a)");
            OK(read_end(b, shared, seal, 0, 3, out, err));
            shared[a->offset + at[i]] ^= (uint8_t)(1 << bit);
        }
    }
    memset(shared + a->offset, 1, 8); /* of another level: what was sealed of this one stands */
    tensors_seal(&t, 1, shared, 2, seal);
    FAILS(read_end(a, shared, seal, 0, TENSORS_PIECE, out, err), "handed them over (a)");
    tensors_seal(&t, 0, shared, 2, seal);
    OK(read_end(a, shared, seal, 0, TENSORS_PIECE, out, err));
    mem_free(seal);
    mem_free(shared);
    mem_free(out);
    tensors_release(&t);
}

static void only_changes_count(void **state)
{
    static const float began[3] = {1.00390625f, -2, 0.1f}; /* between two numbers of 8 bits */
    char *dir = scratch_new(), *path = in(dir, "m");
    struct greeting g;
    struct tensors t;
    greet(&g);
    (void)add(&g, "b", BF16, 1, 3);
    OK(tensors_from_hello(&g.hello, &t, err));
    OK(tensors_choose(&t, &(struct job_trainer){0}, &one, err));
    struct st_writer *w = st_writer_new();
    OK(st_writer_add(w, "b", ST_F32, 2, (uint64_t[]){1, 3}, err));
    OK(st_writer_open(w, path, err));
    OK(st_writer_write(w, began, sizeof(began), err));
    OK(st_writer_commit(w, NULL, NULL, err));
    st_writer_free(w);
    uint8_t *shared = mem_alloc(t.bytes);
    size_t count = 0;
    struct st st;
    float end[3];
    OK(load(&t, path, shared, false, &count, NULL, err));
    OK(st_open(path, &st, err));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const struct tensors_end from = {
        .item = &t.items[0], .shared = shared, .base = fd, .from = &st.tensors[0]};
    OK(tensors_read_end(&from, 0, 3, end, err));
    assert_memory_equal(end, began, sizeof(began));
    shared[t.items[0].offset + 2] += 1; /* the next number after -2: -2.015625 */
    OK(tensors_read_end(&from, 1, 1, end, err));
    assert_true(end[0] == -2.015625f);
    (void)close(fd);
    st_release(&st);
    mem_free(shared);
    tensors_release(&t);
    free(path);
    scratch_free(dir);
}

static void refuses_files(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "m");
    struct greeting g, other, third;
    struct tensors t, wider, foreign;
    model(&g, &t);
    greet(&third);
    (void)add(&third, "q", F32, 1, 1);
    OK(tensors_from_hello(&third.hello, &foreign, err));
    OK(tensors_choose(&foreign, &(struct job_trainer){0}, &one, err));
    greet(&other);
    (void)add(&other, "a.weight", BF16, 3, 2);
    (void)add(&other, "new", F32, 1, 1);
    OK(tensors_from_hello(&other.hello, &wider, err));
    OK(tensors_choose(&t, &(struct job_trainer){0}, &one, err));
    OK(tensors_choose(&wider, &(struct job_trainer){0}, &one, err));
    uint8_t *shared = mem_alloc(wider.bytes), *ours = mem_alloc(t.bytes);
    size_t count = 0;
    OK(tensors_save(&wider, 0, shared, path, NULL, NULL, err));
    FAILS(load(&t, path, ours, false, &count, NULL, err),
          "a.weight is (3, 1), but in version 0 it");
    FAILS(load(&t, path, ours, true, &count, NULL, err), "a.weight is (3, 1)");
    OK(tensors_save(&foreign, 0, shared, path, NULL, NULL, err));
    FAILS(load(&t, path, ours, false, &count, NULL, err), "does not have");
    count = 0;
    OK(load(&t, path, ours, true, &count, NULL, err)); /* a user's file may hold more */
    assert_int_equal(count, 0);
    mem_free(shared);
    mem_free(ours);
    tensors_release(&t);
    tensors_release(&wider);
    tensors_release(&foreign);
    free(path);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_what_is_synchronised),
        cmocka_unit_test(chooses_buffers),
        cmocka_unit_test(keeps_buffers),
        cmocka_unit_test(takes_users_integers),
        cmocka_unit_test(cuts_levels),
        cmocka_unit_test(cuts_tensors),
        cmocka_unit_test(mixes_and_keeps),
        cmocka_unit_test(refuses_choices),
        cmocka_unit_test(refuses_hellos),
        cmocka_unit_test(keeps_values),
        cmocka_unit_test(notices_every_bit),
        cmocka_unit_test(only_changes_count),
        cmocka_unit_test(refuses_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
