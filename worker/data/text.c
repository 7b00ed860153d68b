#include "worker/data/text.h"

#include "worker/data/data_samples.h"

#define BATCH_BYTES_MAX (1u << 30)
#define PLAIN_SHARE 16 /* a 16th of a phase's pieces: what they fill depends on their order */

struct text {
    struct data base;
    struct text_options opt;
    uint32_t dim;

    /* The batch: `rows` of seq + 1 or seq. */
    int32_t *tokens, *start, *target, *pos;
    uint64_t *ids;
    uint32_t *lengths;
    float *features;
    struct mem_arrays arrays;
};

/* ---- opening ---- */

static int check_options(const struct text_options *o, struct err *err)
{
    uint64_t bytes = (uint64_t)o->rows * (o->seq + 1) * 4 * sizeof(int32_t);
    if (o->seq < 1 || o->seq > TEXT_SEQ_MAX || o->rows == 0 || o->rows > TEXT_ROWS_MAX ||
        bytes > BATCH_BYTES_MAX)
        return err_set(err, -ERR_LIMIT, "batches of %u rows of %u tokens cannot be made", o->rows,
                       o->seq);
    return 0;
}

/* Checks that all shards hold text; finds whether there is a column. */
static int survey(struct text *t, const struct data_range *ranges, struct err *err)
{
    const struct data *o = &t->base;
    t->dim = o->shards[0].dim;
    for (size_t i = 0; i < o->n_shards; i++) {
        if (o->shards[i].kind != SHARD_TEXT)
            return err_set(err, -ERR_FORMAT, "a shard of the task, such as %s, holds no text",
                           ranges[0].path);
        if (o->shards[i].dim != t->dim)
            t->dim = 0;
    }
    return 0;
}

static int make_batch(struct text *t, struct err *err)
{
    size_t rows = t->opt.rows, seq = t->opt.seq;
    t->tokens = mem_arrays_add(&t->arrays, rows, (seq + 1) * sizeof(*t->tokens));
    t->start = mem_arrays_add(&t->arrays, rows, seq * sizeof(*t->start));
    t->target = mem_arrays_add(&t->arrays, rows, seq * sizeof(*t->target));
    t->pos = mem_arrays_add(&t->arrays, rows, seq * sizeof(*t->pos));
    t->ids = mem_arrays_add(&t->arrays, rows, sizeof(*t->ids));
    t->lengths = mem_arrays_add(&t->arrays, rows, sizeof(*t->lengths));
    if (t->dim)
        t->features = mem_arrays_add(&t->arrays, rows, t->dim * sizeof(*t->features));
    if (t->arrays.failed)
        return err_set(err, -ENOMEM, "out of memory for batches of %u rows of %u tokens",
                       t->opt.rows, t->opt.seq);
    return 0;
}

/* ---- pieces to rows ---- */

/* Padding from index `from` on: each index sees itself alone. */
static void pad_row(struct text *t, unsigned row, uint32_t from)
{
    uint32_t seq = t->opt.seq;
    int32_t *tokens = t->tokens + (size_t)row * (seq + 1);
    size_t base = (size_t)row * seq;
    for (uint32_t i = from; i <= seq; i++)
        tokens[i] = 0;
    for (uint32_t i = from; i < seq; i++) {
        t->start[base + i] = (int32_t)i;
        t->pos[base + i] = 0;
        t->target[base + i] = -1;
    }
}

/* Writes the piece at index `from` of a row and counts it in the batch. */
static void place_piece(struct text *t, const struct shard_sample *s, unsigned row, uint32_t from,
                        struct batch *b)
{
    uint32_t seq = t->opt.seq;
    int32_t *tokens = t->tokens + (size_t)row * (seq + 1) + from;
    size_t base = (size_t)row * seq + from;
    shard_tokens(s, tokens);
    for (uint32_t i = 0; i < s->tokens && from + i < seq; i++) {
        /* Token i predicts token i + 1. */
        bool predicts = i + 1 < s->tokens && i + 1 >= t->opt.skip;
        t->start[base + i] = (int32_t)from;
        t->pos[base + i] = (int32_t)i;
        t->target[base + i] = predicts ? tokens[i + 1] : -1;
    }
    b->samples++;
}

static bool fits(const struct text *t, const struct shard_sample *s)
{
    return s->tokens >= 2 && s->tokens <= t->opt.seq + 1;
}

static bool is_good(const struct text *t, const struct shard_sample *s, char *reason, size_t size)
{
    if (!fits(t, s)) {
        snprintf(reason, size, "a piece of %u tokens, expected 2 to %u", s->tokens, t->opt.seq + 1);
        return false;
    }
    const uint8_t *p = s->data + 1;
    unsigned width = s->data[0];
    for (uint32_t i = 0; t->opt.vocab && i < s->tokens; i++, p += width) {
        uint32_t id = 0;
        for (unsigned b = 0; b < width; b++)
            id |= (uint32_t)p[b] << 8 * b;
        if (id >= t->opt.vocab) {
            snprintf(reason, size, "token %u, but there are %u", id, t->opt.vocab);
            return false;
        }
    }
    return true;
}

/* Finds the good piece at the head, and leaves it there: 1; 0 at the end. */
static int next_piece(struct text *t, struct data_place *ret, struct err *err)
{
    char reason[128];
    for (; data_has(&t->base, t->base.head); t->base.head++) {
        *ret = data_at(&t->base, t->base.head);
        if (is_good(t, &t->base.shards[ret->shard].samples[ret->index], reason, sizeof(reason))) {
            t->base.bad_run = 0;
            return 1;
        }
        int rc =
            data_found_bad(&t->base, ret, "pieces of text of the phase can be used", reason, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Fills a row: 1, or 0 when there is no piece left. */
static int fill_row(struct text *t, unsigned row, struct batch *b, struct err *err)
{
    struct data_place place = {0};
    uint32_t at = 0;
    int rc;
    while ((rc = next_piece(t, &place, err)) > 0) {
        const struct shard *shard = &t->base.shards[place.shard];
        const struct shard_sample *s = &shard->samples[place.index];
        if (at + s->tokens > t->opt.seq + 1)
            break; /* it begins the next row */
        place_piece(t, s, row, at, b);
        at += s->tokens;
        t->base.head++;
        if (t->opt.packed)
            continue;
        t->ids[row] = data_sample_id(t->base.hashes[place.shard], place.index);
        t->lengths[row] = s->tokens;
        if (t->dim)
            shard_feature(shard, s, t->features + (size_t)row * t->dim);
        break;
    }
    if (rc < 0 || at == 0)
        return rc < 0 ? rc : 0;
    pad_row(t, row, at);
    return 1;
}

static int text_next(struct data *base, struct batch *ret, struct err *err)
{
    struct text *t = (struct text *)base;
    struct batch b = {
        .seq = t->opt.seq,
        .tokens = t->tokens,
        .start = t->start,
        .target = t->target,
        .pos = t->pos,
    };
    if (!t->opt.packed) {
        b.ids = t->ids;
        b.lengths = t->lengths;
        b.features = t->features;
    }
    int rc = 1;
    while (b.count < t->opt.rows && (rc = fill_row(t, b.count, &b, err)) > 0)
        b.count++;
    if (rc < 0)
        return rc;
    *ret = b;
    return 0;
}

/* ---- the order ---- */

/* Positions of the first pass that all_rows take, as fill_row() fills them. */
static uint64_t positions_taken(struct text *t)
{
    uint64_t rows = 0, at = 0;
    uint32_t filled = 0;
    for (; at < t->base.total; at++) {
        const struct data_place place = data_at(&t->base, at);
        const struct shard_sample *s = &t->base.shards[place.shard].samples[place.index];
        if (!fits(t, s))
            continue;
        if (filled + s->tokens > t->opt.seq + 1) {
            if (++rows == t->opt.all_rows)
                break;
            filled = 0;
        }
        filled += s->tokens;
    }
    return at;
}

/* Shuffles fewer and fewer of the leading pieces, until all of those are taken: of the rest, which
 * lies as in the ranges, the rows then take the first ones. */
static void mix_what_is_taken(struct text *t)
{
    uint64_t taken = positions_taken(t);
    while (taken < t->base.mixed) {
        data_mix(&t->base, taken - taken / PLAIN_SHARE);
        taken = positions_taken(t);
    }
}

static void text_free(struct data *base)
{
    struct text *t = (struct text *)base;
    data_close(base);
    mem_arrays_free(&t->arrays);
    mem_free(t);
}

int text_open(const struct text_options *opt, const struct data_range *ranges, size_t n_ranges,
              struct data **ret, struct err *err)
{
    static const struct data_ops ops = {.next = text_next, .free = text_free};
    int rc = check_options(opt, err);
    if (rc < 0)
        return rc;
    struct text *t = mem_try_zero(sizeof(*t));
    if (!t)
        return err_set(err, -ENOMEM, "out of memory");
    t->opt = *opt;
    rc = data_open(&t->base, &ops, &opt->order, ranges, n_ranges, err);
    if (rc == 0)
        rc = survey(t, ranges, err);
    if (rc == 0)
        rc = make_batch(t, err);
    if (rc < 0) {
        text_free(&t->base);
        return rc;
    }
    if (opt->all_rows > 0)
        mix_what_is_taken(t);
    *ret = &t->base;
    return 0;
}
