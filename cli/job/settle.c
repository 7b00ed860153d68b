#include "cli/job/settle.h"

#include <jansson.h>

#include "cli/base/cli.h"
#include "cli/job/link.h"
#include "cli/job/predict.h"
#include "common/base/file.h"
#include "common/data/tokenizer.h"
#include "common/job/yaml.h"

#define WORKERS_MOST 4096

/* True if the file has the key with the value auto. */
static bool is_asked(const struct job_file *job)
{
    struct yaml_doc doc;
    if (job->spec.outer.fragments != 0 ||
        yaml_parse(buf_str(&job->text), job->text.len, "job.yaml", &doc, NULL) < 0)
        return false;
    const struct yaml_node *outer = yaml_get(doc.root, "outer");
    const bool asked = outer && yaml_get(outer, "fragments");
    yaml_release(&doc);
    return asked;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The number of present workers, and the median of the FLOP/s that they report; 0: none does. */
static int ask_workers(struct cli *cli, double *ret_flops)
{
    json_t *list = NULL, *worker;
    size_t i, told = 0;
    int here = 0;
    double *flops = mem_alloc_array(WORKERS_MOST, sizeof *flops);
    if (cli_pages(cli, "/v1/workers", "after", &list, NULL) == 0)
        json_array_foreach(json_object_get(list, "items"), i, worker)
        {
            const double f = cli_num(worker, "flops", 0);
            const char *state = cli_str(worker, "state", "");
            if (strcmp(state, "idle") != 0 && strcmp(state, "busy") != 0)
                continue;
            here++;
            if (f > 0 && told < WORKERS_MOST)
                flops[told++] = f;
        }
    qsort(flops, told, sizeof *flops, by_size);
    *ret_flops = told ? flops[told / 2] : 0;
    mem_free(flops);
    json_decref(list);
    return here;
}

static int ask_link(struct cli *cli, uint64_t *ret, struct err *err)
{
    char *folder;
    double up, down;
    int rc = cli_temporary(&folder, err);
    if (rc < 0)
        return rc;
    rc = link_time(cli, folder, &up, &down, err);
    (void)file_remove_tree(folder, NULL);
    mem_free(folder);
    if (rc == 0)
        *ret = (uint64_t)fmin(up, down);
    return rc;
}

static void say(struct settled *s, const struct prediction *p, const struct measured *at,
                uint64_t bytes_per_s, bool told)
{
    const struct fragments_choice *c = &s->choice;
    char round[STR_HUMAN_MAX], size[STR_HUMAN_MAX], step[STR_HUMAN_MAX], link[STR_HUMAN_MAX];
    char known[192];
    (void)snprintf(known, sizeof known, "%s M parameters, a step of %s s %s, a link of %s Mbit/s",
                   str_human_number((double)at->networks[0].parameters / 1e6, size),
                   str_human_number(at->networks[0].step_s, step),
                   told ? "by the workers' FLOP/s" : "as measured here",
                   str_human_number((double)bytes_per_s * 8e-6, link));
    if (c->taken)
        (void)snprintf(s->why, sizeof s->why,
                       "fragments: %d, delay: %d, mix: %g, as a round of %s would wait %.2g s for "
                       "its exchange, and waits %.2g s with them (%s)",
                       c->fragments, c->delay, FRAGMENTS_MIX,
                       str_human_duration((uint64_t)(p->train_s * 1000), round),
                       p->whole.link_s + p->whole.fold_s, c->left_s, known);
    else
        (void)snprintf(s->why, sizeof s->why, "none, as %s (%s)", c->why, known);
}

/* Measures and decides. */
static int choose(struct cli *cli, struct job_file *job, const struct composition *c,
                  uint64_t bytes_per_s, struct settled *ret, struct err *err)
{
    struct measured at;
    struct prediction p;
    double flops = 0;
    struct predict_options opt = {.bytes_per_s = bytes_per_s};
    const uint32_t vocab = job->tokenizer ? (uint32_t)tokenizer_vocab(job->tokenizer) : 0;
    int rc = predict_measure(job, c, vocab, &(struct predict_way){0}, &at, err);
    if (rc < 0)
        return rc;
    opt.workers = ask_workers(cli, &flops);
    for (int i = 0; i < COMPOSITION_NETWORKS; i++) {
        struct measured_network *n = &at.networks[i];
        if (flops > 0 && n->flops > 0)
            n->step_s = n->flops / flops;
        if (c->networks[i].n_levels > 0 && n->step_s <= 0)
            return err_set(err, -ENOMEM, "it does not fit here: %s", at.refused);
    }
    if (opt.workers == 0)
        opt.workers = (int)predict_workers(c);
    rc = opt.bytes_per_s ? 0 : ask_link(cli, &opt.bytes_per_s, err);
    if (rc < 0)
        return rc;
    predict(&job->spec, c, &at, &opt, &p);
    ret->choice = p.parts;
    say(ret, &p, &at, opt.bytes_per_s, flops > 0);
    return 0;
}

static int write_down(struct job_file *job, const struct settled *s, struct err *err)
{
    char *text = NULL;
    int rc = job_write_fragments(buf_str(&job->text), s->choice.fragments, s->choice.delay,
                                 FRAGMENTS_MIX, s->why, &text, err);
    if (rc < 0)
        return rc;
    buf_clear(&job->text);
    rc = buf_append(&job->text, text, strlen(text));
    mem_free(text);
    job->spec.outer.fragments = s->choice.fragments;
    job->spec.outer.delay = s->choice.delay;
    job->spec.outer.mix = FRAGMENTS_MIX;
    return rc;
}

void settle_fragments(struct cli *cli, struct job_file *job, uint64_t bytes_per_s,
                      struct settled *ret)
{
    struct composition c;
    struct err err = {0};
    *ret = (struct settled){.asked = is_asked(job)};
    if (recipe_compose(&job->spec, &c, &err) < 0)
        return; /* the coordinator refuses it */
    const char *refused = fragments_refused(&job->spec, &c);
    ret->asked |= !refused;
    if (refused) {
        (void)snprintf(ret->why, sizeof ret->why, "none, as %s", refused);
    } else {
        int rc = choose(cli, job, &c, bytes_per_s, ret, &err);
        if (rc == 0 && ret->choice.taken)
            rc = write_down(job, ret, &err);
        if (rc < 0) {
            ret->choice = (struct fragments_choice){0};
            (void)snprintf(ret->why, sizeof ret->why, "none, as nothing is predicted: %.250s",
                           err.msg);
        }
    }
    composition_release(&c);
}
