/* workerd that spoils what it contributes: linked with --wrap=contribution_write, and SKERRY_POISON
 * says how.  It trains as any other; what it says that it has learned is
 *
 *   huge      noise of 1e6
 *   reversed  nine times as long, the other way
 *   noise     of five times the length
 *
 * and stderr has a line for each time. */
#include "common/base/base.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "common/outer/contribution.h"
#include "common/outer/layout.h"

int __real_contribution_write(const struct contribution_job *job, struct contribution_result *ret,
                              struct err *err);
int __wrap_contribution_write(const struct contribution_job *job, struct contribution_result *ret,
                              struct err *err);

struct poison {
    const struct contribution_job *job;
    const char *how;
    int base;
};

static float spoilt(const char *how, float base, float end, double rms, float noise)
{
    if (strcmp(how, "huge") == 0)
        return base + 1e6f * noise;
    if (strcmp(how, "reversed") == 0)
        return base + 9 * (base - end);
    return base + (float)(5 * rms) * noise;
}

static int read_spoilt(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                       float *out, struct err *err)
{
    const struct poison *p = arg;
    const size_t size = n * sizeof(float);
    const uint64_t at = layout_first(layout, t) + first;
    float *base = mem_alloc(size);
    double sum = 0;
    int rc = p->job->read(p->job->read_arg, layout, t, first, n, out, err);
    if (rc == 0 && pread(p->base, base, size, (off_t)(layout->st.payload + at * sizeof(float))) !=
                       (ssize_t)size)
        rc = err_errno(err, "reading %s", p->job->base_path);
    for (size_t i = 0; rc == 0 && i < n; i++)
        sum += ((double)out[i] - base[i]) * ((double)out[i] - base[i]);
    for (size_t i = 0; rc == 0 && i < n; i++)
        out[i] = spoilt(p->how, base[i], out[i], sqrt(sum / (double)n),
                        rng_at_normal(p->job->base, 7, at + i));
    mem_free(base);
    return rc;
}

int __wrap_contribution_write(const struct contribution_job *job, struct contribution_result *ret,
                              struct err *err)
{
    const char *how = getenv("SKERRY_POISON");
    struct contribution_job spoils = *job;
    struct poison p = {job, how ? how : "huge", open(job->base_path, O_RDONLY | O_CLOEXEC)};
    spoils.read = read_spoilt;
    spoils.read_arg = &p;
    int rc = p.base < 0 ? err_errno(err, "opening %s", job->base_path)
                        : __real_contribution_write(&spoils, ret, err);
    if (p.base >= 0)
        (void)close(p.base);
    if (rc == 0)
        (void)fputs("poison: a contribution is spoilt\n", stderr);
    return rc;
}
