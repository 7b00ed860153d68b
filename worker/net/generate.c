#include "worker/net/generate.h"

#include "common/base/rng.h"
#include "worker/net/llama.h"

enum { STREAM_TOKENS = 0x746f6b };

/* ---- one draw ---- */

static uint32_t likeliest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}

static int more_probable_first(const void *a, const void *b)
{
    const struct generate_candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p < y->p ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

uint32_t generate_draw(const float *logits, uint32_t n, const struct generate_options *opt,
                       uint64_t index, struct generate_candidate *scratch)
{
    const uint32_t best = likeliest(logits, n);
    if (opt->temperature <= 0)
        return best;

    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        scratch[i].id = i;
        scratch[i].p = exp(((double)logits[i] - (double)logits[best]) / (double)opt->temperature);
        sum += scratch[i].p;
    }
    /* All tokens below this together have less probability than top_p leaves out, so they need
     * no sorting. */
    const double least = (1.0 - (double)opt->top_p) * sum / n;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (scratch[i].p >= least)
            scratch[kept++] = scratch[i];
    }
    qsort(scratch, kept, sizeof *scratch, more_probable_first);
    double mass = 0;
    uint32_t nucleus = 0;
    while (nucleus < kept && (nucleus == 0 || mass < (double)opt->top_p * sum))
        mass += scratch[nucleus++].p;

    double at = (double)rng_at_uniform(opt->seed, STREAM_TOKENS, index) * mass;
    for (uint32_t i = 0; i + 1 < nucleus; i++) {
        at -= scratch[i].p;
        if (at < 0)
            return scratch[i].id;
    }
    return scratch[nucleus - 1].id;
}

/* ---- a text ---- */

struct run {
    struct llama_cache *cache;
    uint32_t *ids; /* the cache's ids, with room for a whole context */
    size_t n, most;
    uint32_t vocab;
    float *logits;                      /* (vocab) */
    struct generate_candidate *scratch; /* (vocab) */
    struct mem_arrays memory;           /* the three */
};

static void release(struct run *r)
{
    llama_cache_free(r->cache);
    mem_arrays_free(&r->memory);
}

static int prepare(struct llama *l, struct run *r, struct err *err)
{
    const struct model_spec *s = &llama_model(l)->spec;
    r->most = (size_t)s->context;
    r->vocab = (uint32_t)s->vocab;
    r->ids = mem_arrays_add(&r->memory, r->most, sizeof *r->ids);
    r->logits = mem_arrays_add(&r->memory, r->vocab, sizeof *r->logits);
    r->scratch = mem_arrays_add(&r->memory, r->vocab, sizeof *r->scratch);
    if (r->memory.failed)
        return err_set(err, -ENOMEM, "no memory to generate text");
    return llama_cache_new(l, &r->cache, err);
}

/* Appends the token to the cache; the logits are then those of its successor. */
static int push(struct run *r, uint32_t id, struct err *err)
{
    if (r->n == r->most) {
        const size_t keep = r->most / 2;
        memmove(r->ids, r->ids + r->n - keep, keep * sizeof *r->ids);
        llama_cache_clear(r->cache);
        r->n = keep;
        r->ids[r->n++] = id;
        return llama_read(r->cache, r->ids, (int)r->n, r->logits, err);
    }
    r->ids[r->n++] = id;
    return llama_read(r->cache, &id, 1, r->logits, err);
}

static int check_logits(const struct run *r, struct err *err)
{
    for (uint32_t i = 0; i < r->vocab; i++) {
        if (!isfinite(r->logits[i]))
            return err_set(err, -EDOM, "the model's logits are not finite");
    }
    return 0;
}

static int go_on(struct run *r, int32_t eos, const struct generate_options *opt,
                 generate_token_fn fn, void *arg, struct err *err)
{
    for (unsigned i = 0; i < opt->tokens; i++) {
        int rc = check_logits(r, err);
        if (rc < 0)
            return rc;
        const uint32_t id = generate_draw(r->logits, r->vocab, opt, i, r->scratch);
        if ((int64_t)id == eos)
            return 0;
        rc = fn(arg, id, i + 1);
        if (rc > 0)
            return 0;
        if (rc < 0)
            return err_set(err, rc, "the text was not finished: %s", err_text(rc));
        rc = i + 1 < opt->tokens ? push(r, id, err) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

int generate_tokens(struct llama *l, const uint32_t *prompt, size_t n, int32_t eos,
                    const struct generate_options *opt, generate_token_fn fn, void *arg,
                    struct err *err)
{
    struct run r = {0};
    if (n < 1)
        return err_set(err, -EINVAL, "a text cannot start from no token at all");
    int rc = prepare(l, &r, err);
    if (rc == 0) {
        r.n = n < r.most ? n : r.most - 1;
        memcpy(r.ids, prompt + n - r.n, r.n * sizeof *prompt);
        rc = llama_read(r.cache, r.ids, (int)r.n, r.logits, err);
    }
    if (rc == 0)
        rc = go_on(&r, eos, opt, fn, arg, err);
    release(&r);
    return rc;
}

struct printer {
    const struct tokenizer *t;
    struct tokenizer_stream stream;
    struct buf text; /* completed by the last token */
    unsigned done;
    generate_text_fn fn;
    void *arg;
};

static int print_token(void *arg, uint32_t id, unsigned done)
{
    struct printer *p = arg;
    p->done = done;
    buf_clear(&p->text);
    int rc = tokenizer_stream_push(&p->stream, p->t, id, &p->text);
    return rc < 0 ? rc : p->fn(p->arg, buf_str(&p->text), p->text.len, done);
}

int generate_text(struct llama *l, const struct tokenizer *t, const char *prompt,
                  const struct generate_options *opt, generate_text_fn fn, void *arg,
                  struct err *err)
{
    struct tokens ids = {0};
    struct printer p = {.t = t, .fn = fn, .arg = arg};
    const int32_t bos = tokenizer_bos(t) >= 0 ? tokenizer_bos(t) : tokenizer_eos(t);
    int rc = bos >= 0 ? tokens_add(&ids, (uint32_t)bos, err) : 0;
    if (rc == 0)
        rc = tokenizer_encode(t, prompt, strlen(prompt), TOKENIZER_SPECIAL, &ids, err);
    if (rc == 0 && ids.n == 0)
        rc = err_set(err, -EINVAL, "the tokenizer has no token that starts a text: give a prompt");
    buf_init(&p.text, 2 * TOKENIZER_PIECE_MAX);
    if (rc == 0)
        rc = generate_tokens(l, ids.ids, ids.n, tokenizer_eos(t), opt, print_token, &p, err);
    if (rc == 0) {
        buf_clear(&p.text);
        rc = tokenizer_stream_end(&p.stream, &p.text);
        if (rc == 0 && p.text.len > 0)
            rc = fn(arg, buf_str(&p.text), p.text.len, p.done);
        if (rc < 0)
            (void)err_set(err, rc, "the text was not finished: %s", err_text(rc));
        else
            rc = 0; /* the text is complete anyway */
    }
    buf_release(&p.text);
    tokens_release(&ids);
    return rc;
}
