/* ENCODE: a shard of pictures becomes one of latents, sample by sample. */
#include "tests/unit/worker/encoded_task.h"

#include "common/base/hash.h"
#include "common/data/moments.h"

#define ENCODE SKERRY__V1__TASK_KIND__TASK_KIND_ENCODE
#define SPEC_OF(flip) ENCODED_SPEC(", flip: " flip, "")

enum { PICTURES = 40, BAD = 33, VALUES = 2 * 4 * 4 * 4 }; /* more than one batch */

static struct test_shard pictures;

struct encode_order {
    struct order o;
    Skerry__V1__EncodeTask encode;
    struct encoded encoded;
};

static void encode_init(struct encode_order *e, const char *spec)
{
    order_init(&e->o, ENCODE, spec, &pictures, 1);
    skerry__v1__encode_task__init(&e->encode);
    encoded_order(&e->encoded, &e->o, false);
    e->o.range[0].count = PICTURES;
    e->encode.range = &e->o.range[0];
    e->o.task.encode = &e->encode;
}

/* Sample i of the result: it is the picture's, with moments or with why it has none. */
static void check_sample(const struct shard *from, const struct shard *to, unsigned i,
                         uint32_t sides, uint16_t values[2][VALUES])
{
    const struct shard_sample *was = &from->samples[i], *s = &to->samples[i];
    struct moments m;
    char key[SHARD_KEY_MAX + 8];
    (void)snprintf(key, sizeof(key), "%06u-%s", i, was->key);
    assert_string_equal(s->key, key);
    assert_string_equal(s->ext, "lat");
    assert_int_equal(s->cls, was->cls);
    assert_int_equal(s->captions_len, was->captions_len);
    if (s->captions_len > 0)
        assert_memory_equal(s->captions, was->captions, s->captions_len);
    assert_true(moments_parse(s->data, s->len, &m));
    assert_true(m.key == data_content_key(was->data, was->len));
    assert_int_equal(m.sides, i == BAD ? 0 : sides);
    if (i == BAD) {
        char why[257];
        moments_why(s->data, &m, why, sizeof(why));
        assert_true(why[0] != '\0');
        return;
    }
    assert_true(m.values == VALUES && m.height == 4 && m.width == 4);
    for (uint32_t side = 0; side < sides; side++)
        assert_true(moments_decode(s->data, &m, side, values[side]));
}

/* With mirrored sides the first ones are those without. */
static void every_sample_in_its_place(void **state)
{
    static uint16_t plain[PICTURES][2][VALUES], both[PICTURES][2][VALUES];
    struct shard from;
    OK(shard_open(pictures.path, &from, err));
    for (int flip = 0; flip < 2; flip++) {
        struct encode_order e;
        struct shard to;
        encode_init(&e, flip ? SPEC_OF("true") : SPEC_OF("false"));
        struct work *w = run(&e.o);
        const struct work_output *o = output_of(w, WORK_SHARD);
        uint8_t sha256[32];
        uint64_t size;
        OK(hash_file(o->path, sha256, &size, err));
        assert_memory_equal(o->sha256, sha256, 32);
        assert_true(o->size == size && o->samples == PICTURES);
        assert_int_equal(w->result.samples, PICTURES - 1);
        OK(shard_open(o->path, &to, err));
        assert_true(to.n == PICTURES && to.kind == SHARD_LATENTS);
        for (unsigned i = 0; i < PICTURES; i++)
            check_sample(&from, &to, i, 1 + (uint32_t)flip, flip ? both[i] : plain[i]);
        shard_close(&to);
        work_free(w);
    }
    for (unsigned i = 0; i < PICTURES; i++) {
        if (i == BAD)
            continue;
        assert_memory_equal(both[i][0], plain[i][0], sizeof(plain[i][0]));
        assert_memory_not_equal(both[i][1], both[i][0], sizeof(plain[i][0]));
        if (i > 0 && i - 1 != BAD)
            for (int side = 0; side < 2; side++)
                assert_memory_not_equal(both[i][side], both[i - 1][side], sizeof(plain[i][0]));
    }
    shard_close(&from);
}

static void what_it_cannot_encode(void **state)
{
    struct encode_order e;
    struct work *w = NULL;
    encode_init(&e, SPEC_OF("false"));
    e.o.range[0].count = PICTURES - 1;
    fails(&e.o, -ERR_FORMAT, "encode.range is not the whole shard of 40 samples");
    encode_init(&e, SPEC_OF("false"));
    e.o.range[0].start = 1;
    e.o.range[0].count = PICTURES - 1;
    fails(&e.o, -ERR_FORMAT, "is not the whole shard");
    e.o.task.n_encoders = 0;
    e.o.task.input = NULL;
    fails(&e.o, -ERR_FORMAT, "encode without a VAE");
    e.encode.range = NULL;
    FAILS(work_new(kinds_all, &e.o.task, host.cache, top, &w, err), "encode.range is missing");
    /* Latents are encoded already. */
    struct encode_order first;
    encode_init(&first, SPEC_OF("false"));
    w = run(&first.o);
    const struct work_output *o = output_of(w, WORK_SHARD);
    uint8_t latents[32];
    memcpy(latents, o->sha256, 32);
    host_put(&host, o->path, latents);
    encode_init(&e, SPEC_OF("false"));
    e.o.shard[0].sha256.data = latents;
    e.o.shard[0].size = o->size;
    work_free(w);
    fails(&e.o, -ERR_FORMAT, "encode.range is of latents already");
}

/* Another job's replica goes where the VAE needs its memory. */
static void beside_a_replica(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        struct encode_order e;
        keep_replica(wide ? 64 << 20 : 1 << 10);
        encode_init(&e, SPEC_OF("false"));
        work_free(run(&e.o));
        assert_int_equal(refusals, 0);
        assert_int_equal(kept_replica_was_there(), wide);
    }
}

static int begin(void **state)
{
    (void)encoded_setup(state);
    pictures = shard_make(top, 9, PICTURES, 5, BAD);
    host_put(&host, pictures.path, pictures.sha256);
    return 0;
}

static int end(void **state)
{
    mem_free(pictures.path);
    return encoded_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_in_its_place),
        cmocka_unit_test(what_it_cannot_encode),
        cmocka_unit_test(beside_a_replica),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
