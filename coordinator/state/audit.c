#include "coordinator/state/audit.h"

#include <jansson.h>

#include "common/base/hash.h"
#include "common/base/moving.h"
#include "common/net/blob_dir.h"
#include "common/outer/fold.h"
#include "common/outer/version.h"
#include "coordinator/state/blobs.h"
#include "coordinator/state/capture.h"
#include "coordinator/state/ledger.h"
#include "coordinator/outer/outer_exec.h"

struct audit {
    struct capture s;
    const struct job *job;
    FILE *out;
    struct audit_result *r;
    struct moving_bytes moving;
    struct err err; /* code not 0: the audit cannot go on */
};

__attribute__((format(printf, 2, 3))) static void fault(struct audit *a, const char *fmt, ...)
{
    va_list ap;
    a->r->faults++;
    moving_clear();
    (void)fputs("FAULT  ", a->out);
    va_start(ap, fmt);
    (void)vfprintf(a->out, fmt, ap);
    va_end(ap);
    (void)fputc('\n', a->out);
}

/* The machine lacks something, which says nothing of the data: the audit ends with it. */
static bool gives_up(struct audit *a, const struct err *why)
{
    static const int codes[] = {-ENOSPC, -EDQUOT, -EFBIG, -ENOMEM, -EMFILE, -ENFILE};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (why->code == codes[i]) {
            a->err = *why;
            return true;
        }
    return false;
}

/* ---- files --------------------------------------------------------------- */

static char *blob_path(const struct audit *a, const uint8_t sha256[32])
{
    char *blobs = file_join(a->s.dir, CAPTURE_BLOBS), *path = blob_dir_file(blobs, sha256);
    mem_free(blobs);
    return path;
}

static void check_files(struct audit *a)
{
    a->moving = (struct moving_bytes){moving_begin("checking files"), 0, 0};
    for (size_t i = 1; i < a->s.manifest.n; i++)
        a->moving.total += a->s.manifest.files[i].size;
    for (size_t i = 1; a->err.code == 0 && i < a->s.manifest.n; i++) { /* 0 is the database */
        const struct manifest_file *f = &a->s.manifest.files[i];
        char *path = file_join(a->s.dir, f->path);
        uint8_t got[HASH_BYTES];
        uint64_t size = 0;
        struct err err = {0};
        if (f->size > 0 && hash_file(path, got, &size, &err) < 0) {
            if (!gives_up(a, &err))
                fault(a, "%s: %s", f->path, err.msg);
        } else if (f->size > 0 && (size != f->size || !hash_equal(got, f->sha256, sizeof(got))))
            fault(a, "%s is damaged: its bytes are not those on record", f->path);
        a->r->files += f->size > 0;
        a->r->bytes += size;
        moving_add(&a->moving, f->size);
        mem_free(path);
    }
    moving_clear();
}

/* ---- the record of a step ------------------------------------------------ */

static bool same(const struct blob_ref *a, const struct blob_ref *b)
{
    return a->size == b->size && memcmp(a->sha256, b->sha256, 32) == 0;
}

/* Contributions have their codec, or in records of older releases the one beside their list. */
static const char *codec_of(const json_t *doc, const json_t *c)
{
    const bool own = json_object_get(c, "staleness") != NULL;
    return json_string_value(json_object_get(own ? c : doc, own ? "codec" : "up"));
}

/* Does the record say of an outer step what went into it?  A step that is left out cannot be made
 * again, and must not pass for one whose files are gone. */
static bool says_step(const json_t *doc)
{
    const char *down = json_string_value(json_object_get(doc, "down"));
    const json_t *c;
    size_t i, n = 0;
    enum codec codec;
    bool good = down != NULL && codec_parse(down, &codec) == 0;
    json_array_foreach(json_object_get(doc, "contributions"), i, c)
    {
        struct blob_ref blob;
        const char *up = codec_of(doc, c);
        if (json_is_true(json_object_get(c, "refused")))
            continue;
        good = good && blob_ref_read(c, &blob) && up != NULL && codec_parse(up, &codec) == 0 &&
               json_number_value(json_object_get(c, "weight")) > 0;
        n++;
    }
    return good && n > 0;
}

/* v's provenance must name v and the version before it, and how the one came from the other. */
static void check_chain(struct audit *a, const struct module_rec *m,
                        const struct version_rec *before, const struct version_rec *v,
                        const json_t *doc)
{
    struct blob_ref base, full, delta;
    const unsigned long long id = m->id, n = v->version;
    if (!blob_ref_read(json_object_get(doc, "full"), &full) || !same(&full, &v->full))
        fault(a, "module %llu version %llu is not what its provenance says", id, n);
    if (blob_ref_read(json_object_get(doc, "delta"), &delta) && !same(&delta, &v->delta))
        fault(a, "module %llu version %llu has another delta than its provenance says", id, n);
    if (before != NULL &&
        (!blob_ref_read(json_object_get(doc, "base_full"), &base) || !same(&base, &before->full)))
        fault(a, "module %llu version %llu did not come from version %llu, as its provenance says",
              id, n, (unsigned long long)before->version);
    const json_t *restored = json_object_get(doc, "restored");
    const struct version_rec *old =
        restored ? module_version(m, (uint64_t)json_integer_value(restored)) : NULL;
    if (restored == NULL && !says_step(doc))
        fault(a, "module %llu version %llu has a provenance that says nothing of an outer step", id,
              n);
    if (old != NULL && (!same(&old->full, &v->full) || !same(&old->ema, &v->ema)))
        fault(a, "module %llu version %llu is not version %llu, as its provenance says", id, n,
              (unsigned long long)old->version);
}

/* ---- steps made again ---------------------------------------------------- */

/* Is there room for `bytes` of what makes the version again?  If not the audit ends before a
 * running coordinator finds its disk full. */
static bool has_room(struct audit *a, const struct module_rec *m, const struct version_rec *v,
                     uint64_t bytes)
{
    uint64_t free_bytes = 0;
    char need[STR_HUMAN_MAX], has[STR_HUMAN_MAX];
    if (file_disk_free(a->s.dir, &free_bytes, &a->err) == 0 && free_bytes < bytes)
        (void)err_set(&a->err, -ENOSPC,
                      "module %llu: to make version %llu again needs %s in %s, where %s are free: "
                      "make room there",
                      (unsigned long long)m->id, (unsigned long long)v->version,
                      str_human_bytes(bytes, need), a->s.dir, str_human_bytes(free_bytes, has));
    return a->err.code == 0;
}

static void apply_delta(struct audit *a, const struct module_rec *m,
                        const struct version_rec *before, const struct version_rec *v)
{
    char *from = blob_path(a, before->full.sha256), *delta = blob_path(a, v->delta.sha256);
    char *made = file_join(a->s.dir, "made");
    struct err err = {0};
    if (version_apply_delta(from, delta, m->id, before->version, made, NULL, v->full.sha256, NULL,
                            &err) == 0)
        a->r->deltas++;
    else if (!gives_up(a, &err))
        fault(a, "module %llu: version %llu and the delta do not make version %llu: %s",
              (unsigned long long)m->id, (unsigned long long)before->version,
              (unsigned long long)v->version, err.msg);
    (void)file_remove(made, NULL); /* or with the capture */
    mem_free(from);
    mem_free(delta);
    mem_free(made);
}

/* Paths of one fold, in the capture. */
struct refold {
    char *full, *ema, *state[3];
    char *made[6]; /* full delta ema target momentum buffer */
    struct fold_input inputs[FOLD_INPUTS_MAX];
    size_t n_inputs;
    struct fold_step step;
};

static void refold_release(struct refold *f)
{
    mem_free(f->full);
    mem_free(f->ema);
    for (size_t i = 0; i < f->n_inputs; i++) {
        mem_free((char *)(uintptr_t)f->inputs[i].path);
        mem_free((char *)(uintptr_t)f->inputs[i].origin.from_full);
    }
    for (int i = 0; i < 3; i++)
        mem_free(f->state[i]);
    for (int i = 0; i < 6; i++)
        mem_free(f->made[i]);
    mem_free(f);
}

static double real_of(const json_t *doc, const char *key)
{
    return json_number_value(json_object_get(doc, key));
}

/* The contribution's codec and start version: in records of older releases these are beside the
 * list, for all contributions (codec_of()). */
static bool take_origin(struct audit *a, const struct module_rec *m, uint64_t base,
                        const json_t *doc, const json_t *c, struct fold_origin *ret)
{
    const json_t *of = json_object_get(c, "staleness") ? c : doc;
    const char *codec = codec_of(doc, c);
    const uint64_t stale = (uint64_t)json_integer_value(json_object_get(of, "staleness"));
    const struct version_rec *from = stale <= base ? module_version(m, base - stale) : NULL;
    if (from == NULL && stale <= base) /* differences do not need it any more */
        from = module_version(m, base);
    if (codec == NULL || from == NULL || codec_parse(codec, &ret->codec) < 0 ||
        (ret->codec == CODEC_F32 && from->version != base - stale))
        return false;
    ret->from = base - stale;
    ret->from_full = blob_path(a, from->full.sha256);
    return true;
}

static bool take_inputs(struct audit *a, const struct module_rec *m, uint64_t base,
                        const json_t *doc, struct refold *f)
{
    const json_t *c;
    size_t i;
    json_array_foreach(json_object_get(doc, "contributions"), i, c)
    {
        struct blob_ref blob;
        struct fold_input *in = &f->inputs[f->n_inputs];
        if (json_is_true(json_object_get(c, "refused")))
            continue;
        if (f->n_inputs == FOLD_INPUTS_MAX || !blob_ref_read(c, &blob) ||
            !take_origin(a, m, base, doc, c, &in->origin))
            return false;
        in->path = blob_path(a, blob.sha256);
        in->weight = real_of(c, "weight");
        in->shrink = real_of(c, "shrink");
        f->n_inputs++;
        if (!file_exists(in->path))
            return false;
    }
    return f->n_inputs > 0;
}

/* The state with which the step began: none at version 0, or at a restored version. */
static bool take_state(struct audit *a, const struct module_rec *m,
                       const struct version_rec *before, bool delayed, struct refold *f)
{
    static const char *const names[] = {"target", "momentum", "buffer"};
    const struct blob_ref *const stored[] = {&before->target, &before->momentum};
    char *at = outer_state_dir(a->job->id, m->id), *dir = file_join(a->s.dir, at);
    bool there = true;
    for (int i = 0; before->version > 0 && !before->restored && i < (delayed ? 3 : 2); i++) {
        f->state[i] = i < 2 && blob_ref_is_set(stored[i])
                          ? blob_path(a, stored[i]->sha256)
                          : outer_state_file(dir, names[i], before->version);
        there = there && file_exists(f->state[i]);
    }
    mem_free(at);
    mem_free(dir);
    return there;
}

static bool take_step(struct audit *a, const struct module_rec *m, const struct version_rec *before,
                      const json_t *doc, struct refold *f)
{
    static const char *const made[] = {"m.full", "m.delta", "m.ema", "m.target", "m.mom", "m.buf"};
    const char *down = json_string_value(json_object_get(doc, "down"));
    const unsigned delay = (unsigned)json_integer_value(json_object_get(doc, "delay"));
    enum codec codec;
    if (down == NULL || codec_parse(down, &codec) < 0 || !take_state(a, m, before, delay > 1, f) ||
        !take_inputs(a, m, before->version, doc, f))
        return false;
    f->full = blob_path(a, before->full.sha256);
    f->ema = blob_ref_is_set(&before->ema) ? blob_path(a, before->ema.sha256) : NULL;
    for (int i = 0; i < 6; i++)
        f->made[i] = file_join(a->s.dir, made[i]);
    f->step = (struct fold_step){
        .module_id = m->id,
        .base = before->version,
        .full = f->full,
        .ema = f->ema,
        .target = f->state[0],
        .mom = f->state[1],
        .buf = f->state[2],
        .inputs = f->inputs,
        .n_inputs = f->n_inputs,
        .down = codec,
        .lr = real_of(doc, "lr"),
        .momentum = real_of(doc, "momentum"),
        .scale = real_of(doc, "scale"), /* as it was used in the end */
        .delay = delay,
        .ema_decay = real_of(doc, "ema_decay"),
        .full_out = f->made[0],
        .delta_out = f->made[1],
        .ema_out = f->made[2],
        .target_out = f->made[3],
        .mom_out = f->made[4],
        .buf_out = f->made[5],
    };
    return true;
}

static void compare(struct audit *a, const struct module_rec *m, const struct version_rec *v,
                    const json_t *doc, const struct fold_result *got)
{
    const json_t *state = json_object_get(doc, "state");
    const struct {
        const char *what;
        const json_t *record;
        const struct fold_file *made;
    } all[] = {
        {"the version", json_object_get(doc, "full"), &got->full},
        {"the delta", json_object_get(doc, "delta"), &got->delta},
        {"the average", json_object_get(doc, "ema"), &got->ema},
        {"the target", json_object_get(state, "target"), &got->target},
        {"the momentum", json_object_get(state, "momentum"), &got->mom},
        {"the buffer", json_object_get(state, "buffer"), &got->buf},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct blob_ref recorded;
        if (blob_ref_read(all[i].record, &recorded) &&
            (recorded.size != all[i].made->bytes ||
             memcmp(recorded.sha256, all[i].made->sha256, 32) != 0))
            fault(a, "module %llu: the outer step to version %llu gives %s other bytes",
                  (unsigned long long)m->id, (unsigned long long)v->version, all[i].what);
    }
}

/* True: the step could be made again, whatever its result. */
static bool fold_again(struct audit *a, const struct module_rec *m,
                       const struct version_rec *before, const struct version_rec *v,
                       const json_t *doc)
{
    struct refold *f = mem_alloc(sizeof(*f));
    struct fold_result got;
    struct err err = {0};
    /* Version, average, target and momentum, and the buffer or a small delta. */
    const bool can = take_step(a, m, before, doc, f) && has_room(a, m, v, 5 * v->full.size);
    if (can && fold_run(&f->step, &got, &err) == 0)
        compare(a, m, v, doc, &got);
    else if (can && !gives_up(a, &err))
        fault(a, "module %llu: the outer step to version %llu cannot be made again: %s",
              (unsigned long long)m->id, (unsigned long long)v->version, err.msg);
    for (int i = 0; can && i < 6; i++)
        (void)file_remove(f->made[i], NULL);
    a->r->steps += can;
    refold_release(f);
    return can;
}

static void check_module(struct audit *a, const struct module_rec *m)
{
    unsigned steps = 0;
    for (unsigned i = 0; a->err.code == 0 && i < m->n_versions; i++) {
        const struct version_rec *v = &m->versions[i];
        const struct version_rec *before =
            v->version > 0 ? module_version(m, v->version - 1) : NULL;
        json_t *doc = v->provenance ? json_loads(v->provenance, 0, NULL) : NULL;
        a->r->versions++;
        if (v->version > 0 && doc == NULL)
            fault(a, "module %llu version %llu has no provenance", (unsigned long long)m->id,
                  (unsigned long long)v->version);
        else if (v->version > 0)
            check_chain(a, m, before, v, doc);
        if (before != NULL && blob_ref_is_set(&v->delta) &&
            blob_full_stays(a->job, m, before->version) && has_room(a, m, v, v->full.size))
            apply_delta(a, m, before, v);
        if (before != NULL && doc != NULL && a->err.code == 0 && !job_is_ended(a->job))
            steps += fold_again(a, m, before, v, doc);
        moving_add(&a->moving, v->full.size);
        json_decref(doc);
    }
    moving_clear();
    if (m->n_versions > 0 && a->err.code == 0)
        (void)fprintf(a->out,
                      "module %llu: versions %llu to %llu, %u of %u outer steps folded "
                      "again\n",
                      (unsigned long long)m->id, (unsigned long long)m->versions[0].version,
                      (unsigned long long)m->version, steps, m->n_versions - 1);
}

/* ---- samples ------------------------------------------------------------- */

/* Sets the leases, which are the tasks': a ledger from the database has only ranges and holders. */
static void set_leased(const struct state *s, const struct job *j)
{
    for (size_t i = 0; i < s->n_tasks && j->ledgers != NULL; i++) {
        const struct task *t = s->tasks[i];
        if (t->job_id == j->id && t->kind == TASK_TRAIN && t->state == TASK_LEASED)
            ledger_set_leased(j->ledgers[job_ledger(j, j->comp.paths[t->path].partition)], t->id,
                              true);
    }
}

static void print_balance(struct audit *a)
{
    const struct job *j = a->job;
    uint64_t folded = 0, reported = 0, done = 0, leased = 0, pending = 0;
    set_leased(&a->s.state, j);
    for (size_t i = 0; i < j->n_rounds; i++)
        folded += j->rounds[i].samples;
    for (size_t i = 0; i < a->s.state.n_tasks; i++) {
        const struct task *t = a->s.state.tasks[i];
        const struct contribution *c = t->train.contributions;
        if (t->job_id == j->id && t->kind == TASK_TRAIN && t->state == TASK_DONE &&
            t->train.n_contributions > 0 && c->version == 0 && !c->refused)
            reported += c->samples;
    }
    for (uint32_t p = 0; j->ledgers != NULL && p < job_ledgers(j); p++) {
        const struct ledger *l = j->ledgers[p];
        char of[32] = "all data,";
        if (p < j->comp.n_partitions)
            (void)snprintf(of, sizeof(of), "partition %u", p);
        for (uint32_t e = 0; l != NULL && e < ledger_first_open(l) + ledger_open(l); e++) {
            struct ledger_epoch x;
            ledger_figures(l, e, &x);
            done += x.done;
            leased += x.leased;
            pending += x.pending;
            if (x.done + x.leased + x.pending != x.total)
                fault(a,
                      "%s epoch %u: %llu done, %llu leased and %llu pending samples are not %llu",
                      of, e, (unsigned long long)x.done, (unsigned long long)x.leased,
                      (unsigned long long)x.pending, (unsigned long long)x.total);
        }
    }
    (void)fprintf(a->out,
                  "samples of the open and closed epochs: %llu done, %llu leased, %llu pending; "
                  "folded in %zu round%s: %llu, reported and not folded yet: %llu\n",
                  (unsigned long long)done, (unsigned long long)leased, (unsigned long long)pending,
                  j->n_rounds, str_plural(j->n_rounds), (unsigned long long)folded,
                  (unsigned long long)reported);
}

int audit_job(const struct coordinator_options *o, uint64_t job_id, FILE *out,
              struct audit_result *ret, struct err *err)
{
    struct audit a = {.out = out, .r = ret};
    *ret = (struct audit_result){0};
    int rc = capture_take(o, job_id, &a.s, err);
    if (rc < 0)
        return rc;
    a.job = state_job(&a.s.state, job_id);
    if (a.s.left > 0)
        (void)fprintf(out,
                      "%llu files that are no module's (shards, pictures, encoders) stay in the "
                      "store, which guards its own bytes\n",
                      (unsigned long long)a.s.left);
    check_files(&a);
    a.moving = (struct moving_bytes){moving_begin("making versions again"), 0, 0};
    for (uint32_t i = 0; !a.job->unread && i < a.job->comp.n_modules; i++)
        for (unsigned v = 0; v < a.job->modules[i].n_versions; v++)
            a.moving.total += a.job->modules[i].versions[v].full.size;
    for (uint32_t i = 0; a.err.code == 0 && !a.job->unread && i < a.job->comp.n_modules; i++)
        check_module(&a, &a.job->modules[i]);
    if (a.err.code == 0 && !a.job->unread)
        print_balance(&a);
    capture_release(&a.s);
    if (a.err.code != 0 && err)
        *err = a.err;
    return a.err.code;
}
