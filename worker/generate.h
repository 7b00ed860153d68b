/* Generation of text with a Llama decoder: a cache of keys and values, one token
 * at a time.
 *
 * The next token is drawn from softmax(logits / temperature) over the fewest
 * tokens whose probabilities reach top_p; temperature 0 takes the likeliest.  Draw
 * i is a function of (seed, i).  When `context` positions are full the last half of
 * them is read again from position 0, so that texts may grow beyond it.
 *
 * Compute thread. */
#ifndef WORKER_GENERATE_H
#define WORKER_GENERATE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/tokenizer.h"

struct err;
struct llama;

struct generate_options {
    unsigned tokens;   /* at most so many new ones */
    float temperature; /* 0: greedy */
    float top_p;       /* (0, 1] */
    uint64_t seed;
    /* Called after every token with the whole characters that it completed (len may
     * be 0) and how many tokens there are; nonzero ends the run with that code when
     * negative, quietly when positive.  May be NULL. */
    int (*on_text)(void *arg, const char *text, size_t len, unsigned done);
    void *arg;
};

/* From ids to ids: appends the new tokens to *out, without the one that ends the
 * text (eos, -1: none).  prompt: at least one id; of more than `context` - 1 the last ones
 * count. */
int generate_tokens(struct llama *l, const uint32_t *prompt, size_t n, int32_t eos,
                    const struct generate_options *opt, struct tokens *out, struct err *err);

/* From text: bos and the prompt, special tokens in it recognised, then what comes
 * until eos.  *ret_tokens (may be NULL): how many were made. */
int generate_text(struct llama *l, const struct tokenizer *t, const char *prompt,
                  const struct generate_options *opt, unsigned *ret_tokens, struct err *err);

/* One draw from logits (n): index.  scratch (n) is written. */
struct generate_candidate {
    float p;
    uint32_t id;
};
uint32_t generate_draw(const float *logits, uint32_t n, const struct generate_options *opt,
                       uint64_t index, struct generate_candidate *scratch);

#endif
