#include "coordinator/state/persist_unread.h"

#include "common/job/yaml.h"
#include "coordinator/state/blobs.h"

#include <assert.h>

/* And those that are of nobody's module or task, whose row may be the one that is lost. */
#define OF_MODULES                                                                                 \
    " FROM versions WHERE module IN (SELECT id FROM modules WHERE job=?1)"                         \
    " OR module NOT IN (SELECT id FROM modules)"
#define OF_TASKS                                                                                   \
    " WHERE task IN (SELECT id FROM tasks WHERE job=?1) OR task NOT IN (SELECT id FROM tasks)"

/* Queries for the blobs that a job's rows name, by role; NULL: those rows are loaded anyway. */
static const char *const named_sql[BLOB_ROLES] = {
    [BLOB_SHARD] = "SELECT sha256, size FROM shards WHERE job=?1",
    [BLOB_FEATURES] = "SELECT features, features_size FROM shards WHERE job=?1",
    [BLOB_SCORES] = "SELECT sha256, size FROM scores WHERE job=?1",
    [BLOB_ENCODER] = "SELECT sha256, size FROM encoder_files WHERE job=?1",
    [BLOB_WARM_START] = "SELECT warm_start, warm_start_size FROM jobs WHERE id=?1",
    [BLOB_ASSIGNMENT] = "SELECT assignment, assignment_size FROM jobs WHERE id=?1",
    [BLOB_MOMENTS] = "SELECT moments, moments_size FROM replicas WHERE job=?1",
    [BLOB_PHASE_MOMENTS] = "SELECT moments, moments_size FROM tasks WHERE job=?1",
    [BLOB_SNAPSHOT] = "SELECT sha256, size FROM snapshots" OF_TASKS,
    [BLOB_CONTRIBUTION] = "SELECT sha256, size FROM contributions" OF_TASKS,
    [BLOB_FULL] = "SELECT full, full_size" OF_MODULES,
    [BLOB_DELTA] = "SELECT delta, delta_size" OF_MODULES,
    [BLOB_EMA] = "SELECT ema, ema_size" OF_MODULES,
    [BLOB_OUTPUT] = "SELECT output, output_size FROM tasks WHERE job=?1",
    [BLOB_INPUT] = "SELECT input, input_size FROM tasks WHERE job=?1",
};

/* May the release that wrote the job need the blob?  Only that release knows whether the job goes
 * on, or others learn from it. */
static bool wanted(const struct job *j, enum blob_role role)
{
    return named_sql[role] != NULL && (!job_is_ended(j) || blob_role_stays(role) ||
                                       (role == BLOB_SHARD && j->state == JOB_DONE));
}

static void keep(struct job *j, enum blob_role role, const void *sha256, uint64_t size)
{
    if (sha256 == NULL || size == 0)
        return;
    j->unread_blobs =
        mem_realloc(j->unread_blobs, (j->n_unread_blobs + 1) * sizeof(*j->unread_blobs));
    struct unread_blob *b = &j->unread_blobs[j->n_unread_blobs++];
    b->role = role;
    memcpy(b->blob.sha256, sha256, 32);
    b->blob.size = size;
}

/* Adds the blobs that a row names. */
typedef void (*names_fn)(struct job *j, enum blob_role role, sqlite3_stmt *q);

static void names_one(struct job *j, enum blob_role role, sqlite3_stmt *q)
{
    if (sqlite3_column_bytes(q, 0) == 32)
        keep(j, role, sqlite3_column_blob(q, 0), (uint64_t)sqlite3_column_int64(q, 1));
}

/* The best versions of all paths are records in one column. */
static void names_best(struct job *j, enum blob_role role, sqlite3_stmt *q)
{
    const uint8_t *p = sqlite3_column_blob(q, 0);
    size_t n = (size_t)sqlite3_column_bytes(q, 0) / sizeof(struct best_module);
    for (size_t i = 0; p != NULL && i < n; i++) {
        struct best_module b;
        memcpy(&b, p + i * sizeof(b), sizeof(b));
        keep(j, role, b.full.sha256, b.full.size);
    }
}

/* The outer optimiser's state is in the records of versions. */
static void names_outer_state(struct job *j, enum blob_role role, sqlite3_stmt *q)
{
    struct blob_ref target, momentum;
    if (!blob_outer_state((const char *)sqlite3_column_text(q, 0), &target, &momentum))
        return;
    keep(j, role, target.sha256, target.size);
    keep(j, role, momentum.sha256, momentum.size);
}

static int keep_role(sqlite3 *db, struct job *j, enum blob_role role, const char *sql, names_fn fn,
                     struct err *err)
{
    sqlite3_stmt *q = NULL;
    int step = sqlite3_prepare_v2(db, sql, -1, &q, NULL);
    if (step == SQLITE_OK) {
        (void)sqlite3_bind_int64(q, 1, (int64_t)j->id);
        while ((step = sqlite3_step(q)) == SQLITE_ROW)
            fn(j, role, q);
    }
    sqlite3_finalize(q);
    return step == SQLITE_DONE ? 0 : err_set(err, -EIO, "%.60s: %s", sql, sqlite3_errmsg(db));
}

static int names(sqlite3 *db, struct job *j, struct err *err)
{
    int rc = keep_role(db, j, BLOB_BEST, "SELECT best FROM paths WHERE job=?1", names_best, err);
    if (rc == 0 && !job_is_ended(j))
        rc = keep_role(db, j, BLOB_OUTER_STATE, "SELECT provenance" OF_MODULES, names_outer_state,
                       err);
    for (int role = 0; role < BLOB_ROLES && rc == 0; role++)
        if (wanted(j, (enum blob_role)role))
            rc = keep_role(db, j, (enum blob_role)role, named_sql[role], names_one, err);
    return rc;
}

/* ---- in its place ---- */

/* A job of one module, in place of one that cannot be read. */
#define BLANK                                                                                      \
    "name: unread\ndata: {path: unread, image_size: 8}\nmodel: {dim: 4, depth: 1, heads: 1}\n"     \
    "train: {batch: 1}\nouter: {rounds: 1, steps: 1}\n"

static void take_name(const struct yaml_node *of, char **ret)
{
    const struct yaml_node *name = yaml_get(of, "name");
    if (name == NULL || name->kind != YAML_SCALAR || !str_is_name(name->text, 64))
        return;
    mem_free(*ret);
    *ret = str_dup(name->text);
}

/* Gives it its own names, as far as they can be read. */
static void name_it(struct job *j)
{
    struct yaml_doc doc;
    if (yaml_parse(j->yaml, strlen(j->yaml), "job.yaml", &doc, NULL) < 0)
        return;
    take_name(doc.root, &j->spec.name);
    take_name(yaml_get(doc.root, "recipe"), &j->spec.recipe.name);
    yaml_release(&doc);
}

int persist_unread(sqlite3 *db, struct job *j, struct err *err)
{
    composition_release(&j->comp);
    job_release(&j->spec);
    int rc = job_parse(BLANK, sizeof(BLANK) - 1, "job.yaml", &j->spec, NULL);
    if (rc == 0)
        rc = recipe_compose(&j->spec, &j->comp, NULL);
    assert(rc == 0); /* the text is constant: any test that comes here checks it */
    name_it(j);
    j->unread = true;
    return names(db, j, err);
}
