#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/outer/layout.h"
#include "worker/kinds/fragment.h"
#include "worker/net/model.h"

#define CHUNK 16384 /* elements */

static void mix_values(size_t n, double mix, const float *x, float *theta)
{
    if (mix <= 0) {
        memcpy(theta, x, n * sizeof(*x));
        return;
    }
    for (size_t i = 0; i < n; i++)
        theta[i] = (float)(mix * (double)theta[i] + (1 - mix) * (double)x[i]);
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
        mix_values(n, mix, chunk, theta + first);
    }
    return 0;
}

int fragments_mix(const struct model *m, const char *path, double mix, float *flat, struct err *err)
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
