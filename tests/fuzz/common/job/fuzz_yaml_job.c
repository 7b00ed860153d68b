/* Any text as a job file: refused with a sentence, or fields that agree. */
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/job/job.h"
#include "common/job/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As a text on record: what says which model it is holds, or it is refused. */
static void read_saved(const uint8_t *data, size_t size)
{
    struct job_spec spec;
    struct composition c;
    struct err err = {0};
    int rc = job_parse_saved((const char *)data, size, "job.yaml", &spec, &err);
    if (rc != 0 && (err.code == 0 || err.msg[0] == '\0'))
        abort();
    if (rc < 0)
        return;
    if (!spec.name || spec.model.depth < 1 || spec.model.dim % spec.model.heads ||
        spec.train.batch < 1 || spec.outer.rounds < 1 || job_tokens(&spec) < 1)
        abort();
    if (recipe_compose(&spec, &c, NULL) == 0) {
        (void)recipe_limits(&spec, &c, NULL);
        composition_release(&c);
    }
    job_release(&spec);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct job_spec spec;
    struct err err = {0};
    read_saved(data, size);
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
