/* outer.fragments: auto: what is asked of this machine and of the swarm, what is chosen, and that
 * it is written into the job.  This program is also the `workerd measure` that is asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/job/settle.h"
#include "tests/unit/cli/script.h"

#define JOB(model, outer)                                                                          \
    "name: a\ndata: {path: x, image_size: 16, holdout: 0.1}\n"                                     \
    "model: {" model "patch: 4, dim: 32, depth: 2, heads: 2}\n"                                    \
    "train: {batch: 8}\nrecipe: {replicas: 4}\nouter: {rounds: 3, steps: 200" outer "}\n"
#define WARM "warm_start: w, "
#define FAR 12500000 /* bytes/s: 3.3 s of bytes beside 200 steps of 0.1 s */

/* A model of 10 M parameters whose step takes this long here. */
#define MEASURED(step_s)                                                                           \
    "{\"parameters\": 10000000, \"batch\": 8, \"step_s\": " step_s ", \"forward_s\": 0.004,"       \
    " \"flops\": 1e12}"

static char *beside; /* the link to this program */

static int link_here(void **state)
{
    char *folder = cli_own_folder();
    beside = str_printf("%s/workerd", folder);
    mem_free(folder);
    return symlink("/proc/self/exe", beside) == 0 || errno == EEXIST ? 0 : -1;
}

static int unlink_here(void **state)
{
    (void)unlink(beside);
    mem_free(beside);
    return 0;
}

static void settle(const char *yaml, const char *measured, const char *workers, uint64_t bytes,
                   struct job_file *job, struct settled *ret)
{
    const char *answers[] = {workers, NULL};
    struct script s;
    struct cli cli = {0};
    struct err err = {0};
    *job = (struct job_file){0};
    buf_init(&job->text, 1 << 16);
    assert_int_equal(buf_append_str(&job->text, yaml), 0);
    if (job_parse(yaml, strlen(yaml), "job.yaml", &job->spec, &err) < 0)
        fail_msg("%s", err.msg);
    setenv("SETTLE_MEASURED", measured, 1);
    connect_to(&s, &cli, answers);
    settle_fragments(&cli, job, bytes, ret);
    disconnect(&s, &cli);
}

static void release(struct job_file *job)
{
    buf_release(&job->text);
    job_release(&job->spec);
}

static void expect(const char *have, const char *text)
{
    if (!strstr(have, text))
        fail_msg("'%s' is not in: %s", text, have);
}

/* ---- */

/* A job that cannot have them is not measured; it hears why if it asked. */
static void some_jobs_are_not_measured(void **state)
{
    static const struct {
        const char *yaml, *why;
        bool asked;
    } cases[] = {
        {JOB("", ""), "none, as a fresh model", false},
        {JOB("", ", fragments: auto"), "none, as a fresh model", true},
        {JOB(WARM, ", fragments: 1"), "none, as the job file says how modules travel", false},
        {JOB(WARM, ", async: true, fragments: auto"), "none, as outer.async has no rounds", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_file job;
        struct settled s;
        settle(cases[i].yaml, "", NULL, FAR, &job, &s);
        expect(s.why, cases[i].why);
        assert_int_equal(s.asked, cases[i].asked);
        assert_false(s.choice.taken);
        assert_string_equal(buf_str(&job.text), cases[i].yaml);
        release(&job);
    }
}

/* What is chosen stands in the text that is sent, with its reason, and the job means the same. */
static void what_is_chosen_is_written_down(void **state)
{
    static const char *const yaml[] = {JOB(WARM, ""), JOB(WARM, ", fragments: auto")};
    for (int i = 0; i < 2; i++) {
        struct job_file job;
        struct job_spec again;
        struct settled s;
        settle(yaml[i], MEASURED("0.1"), "{\"items\": []}", FAR, &job, &s);
        assert_true(s.asked && s.choice.taken);
        expect(s.why, "10 M parameters, a step of 0.1 s as measured here, a link of 100 Mbit/s");
        expect(buf_str(&job.text), s.why);
        assert_int_equal(job_parse(buf_str(&job.text), job.text.len, "t", &again, NULL), 0);
        assert_int_equal(again.outer.fragments, 2);
        assert_true(again.outer.fragments == s.choice.fragments &&
                    again.outer.delay == s.choice.delay && again.outer.delay > 0);
        assert_true(again.outer.mix == FRAGMENTS_MIX);
        assert_true(job.spec.outer.fragments == again.outer.fragments &&
                    job.spec.outer.delay == again.outer.delay &&
                    job.spec.outer.mix == again.outer.mix);
        job_release(&again);
        release(&job);
    }
}

/* Steps are those of the workers that are here, by the median of what they report; where none does,
 * those of this machine. */
static void steps_are_those_of_the_workers(void **state)
{
#define W(state, flops) "{\"state\": \"" state "\", \"flops\": " flops "}"
    static const struct {
        const char *workers, *how;
        bool taken;
    } cases[] = {
        /* 0.1 s a step */
        {"{\"items\": [" W("idle", "1e13") "," W("busy", "1e13") "]}", "FLOP/s", true},
        {"{\"items\": [" W("busy", "2e13") "," W("idle", "1e10") "," W("idle", "1e13") "]}",
         "a step of 0.1 s by the workers' FLOP/s", true},
        /* those that are gone do not count, nor those that say nothing */
        {"{\"items\": [" W("lost", "1e9") "," W("left", "1e9") "," W("busy", "1e13") "," W(
             "idle", "1e13") "]}",
         "a step of 0.1 s by the workers' FLOP/s", true},
        {"{\"items\": [" W("busy", "0") "," W("busy", "0") "," W("busy", "1e13") "]}",
         "a step of 0.1 s by the workers' FLOP/s", true},
        /* 100 s a step, beside which the exchange is nothing */
        {"{\"items\": [" W("busy", "1e10") "," W("idle", "1e10") "]}",
         "none, as exchanges take less", false},
        {"{\"items\": [" W("busy", "0") "]}", "a step of 50 s as measured here", false},
        {"{\"error\": \"no\"}", "a step of 50 s as measured here", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_file job;
        struct settled s;
        settle(JOB(WARM, ""), MEASURED("50"), cases[i].workers, FAR, &job, &s);
        expect(s.why, cases[i].how);
        assert_int_equal(s.choice.taken, cases[i].taken);
        assert_int_equal(job.spec.outer.fragments, cases[i].taken ? 2 : 0);
        release(&job);
    }
}

/* One worker that does all phases trains four times as long beside the same exchange; where nobody
 * is here yet, as many count as the job has replicas. */
static void workers_share_the_link(void **state)
{
    static const struct {
        const char *workers;
        bool taken;
    } cases[] = {
        {"{\"items\": []}", true},
        {"{\"items\": [" W("idle", "0") "]}", false},
        {"{\"items\": [" W("idle", "0") "," W("busy", "0") "," W("idle", "0") "," W("busy",
                                                                                    "0") "]}",
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_file job;
        struct settled s;
        settle(JOB(WARM, ""), MEASURED("0.1"), cases[i].workers, 3 * FAR, &job, &s);
        if (s.choice.taken != cases[i].taken)
            fail_msg("case %zu: %s", i, s.why);
        release(&job);
    }
}

/* Nothing here is an error of the job: it goes without, and says why. */
static void what_cannot_be_measured_makes_none(void **state)
{
    static const char *const measured[][2] = {
        {"{\"parameters\": 10000000, \"step_s\": 0, \"refused\": \"it needs 9 GiB\"}",
         "none, as nothing is predicted: it does not fit here: it needs 9 GiB"},
        {"nonsense", "none, as nothing is predicted: `workerd measure` said no JSON"},
        {"", "none, as nothing is predicted: `workerd measure` failed"},
    };
    for (size_t i = 0; i < 3; i++) {
        struct job_file job;
        struct settled s;
        settle(JOB(WARM, ""), measured[i][0], "{\"items\": []}", FAR, &job, &s);
        expect(s.why, measured[i][1]);
        assert_true(s.asked && !s.choice.taken && s.choice.fragments == 0);
        assert_string_equal(buf_str(&job.text), JOB(WARM, ""));
        release(&job);
    }
}

/* A mixture's router is a network of its own, which takes more than its experts. */
static void a_router_must_fit_too(void **state)
{
#define MIXTURE                                                                                    \
    "name: a\ndata: {path: x, image_size: 16, holdout: 0.1}\n"                                     \
    "model: {warm_start: w, patch: 4, dim: 32, depth: 2, heads: 2}\ntrain: {batch: 8}\n"           \
    "recipe: {name: ddm, experts: 2, replicas: 2}\nouter: {rounds: 3, steps: 200}\n"
    struct job_file job;
    struct settled s;
    settle(MIXTURE, MEASURED("0.1"), "{\"items\": []}", FAR, &job, &s);
    expect(s.why, "a step of 0.1 s as measured here"); /* both fit */
    release(&job);
    setenv("SETTLE_ROUTER", "{\"step_s\": 0, \"refused\": \"it needs 9 GiB\"}", 1);
    settle(MIXTURE, MEASURED("0.1"), "{\"items\": []}", FAR, &job, &s);
    unsetenv("SETTLE_ROUTER");
    expect(s.why, "none, as nothing is predicted: it does not fit here: it needs 9 GiB");
    assert_true(!s.choice.taken);
    release(&job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(some_jobs_are_not_measured),
        cmocka_unit_test(what_is_chosen_is_written_down),
        cmocka_unit_test(steps_are_those_of_the_workers),
        cmocka_unit_test(workers_share_the_link),
        cmocka_unit_test(what_cannot_be_measured_makes_none),
        cmocka_unit_test(a_router_must_fit_too),
    };
    if (argc > 1) { /* workerd measure - ... */
        const bool router = argc > 3 && !strcmp(argv[3], "--router") && getenv("SETTLE_ROUTER");
        const char *answer = getenv(router ? "SETTLE_ROUTER" : "SETTLE_MEASURED");
        return answer && *answer && puts(answer) >= 0 ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, link_here, unlink_here);
}
