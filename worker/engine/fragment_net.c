#include "worker/engine/fragment_net.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/outer/arith.h"
#include "common/outer/layout.h"
#include "worker/engine/contribute.h"
#include "worker/model/model.h"

#define CHUNK 16384 /* elements */

int fragment_net_contribute(void *net, const Skerry__V1__ModuleRef *base, uint64_t samples,
                            struct work_output *ret, struct err *err)
{
    const struct fragment_net *f = net;
    const struct contribute c = {.w = f->w,
                                 .state_dir = f->state_dir,
                                 .base = base,
                                 .model = f->model,
                                 .weights = f->weights,
                                 .flat = f->flat,
                                 .samples = samples};
    const int rc = c.weights ? 0 : f->get(f->arg, (int)base->level, f->flat, err);
    return rc < 0 ? rc : contribute(&c, ret, err);
}

static int mix_tensor(int fd, const char *path, const struct st_tensor *t, double mix, float *chunk,
                      float *theta, struct err *err)
{
    for (uint64_t first = 0; first < t->count; first += CHUNK) {
        size_t n = t->count - first < CHUNK ? (size_t)(t->count - first) : CHUNK;
        int rc = file_pread_all(fd, chunk, n * sizeof(*chunk), t->offset + first * sizeof(*chunk),
                                path, err);
        if (rc < 0)
            return rc;
        if (mix > 0)
            arith_best()->ema(n, mix, chunk, theta + first);
        else
            memcpy(theta + first, chunk, n * sizeof(*chunk));
    }
    return 0;
}

static int mix_file(const struct model *m, const char *path, double mix, float *flat,
                    struct err *err)
{
    struct layout layout = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "opening %s", path);
    float *chunk = mem_alloc_array(CHUNK, sizeof(*chunk));
    int rc = layout_read(fd, path, &layout, err);
    for (size_t i = 0; rc == 0 && i < layout.st.n_tensors; i++) {
        const struct st_tensor *t = &layout.st.tensors[i];
        const struct model_tensor *own = model_find(m, t->name);
        if (!own || own->count != t->count)
            rc = err_set(err, -ERR_FORMAT, "the model has no tensor %s of this size", t->name);
        else
            rc = mix_tensor(fd, path, t, mix, chunk, flat + own->offset, err);
    }
    layout_release(&layout);
    mem_free(chunk);
    (void)close(fd); /* read only: nothing to lose */
    return rc;
}

int fragment_net_merge(void *net, uint32_t level, const char *path, double mix, struct err *err)
{
    const struct fragment_net *f = net;
    int rc = mix > 0 ? f->get(f->arg, (int)level, f->flat, err) : 0;
    if (rc == 0)
        rc = mix_file(f->model, path, mix, f->flat, err);
    return rc < 0 ? rc : f->set(f->arg, (int)level, f->flat, err);
}
