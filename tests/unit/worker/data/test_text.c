#include "worker/data/text.h"

#include <errno.h>

#include "common/base/rng.h"
#include "tests/unit/worker/shards.h"

#define SEQ 16
#define LONG 512 /* inputs of the rows that are filled well */

/* Piece i has lengths[i] tokens: base + 1000 * i + 0, 1, 2 ... */
static uint32_t piece(int number, uint32_t i, uint32_t *ids, const void *arg)
{
    const unsigned *lengths = arg;
    for (unsigned k = 0; k < lengths[i]; k++)
        ids[k] = (uint32_t)number * 100000 + i * 1000 + k;
    return lengths[i];
}

static struct test_shard text_shard(const char *dir, int number, const unsigned *lengths, size_t n,
                                    uint32_t dim)
{
    return shard_of_texts(dir, number, (uint32_t)n, dim, piece, lengths);
}

static struct data_range range(const struct test_shard *s, uint32_t start, uint32_t count)
{
    struct data_range r = {.path = s->path, .start = start, .count = count};
    memcpy(r.sha256, s->sha256, 32);
    return r;
}

static const struct text_options in_order = {.seq = SEQ, .rows = 4, .packed = true};

/* Rows as in the picture in text.h, one of them with a third piece. */
static void packs_without_leaking(void **state)
{
    (void)state;
    static const unsigned lengths[] = {4, 3, 8, 3, 17, 2};
    char *dir = scratch_new();
    struct test_shard s = text_shard(dir, 1, lengths, COUNT(lengths), 0);
    struct data_range r = range(&s, 0, COUNT(lengths));
    struct text_options opt = in_order;
    struct batch b;
    struct data *t;
    opt.seq = 8;
    opt.rows = 3;
    OK(text_open(&opt, &r, 1, &t, err));
    assert_int_equal(data_total(t), 6);
    OK(data_next(t, &b, err));
    assert_int_equal(b.count, 3); /* the piece of 17 is too long for 8 and is passed over */
    assert_int_equal(b.samples, 5);
    assert_int_equal(batch_units(&b), 15);
    assert_null(b.ids);
#define A(i, k) (100000 + 1000 * (i) + (k))
    static const int32_t tokens[] = {
        A(2, 0), A(2, 1), A(2, 2), A(2, 3), A(2, 4), A(2, 5), A(2, 6), A(2, 7), 0,       /**/
        A(0, 0), A(0, 1), A(0, 2), A(0, 3), A(1, 0), A(1, 1), A(1, 2), A(5, 0), A(5, 1), /**/
        A(3, 0), A(3, 1), A(3, 2), 0,       0,       0,       0,       0,       0,
    };
    static const int32_t start[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                    4, 4, 4, 7, 0, 0, 0, 3, 4, 5, 6, 7};
    static const int32_t pos[] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3,
                                  0, 1, 2, 0, 0, 1, 2, 0, 0, 0, 0, 0};
    static const int32_t target[] = {
        A(2, 1), A(2, 2), A(2, 3), A(2, 4), A(2, 5), A(2, 6), A(2, 7), -1,      /**/
        A(0, 1), A(0, 2), A(0, 3), -1,      A(1, 1), A(1, 2), -1,      A(5, 1), /**/
        A(3, 1), A(3, 2), -1,      -1,      -1,      -1,      -1,      -1,
    };
    assert_memory_equal(b.tokens, tokens, sizeof(tokens));
    assert_memory_equal(b.start, start, sizeof(start));
    assert_memory_equal(b.pos, pos, sizeof(pos));
    assert_memory_equal(b.target, target, sizeof(target));
    OK(data_next(t, &b, err));
    assert_int_equal(b.count, 0);
    assert_int_equal(data_position(t), 6);
    const struct data_bad *bad;
    unsigned named;
    assert_int_equal(data_bad(t, &bad, &named), 1);
    assert_string_equal(bad[0].key, "000004-d4#0");
    assert_string_equal(bad[0].reason, "a piece of 17 tokens, expected 2 to 9");
    data_free(t);
    mem_free(s.path);
    scratch_free(dir);
}

/* A piece may end on the last column, which is a target only. */
static void last_column_is_a_target(void **state)
{
    (void)state;
    static const unsigned lengths[] = {SEQ - 2, 3, SEQ + 1};
    char *dir = scratch_new();
    struct test_shard s = text_shard(dir, 1, lengths, COUNT(lengths), 0);
    struct data_range r = range(&s, 0, 3);
    struct batch b;
    struct data *t;
    OK(text_open(&in_order, &r, 1, &t, err));
    OK(data_next(t, &b, err));
    assert_int_equal(b.count, 2);
    assert_int_equal(batch_units(&b), SEQ - 3 + 2 + SEQ);
    assert_int_equal(b.target[SEQ - 1], A(2, SEQ));
    assert_int_equal(b.target[2 * SEQ - 1], A(1, 2));
    assert_int_equal(b.tokens[2 * SEQ + 1], A(1, 2));
    data_free(t);
    mem_free(s.path);
    scratch_free(dir);
}

static void one_piece_a_row(void **state)
{
    (void)state;
    static const unsigned lengths[] = {4, 9, 2};
    char *dir = scratch_new();
    struct test_shard s = text_shard(dir, 3, lengths, 3, 2);
    struct data_range r = range(&s, 1, 2);
    struct text_options opt = in_order;
    struct batch b;
    struct data *t;
    opt.packed = false;
    opt.rows = 1;
    opt.skip = 5;
    OK(text_open(&opt, &r, 1, &t, err));
    OK(data_next(t, &b, err));
    assert_int_equal(b.count, 1);
    assert_int_equal(b.lengths[0], 9);
    assert_int_equal(b.ids[0], data_sample_id(s.sha256, 1));
    assert_true(b.features[0] == 3 && b.features[1] == 1);
    /* Tokens 5 to 8 are predicted; the first five route. */
    assert_int_equal(batch_units(&b), 4);
    for (int i = 0; i < SEQ; i++)
        assert_int_equal(b.target[i], i >= 4 && i < 8 ? 301000 + i + 1 : -1);
    OK(data_next(t, &b, err));
    assert_int_equal(b.count, 1);
    assert_int_equal(b.lengths[0], 2);
    assert_int_equal(batch_units(&b), 0);
    assert_int_equal(b.ids[0], data_sample_id(s.sha256, 2));
    data_free(t);
    mem_free(s.path);
    scratch_free(dir);
}

/* Marks the first token of each piece of a batch. */
static void note(const struct batch *b, unsigned seen[40], uint32_t *digest)
{
    for (unsigned row = 0; row < b->count; row++)
        for (int i = 0; i < SEQ; i++) {
            int32_t id = b->tokens[row * (SEQ + 1) + (unsigned)i];
            *digest = *digest * 31 + (uint32_t)id;
            if (id > 0 && b->pos[row * SEQ + (unsigned)i] == 0)
                seen[id / 1000 % 100]++;
        }
}

static uint32_t run(const struct text_options *opt, const struct data_range *r, uint64_t from,
                    unsigned batches, unsigned seen[40], uint64_t *ret_position)
{
    struct data *t;
    struct batch b;
    uint32_t digest = 7;
    OK(text_open(opt, r, 1, &t, err));
    OK(data_seek(t, from, err));
    for (unsigned i = 0; i < batches; i++) {
        OK(data_next(t, &b, err));
        note(&b, seen, &digest);
    }
    *ret_position = data_position(t);
    data_free(t);
    return digest;
}

static void every_pass_has_every_piece(void **state)
{
    (void)state;
    unsigned lengths[40], seen[40] = {0}, again[40] = {0}, tail[40] = {0};
    char *dir = scratch_new();
    for (unsigned i = 0; i < 40; i++)
        lengths[i] = 2 + i * 7 % 13;
    struct test_shard s = text_shard(dir, 1, lengths, 40, 0);
    struct data_range r = range(&s, 0, 40);
    struct text_options opt = in_order;
    struct batch b;
    uint64_t at, end;
    opt.order.shuffle = true;
    opt.order.seed = 5;
    uint32_t one = run(&opt, &r, 0, 30, seen, &at);
    assert_int_equal(at, 40); /* the end; 30 batches were too many */
    for (int i = 0; i < 40; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(run(&opt, &r, 0, 30, again, &at), one);
    opt.order.seed = 6;
    assert_int_not_equal(run(&opt, &r, 0, 30, again, &at), one);

    /* Windows: after n of them, exactly the first n * window pieces. */
    opt.order.window = 8;
    memset(seen, 0, sizeof(seen));
    struct data *t;
    opt.rows = 1;
    opt.packed = false;
    OK(text_open(&opt, &r, 1, &t, err));
    uint32_t digest = 0;
    for (int i = 0; i < 16; i++) {
        OK(data_next(t, &b, err));
        note(&b, seen, &digest);
    }
    for (int i = 0; i < 40; i++)
        assert_int_equal(seen[i], i < 16);
    FAILS(data_seek(t, 3, err), "cannot go to position");
    data_free(t);

    /* Going on from a position gives what would have come. */
    opt.packed = opt.order.repeat = true;
    opt.rows = 4;
    run(&opt, &r, 0, 9, again, &at);
    assert_true(at > 40); /* in a later pass */
    uint32_t rest = run(&opt, &r, at, 4, tail, &end);
    OK(text_open(&opt, &r, 1, &t, err));
    digest = 7;
    for (int i = 0; i < 13; i++) {
        OK(data_next(t, &b, err));
        if (i >= 9)
            note(&b, again, &digest);
        assert_int_equal(b.count, 4);
    }
    assert_int_equal(digest, rest);
    assert_int_equal(data_position(t), end);
    data_free(t);
    mem_free(s.path);
    scratch_free(dir);
}

/* Rows that end before the pieces do take the first ones of the ranges, in an order of their own;
 * the coordinator counts those as done. */
static void what_fills_the_rows_are_the_first_pieces(void **state)
{
    (void)state;
    enum { ROWS = 4, BATCHES = 3 };
    unsigned lengths[40];
    char *dir = scratch_new();
    for (unsigned i = 0; i < 40; i++)
        lengths[i] = 2 + i * 7 % 13;
    struct test_shard s = text_shard(dir, 1, lengths, 40, 0);
    struct data_range r = range(&s, 0, 40);
    struct text_options opt = in_order;
    uint64_t at;
    uint32_t before = 0;
    opt.rows = ROWS;
    opt.all_rows = ROWS * BATCHES;
    opt.order.shuffle = opt.order.repeat = true;
    for (opt.order.seed = 0; opt.order.seed < 50; opt.order.seed++) {
        unsigned seen[40] = {0};
        const uint32_t digest = run(&opt, &r, 0, BATCHES, seen, &at);
        assert_in_range(at, 10, 38);
        for (unsigned i = 0; i < 40; i++)
            assert_int_equal(seen[i], i < at);
        assert_int_not_equal(digest, before);
        before = digest;
    }
    mem_free(s.path);
    scratch_free(dir);
}

/* Pieces as stories have them, of 220 tokens, more or less. */
enum { STORIES = 2000, STORY_ROWS = 8, TOGETHER = STORIES / 16 };

struct stories {
    unsigned seen[STORIES];
    uint64_t rows, units;
    uint32_t digest;
};

/* Reads batches up to the end, or so many; *ret_at is the position then. */
static void read_stories(const struct text_options *opt, const struct data_range *r, uint64_t from,
                         unsigned batches, struct stories *s, uint64_t *ret_at)
{
    struct data *t;
    struct batch b;
    OK(text_open(opt, r, 1, &t, err));
    OK(data_seek(t, from, err));
    for (b.count = 1; batches > 0 && b.count > 0; batches--) {
        OK(data_next(t, &b, err));
        s->rows += b.count;
        s->units += batch_units(&b);
        for (unsigned row = 0; row < b.count; row++)
            for (unsigned i = 0; i < LONG; i++) {
                const int32_t id = b.tokens[row * (LONG + 1) + i];
                s->digest = s->digest * 31 + (uint32_t)id;
                if (id > 0 && b.pos[row * LONG + i] == 0)
                    s->seen[(id - 100000) / 1000]++;
            }
    }
    *ret_at = data_position(t);
    data_free(t);
}

static void rows_are_filled_well(void **state)
{
    (void)state;
    static struct stories all, half, rest, some;
    unsigned lengths[STORIES];
    char *dir = scratch_new();
    for (unsigned i = 0; i < STORIES; i++)
        lengths[i] = (unsigned)fmin(LONG + 1, fmax(2, 220 + 80 * rng_at_normal(1, 2, i)));
    struct test_shard s = text_shard(dir, 1, lengths, STORIES, 0);
    struct data_range r = range(&s, 0, STORIES);
    struct text_options opt = {.seq = LONG, .rows = STORY_ROWS, .packed = true};
    uint64_t at, middle, end;
    opt.order.shuffle = true;
    opt.order.seed = 3;
    read_stories(&opt, &r, 0, UINT_MAX, &all, &at);
    assert_int_equal(at, STORIES);
    for (unsigned i = 0; i < STORIES; i++)
        assert_int_equal(all.seen[i], 1);
    assert_true((double)all.units >= 0.95 * (double)all.rows * LONG);

    /* Going on from the middle of a window. */
    read_stories(&opt, &r, 0, 20, &half, &middle);
    assert_true(middle > 0 && middle < STORIES && middle % 256 != 0);
    rest.digest = half.digest;
    read_stories(&opt, &r, middle, UINT_MAX, &rest, &end);
    assert_int_equal(rest.digest, all.digest);
    assert_int_equal(half.rows + rest.rows, all.rows);

    /* Rows that end before the pieces do: the first pieces, also in the last of several windows. */
    opt.order.repeat = true;
    opt.all_rows = (uint64_t)STORY_ROWS * 50;
    read_stories(&opt, &r, 0, 50, &some, &at);
    assert_in_range(at, 800, STORIES - 1);
    for (unsigned i = 0; i < STORIES; i++)
        assert_int_equal(some.seen[i], i < at);
    assert_true((double)some.units >= 0.95 * (double)some.rows * LONG);

    /* What is shuffled together is used up before the next begins. */
    memset(&some, 0, sizeof some);
    opt.order.repeat = false;
    opt.order.window = 64;
    opt.all_rows = 0;
    read_stories(&opt, &r, 0, 40, &some, &at);
    assert_in_range(at, 640, 1000);
    for (unsigned i = 0; i < STORIES; i++)
        if (i < at - at % TOGETHER || i >= at - at % TOGETHER + TOGETHER)
            assert_int_equal(some.seen[i], i < at);
    mem_free(s.path);
    scratch_free(dir);
}

/* Of short pieces more are packed together, so that few of a window's rows stay empty, also where
 * few of them are shuffled together. */
static void short_pieces_fill_rows(void **state)
{
    (void)state;
    enum { SHORT = 7, A_ROW = (LONG + 1) / SHORT };
    unsigned lengths[STORIES];
    char *dir = scratch_new();
    for (unsigned i = 0; i < STORIES; i++)
        lengths[i] = SHORT;
    struct test_shard s = text_shard(dir, 1, lengths, STORIES, 0);
    struct data_range r = range(&s, 0, STORIES);
    struct text_options opt = {.seq = LONG, .rows = 1, .packed = true};
    opt.order.shuffle = true;
    for (int i = 0; i < 2; i++) {
        struct stories all = {0};
        uint64_t at;
        opt.order.window = i == 0 ? 0 : 4;
        read_stories(&opt, &r, 0, UINT_MAX, &all, &at);
        assert_int_equal(at, STORIES);
        const unsigned windows = i == 0 ? 1 : STORIES / TOGETHER;
        assert_int_equal(all.rows, windows * ((STORIES / windows + A_ROW - 1) / A_ROW));
    }
    mem_free(s.path);
    scratch_free(dir);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    static const unsigned lengths[] = {4, 5};
    char *dir = scratch_new();
    struct test_shard s = text_shard(dir, 0, lengths, 2, 0);
    struct test_shard images = shard_make(dir, 1, 2, 1, -1);
    struct data_range r = range(&s, 0, 2), beyond = range(&s, 1, 2),
                      pictures = range(&images, 0, 2);
    struct text_options opt = in_order;
    struct batch b;
    struct data *t;
    FAILS(text_open(&opt, &beyond, 1, &t, err), "which holds 2");
    FAILS(text_open(&opt, &pictures, 1, &t, err), "holds no text");
    FAILS(text_open(&opt, &r, 0, &t, err), "names 0 samples");
    opt.rows = 0;
    FAILS(text_open(&opt, &r, 1, &t, err), "batches of 0 rows");
    opt.rows = 1;
    opt.vocab = 2;
    OK(text_open(&opt, &r, 1, &t, err));
    FAILS(data_next(t, &b, err), "token 2, but there are 2");
    data_free(t);
    opt.vocab = 1005;
    OK(text_open(&opt, &r, 1, &t, err));
    OK(data_next(t, &b, err));
    assert_int_equal(b.samples, 2);
    data_free(t);
    mem_free(s.path);
    mem_free(images.path);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_without_leaking),
        cmocka_unit_test(last_column_is_a_target),
        cmocka_unit_test(one_piece_a_row),
        cmocka_unit_test(every_pass_has_every_piece),
        cmocka_unit_test(what_fills_the_rows_are_the_first_pieces),
        cmocka_unit_test(rows_are_filled_well),
        cmocka_unit_test(short_pieces_fill_rows),
        cmocka_unit_test(says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
