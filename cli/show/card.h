/* The model card of an export, README.md, as hubs of models show it: which library opens the model,
 * what it is, and how it was trained.  Neither the licence nor the data are known here: the card
 * says that whoever publishes the model adds them. */
#ifndef CLI_CARD_H
#define CLI_CARD_H

#include <jansson.h>

#include "common/base/base.h"

struct job_spec;

/* What the folder holds: a language model, with or without a tokenizer; a transformer of images
 * with captions, or with classes; the router of a mixture. */
enum card_kind { CARD_TEXT, CARD_TOKENS, CARD_CAPTIONS, CARD_IMAGES, CARD_ROUTER };

/* Writes DIR/README.md.  about: GET /v1/jobs/ID; class: of transformers, for CARD_TEXT and
 * CARD_TOKENS (which has no tokenizer); ema: the weights are the average. */
int card_write(const json_t *about, const struct job_spec *spec, enum card_kind kind,
               const char *class, bool ema, const char *dir, struct err *err);

#endif
