/* Blobs against a layout: what is written is read, and what belongs to another module, version
 * or codec is refused with its reason. */
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>

#include "common/outer/wire.h"

#define SAMPLES 41

/* A module with a contribution of it. */
struct sent {
    struct fixture f;
    struct layout layout;
    char *blob;
    float *end;
};

static void sent_begin(struct sent *s, enum codec codec)
{
    struct err err = {0};
    fx_begin(&s->f);
    s->end = fx_array();
    fx_normal(5, 0.01f, s->end);
    s->blob = fx_path(&s->f, "c");
    fx_contribute(s->f.full, 0, s->end, codec, SAMPLES, s->blob);
    assert_int_equal(layout_open(s->f.full, &s->layout, &err), 0);
}

static void sent_end(struct sent *s)
{
    layout_release(&s->layout);
    mem_free(s->blob);
    free(s->end);
    fx_end(&s->f);
}

static struct wire_info expected(enum codec codec)
{
    return (struct wire_info){.kind = WIRE_CONTRIBUTION, .codec = codec, .module_id = MODULE};
}

/* Opening must fail so, with a sentence that has `why`. */
static void refused(const char *path, const struct wire_info *want, const struct layout *layout,
                    int code, const char *why)
{
    struct err err = {0};
    struct wire w = {.fd = -1};
    int rc = wire_open(path, want, layout, &w, &err);
    if (rc != code || !strstr(err.msg, why))
        fail_msg("%d \"%s\", expected %d \"%s\"", rc, err.msg, code, why);
    assert_int_equal(w.fd, -1);
}

/* Puts `to`, which is as long, in the place of `from` in the file's header. */
static void patch(const char *path, const char *from, const char *to)
{
    struct err err = {0};
    struct buf b;
    size_t len = strlen(from);
    assert_int_equal(len, strlen(to));
    assert_int_equal(file_read(path, 64 << 20, &b, &err), 0);
    uint8_t *at = memmem(b.data, b.len, from, len);
    if (!at)
        fail_msg("no %s in %s", from, path);
    memcpy(at, to, len);
    assert_int_equal(file_write_atomic(path, b.data, b.len, 0600, &err), 0);
    buf_release(&b);
}

static void values_are_read_in_pieces(void **state)
{
    struct sent s;
    struct err err = {0};
    struct wire w;
    struct wire_info want = expected(CODEC_F32);
    sent_begin(&s, CODEC_F32);
    assert_int_equal(wire_open(s.blob, &want, &s.layout, &w, &err), 0);
    assert_int_equal(w.info.samples, SAMPLES);
    assert_int_equal(w.n_tensors, SHAPES);
    float got[2 * CODEC_BLOCK];
    for (size_t t = 0; t < SHAPES; t++) {
        uint64_t count = s.layout.st.tensors[t].count;
        uint64_t first = count > CODEC_BLOCK ? CODEC_BLOCK : 0;
        size_t n = count - first < 2 * CODEC_BLOCK ? (size_t)(count - first) : 2 * CODEC_BLOCK;
        assert_int_equal(wire_read(&w, t, first, n, got, NULL, &err), 0);
        assert_memory_equal(got, s.end + layout_first(&s.layout, t) + first, n * sizeof *got);
    }
    wire_close(&w);
    assert_int_equal(w.fd, -1);
    wire_close(&w); /* twice is fine */
    wire_close(NULL);
    sent_end(&s);
}

/* The pieces of a delta, last tensor first: the order of writing does not matter. */
static void write_delta(const struct sent *s, const struct wire_info *info, const char *path)
{
    struct err err = {0};
    struct file_out out;
    struct wire_out w;
    uint8_t payload[FOLD_CHUNK];
    uint16_t scales[FOLD_CHUNK / CODEC_BLOCK];
    assert_int_equal(file_out_open(&out, path, 0600, &err), 0);
    assert_int_equal(wire_out_open(&w, &out, info, &s->layout, &err), 0);
    for (size_t t = SHAPES; t-- > 0;) {
        uint64_t count = s->layout.st.tensors[t].count;
        for (uint64_t first = 0; first < count; first += FOLD_CHUNK) {
            size_t n = count - first < FOLD_CHUNK ? (size_t)(count - first) : FOLD_CHUNK;
            memset(payload, (int)(t + 1), sizeof payload);
            for (size_t b = 0; b < codec_scales(info->codec, n); b++)
                scales[b] = (uint16_t)(0x100 * t + b + first / CODEC_BLOCK);
            assert_int_equal(wire_out_write(&w, t, first, n, payload, scales, &err), 0);
        }
    }
    uint64_t bytes = w.bytes, size;
    wire_out_release(&w);
    assert_int_equal(file_out_commit(&out, &err), 0);
    struct buf b;
    assert_int_equal(file_read(path, 64 << 20, &b, &err), 0);
    size = b.len;
    buf_release(&b);
    assert_int_equal(size, bytes);
}

static void scales_stand_with_their_blocks(void **state)
{
    static const enum codec codecs[] = {CODEC_INT8, CODEC_E3M0};
    struct sent s;
    sent_begin(&s, CODEC_F32);
    char *path = fx_path(&s.f, "d");
    for (size_t i = 0; i < 2; i++) {
        struct wire_info info = {
            .kind = WIRE_DELTA, .codec = codecs[i], .module_id = MODULE, .base = 3, .version = 4};
        struct err err = {0};
        struct wire w;
        uint8_t payload[2 * CODEC_BLOCK];
        uint16_t scales[2];
        write_delta(&s, &info, path);
        assert_int_equal(wire_open(path, &info, &s.layout, &w, &err), 0);
        assert_int_equal(w.info.version, 4);
        /* The longest tensor, beyond its first chunk. */
        uint64_t first = FOLD_CHUNK + CODEC_BLOCK;
        assert_int_equal(wire_read(&w, 5, first, 2 * CODEC_BLOCK, payload, scales, &err), 0);
        for (size_t b = 0; b < 2; b++)
            assert_int_equal(scales[b], 0x500 + first / CODEC_BLOCK + b);
        for (size_t j = 0; j < codec_payload_bytes(codecs[i], 2 * CODEC_BLOCK); j++)
            assert_int_equal(payload[j], 6);
        /* 771 elements: three blocks and a short one. */
        assert_int_equal(wire_read(&w, 3, 768, 3, payload, scales, &err), 0);
        assert_int_equal(scales[0], 0x303);
        assert_int_equal(payload[0], 4);
        wire_close(&w);
    }
    mem_free(path);
    sent_end(&s);
}

static void another_blob_than_the_wanted_one_is_refused(void **state)
{
    struct sent s;
    sent_begin(&s, CODEC_BF16);
    struct wire_info want = expected(CODEC_BF16);
    want.kind = WIRE_DELTA;
    refused(s.blob, &want, &s.layout, -ERR_FORMAT, "is a contribution, expected a delta");
    want = expected(CODEC_E3M0);
    refused(s.blob, &want, &s.layout, -ERR_FORMAT, "is coded as bf16, but the job file says e3m0");
    want = expected(CODEC_BF16);
    want.module_id = 8;
    refused(s.blob, &want, &s.layout, -ERR_FORMAT, "is of module 7, expected module 8");
    want = expected(CODEC_BF16);
    want.base = 2;
    refused(s.blob, &want, &s.layout, -ERR_STALE, "starts from version 0, expected version 2");
    char *path = fx_path(&s.f, "d");
    struct wire_info delta = {
        .kind = WIRE_DELTA, .codec = CODEC_BF16, .module_id = MODULE, .base = 3, .version = 5};
    struct file_out out;
    struct wire_out w;
    struct err err = {0};
    assert_int_equal(file_out_open(&out, path, 0600, &err), 0);
    assert_int_equal(wire_out_open(&w, &out, &delta, &s.layout, &err), 0);
    const uint16_t last = 0; /* the file is as long as its header says */
    assert_int_equal(wire_out_write(&w, 5, 66559, 1, &last, NULL, &err), 0);
    wire_out_release(&w);
    assert_int_equal(file_out_commit(&out, &err), 0);
    refused(path, &delta, &s.layout, -ERR_FORMAT,
            "leads from version 3 to 5, expected the next one");
    mem_free(path);
    sent_end(&s);
}

static void metadata_must_make_sense(void **state)
{
    static const struct {
        const char *from, *to, *why;
    } cases[] = {
        {"skerry.kind", "skerry.kimd",
         "has no skerry.kind in its metadata: it is not a blob of Skerry"},
        {"\"contribution\"", "\"contributiom\"",
         "skerry.kind is \"contributiom\", expected contribution or delta"},
        {"\"bf16\"", "\"bf17\"", "skerry.codec is \"bf17\", expected f32, bf16, int8 or e3m0"},
        {"\"bf16\"", "\"int8\"", "is coded as int8, but the job file says bf16"},
        {"\"difference\"", "\"difierence\"",
         "skerry.encoding is \"difierence\", bf16 has \"difference\""},
        {"\"41\"", "\"4x\"", "skerry.samples is \"4x\", expected a number"},
        {"\"41\"", "\"-1\"", "skerry.samples is \"-1\", expected a number"},
        {"skerry.base", "skerry.bare", "has no skerry.base in its metadata"},
        {"\"y.table\"", "\"y.tabla\"", "tensor y.tabla is in the place of y.table"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sent s;
        struct wire_info want = expected(CODEC_BF16);
        sent_begin(&s, CODEC_BF16);
        patch(s.blob, cases[i].from, cases[i].to);
        refused(s.blob, &want, &s.layout, -ERR_FORMAT, cases[i].why);
        sent_end(&s);
    }
}

static void tensors_must_be_those_of_the_module(void **state)
{
    struct sent s;
    struct err err = {0};
    sent_begin(&s, CODEC_BF16);
    struct wire_info want = expected(CODEC_BF16);
    struct layout other = s.layout;
    other.st.n_tensors--;
    refused(s.blob, &want, &other, -ERR_FORMAT, "has 6 tensors, expected 5");
    struct st_tensor *tensor = &s.layout.st.tensors[3];
    tensor->shape[0] = 3;
    tensor->shape[1] = 257;
    refused(s.blob, &want, &s.layout, -ERR_FORMAT,
            "tensor blocks.0.weight does not have the module's shape");
    char *absent = fx_path(&s.f, "absent");
    refused(absent, &want, &s.layout, -ENOENT, absent);
    struct wire_info info;
    assert_int_equal(wire_info_read(s.blob, &info, &err), 0);
    assert_int_equal(info.kind, WIRE_CONTRIBUTION);
    assert_int_equal(info.codec, CODEC_BF16);
    assert_int_equal(info.module_id, MODULE);
    assert_int_equal(info.samples, SAMPLES);
    assert_int_equal(wire_info_read(s.f.full, &info, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "not a blob of Skerry"));
    mem_free(absent);
    sent_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_in_pieces),
        cmocka_unit_test(scales_stand_with_their_blocks),
        cmocka_unit_test(another_blob_than_the_wanted_one_is_refused),
        cmocka_unit_test(metadata_must_make_sense),
        cmocka_unit_test(tensors_must_be_those_of_the_module),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
