/* Any bytes as a profile: refused with a sentence, or one whose every number is finite. */
#include <stdint.h>
#include <stdlib.h>

#include "worker/pipe/costs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct costs *p)
{
    for (int c = 0; c < p->n_chains; c++)
        for (int i = 0; i < p->chains[c].n; i++)
            if (!isfinite(costs_seconds(&p->sizes, &p->chains[c].layers[i].b, 1 + i)))
                abort();
    for (int c = 0; c < p->n_frozen; c++)
        for (int i = 0; i < p->frozen[c].n; i++)
            if (!isfinite(costs_seconds(&p->groups, &p->frozen[c].layers[i].t, 1 + i)))
                abort();
    const struct costs_link l = costs_link(p, 0, p->n_devices - 1);
    if (p->n_chains < 1 || p->n_devices < 1 || !isfinite(costs_transfer(&l, 1000)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct costs p = {0};
    struct err err = {0};
    if (costs_parse("fuzz", (const char *)data, size, &p, &err) < 0) {
        if (err.msg[0] == '\0')
            abort();
        return 0;
    }
    use(&p);
    costs_release(&p);
    return 0;
}
