#include "worker/eval.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/flow.h"

enum { STREAM_EVAL = 0x6576616c };

struct eval {
    struct eval_options opt;
    struct flow flow;
};

int eval_new(struct dit *d, const struct eval_options *opt, struct eval **ret, struct err *err)
{
    struct eval *e = mem_alloc(sizeof *e);
    e->opt = *opt;
    int rc = flow_init(&e->flow, d, false, err);
    if (rc < 0) {
        eval_free(e);
        return rc;
    }
    *ret = e;
    return 0;
}

void eval_free(struct eval *e)
{
    if (!e)
        return;
    flow_release(&e->flow);
    mem_free(e);
}

int eval_batch(struct eval *e, const uint8_t *images, const int32_t *labels, const uint64_t *ids,
               unsigned count, float *losses, struct err *err)
{
    struct flow *f = &e->flow;
    const unsigned most = (unsigned)dit_batch(f->dit);
    const int classes = dit_model(f->dit)->spec.classes;
    const uint64_t seed = rng_mix(e->opt.seed, STREAM_EVAL);

    for (unsigned start = 0; start < count;) {
        unsigned B = count - start < most ? count - start : most;
        for (unsigned i = 0; i < B; i++) {
            int32_t label = labels[start + i];
            if (label < 0 || label >= classes)
                return err_set(err, -EINVAL, "label %d of sample %llu is not below %d", (int)label,
                               (unsigned long long)ids[start + i], classes);
            f->labels[i] = label;
            flow_draw(f, (int)i, seed, ids[start + i], e->opt.uniform_t);
        }
        int rc = flow_run(f, images + (size_t)start * (size_t)f->n, (int)B, 0.0f, err);
        if (rc < 0)
            return rc;
        memcpy(losses + start, f->loss, B * sizeof *losses);
        start += B;
    }
    return 0;
}
