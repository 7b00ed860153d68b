/* What the planner counts for DiT-XL/2 at 256 tokens in bf16 on a card, as one object of JSON:
 *
 *    bytes_per_row, lean_bytes_per_row    activations that a block keeps of a row, without the
 *                                         statistics of its norms and its attention
 *    statistics_per_row                   those, bytes
 *    need                                 {batch: bytes of a step in one micro-batch}
 *    channels, parameters */
#include <stdio.h>

#include "common/base/base.h"
#include "kernels/dtype.h"
#include "worker/train/plan.h"
#include "worker/train/train.h"

enum { BATCH = 2, HEADS = 16 };

static struct model *xl(int depth, int image)
{
    const struct model_spec spec = {
        .channels = 3,
        .image = image,
        .patch = 2,
        .dim = 1152,
        .depth = depth,
        .heads = HEADS,
        .mlp = 4 * 1152,
        .classes = 1000,
        .cut = {.n_levels = 1},
    };
    struct err err = {0};
    struct model *m = NULL;
    if (model_new(&spec, &m, &err) < 0) {
        fprintf(stderr, "bench_card: %s\n", err.msg);
        exit(1);
    }
    return m;
}

static struct plan plan_of(const struct model *m, int batch, bool lean)
{
    const struct train_options opt = {
        .batch = batch, .accumulate = 1, .precision = NET_BF16, .lean = lean};
    const struct plan_room room = {.device = "cuda:0"};
    struct plan p;
    struct err err = {0};
    if (plan_train(m, &opt, DT_BF16, &room, &p, &err) < 0) {
        fprintf(stderr, "bench_card: %s\n", err.msg);
        exit(1);
    }
    return p;
}

/* Of one block more, of one row more: what is kept of samples falls out. */
static double kept_per_row(bool lean)
{
    double kept[2][2];
    for (int deep = 0; deep < 2; deep++)
        for (int large = 0; large < 2; large++) {
            struct model *m = xl(2 + deep, large ? 64 : 32);
            kept[deep][large] = (double)plan_of(m, BATCH, lean).activations;
            model_free(m);
        }
    const double rows = BATCH * (1024 - 256);
    return ((kept[1][1] - kept[0][1]) - (kept[1][0] - kept[0][0])) / rows;
}

int main(void)
{
    const double statistics = (HEADS + 2 * 2) * sizeof(float); /* lse; mean and 1/std of two */
    struct model *m = xl(28, 32);
    printf("{\"bytes_per_row\": %.0f, \"lean_bytes_per_row\": %.0f, \"statistics_per_row\": %.0f, "
           "\"need\": {\"128\": %llu, \"256\": %llu}, \"channels\": %d, \"parameters\": %llu}\n",
           kept_per_row(false) - statistics, kept_per_row(true) - statistics, statistics,
           (unsigned long long)plan_of(m, 128, false).need,
           (unsigned long long)plan_of(m, 256, false).need, m->spec.dim,
           (unsigned long long)m->params);
    model_free(m);
    return 0;
}
