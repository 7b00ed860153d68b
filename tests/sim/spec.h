/* The jobs of the worlds: one of each way in which a swarm may train. */
#ifndef TESTS_SIM_SPEC_H
#define TESTS_SIM_SPEC_H

#include "common/base/base.h"

enum spec_data { SPEC_IMAGES, SPEC_LATENTS, SPEC_TEXTS, SPEC_URL, SPEC_OWN };

struct spec {
    const char *yaml;
    enum spec_data data; /* what is uploaded with it */
};

/* By chance; folds: of those whose workers make outer steps. */
const struct spec *spec_some(bool folds);
/* One whose data workers cut or divide. */
const struct spec *spec_divided(void);
/* Each of them in turn. */
const struct spec *spec_at(size_t n);
/* Of a long life: as many rounds as there is time for. */
const struct spec *spec_endless(uint64_t seed);

#endif
