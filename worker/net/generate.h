/* Generation of text with a Llama decoder: a cache of keys and values, one token
 * at a time.
 *
 * The next token is drawn from softmax(logits / temperature) over the fewest
 * tokens whose probabilities reach top_p; temperature 0 takes the likeliest.  Draw
 * i is a function of (seed, i).  When the model's context is full, its last half is
 * read again from position 0, so texts may grow beyond the context.
 *
 * Compute thread. */
#ifndef WORKER_GENERATE_H
#define WORKER_GENERATE_H

#include "common/base/base.h"
#include "common/data/tokenizer.h"

struct llama;

struct generate_options {
    unsigned tokens;   /* new ones, at most */
    float temperature; /* 0: greedy */
    float top_p;       /* (0, 1] */
    uint64_t seed;
};

/* Called after every token, when `done` of them are made: 0 goes on, a positive number
 * ends the text here, a negative one is the run's error. */
typedef int (*generate_token_fn)(void *arg, uint32_t id, unsigned done);
/* The same, with the whole UTF-8 characters that the token completed; len may be 0. */
typedef int (*generate_text_fn)(void *arg, const char *text, size_t len, unsigned done);

/* From ids to ids, until `tokens` are made or eos (-1: none) is drawn, which fn does not
 * get.  prompt: at least one id; only the last ones that the context has room for are
 * read.  l must be made for a batch of 1 at least.  fn may not be NULL. */
int generate_tokens(struct llama *l, const uint32_t *prompt, size_t n, int32_t eos,
                    const struct generate_options *opt, generate_token_fn fn, void *arg,
                    struct err *err);

/* From text to text: reads the start token and the prompt, in which special tokens are
 * recognised, and generates until the end token.  fn gets only the new text. */
int generate_text(struct llama *l, const struct tokenizer *t, const char *prompt,
                  const struct generate_options *opt, generate_text_fn fn, void *arg,
                  struct err *err);

/* One draw from finite logits (n): the id.  scratch (n) is overwritten. */
struct generate_candidate {
    double p;
    uint32_t id;
};
uint32_t generate_draw(const float *logits, uint32_t n, const struct generate_options *opt,
                       uint64_t index, struct generate_candidate *scratch);

#endif
