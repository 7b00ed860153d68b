/* The order in which shards of the next phase are asked for, with an uplink made of an array. */
#include "tests/unit/common/base/util.h"

#include <errno.h>

#include "worker/engine/prefetch.h"
#include "worker/link/uplink.h"
#include "worker/order/work.h"

enum { N = 4 };

struct uplink_job {
    uint8_t first; /* of the blob's name */
    bool done, freed;
    int code;
};

static struct uplink_job jobs[N];
static unsigned n_jobs;

struct uplink_job *uplink_get(struct uplink *u, struct work *w, const uint8_t sha256[32],
                              uint64_t size, const char *url, const char *what, bool in_order)
{
    assert_int_equal(size, 10u + sha256[0]);
    assert_string_equal(url, "/v1/blobs/x");
    assert_true(n_jobs < N);
    jobs[n_jobs] = (struct uplink_job){.first = sha256[0]};
    return &jobs[n_jobs++];
}

bool uplink_done(struct uplink_job *j)
{
    return j->done;
}

int uplink_wait(struct uplink_job *j, struct err *e)
{
    assert_true(j->done); /* training must not wait */
    return j->code < 0 ? err_set(e, j->code, "failed") : 0;
}

void uplink_free(struct uplink_job *j)
{
    if (j)
        j->freed = true;
}

struct rig {
    char *dir;
    struct work w;
    Skerry__V1__Task task;
    Skerry__V1__TrainTask train;
    Skerry__V1__Blob blob[N], *ahead[N];
    uint8_t hash[N][32];
};

static void have(struct rig *r, int i)
{
    char path[CACHE_PATH_MAX];
    cache_path(r->w.cache, r->hash[i], path);
    OK(file_write_atomic(path, "x", 1, 0600, err));
    OK(cache_added(r->w.cache, r->hash[i], err));
}

static void begin(struct rig *r)
{
    *r = (struct rig){.dir = scratch_new()};
    OK(cache_open(r->dir, 0, &r->w.cache, err));
    skerry__v1__task__init(&r->task);
    skerry__v1__train_task__init(&r->train);
    for (int i = 0; i < N; i++) {
        memset(r->hash[i], i + 1, 32);
        skerry__v1__blob__init(&r->blob[i]);
        r->blob[i].sha256 = (ProtobufCBinaryData){32, r->hash[i]};
        r->blob[i].size = 11 + (uint64_t)i;
        r->blob[i].url = (char *)"/v1/blobs/x";
        r->ahead[i] = &r->blob[i];
    }
    r->train.ahead = r->ahead;
    r->train.n_ahead = N;
    r->task.train = &r->train;
    r->w.task = &r->task;
    r->w.uplink = (struct uplink *)(void *)r; /* nobody looks into it */
    n_jobs = 0;
}

static void end(struct rig *r)
{
    cache_close(r->w.cache);
    scratch_free(r->dir);
}

/* One at a time, and only those that are not here. */
static void one_after_the_other(void **state)
{
    (void)state;
    struct rig r;
    begin(&r);
    have(&r, 0);
    have(&r, 2);
    struct prefetch p = {.w = &r.w};
    prefetch_step(&p);
    prefetch_step(&p);
    assert_true(n_jobs == 1 && jobs[0].first == 2 && !jobs[0].freed);
    jobs[0].done = true;
    prefetch_step(&p);
    assert_true(n_jobs == 2 && jobs[0].freed && jobs[1].first == 4);
    jobs[1].done = true;
    prefetch_step(&p);
    prefetch_step(&p);
    assert_true(n_jobs == 2 && jobs[1].freed);
    prefetch_end(&p);
    end(&r);
}

/* The end of the phase lets go of what still runs; a failure, of the rest. */
static void ends_early(void **state)
{
    (void)state;
    struct rig r;
    begin(&r);
    struct prefetch p = {.w = &r.w};
    prefetch_step(&p);
    prefetch_end(&p);
    assert_true(n_jobs == 1 && jobs[0].freed);
    prefetch_end(&p);

    p = (struct prefetch){.w = &r.w};
    prefetch_step(&p);
    jobs[1].done = true;
    jobs[1].code = -ENOSPC;
    prefetch_step(&p);
    prefetch_step(&p);
    assert_true(n_jobs == 2 && jobs[1].freed);
    prefetch_end(&p);

    r.w.uplink = NULL; /* of a test, or a task that asks for nothing */
    p = (struct prefetch){.w = &r.w};
    prefetch_step(&p);
    assert_int_equal(n_jobs, 2);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_after_the_other),
        cmocka_unit_test(ends_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
