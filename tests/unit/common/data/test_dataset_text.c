#include "common/data/dataset.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

#include "common/data/shard.h"
#include "common/base/str.h"
#include "common/data/tokenizer.h"

#define CONTEXT 64
#define NAMES_MAX 4096

/* What came out of a cut, put together again. */
struct got {
    uint32_t shards, samples, holdout;
    double share;
    uint64_t tokens, holdout_tokens;
    char *text[64][2]; /* by number of the document: the pieces' texts, train and held out */
    char tail[64][DATASET_PIECE_MIN + 1]; /* a last piece that may have begun earlier */
    uint32_t pieces[64][2];
    char order[NAMES_MAX][SHARD_KEY_MAX];
    uint8_t digest[HASH_BYTES];
};

static void take_piece(struct got *g, const struct shard_sample *s, bool holdout)
{
    int32_t ids[CONTEXT];
    int doc = -1, piece = -1;
    assert_true(s->tokens <= CONTEXT);
    shard_tokens(s, ids);
    assert_int_equal(sscanf(strrchr(s->key, '_') + 1, "%d#%d", &doc, &piece), 2);
    assert_in_range(doc, 0, 63);
    if (!g->text[doc][holdout])
        g->text[doc][holdout] = mem_alloc(NAMES_MAX);
    /* Its place follows from its number: all but the first share a token, or more if the last one
     * would be too short. */
    const bool tail = piece > 0 && s->tokens == DATASET_PIECE_MIN;
    for (uint32_t i = 0; i < s->tokens; i++) {
        char *at = tail ? &g->tail[doc][i] : &g->text[doc][holdout][piece * (CONTEXT - 1) + (int)i];
        char c = ids[i] == 256 ? '|' : (char)ids[i];
        assert_true(*at == '\0' || *at == c);
        *at = c;
    }
    g->pieces[doc][holdout]++;
    assert_true(g->samples < NAMES_MAX);
    str_copy(g->order[g->samples], SHARD_KEY_MAX, strchr(s->key, '-') + 1);
}

static int on_shard(void *ctx, const struct dataset_shard *shard, struct err *ret_err)
{
    (void)ret_err;
    struct got *g = ctx;
    struct shard s;
    uint8_t both[2 * HASH_BYTES];
    OK(shard_open(shard->path, &s, err));
    assert_int_equal(s.kind, SHARD_TEXT);
    assert_int_equal(s.n, shard->samples);
    assert_int_equal(s.tokens, shard->tokens);
    for (size_t i = 0; i < s.n; i++) {
        take_piece(g, &s.samples[i], shard->holdout);
        g->samples++;
        g->holdout += shard->holdout;
    }
    g->shards++;
    assert_true(shard->share > g->share);
    g->share = shard->share;
    g->tokens += s.tokens;
    g->holdout_tokens += shard->holdout ? s.tokens : 0;
    shard_close(&s);
    memcpy(both, g->digest, HASH_BYTES);
    memcpy(both + HASH_BYTES, shard->sha256, HASH_BYTES);
    hash_sha256(both, sizeof(both), g->digest);
    return 0;
}

static int cut(const struct dataset_options *opt, uint64_t seed, double holdout, struct got *g,
               struct dataset_report *report, struct err *ret_err)
{
    struct dataset *ds;
    char *dir = scratch_new();
    struct dataset_cut c = {
        .seed = seed,
        .holdout = holdout,
        .shard_samples = 16,
        .dir = dir,
        .on_shard = on_shard,
        .ctx = g,
    };
    memset(g, 0, sizeof(*g));
    int rc = dataset_open(opt, &ds, ret_err);
    if (rc == 0) {
        assert_int_equal(dataset_classes(ds), 0);
        rc = dataset_cut(ds, &c, report, ret_err);
        dataset_close(ds);
    }
    assert_true(rc < 0 || g->share == 1);
    struct file_names left;
    OK(file_list(dir, 1000, &left, err));
    for (size_t i = 0; i < left.n; i++) /* the shards alone, no buckets */
        assert_true(str_ends(left.items[i], ".tar"));
    file_names_release(&left);
    scratch_free(dir);
    return rc;
}

static void got_free(struct got *g)
{
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < 2; k++)
            mem_free(g->text[i][k]);
    mem_free(g);
}

/* Document i has `lengths(i)` letters. */
static size_t length_of(int i)
{
    return (size_t)i * i % 700;
}

static void write_documents(const char *dir, const char *name, int n)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < n; i++) {
        buf_printf(&b, "{\"text\":\"");
        for (size_t k = 0; k < length_of(i); k++)
            buf_append_byte(&b, (uint8_t)('a' + (k * 7 + (size_t)i) % 26));
        buf_printf(&b, "\"}\n");
    }
    put(dir, name, b.data, b.len);
    buf_release(&b);
}

/* Pieces of a document of n tokens. */
static uint32_t pieces_of(size_t n)
{
    uint32_t count = 1;
    for (size_t at = CONTEXT - 1; at + 1 < n; at += CONTEXT - 1)
        count++;
    return count;
}

static void documents_become_pieces(void **state)
{
    (void)state;
    enum { N = 60 };
    char *dir = scratch_new(), *path = in(dir, "d.jsonl");
    struct got *g = mem_alloc(sizeof(*g));
    struct dataset_report r;
    struct dataset_options opt = {.path = path, .text = true, .context = CONTEXT};
    write_documents(dir, "d.jsonl", N);
    OK(cut(&opt, 7, 0.3, g, &r, err));
    uint32_t held = 0, tails = 0;
    for (int i = 0; i < N; i++) {
        bool holdout = g->pieces[i][1] > 0;
        size_t n = length_of(i) + 2;
        char *text = g->text[i][holdout];
        assert_false(holdout && g->pieces[i][0]); /* whole documents go one way */
        assert_int_equal(g->pieces[i][holdout], pieces_of(n));
        assert_true(text[0] == '|');
        if (g->tail[i][0]) {
            assert_true(strlen(text) + 1 >= n - DATASET_PIECE_MIN); /* no gap before it */
            memcpy(text + n - DATASET_PIECE_MIN, g->tail[i], DATASET_PIECE_MIN);
            tails++;
        }
        assert_int_equal(strlen(text), n);
        for (size_t k = 0; k + 2 < n; k++)
            assert_true(text[k + 1] == (char)('a' + (k * 7 + (size_t)i) % 26));
        assert_true(text[n - 1] == '|');
        held += holdout;
    }
    assert_true(held > 5 && held < 35);
    assert_in_range(tails, 5, N);
    assert_int_equal(r.documents, N);
    assert_int_equal(r.holdout_documents, held);
    assert_int_equal(r.samples, g->samples);
    assert_int_equal(r.holdout_samples, g->holdout);
    assert_int_equal(r.tokens, g->tokens);
    assert_int_equal(r.holdout_tokens, g->holdout_tokens);
    assert_int_equal(r.vocab, 257);
    assert_int_equal(r.dim, 0);
    uint64_t bytes = 0;
    for (int i = 0; i < N; i++)
        bytes += length_of(i);
    assert_int_equal(r.text_bytes, bytes);
    dataset_report_release(&r);
    got_free(g);
    mem_free(path);
    scratch_free(dir);
}

/* Who predicts each token of three long documents: nobody 0, training 't', the held-out loss 'h'.
 */
#define BOOK_MAX 60000
static const size_t books[] = {20000, 50000, 31000};
struct whose {
    char by[3][BOOK_MAX];
    uint64_t held; /* tokens predicted */
    unsigned again;
};

static int on_long_shard(void *ctx, const struct dataset_shard *shard, struct err *ret_err)
{
    (void)ret_err;
    struct whose *w = ctx;
    struct shard s;
    OK(shard_open(shard->path, &s, err));
    for (size_t i = 0; i < s.n; i++) {
        unsigned doc, piece;
        const char *name = strchr(s.samples[i].key, '-') + 1;
        assert_int_equal(sscanf(name, "%u_%*[^#]#%u", &doc, &piece), 2);
        const uint32_t n = s.samples[i].tokens;
        const size_t at = piece * (CONTEXT - 1), last = books[doc] + 2 - n;
        for (uint32_t k = 1; k < n; k++) { /* the first token is not predicted */
            char *by = &w->by[doc][(at < last ? at : last) + k];
            /* Only the end may be predicted twice, and on the same side. */
            w->again += *by != 0;
            assert_true(*by == 0 || *by == (shard->holdout ? 'h' : 't'));
            *by = shard->holdout ? 'h' : 't';
            w->held += shard->holdout;
        }
    }
    shard_close(&s);
    return 0;
}

static void cut_long(const char *path, uint64_t seed, double holdout, struct whose *w,
                     struct dataset_report *r)
{
    struct dataset *ds;
    char *dir = scratch_new();
    struct dataset_options opt = {.path = path, .text = true, .context = CONTEXT};
    struct dataset_cut c = {
        .seed = seed,
        .holdout = holdout,
        .shard_samples = 64,
        .dir = dir,
        .on_shard = on_long_shard,
        .ctx = w,
    };
    memset(w, 0, sizeof(*w));
    OK(dataset_open(&opt, &ds, err));
    OK(dataset_cut(ds, &c, r, err));
    dataset_close(ds);
    scratch_free(dir);
}

/* Each token but the first is predicted, and what is held out lies in spans: *ret says how
 * many.  `n` is the tokens of the document. */
static void check_whose(const char *by, size_t n, unsigned *ret)
{
    assert_int_equal(by[0], 0);
    for (size_t i = 1; i < n; i++) {
        assert_true(by[i]);
        *ret += by[i] == 'h' && by[i - 1] != 'h';
    }
}

static void long_documents_are_held_out_by_spans(void **state)
{
    (void)state;
    static const double shares[] = {0.001, 0.02, 0.05, 0.3, 0.5};
    const uint64_t span = DATASET_SPAN / CONTEXT * (CONTEXT - 1), all = 20000 + 50000 + 31000;
    char *dir = scratch_new(), name[16], *text = mem_alloc(BOOK_MAX);
    struct whose *w = mem_alloc(sizeof(*w)), *again = mem_alloc(sizeof(*w));
    struct dataset_report r;
    unsigned other = 0;
    memset(text, 'x', BOOK_MAX);
    for (unsigned i = 0; i < COUNT(books); i++) {
        (void)snprintf(name, sizeof(name), "%u_book.txt", i);
        put(dir, name, text, books[i]);
    }
    for (size_t k = 0; k < COUNT(shares); k++)
        for (uint64_t seed = 1; seed < 4; seed++) {
            unsigned spans = 0;
            cut_long(dir, seed, shares[k], w, &r);
            for (unsigned i = 0; i < COUNT(books); i++)
                check_whose(w->by[i], books[i] + 2, &spans);
            assert_in_range(w->again, 1, COUNT(books) * (DATASET_PIECE_MIN - 2));
            assert_in_range(w->held, 1, (uint64_t)((double)all * shares[k]) + span);
            assert_true((double)(w->held + span * 3 / 2) >= (double)all * shares[k]);
            assert_in_range(spans, 1, w->held / span + 3); /* runs; documents may cut some */
            assert_int_equal(r.documents, 3);
            assert_int_equal(r.holdout_documents, 0);
            /* Pieces count their first token, too. */
            assert_int_equal(r.holdout_tokens, w->held + r.holdout_samples);
            dataset_report_release(&r);
            cut_long(dir, seed + (seed == 3), shares[k], again, &r);
            dataset_report_release(&r);
            if (seed < 3)
                assert_memory_equal(w->by, again->by, sizeof(w->by));
            else
                other += memcmp(w->by, again->by, sizeof(w->by)) != 0;
        }
    assert_true(other > 0); /* another seed holds out something else */
    mem_free(w);
    mem_free(again);
    mem_free(text);
    scratch_free(dir);
}

/* Of few documents none may be chosen by its name: then it is not the one that has most of the
 * text. */
static void few_documents_leave_most_to_train_on(void **state)
{
    (void)state;
    enum { SEEDS = 12 };
    char *dir = scratch_new(), *path = in(dir, "d.jsonl");
    struct got *g = mem_alloc(sizeof(*g));
    struct dataset_options opt = {.path = path, .text = true, .context = CONTEXT};
    struct buf b;
    unsigned much = 0;
    buf_init(&b, 1 << 20);
    buf_printf(&b, "{\"text\":\"%03000d\"}\n", 0);
    for (int i = 1; i < 8; i++)
        buf_printf(&b, "{\"text\":\"%0*d\"}\n", 60 + 20 * i, 0);
    put(dir, "d.jsonl", b.data, b.len);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct dataset_report r;
        uint32_t held = 0;
        OK(cut(&opt, seed, 0.05, g, &r, err));
        for (int i = 0; i < 8; i++) {
            const bool holdout = g->pieces[i][1] > 0;
            assert_int_equal(g->pieces[i][holdout], pieces_of(i ? 62 + 20 * (size_t)i : 3002));
            assert_int_equal(g->pieces[i][!holdout], 0);
            held += holdout;
        }
        assert_true(held > 0 && held == r.holdout_documents);
        much += g->pieces[0][1] > 0;
        dataset_report_release(&r);
        for (int i = 0; i < 64; i++)
            for (int k = 0; k < 2; k++)
                mem_free(g->text[i][k]);
    }
    assert_true(much <= 2); /* by its name, one in twenty */
    mem_free(g);
    buf_release(&b);
    mem_free(path);
    scratch_free(dir);
}

static int pass(void *ctx, const struct dataset_shard *shard, struct err *ret_err)
{
    (void)ctx, (void)shard, (void)ret_err;
    return 0;
}

/* Broken lines are left out and named with their numbers, up to max_bad. */
static void broken_lines(void **state)
{
    (void)state;
    char *dir = scratch_new(), *path = in(dir, "d.jsonl");
    const struct dataset_options opt = {.path = path, .text = true, .context = CONTEXT};
    struct dataset_cut how = {.seed = 1, .shard_samples = 16, .dir = dir, .on_shard = pass};
    static const char lines[] =
        "{\"text\":\"abcdefgh\"}\n{\"text\":\n{\"text\":\"ijklmnop\"}\n[]\n";
    put(dir, "d.jsonl", lines, strlen(lines));
    for (how.max_bad = 0; how.max_bad < 3; how.max_bad++) {
        struct dataset *ds = NULL;
        struct dataset_report r = {0};
        OK(dataset_open(&opt, &ds, err));
        if (how.max_bad == 0) {
            FAILS(dataset_cut(ds, &how, &r, err), "1 line cannot be read, at most 0 may be left");
        } else if (how.max_bad == 1) {
            FAILS(dataset_cut(ds, &how, &r, err), "d.jsonl, line 4: expected an object with");
        } else {
            OK(dataset_cut(ds, &how, &r, err));
            assert_true(r.documents == 2 && r.bad_count == 2);
            assert_non_null(strstr(r.bad[0], "/d.jsonl, line 2"));
            assert_string_equal(r.bad_why[0], "not JSON");
            assert_non_null(strstr(r.bad[1], "/d.jsonl, line 4"));
            assert_string_equal(r.bad_why[1], "no object with a text");
        }
        dataset_report_release(&r);
        dataset_close(ds);
    }
    mem_free(path);
    scratch_free(dir);
}

static void same_seed_same_bytes(void **state)
{
    (void)state;
    char *dir = scratch_new(), *path = in(dir, "d.jsonl");
    struct got *a = mem_alloc(sizeof(*a)), *b = mem_alloc(sizeof(*b));
    struct dataset_report r;
    struct dataset_options opt = {.path = path, .text = true, .context = CONTEXT};
    write_documents(dir, "d.jsonl", 60);
    OK(cut(&opt, 7, 0, a, &r, err));
    dataset_report_release(&r);
    OK(cut(&opt, 7, 0, b, &r, err));
    dataset_report_release(&r);
    assert_int_equal(a->holdout, 0);
    assert_memory_equal(a->digest, b->digest, HASH_BYTES);
    /* Pieces are shuffled one by one: neighbours are seldom of one document. */
    unsigned together = 0;
    for (uint32_t i = 1; i < a->samples; i++)
        together += strcspn(a->order[i], "#") == strcspn(a->order[i - 1], "#") &&
                    strncmp(a->order[i], a->order[i - 1], strcspn(a->order[i], "#")) == 0;
    assert_true(a->samples > 200 && together < a->samples / 8);
    got_free(b);
    b = mem_alloc(sizeof(*b));
    OK(cut(&opt, 8, 0, b, &r, err));
    dataset_report_release(&r);
    assert_int_equal(a->samples, b->samples);
    assert_memory_not_equal(a->digest, b->digest, HASH_BYTES);
    got_free(a);
    got_free(b);
    mem_free(path);
    scratch_free(dir);
}

static void holdout_of_its_own(void **state)
{
    (void)state;
    char *dir = scratch_new(), *path = in(dir, "d.jsonl"), *valid = in(dir, "v.jsonl");
    struct got *g = mem_alloc(sizeof(*g));
    struct dataset_report r;
    struct dataset_options opt = {
        .path = path, .holdout_path = valid, .text = true, .context = CONTEXT};
    write_documents(dir, "d.jsonl", 20);
    write_documents(dir, "v.jsonl", 9);
    OK(cut(&opt, 7, 0.5, g, &r, err));
    for (int i = 0; i < 20; i++) {
        assert_true(g->pieces[i][0] > 0);
        assert_int_equal(g->pieces[i][1] > 0, i < 9);
    }
    assert_int_equal(r.documents, 29);
    assert_int_equal(r.holdout_documents, 9);
    dataset_report_release(&r);
    got_free(g);
    mem_free(path);
    mem_free(valid);
    scratch_free(dir);
}

static int count_features(void *ctx, const struct dataset_shard *shard, struct err *ret_err)
{
    (void)ret_err;
    struct shard s;
    unsigned *n = ctx;
    OK(shard_open(shard->path, &s, err));
    assert_int_equal(s.dim, 2);
    for (size_t i = 0; i < s.n; i++, ++*n) {
        float v[2];
        shard_feature(&s, &s.samples[i], v);
        assert_true(v[1] == 0.5f);
        /* Piece 1 is of document 1, which has a 7. */
        if (strstr(s.samples[i].key, "#1"))
            assert_true(v[0] == 7);
    }
    shard_close(&s);
    return 0;
}

static void pieces_have_the_column(void **state)
{
    (void)state;
    char *dir = scratch_new(), *path = in(dir, "d.jsonl");
    struct buf b;
    struct dataset *ds;
    struct dataset_report r;
    unsigned n = 0;
    struct dataset_cut c = {.shard_samples = 16, .dir = dir, .on_shard = count_features, .ctx = &n};
    struct dataset_options opt = {.path = path, .column = "v", .text = true, .context = CONTEXT};
    buf_init(&b, 4096);
    buf_printf(&b, "{\"text\":\"short\",\"v\":[1,0.5]}\n{\"text\":\"%0100d\",\"v\":[7,0.5]}\n", 0);
    put(dir, "d.jsonl", b.data, b.len);
    OK(dataset_open(&opt, &ds, err));
    OK(dataset_cut(ds, &c, &r, err));
    assert_int_equal(n, 3);
    assert_int_equal(r.dim, 2);
    dataset_report_release(&r);
    dataset_close(ds);

    buf_printf(&b, "{\"text\":\"more\",\"v\":[7,0.5,1]}\n");
    put(dir, "d.jsonl", b.data, b.len);
    OK(dataset_open(&opt, &ds, err));
    FAILS(dataset_cut(ds, &c, &r, err),
          "the column 'v' of sample 'd/2' has 3 numbers, but the first sample's has 2");
    dataset_close(ds);
    buf_release(&b);
    mem_free(path);
    scratch_free(dir);
}

static void token_files(void **state)
{
    (void)state;
    uint16_t ids[200];
    char *dir = scratch_new(), *path = in(dir, "a.bin"), *valid = in(dir, "v.bin");
    struct got *g = mem_alloc(sizeof(*g));
    struct dataset_report r;
    struct tokenizer *bytes = tokenizer_bytes();
    struct dataset_options opt = {
        .path = path, .holdout_path = valid, .text = true, .context = CONTEXT};
    for (int i = 0; i < 200; i++)
        ids[i] = (uint16_t)('a' + i % 26);
    put(dir, "v.bin", ids, 100);
    put(dir, "a.bin", ids, sizeof(ids));
    OK(cut(&opt, 1, 0, g, &r, err));
    assert_int_equal(g->pieces[0][0], 4); /* 64 + 63 + 63, and the last ten */
    assert_int_equal(g->pieces[0][1], 1);
    assert_int_equal(r.vocab, 257);
    dataset_report_release(&r);
    got_free(g);

    ids[150] = 40000;
    put(dir, "a.bin", ids, sizeof(ids));
    opt.tokenizer = bytes;
    g = mem_alloc(sizeof(*g));
    FAILS(cut(&opt, 1, 0, g, &r, err), "token 40000, but the vocabulary of data.tokenizer ends");
    got_free(g);
    tokenizer_free(bytes);
    mem_free(path);
    mem_free(valid);
    scratch_free(dir);
}

/* The bytes that were done when it was called. */
struct stop {
    uint64_t done[64];
    int calls, at;
};

static int stop_at(void *ctx, uint64_t done, uint64_t total)
{
    struct stop *s = ctx;
    assert_true(done <= total && s->calls < 64);
    s->done[s->calls++] = done;
    return s->calls == s->at ? -ERR_CANCELLED : 0;
}

static int ignore_shard(void *ctx, const struct dataset_shard *shard, struct err *err)
{
    (void)ctx;
    return file_remove(shard->path, err);
}

/* A token file is one document, of any size: it is counted, and can be left, on the way. */
static void a_document_can_be_left(void **state)
{
    (void)state;
    enum { N = 100000 };
    static uint16_t ids[N];
    char *dir = scratch_new(), *path = in(dir, "x.bin");
    put(dir, "x.bin", ids, sizeof(ids));
    for (int at = 0; at < 3; at += 2) {
        struct dataset_options opt = {.path = path, .text = true, .context = CONTEXT};
        struct stop stop = {.at = at};
        struct dataset_cut c = {.shard_samples = 4096,
                                .dir = dir,
                                .on_shard = ignore_shard,
                                .on_progress = stop_at,
                                .ctx = &stop};
        struct dataset_report r = {0};
        struct dataset *ds;
        OK(dataset_open(&opt, &ds, err));
        if (at)
            FAILS(dataset_cut(ds, &c, &r, err), "cutting the dataset was stopped");
        else
            OK(dataset_cut(ds, &c, &r, err));
        /* 1587 pieces: six times in between, and at the end. */
        for (int i = 0; i < (at ? at : 6); i++)
            assert_int_equal(stop.done[i], 2 * ((i + 1) * 256 * (CONTEXT - 1) + 1));
        assert_true(at ? stop.calls == at : stop.done[6] == sizeof(ids));
        dataset_report_release(&r);
        dataset_close(ds);
    }
    mem_free(path);
    scratch_free(dir);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *data, *says;
        double holdout;
    } cases[] = {
        {"", "has no documents", 0},
        {"{\"txt\":\"a\"}\n", "line 1: expected an object with a text \"text\"", 0},
        {"{\"text\":\"hello\"}\n", "its only document is held out", 0.1},
        {"{\"text\":\"a\"}\n{\"text\":\"b\"}\n", "all its documents are held out", 0.99999},
        {"{\"text\":\"a\"}\n{\"text\":\"b\"}\n{\"text\":", "line 3", 0.5},
    };
    char *dir = scratch_new(), *path = in(dir, "d.jsonl");
    struct dataset_options opt = {.path = path, .text = true, .context = CONTEXT};
    struct got *g = mem_alloc(sizeof(*g));
    struct dataset_report r;
    for (size_t i = 0; i < COUNT(cases); i++) {
        put(dir, "d.jsonl", cases[i].data, strlen(cases[i].data));
        FAILS(cut(&opt, 1, cases[i].holdout, g, &r, err), cases[i].says);
        assert_int_equal(g->shards, 0); /* nothing is handed out before all was read */
    }
    opt.context = 1;
    FAILS(cut(&opt, 1, 0, g, &r, err), "pieces of 1 tokens");
    mem_free(path);
    opt = (struct dataset_options){.text = true, .context = CONTEXT};
    opt.path = path = in(dir, "d.txt");
    put(dir, "d.txt", "", 0);
    FAILS(cut(&opt, 1, 0, g, &r, err), "d.txt is empty, expected text to train on");
    got_free(g);
    mem_free(path);
    scratch_free(dir);
}

/* Also where names differ behind a dot alone. */
static void files_are_held_out_one_by_one(void **state)
{
    (void)state;
    char *dir = scratch_new();
    struct dataset_options opt = {.path = dir, .text = true, .context = CONTEXT};
    struct got *g = mem_alloc(sizeof(*g));
    struct dataset_report r;
    for (int i = 0; i < 40; i++) {
        char name[32];
        snprintf(name, sizeof(name), "part_1.%d.txt", i);
        put(dir, name, "a text", 6);
    }
    OK(cut(&opt, 1, 0.25, g, &r, err));
    assert_int_equal(r.documents, 40);
    assert_in_range(r.holdout_documents, 4, 16);
    dataset_report_release(&r);
    got_free(g);
    scratch_free(dir);
}

/* Latin-1 makes tokens like any bytes, which its owner is to be told. */
static void what_is_no_utf8_is_counted(void **state)
{
    (void)state;
    static const char text[] = "\xc3\xa9t\xc3\xa9 ", latin1[] = "\xe9t\xe9 ";
    char *dir = scratch_new();
    struct dataset_options opt = {.path = dir, .text = true, .context = CONTEXT};
    struct got *g = mem_alloc(sizeof(*g));
    struct dataset_report r;
    put(dir, "a_0.txt", text, sizeof(text) - 1);
    OK(cut(&opt, 1, 0, g, &r, err));
    assert_int_equal(r.not_utf8, 0);
    dataset_report_release(&r);
    got_free(g);
    g = mem_alloc(sizeof(*g));
    put(dir, "b_1.txt", latin1, sizeof(latin1) - 1);
    put(dir, "c_2.txt", latin1, sizeof(latin1) - 1);
    OK(cut(&opt, 1, 0, g, &r, err));
    assert_int_equal(r.not_utf8, 2);
    assert_string_equal(r.not_utf8_first, "b_1.txt");
    assert_int_equal(r.documents, 3);
    dataset_report_release(&r);
    got_free(g);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_become_pieces),
        cmocka_unit_test(long_documents_are_held_out_by_spans),
        cmocka_unit_test(broken_lines),
        cmocka_unit_test(few_documents_leave_most_to_train_on),
        cmocka_unit_test(same_seed_same_bytes),
        cmocka_unit_test(holdout_of_its_own),
        cmocka_unit_test(pieces_have_the_column),
        cmocka_unit_test(token_files),
        cmocka_unit_test(a_document_can_be_left),
        cmocka_unit_test(files_are_held_out_one_by_one),
        cmocka_unit_test(what_is_no_utf8_is_counted),
        cmocka_unit_test(says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
