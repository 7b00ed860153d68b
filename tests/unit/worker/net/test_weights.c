/* A level of the weights comes and goes without the others. */
#include "tests/unit/worker/tiny.h"

#include <string.h>

#include "kernels/device/device.h"
#include "worker/net/weights.h"

/* One level's values change, the others stay; the rounded copy follows. */
static void test_levels(void **state)
{
    struct err err = {0};
    struct device *dev = NULL;
    struct model_spec spec = tiny_spec();
    struct model *m = NULL;
    struct weights w;
    spec.cut = (struct model_cut){.n_levels = 2, .block_level = {0, 1, 0}};
    (void)state;
    OK(device_open("cpu-ref", 1, &dev, &err));
    OK(model_new(&spec, &m, &err));
    float *a = tiny_weights(m, 1), *b = tiny_weights(m, 2), *got = model_flat_new(m);
    OK(weights_init(&w, dev, m, DT_BF16, false, &err));
    OK(weights_set(&w, a, &err));
    OK(weights_set_level(&w, 1, b, &err));
    OK(weights_get(&w, got, &err));
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        const float *want = t->level == 1 ? b : a;
        assert_memory_equal(got + t->offset, want + t->offset, t->count * sizeof *got);
        assert_true(w.w16[t->offset] == bf16_from_f32(want[t->offset]));
    }
    memcpy(got, a, m->flat * sizeof *got);
    OK(weights_get_level(&w, 1, got, &err));
    const struct model_tensor *t = model_find(m, "blocks.1.mlp.fc1.weight");
    assert_memory_equal(got + t->offset, b + t->offset, t->count * sizeof *got);
    t = model_find(m, "blocks.2.mlp.fc1.weight");
    assert_memory_equal(got + t->offset, a + t->offset, t->count * sizeof *got);
    weights_release(&w);
    mem_free(a);
    mem_free(b);
    mem_free(got);
    model_free(m);
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
