/* Folders of frozen networks, made up: every tensor there, of values that repeat. */
#ifndef TESTS_UNIT_COMPONENTS_H
#define TESTS_UNIT_COMPONENTS_H

#include "tests/unit/common/base/util.h"

#include "common/base/file.h"
#include "common/component/component_impl.h"

/* How the tensors of a folder are to be written. */
struct made {
    enum st_dtype dtype;
    bool older;          /* by their older names */
    const char *without; /* a tensor that is left out */
    const char *wider;   /* one whose first dimension is one more */
    const char *also;    /* one that is there besides (1) */
    const char *nan;     /* one that holds an infinity */
    int piece, pieces;   /* every so manieth tensor, of so many */
    /* of one folder */
    struct st_writer *w;
    int at;
};

static inline void component_write_text(const char *folder, const char *name, const char *text)
{
    char *path = file_join(folder, name);
    OK(file_write_atomic(path, text, strlen(text), 0600, err));
    mem_free(path);
}

static inline const char *component_made_spelled(const struct made *m,
                                                 const struct component_want *w)
{
    return m->older && w->other ? w->other : w->name;
}

static inline bool component_made_mine(struct made *m, const struct component_want *w)
{
    const bool here = m->pieces == 0 || m->at++ % m->pieces == m->piece;
    return here && !(m->without && strcmp(m->without, w->name) == 0);
}

static inline int component_made_declare(void *arg, const struct component_want *w)
{
    struct made *m = arg;
    uint64_t shape[4];
    memcpy(shape, w->shape, sizeof shape);
    if (m->wider && strcmp(m->wider, w->name) == 0)
        shape[0]++;
    return component_made_mine(m, w)
               ? st_writer_add(m->w, component_made_spelled(m, w), m->dtype, w->rank, shape, NULL)
               : 0;
}

static inline int component_made_fill(void *arg, const struct component_want *w)
{
    struct made *m = arg;
    uint64_t n = 1;
    for (unsigned i = 0; i < w->rank; i++)
        n *= w->shape[i] + (i == 0 && m->wider && strcmp(m->wider, w->name) == 0);
    const bool bad = m->nan && strcmp(m->nan, w->name) == 0, here = component_made_mine(m, w);
    static const float f32s[] = {0, 0.25f, -0.5f, 0.75f, -1, 1.25f, -1.5f};
    static const uint16_t halves[] = {0, 0x3400, 0xb800, 0x3a00, 0xbc00, 0x3d00, 0xbe00};
    static const uint16_t brains[] = {0, 0x3e80, 0xbf00, 0x3f40, 0xbf80, 0x3fa0, 0xbfc0};
    const uint16_t *narrow = m->dtype == ST_F16 ? halves : brains;
    const bool wide = m->dtype == ST_F32;
    const size_t each = wide ? 4 : 2;
    char some[7 * 256 * 4]; /* a call for each value would take longer than many a test */
    for (size_t i = 0; i < sizeof some / each; i++) {
        const float f32 = bad ? INFINITY : f32s[i % 7];
        memcpy(some + i * each, wide ? (const void *)&f32 : &narrow[i % 7], each);
    }
    for (uint64_t left = here ? n * each : 0, len; left > 0; left -= len) {
        len = left < sizeof some ? left : sizeof some;
        assert_int_equal(st_writer_write(m->w, some, len, NULL), 0);
    }
    return 0;
}

/* NAME in the folder: all tensors that such a config.json asks for. */
static inline void component_write_weights(const char *folder, const char *config, const char *name,
                                           struct made m)
{
    struct component c = {0};
    struct err err = {0};
    char *path = file_join(folder, name);
    m.dtype = m.dtype ? m.dtype : ST_F32;
    m.w = st_writer_new();
    if (component_config("x", config, strlen(config), COMPONENT_ANY, &c, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(component_wants(&c, component_made_declare, &m), 0);
    if (m.also)
        assert_int_equal(st_writer_add(m.w, m.also, m.dtype, 1, (uint64_t[]){1}, NULL), 0);
    assert_int_equal(st_writer_open(m.w, path, NULL), 0);
    m.at = 0;
    assert_int_equal(component_wants(&c, component_made_fill, &m), 0);
    if (m.also)
        assert_int_equal(st_writer_write(m.w, &(float){0}, st_dtype_bytes(m.dtype), NULL), 0);
    assert_int_equal(st_writer_commit(m.w, NULL, NULL, NULL), 0);
    st_writer_free(m.w);
    mem_free(path);
}

#endif
