/* The model card of an export, README.md, as hubs of models show it: which library opens the model,
 * what it is, and how it was trained.  Neither the licence nor the data are known here: the card
 * says that whoever publishes the model adds them. */
#ifndef CLI_CARD_H
#define CLI_CARD_H

#include <jansson.h>

#include "common/base/base.h"

struct job_spec;

/* Writes DIR/README.md, after all other files of the folder.  One that is there stays, a person's
 * or that of the weights that the job began with, unless it is a card on which nobody has worked.
 * about: GET /v1/jobs/ID, and of its path_list the path; ema: the weights are the average, or what
 * the path stopped at early. */
int card_write(const json_t *about, const json_t *path, const struct job_spec *spec, bool ema,
               const char *dir, struct err *err);

#endif
