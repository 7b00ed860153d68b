#include "common/outer/fold_check.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/outer/arith.h"
#include "common/outer/layout.h"
#include "common/outer/wire.h"

struct check {
    const struct arith *arith;
    int cells_fd; /* -1: the squares of cells are not kept */
    uint64_t cells_at;
    struct layout layout;
    struct wire wire;
    int full_fd; /* file of theta_v, for values; -1: not needed */
    const char *full_path;
    void *payload;
    uint16_t *scales;
    float *x, *theta;
    double square;
};

/* Sum of (64 v)^2 / s^2 over a block: integers up to 256 * 4096, so exact. */
static double block_square_e3m0(const uint8_t *in, size_t bytes)
{
    static const uint16_t nibble[16] = {0, 1, 4, 16, 64, 256, 1024, 4096,
                                        0, 1, 4, 16, 64, 256, 1024, 4096};
    uint32_t sum = 0;
    for (size_t j = 0; j < bytes; j++)
        sum += (uint32_t)nibble[in[j] & 15] + nibble[in[j] >> 4];
    return (double)sum / 4096.0;
}

static double block_square_int8(const int8_t *in, size_t n)
{
    uint32_t sum = 0;
    for (size_t j = 0; j < n; j++)
        sum += (uint32_t)(in[j] * in[j]);
    return (double)sum;
}

/* The sum of squares of the elements from `first`, the start of a block, to `end`. */
static double square_scaled(const struct check *c, size_t first, size_t end)
{
    double total = 0.0;
    bool int8 = c->wire.info.codec == CODEC_INT8;
    for (size_t b = first; b < end; b += CODEC_BLOCK) {
        size_t m = end - b < CODEC_BLOCK ? end - b : CODEC_BLOCK;
        const uint8_t *p = c->payload;
        uint32_t bits = (uint32_t)c->scales[b / CODEC_BLOCK] << 16;
        float s;
        memcpy(&s, &bits, sizeof s);
        double block = int8 ? block_square_int8((const int8_t *)p + b, m)
                            : block_square_e3m0(p + b / 2, (m + 1) / 2);
        total += (double)s * (double)s * block;
    }
    return total;
}

/* Reads the differences of a chunk without scales into c->x. */
static int read_plain(struct check *c, size_t t, uint64_t first, size_t n, struct err *err)
{
    const enum codec codec = c->wire.at[t].codec;
    coding_decode(codec, n, c->payload, c->scales, c->x);
    if (codec != CODEC_F32)
        return 0;
    int rc =
        file_pread_all(c->full_fd, c->theta, n * sizeof(float),
                       c->layout.st.tensors[t].offset + first * sizeof(float), c->full_path, err);
    if (rc == 0)
        c->arith->sub(n, c->theta, c->x, c->x);
    return rc;
}

/* Adds the squares of a chunk, cell by cell. */
static int add_squares(struct check *c, size_t t, size_t n, struct err *err)
{
    const bool scaled = codec_has_scale(c->wire.at[t].codec);
    double cells[FOLD_CHUNK / LAYOUT_CELL] = {0};
    size_t k = 0;
    for (size_t from = 0; from < n; from += LAYOUT_CELL, k++) {
        const size_t end = n - from < LAYOUT_CELL ? n : from + LAYOUT_CELL;
        if (!layout_is_buffer(&c->layout, t))
            cells[k] = scaled ? square_scaled(c, from, end)
                              : c->arith->square_f32(end - from, c->x + from);
        c->square += cells[k];
    }
    if (c->cells_fd < 0)
        return 0;
    const uint64_t at = c->cells_at;
    c->cells_at += k * sizeof(*cells);
    return file_pwrite_all(c->cells_fd, cells, k * sizeof(*cells), at, "squares", err);
}

static int check_chunk(struct check *c, size_t t, uint64_t first, size_t n, struct err *err)
{
    const struct st_tensor *tensor = &c->layout.st.tensors[t];
    const enum codec codec = c->wire.at[t].codec;
    int rc = wire_read(&c->wire, t, first, n, c->payload, c->scales, err);
    if (rc < 0)
        return rc;
    if (!coding_check(codec, n, c->payload, c->scales))
        return err_set(err, -ERR_FORMAT,
                       "tensor %s holds a value that is not finite or out of "
                       "range",
                       tensor->name);
    if (!codec_has_scale(codec) && !layout_is_buffer(&c->layout, t))
        rc = read_plain(c, t, first, n, err);
    return rc == 0 ? add_squares(c, t, n, err) : rc;
}

static int check_alloc(struct check *c, struct err *err)
{
    c->payload = mem_try_aligned(64, FOLD_CHUNK * sizeof(float)); /* room for the widest codec */
    c->scales = mem_try_array(FOLD_CHUNK / CODEC_BLOCK, sizeof *c->scales);
    c->x = mem_try_aligned(64, FOLD_CHUNK * sizeof *c->x);
    c->theta = mem_try_aligned(64, FOLD_CHUNK * sizeof *c->theta);
    if (!c->payload || !c->scales || !c->x || !c->theta)
        return err_set(err, -ENOMEM, "no memory for the check of a contribution");
    return 0;
}

/* path NULL: only takes the layout of the full file, and memory. */
static int check_open(struct check *c, const char *path, const struct wire_info *want,
                      struct err *err)
{
    c->full_fd = open(c->full_path, O_RDONLY | O_CLOEXEC);
    if (c->full_fd < 0)
        return err_errno(err, "opening %s", c->full_path);
    int rc = layout_read(c->full_fd, c->full_path, &c->layout, err);
    if (rc == 0)
        rc = check_alloc(c, err);
    if (rc == 0 && path != NULL)
        rc = wire_open(path, want, &c->layout, &c->wire, err);
    return rc;
}

static void check_close(struct check *c)
{
    wire_close(&c->wire);
    layout_release(&c->layout);
    if (c->full_fd >= 0)
        (void)close(c->full_fd); /* read only: nothing to lose */
    mem_free(c->payload);
    mem_free(c->scales);
    mem_free(c->x);
    mem_free(c->theta);
}

static int check_all(struct check *c, struct err *err)
{
    for (size_t t = 0; t < c->layout.st.n_tensors; t++) {
        uint64_t count = c->layout.st.tensors[t].count;
        for (uint64_t first = 0; first < count; first += FOLD_CHUNK) {
            size_t n = count - first < FOLD_CHUNK ? (size_t)(count - first) : FOLD_CHUNK;
            int rc = check_chunk(c, t, first, n, err);
            if (rc < 0)
                return rc;
        }
    }
    if (!isfinite(c->square))
        return err_set(err, -ERR_FORMAT, "its norm is not finite");
    return 0;
}

static struct wire_info wanted(const struct fold_origin *origin, uint64_t module_id)
{
    return (struct wire_info){.kind = WIRE_CONTRIBUTION,
                              .codec = origin->codec,
                              .module_id = module_id,
                              .base = origin->from};
}

int fold_check_cells(const char *path, const struct fold_origin *origin, uint64_t module_id, int fd,
                     uint64_t at, struct fold_norm *ret, struct err *err)
{
    struct check c = {.arith = arith_best(),
                      .cells_fd = fd,
                      .cells_at = at,
                      .full_fd = -1,
                      .full_path = origin->from_full,
                      .wire = {.fd = -1}};
    const struct wire_info want = wanted(origin, module_id);
    int rc = check_open(&c, path, &want, err);
    if (rc == 0)
        rc = check_all(&c, err);
    if (rc == 0)
        *ret = (struct fold_norm){.norm = sqrt(c.square),
                                  .samples = c.wire.info.samples,
                                  .params = c.layout.count,
                                  .cells = layout_cells(&c.layout)};
    check_close(&c);
    return rc;
}

int fold_check(const char *path, const struct fold_origin *origin, uint64_t module_id,
               struct fold_norm *ret, struct err *err)
{
    return fold_check_cells(path, origin, module_id, -1, 0, ret, err);
}

int fold_check_cell(const char *path, const struct fold_origin *origin, uint64_t module_id,
                    const struct layout_cell *cell, double *ret, struct err *err)
{
    struct check c = {.arith = arith_best(),
                      .cells_fd = -1,
                      .full_fd = -1,
                      .full_path = origin->from_full,
                      .wire = {.fd = -1}};
    const struct wire_info want = wanted(origin, module_id);
    int rc = check_open(&c, path, &want, err);
    if (rc == 0)
        rc = check_chunk(&c, cell->tensor, cell->first, cell->n, err);
    if (rc == 0)
        *ret = c.square;
    check_close(&c);
    return rc;
}

/* ---- the direction ---- */

/* Reads n elements as floats: the differences of a contribution, or the values of a flat file. */
static int dot_read(struct check *c, size_t t, uint64_t first, size_t n, bool flat, struct err *err)
{
    const struct st_tensor *tensor = &c->layout.st.tensors[t];
    const uint64_t at = tensor->offset + first * sizeof(float);
    if (flat)
        return file_pread_all(c->full_fd, c->x, n * sizeof(float), at, c->full_path, err);
    int rc = wire_read(&c->wire, t, first, n, c->payload, c->scales, err);
    if (rc < 0)
        return rc;
    coding_decode(c->wire.info.codec, n, c->payload, c->scales, c->x);
    if (c->wire.info.codec != CODEC_F32)
        return 0;
    rc = file_pread_all(c->full_fd, c->theta, n * sizeof(float), at, c->full_path, err);
    if (rc == 0)
        c->arith->sub(n, c->theta, c->x, c->x);
    return rc;
}

static int dot_all(struct check *a, struct check *b, bool flat, double *ret, double *ret_square,
                   struct err *err)
{
    double sum = 0, square = 0;
    for (size_t t = 0; t < a->layout.st.n_tensors; t++) {
        const uint64_t count = layout_is_buffer(&a->layout, t) ? 0 : a->layout.st.tensors[t].count;
        for (uint64_t first = 0; first < count; first += FOLD_CHUNK) {
            size_t n = count - first < FOLD_CHUNK ? (size_t)(count - first) : FOLD_CHUNK;
            int rc = dot_read(a, t, first, n, false, err);
            if (rc == 0)
                rc = dot_read(b, t, first, n, flat, err);
            if (rc < 0)
                return rc;
            for (size_t i = 0; i < n; i++) {
                sum += (double)a->x[i] * (double)b->x[i];
                square += (double)b->x[i] * (double)b->x[i];
            }
        }
    }
    *ret = sum;
    *ret_square = square;
    return 0;
}

/* Opens one factor of the product; origin NULL: a flat file. */
static int dot_open(struct check *c, const char *path, const struct fold_origin *origin,
                    uint64_t module_id, struct err *err)
{
    const struct wire_info want =
        wanted(origin ? origin : &(struct fold_origin){.codec = CODEC_F32}, module_id);
    *c = (struct check){.arith = arith_best(),
                        .cells_fd = -1,
                        .full_fd = -1,
                        .full_path = origin ? origin->from_full : path,
                        .wire = {.fd = -1}};
    return check_open(c, origin ? path : NULL, &want, err);
}

int fold_dot(const char *path, const struct fold_origin *origin, const char *other,
             const struct fold_origin *others, uint64_t module_id, double *ret, double *ret_square,
             struct err *err)
{
    struct check a, b = {.full_fd = -1, .wire = {.fd = -1}};
    int rc = dot_open(&a, path, origin, module_id, err);
    if (rc == 0)
        rc = dot_open(&b, other, others, module_id, err);
    if (rc == 0 && b.layout.count != a.layout.count)
        rc = err_set(err, -ERR_FORMAT, "%s is of another module", other);
    if (rc == 0)
        rc = dot_all(&a, &b, others == NULL, ret, ret_square, err);
    check_close(&a);
    check_close(&b);
    return rc;
}
