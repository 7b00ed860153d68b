/* Evaluation: the same task for a sample in whatever batch it comes. */
#include "tests/unit/worker/tiny.h"

#include <math.h>

#include "kernels/device/device.h"
#include "worker/train/eval.h"

enum { B = 4, VALUES = 3 * 6 * 6 };

/* The held-out loss of a sample depends on its id alone: not on the batch, nor the order. */
static void test_eval(void **state)
{
    struct device *dev = NULL;
    const struct model_spec specs[2] = {tiny_spec(), tiny_router()};
    uint8_t images[B * VALUES];
    int32_t labels[B];
    const int32_t partitions[B] = {2, 0, 3, 0};
    const uint64_t keys[B] = {50, 7, 1000, 3};
    const struct batch batch = {
        .count = B, .images = images, .labels = labels, .partitions = partitions, .keys = keys};
    (void)state;
    tiny_batch(&specs[0], 0, B, images, labels);
    OK(device_open("cpu-ref", 1, &dev, err));
    for (int kind = 0; kind < 2; kind++) {
        struct model *m = NULL;
        OK(model_new(&specs[kind], &m, err));
        float *flat = tiny_weights(m, 5);
        struct eval_sum whole = {0}, parts = {0};
        for (int pass = 0; pass < 2; pass++) {
            const struct net_options opt = {NET_FORWARD, NET_F32, .batch = pass ? 3 : B};
            struct net *n = NULL;
            struct batch b = batch;
            OK(net_new(dev, m, &opt, &n, err));
            OK(weights_set(n->weights, flat, err));
            b.seed = eval_seed(4);
            if (pass) { /* turned around */
                for (unsigned i = B; i-- > 0;) {
                    struct batch one;
                    batch_slice(&b, i, 1, &(struct batch_sizes){.image = VALUES}, &one);
                    OK(eval_batch(n, &one, &parts, err));
                }
            } else {
                OK(eval_batch(n, &b, &whole, err));
            }
            net_free(n);
        }
        assert_true(fabs(whole.loss - parts.loss) < 1e-6 * whole.loss);
        assert_int_equal(whole.units, B);
        assert_int_equal(parts.samples, B);
        assert_int_equal(whole.hits, parts.hits);
        mem_free(flat);
        model_free(m);
    }
    device_close(dev);
    assert_true(eval_seed(4) != eval_seed(5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
