#include "coordinator/outer/outer_claim.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/crew.h"
#include "common/base/file.h"
#include "common/net/blobstore.h"
#include "common/outer/fold_check.h"
#include "common/outer/layout.h"
#include "common/outer/wire.h"

#define SQUARES_AT_ONCE 4096
#define ASK_AT_ONCE 8
#define HEADER_GUESS 8192 /* bytes of a version's first read */
#define HEADER_SLACK 4096 /* most bytes by which another writer's header may exceed ours */
/* Files of one step: its initial state, the claim, contributions and their start versions. */
#define PARTS_MAX (4 + 5 + 2 * FOLD_INPUTS_MAX)

/* If the norm is kept, one wrong cell would change the whole step, so more cells are drawn in
 * proportion to their claimed squares. */
#define HEAVY_CELLS 2 /* such cells of the mean, and of each contribution */
#define CELLS_MAX (OUTER_CLAIM_CELLS + 2 * HEAVY_CELLS)

enum whose {
    OURS,        /* a version that was made or checked here: its header is the layout's */
    CONTRIBUTED, /* a contribution, whose layout follows from the order of tensors */
    CLAIMED,     /* a result file of the step */
};

/* A file with holes: the pieces of a blob that are checked, at their offsets in the blob. */
struct part {
    const struct blob_ref *blob;
    enum whose whose;
    bool coded; /* a contribution or a delta; else one float per parameter */
    struct wire_info want;
    char *path;
};

struct piece {
    const struct part *of;
    uint64_t from;
    size_t len;
};

/* The claimed squares of a contribution's cells, or of the mean's. */
struct row {
    double sum;
    double said[CELLS_MAX];      /* claimed squares of the checked cells */
    uint64_t heavy[HEAVY_CELLS]; /* cells drawn in proportion to their claimed squares */
};

struct look {
    struct blobstore *store;
    const struct outer_step *s;
    struct fold_step step; /* the step that the worker made */
    char *dir;
    struct part parts[PARTS_MAX];
    size_t n_parts;
    struct piece *pieces;
    size_t n_pieces;
    struct layout layout;
    struct layout_cell cells[CELLS_MAX];  /* checked in contributions: their squares are claimed */
    struct layout_cell blocks[CELLS_MAX]; /* one block in each cell, checked in all other files */
    size_t n_cells;
    struct row
        rows[FOLD_INPUTS_MAX + 1]; /* of each contribution; if the norm is kept, also of the mean */
    size_t n_rows;
    bool values; /* a contribution has values: its squares need a version's cells, too */
    struct fold_input inputs[FOLD_INPUTS_MAX];
};

/* ---- many requests at once: each takes a while with a store far away ---- */

/* fn(0) to fn(n - 1), some at a time. */
static int ask_all(struct look *l, crew_fn fn, size_t n, struct err *err)
{
    return crew_run(crew_size(ASK_AT_ONCE, n), n, fn, l, err);
}

/* ---- files ---- */

static int read_blob(struct look *l, const struct blob_ref *b, uint64_t from, void *data,
                     size_t len, struct err *err)
{
    return l->store->ops->read(l->store, &b->id, from, data, len, err);
}

static int put(const struct part *p, const void *data, size_t len, uint64_t at, struct err *err)
{
    const int fd = open(p->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    int rc = fd < 0 ? err_errno(err, "opening %s", p->path) : 0;
    if (rc == 0 && ftruncate(fd, (off_t)p->blob->size) < 0)
        rc = err_errno(err, "making %s", p->path);
    if (rc == 0)
        rc = file_pwrite_all(fd, data, len, at, p->path, err);
    if (fd >= 0 && close(fd) < 0 && rc == 0)
        rc = err_errno(err, "closing %s", p->path);
    return rc;
}

/* The header of a blob, mem_free it: usually in one request, for the first `guess` bytes.  A header
 * of more than `most` bytes is refused. */
static int read_header(struct look *l, const struct blob_ref *b, size_t guess, size_t most,
                       uint8_t **ret, size_t *ret_len, struct err *err)
{
    size_t got = b->size < guess ? (size_t)b->size : guess;
    uint64_t length = 0;
    uint8_t *data = mem_alloc(guess), *more;
    int rc = read_blob(l, b, 0, data, got, err);
    for (int i = 8; rc == 0 && i-- > 0;)
        length = length << 8 | data[i];
    if (rc == 0 && (length > most || length + sizeof(length) > b->size))
        rc = err_set(err, -ERR_FORMAT, "a file of %llu bytes has a header of %llu bytes",
                     (unsigned long long)b->size, (unsigned long long)length);
    length += sizeof(length);
    if (rc == 0 && length > got && !(more = mem_try((size_t)length)))
        rc = err_set(err, -ENOMEM, "no memory for a header of %llu bytes",
                     (unsigned long long)length);
    else if (rc == 0 && length > got) {
        memcpy(more, data, got);
        mem_free(data);
        data = more;
        rc = read_blob(l, b, got, data + got, (size_t)length - got, err);
    }
    if (rc < 0) {
        mem_free(data);
        return rc;
    }
    *ret = data;
    *ret_len = (size_t)length;
    return 0;
}

/* Reads the header of the version, which determines all others. */
static int begin_version(struct look *l, struct err *err)
{
    const struct part *p = &l->parts[0];
    uint8_t *header = NULL;
    size_t len = 0;
    int rc = read_header(l, p->blob, HEADER_GUESS, ST_HEADER_MAX, &header, &len, err);
    if (rc == 0)
        rc = put(p, header, len, 0, err);
    mem_free(header);
    return rc == 0 ? layout_open(p->path, &l->layout, err) : rc;
}

/* The header that we would write, and the size of the whole file. */
static int our_header(struct look *l, const struct part *p, struct buf *ret, uint64_t *ret_bytes,
                      struct err *err)
{
    if (p->coded)
        return wire_header(&p->want, &l->layout, ret, ret_bytes, err);
    *ret_bytes = p->blob->size; /* add_flat() has checked it */
    return buf_append(ret, l->layout.header, (size_t)l->layout.st.payload) < 0
               ? err_set(err, -ENOMEM, "no memory for a header")
               : 0;
}

/* The header in the store. */
static int their_header(struct look *l, const struct part *p, const struct buf *ours,
                        struct err *err)
{
    uint8_t *header = NULL;
    size_t len = 0;
    int rc = read_header(l, p->blob, ours->len, ours->len + HEADER_SLACK, &header, &len, err);
    if (rc == 0)
        rc = put(p, header, len, 0, err);
    mem_free(header);
    return rc;
}

/* Begins a file as long as its blob, with the header. */
static int begin_part(void *arg, size_t i, unsigned thread, struct err *err)
{
    struct look *l = arg;
    const struct part *p = &l->parts[i];
    struct buf ours;
    uint64_t bytes = 0;
    buf_init(&ours, ST_HEADER_MAX + 16);
    int rc = our_header(l, p, &ours, &bytes, err);
    if (rc == 0 && p->whose != CLAIMED && bytes == p->blob->size)
        rc = put(p, ours.data, ours.len, 0, err);
    else if (rc == 0)
        rc = their_header(l, p, &ours, err);
    buf_release(&ours);
    return rc;
}

static int bring(void *arg, size_t i, unsigned thread, struct err *err)
{
    struct look *l = arg;
    const struct piece *p = &l->pieces[i];
    const struct blob_ref *b = p->of->blob;
    if (p->from > b->size || p->len > b->size - p->from)
        return err_set(err, -ERR_FORMAT, "a file of %llu bytes is cut short",
                       (unsigned long long)b->size);
    uint8_t *data = mem_alloc(p->len);
    int rc = read_blob(l, b, p->from, data, p->len, err);
    if (rc == 0)
        rc = put(p->of, data, p->len, p->from, err);
    mem_free(data);
    return rc;
}

static struct part *add(struct look *l, enum whose whose, const struct blob_ref *b, const char **at)
{
    struct part *p = &l->parts[l->n_parts];
    p->whose = whose;
    p->blob = b;
    p->path = str_printf("%s/%zu", l->dir, l->n_parts++);
    *at = p->path;
    return p;
}

/* Adds a file of one float per parameter; size 0: there is none, and *at stays. */
static int add_flat(struct look *l, enum whose whose, const struct blob_ref *b, const char **at,
                    struct err *err)
{
    const uint64_t want = l->s->old[OUTER_FULL].size;
    if (b->size > 0 && b->size != want)
        return err_set(err, -ERR_FORMAT,
                       "a file has %llu bytes, expected %llu, the size of a version",
                       (unsigned long long)b->size, (unsigned long long)want);
    if (b->size > 0)
        (void)add(l, whose, b, at);
    return 0;
}

static void add_coded(struct look *l, enum whose whose, const struct blob_ref *b,
                      const struct wire_info *want, const char **at)
{
    struct part *p = add(l, whose, b, at);
    p->coded = true;
    p->want = *want;
}

static void add_piece(struct look *l, const struct part *p, uint64_t from, size_t len)
{
    l->pieces[l->n_pieces++] = (struct piece){p, from, len};
}

/* Adds the places of the cells or blocks in a file whose header is there. */
static int add_pieces(struct look *l, const struct part *p, struct err *err)
{
    struct wire w = {.fd = -1};
    int rc = p->coded ? wire_open(p->path, &p->want, &l->layout, &w, err) : 0;
    for (size_t i = 0; i < l->n_cells && rc == 0; i++) {
        const bool whole = p->whose == CONTRIBUTED || (p->whose == OURS && l->values);
        const struct layout_cell *c = whole ? &l->cells[i] : &l->blocks[i];
        const struct wire_place *at = p->coded ? &w.at[c->tensor] : NULL;
        if (at == NULL)
            add_piece(l, p, l->layout.st.tensors[c->tensor].offset + c->first * sizeof(float),
                      c->n * sizeof(float));
        else
            add_piece(l, p, at->payload + codec_payload_bytes(at->codec, (size_t)c->first),
                      codec_payload_bytes(at->codec, c->n));
        if (at != NULL && codec_has_scale(at->codec))
            add_piece(l, p, at->scale + c->first / CODEC_BLOCK * sizeof(uint16_t),
                      codec_scales(at->codec, c->n) * sizeof(uint16_t));
    }
    wire_close(&w);
    return rc;
}

static uint64_t draw(uint64_t below)
{
    uint64_t x;
    hash_random(&x, sizeof(x));
    return x % below;
}

static double draw_part(void)
{
    return (double)(draw(UINT64_MAX) >> 11) * 0x1p-53;
}

/* Takes a cell, and a block in it. */
static void add_cell(struct look *l, uint64_t number)
{
    struct layout_cell *c = &l->cells[l->n_cells], *b = &l->blocks[l->n_cells++];
    layout_cell_at(&l->layout, number, c);
    const size_t skip = (size_t)draw((c->n + CODEC_BLOCK - 1) / CODEC_BLOCK) * CODEC_BLOCK;
    *b = *c;
    b->first += skip;
    b->n = c->n - skip < CODEC_BLOCK ? c->n - skip : CODEC_BLOCK;
}

/* Draws cells of the layout; if there are few, some twice. */
static int choose(struct look *l, struct err *err)
{
    const uint64_t all = layout_cells(&l->layout);
    l->n_rows = l->s->n_contributions + l->s->keep_norm;
    while (all > 0 && l->n_cells < OUTER_CLAIM_CELLS)
        add_cell(l, draw(all));
    if (l->s->claim.squares.size != l->n_rows * all * sizeof(double))
        return err_set(err, -ERR_FORMAT,
                       "the file of norms has %llu bytes, which is not the right size",
                       (unsigned long long)l->s->claim.squares.size);
    return 0;
}

/* ---- squares ---- */

/* Draws again, after n cells from `first` on were added to the sum. */
static void draw_heavy(struct row *row, const double *some, size_t n, uint64_t first)
{
    double all = 0;
    for (size_t k = 0; k < n; k++)
        all += some[k];
    for (size_t i = 0; i < HEAVY_CELLS; i++) {
        if (draw_part() * row->sum >= all)
            continue;
        double left = draw_part() * all;
        size_t k = 0;
        while (k + 1 < n && left >= some[k])
            left -= some[k++];
        row->heavy[i] = first + k;
    }
}

static int read_squares(struct look *l, size_t row, uint64_t first, double *some, size_t n,
                        struct err *err)
{
    const uint64_t all = layout_cells(&l->layout);
    int rc = read_blob(l, &l->s->claim.squares, (row * all + first) * sizeof(*some), some,
                       n * sizeof(*some), err);
    for (size_t k = 0; k < n && rc == 0; k++)
        if (!(some[k] >= 0)) /* a negative square would hide a large one elsewhere */
            rc = err_set(err, -ERR_FORMAT,
                         "a square of contribution %zu is reported as %g, expected 0 or more", row,
                         some[k]);
    return rc;
}

static int read_row(void *arg, size_t i, unsigned thread, struct err *err)
{
    struct look *l = arg;
    const uint64_t all = layout_cells(&l->layout);
    struct row *row = &l->rows[i];
    double *some = mem_alloc_array(SQUARES_AT_ONCE, sizeof(*some));
    int rc = 0;
    for (uint64_t first = 0; first < all && rc == 0; first += SQUARES_AT_ONCE) {
        const size_t n = all - first < SQUARES_AT_ONCE ? (size_t)(all - first) : SQUARES_AT_ONCE;
        rc = read_squares(l, i, first, some, n, err);
        for (size_t k = 0; k < n && rc == 0; k++)
            row->sum += some[k];
        for (size_t k = 0; k < l->n_cells && rc == 0; k++)
            if (l->cells[k].number >= first && l->cells[k].number < first + n)
                row->said[k] = some[l->cells[k].number - first];
        if (rc == 0)
            draw_heavy(row, some, n, first);
    }
    mem_free(some);
    if (rc == 0 && !isfinite(row->sum))
        rc = err_set(err, -ERR_FORMAT, "the norm of contribution %zu is not finite", i);
    return rc;
}

static int read_heavy(void *arg, size_t i, unsigned thread, struct err *err)
{
    struct look *l = arg;
    const size_t row = i / (2 * HEAVY_CELLS), k = OUTER_CLAIM_CELLS + i % (2 * HEAVY_CELLS);
    return read_squares(l, row, l->cells[k].number, &l->rows[row].said[k], 1, err);
}

/* Reads the rows: norms, and the factor that keeps the norm. */
static int take_rows(struct look *l, struct err *err)
{
    int rc = ask_all(l, read_row, l->n_rows, err);
    for (size_t i = 0; i < l->s->n_contributions && rc == 0; i++)
        l->s->contributions[i].norm = l->inputs[i].norm = sqrt(l->rows[i].sum);
    if (rc < 0 || !l->s->keep_norm || l->n_cells == 0)
        return rc;
    const struct row *mean = &l->rows[l->s->n_contributions];
    for (size_t i = 0; i < HEAVY_CELLS; i++) {
        add_cell(l, mean->heavy[i]);
        add_cell(l, l->rows[draw(l->s->n_contributions)].heavy[i]);
    }
    l->step.scale = fold_kept_scale(&l->step, mean->sum);
    return ask_all(l, read_heavy, l->n_rows * 2 * HEAVY_CELLS, err);
}

/* In the checked cells the claimed squares must be those of the contributions. */
static int check_row(void *arg, size_t i, unsigned thread, struct err *err)
{
    struct look *l = arg;
    int rc = 0;
    for (size_t k = 0; k < l->n_cells && rc == 0; k++) {
        double is;
        if (i < l->s->n_contributions)
            rc = fold_check_cell(l->inputs[i].path, &l->inputs[i].origin, l->s->module_id,
                                 &l->cells[k], &is, err);
        else
            rc = fold_mean_cell(&l->step, &l->cells[k], &is, err);
        if (rc == 0 && memcmp(&is, &l->rows[i].said[k], sizeof(is)) != 0)
            rc = i < l->s->n_contributions
                     ? err_set(err, -ERR_HASH,
                               "the norm of contribution %zu is not the reported one", i)
                     : err_set(err, -ERR_HASH, "the norm of the mean is not the reported one");
    }
    return rc;
}

/* ---- contents ---- */

static int add_inputs(struct look *l, const char *full, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < l->s->n_contributions && rc == 0; i++) {
        const struct outer_contribution *c = &l->s->contributions[i];
        const struct wire_info want = {.kind = WIRE_CONTRIBUTION,
                                       .codec = c->codec,
                                       .module_id = l->s->module_id,
                                       .base = c->from,
                                       .samples = c->samples};
        struct fold_input *in = &l->inputs[i];
        *in = (struct fold_input){.weight = c->weight, .origin = {c->codec, c->from, full}};
        l->values = l->values || c->codec == CODEC_F32;
        add_coded(l, CONTRIBUTED, &c->blob, &want, &in->path);
        if (c->from != l->s->base && c->codec == CODEC_F32)
            rc = add_flat(l, OURS, &c->from_full, &in->origin.from_full, err);
    }
    return rc;
}

static int add_all(struct look *l, struct fold_step *step, struct err *err)
{
    const struct outer_step *s = l->s;
    const struct wire_info delta = {.kind = WIRE_DELTA,
                                    .codec = s->down,
                                    .module_id = s->module_id,
                                    .base = s->base,
                                    .version = s->base + 1};
    const struct {
        enum whose whose;
        const struct blob_ref *blob;
        const char **at;
    } flat[] = {{OURS, &s->old[OUTER_FULL], &step->full},
                {OURS, &s->old[OUTER_EMA], &step->ema},
                {OURS, &s->old[OUTER_TARGET], &step->target},
                {OURS, &s->old[OUTER_MOMENTUM], &step->mom},
                {CLAIMED, &s->claim.made[OUTER_FULL], &step->full_out},
                {CLAIMED, &s->claim.made[OUTER_EMA], &step->ema_out},
                {CLAIMED, &s->claim.made[OUTER_TARGET], &step->target_out},
                {CLAIMED, &s->claim.made[OUTER_MOMENTUM], &step->mom_out}};
    int rc = 0;
    for (size_t i = 0; i < sizeof(flat) / sizeof(flat[0]) && rc == 0; i++)
        rc = add_flat(l, flat[i].whose, flat[i].blob, flat[i].at, err);
    if (rc == 0)
        add_coded(l, CLAIMED, &s->claim.made[OUTER_DELTA], &delta, &step->delta_out);
    return rc == 0 ? add_inputs(l, step->full, err) : rc;
}

static int look(struct look *l, struct err *err)
{
    int rc = add_all(l, &l->step, err);
    l->step.inputs = l->inputs;
    l->step.n_inputs = l->s->n_contributions;
    if (rc == 0)
        rc = begin_version(l, err);
    if (rc == 0)
        rc = choose(l, err);
    if (rc == 0)
        rc = take_rows(l, err);
    if (rc == 0)
        rc = ask_all(l, begin_part, l->n_parts, err);
    if (rc == 0)
        l->pieces = mem_alloc_array(l->n_parts * l->n_cells * 2, sizeof(*l->pieces));
    for (size_t i = 0; i < l->n_parts && rc == 0; i++)
        rc = add_pieces(l, &l->parts[i], err);
    if (rc == 0)
        rc = ask_all(l, bring, l->n_pieces, err);
    if (rc == 0)
        rc = ask_all(l, check_row, l->n_rows, err);
    return rc == 0 ? fold_compare(&l->step, l->blocks, l->n_cells, err) : rc;
}

int outer_claim_look(struct blobstore *store, const struct outer_step *s,
                     const struct fold_step *like, struct outer_look *ret, struct err *err)
{
    struct look *l = mem_alloc(sizeof(*l));
    l->store = store;
    l->s = s;
    l->step = *like;
    l->dir = file_join(s->state_dir, "look");
    int rc = file_mkdirs(l->dir, 0700, err);
    if (rc == 0)
        rc = look(l, err);
    if (rc == 0)
        *ret = (struct outer_look){l->layout.count, l->step.scale};
    (void)file_remove_tree(l->dir, NULL); /* after a failure the next check removes it */
    layout_release(&l->layout);
    for (size_t i = 0; i < l->n_parts; i++)
        mem_free(l->parts[i].path);
    mem_free(l->pieces);
    mem_free(l->dir);
    mem_free(l);
    return rc;
}

bool outer_claim_is_false(const struct outer_step *s)
{
    for (size_t i = 0; i < s->n_contributions; i++)
        if (s->contributions[i].refused || s->contributions[i].shrink != 1)
            return false;
    for (int i = 0; i < outer_blobs(true); i++)
        if (!blob_ref_equal(&s->made[i], &s->claim.made[i]))
            return true;
    return false;
}
