/* A look at a step that a worker has made: what it believes, and what it reads for that. */
#include "tests/unit/common/outer/fixture.h"

#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/net/blobstore.h"
#include "common/outer/fold_check.h"
#include "coordinator/outer/outer_claim.h"

#define K 3
#define OUTS 5 /* without a buffer */

/* Files under their hashes, which can be read and nothing else; counts how. */
struct shelf {
    struct blobstore base;
    struct {
        struct blob_id id;
        const char *path;
    } files[K + 1 + OUTS + 1];
    size_t n;
    _Atomic uint64_t bytes, headers; /* headers: of contributions */
};

static int shelf_read(struct blobstore *base, const struct blob_id *id, uint64_t from, void *data,
                      size_t len, struct err *err)
{
    struct shelf *s = (struct shelf *)base;
    for (size_t i = 0; i < s->n; i++) {
        if (!blob_id_equal(&s->files[i].id, id))
            continue;
        s->bytes += len;
        s->headers += from == 0 && strstr(s->files[i].path, "/c") != NULL;
        const int fd = open(s->files[i].path, O_RDONLY);
        assert_true(fd >= 0);
        const int rc = file_pread_all(fd, data, len, from, s->files[i].path, err);
        (void)close(fd);
        return rc;
    }
    return err_set(err, -ERR_NOTFOUND, "no such file on the shelf");
}

static struct blob_ref put(struct shelf *s, const char *path)
{
    struct blob_ref b = {0};
    assert_int_equal(hash_file(path, b.sha256, &b.size, NULL), 0);
    memcpy(s->files[s->n].id.sha256, b.sha256, sizeof(b.sha256));
    s->files[s->n++].path = path;
    return b;
}

struct bench {
    struct fixture f;
    struct shelf shelf;
    struct outer_contribution given[K];
    struct fold_input in[K];
    struct fx_out out;
    char *squares;
    uint64_t cells;
    double scale; /* that it was made with */
    struct fold_step step;
    struct outer_step s;
};

/* As a worker makes it. */
static void make(struct bench *b)
{
    struct fold_cells cells = {.fd = open(b->squares, O_RDWR | O_CREAT | O_TRUNC, 0600)};
    for (size_t i = 0; i < K; i++) {
        struct err err = {0};
        struct fold_norm norm;
        if (fold_check_cells(b->in[i].path, &b->in[i].origin, MODULE, cells.fd, cells.at, &norm,
                             &err) < 0)
            fail_msg("%s", err.msg);
        b->in[i].norm = norm.norm;
        cells.at += norm.cells * sizeof(double);
        b->cells = norm.cells;
    }
    b->step.mean = &cells;
    fx_out_begin(&b->f, "made", &b->step, &b->out);
    b->scale = fx_fold(&b->step).scale;
    b->step.mean = NULL;
    (void)close(cells.fd);
}

static void begin(struct bench *b, enum codec up, bool keep_norm)
{
    static const struct blobstore_ops ops = {.read = shelf_read};
    float *end = fx_array();
    memset(b, 0, sizeof(*b));
    b->shelf.base.ops = &ops;
    fx_begin(&b->f);
    for (uint64_t i = 0; i < K; i++) {
        char *path = str_printf("%s/c%d", b->f.dir, (int)i);
        fx_normal(40 + i, 1e-3f, end);
        for (size_t j = 0; j < PARAMS; j++)
            end[j] = b->f.theta[j] - end[j];
        fx_contribute(b->f.full, 0, end, up, 8, path);
        b->in[i] = (struct fold_input){.path = path, .weight = 1 + (double)i};
    }
    free(end);
    b->squares = fx_path(&b->f, "squares");
    b->step = fx_step(&b->f, b->in, K, up, CODEC_E3M0);
    b->step.keep_norm = keep_norm;
    b->step.scale = keep_norm ? 2 : 1;
}

/* What is on the disk now is what the worker claims. */
static void claim(struct bench *b, enum codec up)
{
    struct outer_claim *c = &b->s.claim;
    b->shelf.n = 0;
    b->s = (struct outer_step){.module_id = MODULE,
                               .state_dir = b->f.dir,
                               .old[OUTER_FULL] = put(&b->shelf, b->f.full),
                               .down = CODEC_E3M0,
                               .keep_norm = b->step.keep_norm,
                               .contributions = b->given,
                               .n_contributions = K};
    for (size_t i = 0; i < K; i++)
        b->given[i] = (struct outer_contribution){.blob = put(&b->shelf, b->in[i].path),
                                                  .codec = up,
                                                  .samples = 8,
                                                  .weight = b->in[i].weight};
    for (size_t i = 0; i < OUTS; i++)
        c->made[i] = put(&b->shelf, b->out.path[i]);
    c->squares = put(&b->shelf, b->squares);
}

static void made(struct bench *b, enum codec up, bool keep_norm)
{
    begin(b, up, keep_norm);
    make(b);
    claim(b, up);
}

static void end(struct bench *b)
{
    for (size_t i = 0; i < K; i++)
        mem_free((char *)(uintptr_t)b->in[i].path);
    fx_out_end(&b->out);
    mem_free(b->squares);
    fx_end(&b->f);
}

static int look(struct bench *b, struct err *err)
{
    struct fold_step like = b->step;
    struct outer_look seen = {0};
    like.full = like.full_out = like.delta_out = like.ema_out = NULL;
    like.target_out = like.mom_out = like.buf_out = NULL;
    like.inputs = NULL;
    like.n_inputs = 0;
    b->shelf.bytes = b->shelf.headers = 0;
    const int rc = outer_claim_look(&b->shelf.base, &b->s, &like, &seen, err);
    assert_true(rc < 0 || (seen.params == PARAMS && seen.scale == b->scale));
    return rc;
}

/* A good step is believed, each norm is that of the contribution, what kept the norm has the bits
 * with which it was made, and no header of a contribution is read. */
static void believes_what_is_so(void **state)
{
    for (int i = 0; i < 2 * CODEC_COUNT; i++) {
        const int up = i / 2;
        struct bench b;
        struct err err = {0};
        made(&b, (enum codec)up, i % 2);
        for (int again = 0; again < 20; again++) /* cells of chance */
            if (look(&b, &err) < 0)
                fail_msg("%s: %s", codec_name((enum codec)up), err.msg);
        assert_int_equal(b.shelf.headers, 0);
        assert_true(i % 2 ? b.scale > 1.2 && b.scale < 2 : b.scale == 1);
        for (size_t k = 0; k < K; k++) {
            struct fold_norm norm;
            assert_int_equal(fold_check(b.in[k].path, &b.in[k].origin, MODULE, &norm, &err), 0);
            assert_true(fabs(b.given[k].norm - norm.norm) <= norm.norm * 1e-12);
        }
        end(&b);
    }
}

/* Spaces behind a header are allowed: then it is read to learn where all is. */
static void reads_headers_of_another_length(void **state)
{
    struct bench b;
    struct err err = {0};
    begin(&b, CODEC_E3M0, false);
    struct buf file;
    assert_int_equal(file_read(b.in[1].path, 64 << 20, &file, NULL), 0);
    uint64_t length;
    memcpy(&length, file.data, sizeof(length));
    uint8_t *longer = mem_alloc(file.len + 8);
    memcpy(longer, file.data, 8 + length);
    memset(longer + 8 + length, ' ', 8);
    memcpy(longer + 16 + length, file.data + 8 + length, file.len - 8 - length);
    length += 8;
    memcpy(longer, &length, sizeof(length));
    assert_int_equal(file_write_atomic(b.in[1].path, longer, file.len + 8, 0600, NULL), 0);
    mem_free(longer);
    buf_release(&file);
    make(&b);
    claim(&b, CODEC_E3M0);
    if (look(&b, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(b.shelf.headers, 1);
    end(&b);
}

static void overwrite(const char *path, uint64_t from, int byte)
{
    struct buf file;
    assert_int_equal(file_read(path, 64 << 20, &file, NULL), 0);
    for (size_t i = (size_t)from; i < file.len; i++)
        file.data[i] ^= (uint8_t)byte;
    assert_int_equal(file_write_atomic(path, file.data, file.len, 0600, NULL), 0);
    buf_release(&file);
}

/* Each file of the step, and the squares, with other bits in it all. */
static void finds_what_is_not(void **state)
{
    for (size_t i = 0; i <= OUTS; i++) {
        struct bench b;
        struct err err = {0};
        made(&b, CODEC_E3M0, false);
        const char *path = i < OUTS ? b.out.path[i] : b.squares;
        struct st st = {0};
        if (i < OUTS)
            assert_int_equal(st_open(path, &st, &err), 0);
        overwrite(path, st.payload, 1);
        st_release(&st);
        claim(&b, CODEC_E3M0);
        assert_int_equal(look(&b, &err), -ERR_HASH);
        end(&b);
    }
}

static void set_square(struct bench *b, uint64_t at, double to)
{
    const int fd = open(b->squares, O_WRONLY);
    assert_int_equal(pwrite(fd, &to, sizeof(to), (off_t)(at * sizeof(to))), sizeof(to));
    (void)close(fd);
}

/* One cell with less than nothing would make any contribution look small: no look believes that,
 * whatever cells it draws. */
static void no_square_takes_away(void **state)
{
    struct bench b;
    made(&b, CODEC_E3M0, false);
    const double odd[] = {-1e-6, NAN};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        set_square(&b, 0, odd[i]);
        claim(&b, CODEC_E3M0);
        for (int again = 0; again < 20; again++) {
            struct err err = {0};
            assert_int_equal(look(&b, &err), -ERR_FORMAT);
        }
    }
    end(&b);
}

/* One cell of the mean, or of a contribution, that is told as all there is would change the whole
 * step where the norm is kept: it is looked at, wherever the other looks go. */
static void looks_where_much_is(void **state)
{
    struct bench b;
    made(&b, CODEC_E3M0, true);
    const double all = b.given[0].norm, most = 1e12 * (all > 0 ? all : 1);
    for (uint64_t row = 0; row <= K; row += K) {
        set_square(&b, row * b.cells + 2, most);
        claim(&b, CODEC_E3M0);
        unsigned found = 0;
        for (int again = 0; again < 20; again++) {
            struct err err = {0};
            found += look(&b, &err) == -ERR_HASH;
        }
        assert_true(row < K ? found >= 5 : found == 20); /* one of K contributions, twice */
    }
    end(&b);
}

/* A header of megabytes is not brought here. */
static void refuses_long_headers(void **state)
{
    struct bench b;
    struct err err = {0};
    made(&b, CODEC_E3M0, false);
    const uint64_t length = 8 << 20;
    struct buf file;
    assert_int_equal(file_read(b.out.path[1], 64 << 20, &file, NULL), 0);
    uint8_t *longer = mem_alloc(16 + length);
    memcpy(longer, file.data, file.len);
    memcpy(longer, &length, sizeof(length));
    assert_int_equal(file_write_atomic(b.out.path[1], longer, 16 + length, 0600, NULL), 0);
    mem_free(longer);
    buf_release(&file);
    claim(&b, CODEC_E3M0);
    assert_int_equal(look(&b, &err), -ERR_FORMAT);
    assert_true(b.shelf.bytes < 1 << 20);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(believes_what_is_so), cmocka_unit_test(reads_headers_of_another_length),
        cmocka_unit_test(finds_what_is_not),   cmocka_unit_test(no_square_takes_away),
        cmocka_unit_test(looks_where_much_is), cmocka_unit_test(refuses_long_headers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
