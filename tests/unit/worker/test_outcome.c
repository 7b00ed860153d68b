/* Where the results of a task stand in its report. */
#include "tests/unit/common/base/util.h"

#include <errno.h>

#include "common/net/http/http_curl.h"
#include "worker/outcome.h"
#include "worker/order/work.h"

static struct work *work_of(void)
{
    struct work *w = mem_alloc(sizeof(*w));
    progress_init(&w->progress);
    return w;
}

static void add(struct work *w, enum work_role role, uint64_t size)
{
    struct work_output *o = work_output(w);
    assert_non_null(o);
    o->role = role;
    o->size = size;
    o->module_id = size + 1;
    o->partition = (uint32_t)size + 2;
    o->tokens = size + 3;
}

static void work_done(struct work *w)
{
    progress_release(&w->progress);
    mem_free(w->result.outputs);
    mem_free(w->result.rows);
    mem_free(w);
}

static const struct outcome_failure none;
static struct progress_view view;

static void moments_are_no_contribution(void **state)
{
    (void)state;
    struct work *w = work_of();
    add(w, WORK_CONTRIBUTION, 10);
    add(w, WORK_MOMENTS, 20);
    add(w, WORK_CONTRIBUTION, 30);
    Skerry__V1__ReportRequest *r = outcome_new(5, 2, w, &none, &view);
    assert_int_equal(r->n_contributions, 2);
    assert_int_equal(r->contributions[1]->module_id, 31);
    assert_int_equal(r->contributions[1]->blob->size, 30);
    assert_int_equal(r->moments->size, 20);
    assert_null(r->output);
    outcome_free(r);
    work_done(w);
}

/* What is not the task's fault says so. */
static void failures(void **state)
{
    (void)state;
    const int unresolved = http_curl_error(CURLE_COULDNT_RESOLVE_HOST, NULL, "https://a", NULL);
    const struct {
        int code;
        Skerry__V1__Failure failure;
    } cases[] = {
        {-ERR_DEVICE, SKERRY__V1__FAILURE__FAILURE_DEVICE},
        {-ENOMEM, SKERRY__V1__FAILURE__FAILURE_MEMORY},
        {-EAGAIN, SKERRY__V1__FAILURE__FAILURE_NETWORK}, /* HTTP 503 */
        {-ENOSPC, SKERRY__V1__FAILURE__FAILURE_NETWORK}, /* HTTP 507 */
        {-ETIMEDOUT, SKERRY__V1__FAILURE__FAILURE_NETWORK},
        {-ERR_AUTH, SKERRY__V1__FAILURE__FAILURE_NETWORK}, /* a ticket that has expired */
        {unresolved, SKERRY__V1__FAILURE__FAILURE_NETWORK},
        {-EDOM, SKERRY__V1__FAILURE__FAILURE_DIVERGED},
        {-ERR_FORMAT, SKERRY__V1__FAILURE__FAILURE_TASK},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct outcome_failure f = {cases[i].code, true, "so it is"};
        Skerry__V1__ReportRequest *r = outcome_new(5, 2, NULL, &f, &view);
        assert_true(r->failed && r->retryable);
        assert_int_equal(r->failure, cases[i].failure);
        assert_string_equal(r->reason, "so it is");
        outcome_free(r);
    }
}

static void partitioner_and_assignment(void **state)
{
    (void)state;
    struct work *w = work_of();
    uint64_t sizes[] = {3, 4};
    add(w, WORK_ASSIGNMENT, 1);
    add(w, WORK_RESULT, 2);
    w->result.sizes = sizes;
    w->result.n_sizes = 2;
    work_row(w, 1.5, "x", "balance %d", 7);
    Skerry__V1__ReportRequest *r = outcome_new(5, 2, w, &none, &view);
    assert_int_equal(r->output->size, 2);
    assert_int_equal(r->assignment->size, 1);
    assert_int_equal(r->n_sizes, 2);
    assert_int_equal(r->sizes[1], 4);
    assert_string_equal(r->rows[0]->name, "balance 7");
    assert_string_equal(r->rows[0]->unit, "x");
    assert_true(r->rows[0]->value == 1.5);
    outcome_free(r);
    work_done(w);
}

static void split_makes_shards(void **state)
{
    (void)state;
    struct work *w = work_of();
    add(w, WORK_SHARD, 8);
    add(w, WORK_SHARD, 9);
    Skerry__V1__ReportRequest *r = outcome_new(5, 2, w, &none, &view);
    assert_int_equal(r->n_shards, 2);
    assert_int_equal(r->shards[1]->partition, 11);
    assert_int_equal(r->shards[1]->tokens, 12);
    assert_null(r->output);
    outcome_free(r);
    work_done(w);
}

static void evaluation_is_summed(void **state)
{
    (void)state;
    struct work *w = work_of();
    w->result.loss_sum = 12.5;
    w->result.units = 4;
    w->result.bytes = 3;
    Skerry__V1__ReportRequest *r = outcome_new(5, 2, w, &none, &view);
    assert_true(r->loss_sum == 12.5);
    assert_int_equal(r->units, 4);
    assert_int_equal(r->bytes, 3);
    assert_null(r->output); /* it makes no file */
    outcome_free(r);
    work_done(w);
}

/* What this machine's disk did is not the task's fault; what an upload finds full is not ours. */
static void blame(void **state)
{
    (void)state;
    static const struct {
        int code, disk;
        bool uploading;
        int want;
    } cases[] = {
        {-ERR_FORMAT, 0, false, -ERR_FORMAT}, {-ERR_DEVICE, -ENOSPC, false, -ERR_DEVICE},
        {-ENOMEM, -EIO, false, -ENOMEM},      {-EIO, -ENOSPC, false, -ENOMEM},
        {-EIO, -EDQUOT, false, -ENOMEM},      {-EFBIG, 0, false, -ENOMEM},
        {-ENOSPC, 0, false, -ENOMEM},         {-ENOSPC, 0, true, -ENOSPC},
        {-ENOSPC, -ENOSPC, true, -ENOMEM},    {-ERR_FORMAT, -ENOENT, false, -ERR_DEVICE},
        {-EIO, -EROFS, true, -ERR_DEVICE},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        if (outcome_blame(cases[i].code, cases[i].disk, cases[i].uploading) != cases[i].want)
            fail_msg("case %zu", i);
    assert_true(outcome_own(-ERR_DEVICE) && outcome_own(-ENOMEM) && !outcome_own(-EIO));
}

/* What comes from outside looks the same to everybody. */
static void tried_again(void **state)
{
    (void)state;
    assert_false(outcome_retryable(-ERR_CONFIG, false));
    assert_true(outcome_retryable(-ERR_FORMAT, false));
    assert_false(outcome_retryable(-ERR_FORMAT, true));
    assert_false(outcome_retryable(-ERR_LIMIT, true));
    assert_false(outcome_retryable(-ERR_NOTFOUND, true));
    assert_true(outcome_retryable(-EAGAIN, true));
    static const int refused[] = {-ERR_AUTH, -ERR_REMOTE}; /* HTTP 403, 451 */
    for (size_t i = 0; i < 2; i++) {
        assert_true(outcome_retryable(refused[i], false));
        const struct outcome_failure f = {refused[i], outcome_retryable(refused[i], true), "no"};
        Skerry__V1__ReportRequest *r = outcome_new(5, 2, NULL, &f, &view);
        assert_false(r->retryable);
        assert_int_equal(r->failure, SKERRY__V1__FAILURE__FAILURE_TASK);
        outcome_free(r);
    }
    assert_true(outcome_retryable(-EIO, true));
}

/* Who has no device or no disk cannot go on, whatever the task. */
static void breaks(void **state)
{
    struct err err = {0};
    assert_false(outcome_breaks(-ERR_FORMAT, -ENOMEM, "a", "b", &err));
    assert_int_equal(err.code, 0);
    assert_true(outcome_breaks(-EIO, -ERR_DEVICE, "a", "/x is gone", &err));
    assert_true(err.code == -EIO && strstr(err.msg, "/x is gone; see to it"));
    assert_true(outcome_breaks(-ERR_DEVICE, -ERR_DEVICE, "no answer", "", &err));
    assert_true(err.code == -ERR_DEVICE && strstr(err.msg, "the device failed: no answer"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moments_are_no_contribution),
        cmocka_unit_test(partitioner_and_assignment),
        cmocka_unit_test(split_makes_shards),
        cmocka_unit_test(evaluation_is_summed),
        cmocka_unit_test(failures),
        cmocka_unit_test(blame),
        cmocka_unit_test(tried_again),
        cmocka_unit_test(breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
