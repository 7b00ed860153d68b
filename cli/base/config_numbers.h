/* The numbers of a model's config.json against those of the job that is to start from it. */
#ifndef CLI_CONFIG_NUMBERS_H
#define CLI_CONFIG_NUMBERS_H

#include <jansson.h>

#include "common/base/base.h"

/* A number of config.json that must be equal to the job's. */
struct config_number {
    const char *key;  /* in config.json */
    const char *ours; /* in the job file */
    double value;
    double absent; /* the default of a config.json without the key; NAN: it must be there */
    double theirs; /* where it is not simply the key's; 0: it is */
    bool yes_or_no;
};

/* -ERR_CONFIG with one sentence that names all that differ, so that a person need not try once for
 * each.  dir: of config.json, for messages. */
int config_numbers_check(const char *dir, const json_t *config, const struct config_number *w,
                         size_t n, struct err *err);

#endif
