#include "worker/train/eval.h"

#include "common/base/rng.h"

enum { STREAM_EVAL = 0x6576616c };

uint64_t eval_seed(uint64_t job_seed)
{
    return rng_mix(rng_mix(job_seed, STREAM_EVAL), STREAM_EVAL);
}

static void add(const struct batch *b, const struct net_result *r, struct eval_sum *sum)
{
    for (size_t i = 0; i < (size_t)b->count * batch_losses(b); i++)
        sum->loss += (double)r->losses[i];
    for (unsigned i = 0; i < b->count && r->base; i++)
        sum->base += (double)r->base[i];
    for (unsigned i = 0; i < b->count && r->best; i++)
        sum->hits += r->best[i] == b->partitions[i];
    sum->units += batch_units(b);
    sum->samples += b->count;
}

int eval_batch(struct net *net, const struct batch *b, struct eval_sum *sum, struct err *err)
{
    const struct model_spec *spec = &net_model(net)->spec;
    const struct batch_sizes sizes = net_batch_sizes(net_model(net), &net->opt);
    const unsigned most = (unsigned)net->opt.batch;
    float *losses = mem_try_array((size_t)most * batch_losses(b), sizeof *losses);
    int32_t *best = mem_try_array(most, sizeof *best);
    float *base = mem_try_array(most, sizeof *base);
    int rc = losses && best && base ? 0 : err_set(err, -ENOMEM, "no memory for %u losses", most);
    struct net_result r = {.losses = losses,
                           .base = net->d_base ? base : NULL,
                           .best = spec->kind == MODEL_ROUTER ? best : NULL};

    for (unsigned start = 0, n; start < b->count && rc == 0; start += n) {
        struct batch part;
        n = batch_run(b, start, most);
        batch_slice(b, start, n, &sizes, &part);
        part.estimate = spec->self_condition; /* since samplers have one, too */
        rc = net_loss(net, &part, false, 0.0f, false, &r, err);
        if (rc == 0)
            add(&part, &r, sum);
    }
    mem_free(base);
    mem_free(best);
    mem_free(losses);
    return rc;
}
