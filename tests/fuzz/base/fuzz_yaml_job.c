/* Any text as a job file: refused with a sentence, or fields that agree. */
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct job_spec spec;
    struct err err = {0};
    if (job_parse((const char *)data, size, "job.yaml", &spec, &err) < 0) {
        if (err.code == 0 || err.msg[0] == '\0')
            abort();
        return 0;
    }
    if (spec.model.dim % spec.model.heads || spec.data.image_size % spec.model.patch ||
        (spec.train.accumulate && spec.train.batch % spec.train.accumulate) || !spec.name ||
        !spec.outer.steps == !spec.outer.seconds || !spec.data.path == !spec.data.url.n)
        abort();
    job_release(&spec);
    return 0;
}
