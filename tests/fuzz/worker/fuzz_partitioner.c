/* Any bytes as a partitioner: refused, or one that assigns any sample to partitions there are. */
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "kernels/device/device.h"
#include "worker/fit/fit.h"
#include "worker/fit/partitioner.h"

#define ROWS 3
#define WORK_MAX 100000 /* products of a row: larger ones would only be slow */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct partitioner *p)
{
    static struct device *dev;
    struct err err = {0};
    if (!dev && device_open("cpu-ref", 1, &dev, &err) < 0)
        abort();
    const uint64_t ids[ROWS] = {1, 2, UINT64_MAX};
    const uint32_t top = p->k < 2 ? 1 : 2;
    uint64_t work = (uint64_t)p->input.d * p->input.r + p->k;
    for (uint32_t l = 0; l < p->n_fitted; l++)
        work += (uint64_t)p->level[l].k * p->level[l].d;
    if (work > WORK_MAX)
        return;
    uint32_t index[2 * ROWS];
    float *x = mem_alloc_array((size_t)ROWS * (p->input.d + 1), sizeof(float));
    for (size_t i = 0; i < (size_t)ROWS * p->input.d; i++)
        x[i] = (float)(i % 7) - 3;
    struct fit_source s;
    fit_source_memory(&s, x, ROWS, p->input.d);
    if (partitioner_assign(p, dev, &s, ids, ROWS, top, index, &err) < 0)
        abort();
    for (uint32_t i = 0; i < ROWS * top; i++)
        if (index[i] >= p->k)
            abort();
    mem_free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct partitioner *p = NULL;
    struct err err = {0};
    if (partitioner_parse(data, size, "fuzz", &p, &err) < 0) {
        if (err.code == 0 || err.msg[0] == '\0')
            abort();
        return 0;
    }
    use(p);
    partitioner_free(p);
    return 0;
}
