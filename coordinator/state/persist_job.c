/* Jobs on record that today's rules refuse: the coordinator starts with them, and nothing of
 * theirs is lost. */
#include "coordinator/state/persist_job.h"

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/job/yaml.h"
#include "coordinator/state/blobs.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A job of one module, in the place of one that cannot be read. */
#define BLANK                                                                                      \
    "name: unread\ndata: {path: unread, image_size: 8}\nmodel: {dim: 4, depth: 1, heads: 1}\n"     \
    "train: {batch: 1}\nouter: {rounds: 1, steps: 1}\n"

#define OF_MODULES " FROM versions WHERE module IN (SELECT id FROM modules WHERE job=?1)"

/* Where the rows of a job have its blobs; NULL: in what is loaded of it all the same. */
static const char *const named_sql[BLOB_ROLES] = {
    [BLOB_SHARD] = "SELECT sha256, size FROM shards WHERE job=?1",
    [BLOB_FEATURES] = "SELECT features, features_size FROM shards WHERE job=?1",
    [BLOB_SCORES] = "SELECT sha256, size FROM scores WHERE job=?1",
    [BLOB_WARM_START] = "SELECT warm_start, warm_start_size FROM jobs WHERE id=?1",
    [BLOB_ASSIGNMENT] = "SELECT assignment, assignment_size FROM jobs WHERE id=?1",
    [BLOB_MOMENTS] = "SELECT moments, moments_size FROM replicas WHERE job=?1",
    [BLOB_PHASE_MOMENTS] = "SELECT moments, moments_size FROM tasks WHERE job=?1",
    [BLOB_CONTRIBUTION] = "SELECT sha256, size FROM contributions"
                          " WHERE task IN (SELECT id FROM tasks WHERE job=?1)",
    [BLOB_FULL] = "SELECT full, full_size" OF_MODULES,
    [BLOB_DELTA] = "SELECT delta, delta_size" OF_MODULES,
    [BLOB_EMA] = "SELECT ema, ema_size" OF_MODULES,
    [BLOB_OUTPUT] = "SELECT output, output_size FROM tasks WHERE job=?1",
    [BLOB_INPUT] = "SELECT input, input_size FROM tasks WHERE job=?1",
};

/* The release that wrote the job may want it: whether it goes on, or others learn from it, only
 * that release knows. */
static bool wanted(const struct job *j, enum blob_role role)
{
    return named_sql[role] != NULL && (!job_is_ended(j) || blob_role_stays(role) ||
                                       (role == BLOB_SHARD && j->state == JOB_DONE));
}

static int prepare(sqlite3 *db, const char *sql, uint64_t job, sqlite3_stmt **ret, struct err *err)
{
    if (sqlite3_prepare_v2(db, sql, -1, ret, NULL) != SQLITE_OK)
        return err_set(err, -EIO, "%.60s: %s", sql, sqlite3_errmsg(db));
    (void)sqlite3_bind_int64(*ret, 1, (int64_t)job);
    return 0;
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

/* The best of each path lies in one column, as records. */
static int keep_best(sqlite3 *db, struct job *j, struct err *err)
{
    sqlite3_stmt *q = NULL;
    int rc = prepare(db, "SELECT best FROM paths WHERE job=?1", j->id, &q, err), step = SQLITE_DONE;
    while (rc == 0 && (step = sqlite3_step(q)) == SQLITE_ROW) {
        const uint8_t *p = sqlite3_column_blob(q, 0);
        size_t n = (size_t)sqlite3_column_bytes(q, 0) / sizeof(struct best_module);
        for (size_t i = 0; p != NULL && i < n; i++) {
            struct best_module b;
            memcpy(&b, p + i * sizeof(b), sizeof(b));
            keep(j, BLOB_BEST, b.full.sha256, b.full.size);
        }
    }
    sqlite3_finalize(q);
    return rc < 0 || step == SQLITE_DONE ? rc : err_set(err, -EIO, "reading the paths of a job");
}

static int keep_role(sqlite3 *db, struct job *j, enum blob_role role, struct err *err)
{
    sqlite3_stmt *q = NULL;
    int rc = prepare(db, named_sql[role], j->id, &q, err), step = SQLITE_DONE;
    while (rc == 0 && (step = sqlite3_step(q)) == SQLITE_ROW)
        if (sqlite3_column_bytes(q, 0) == 32)
            keep(j, role, sqlite3_column_blob(q, 0), (uint64_t)sqlite3_column_int64(q, 1));
    sqlite3_finalize(q);
    return rc < 0 || step == SQLITE_DONE ? rc : err_set(err, -EIO, "reading what a job names");
}

static int keep_blobs(sqlite3 *db, struct job *j, struct err *err)
{
    int rc = keep_best(db, j, err);
    for (int role = 0; role < BLOB_ROLES && rc == 0; role++)
        if (wanted(j, (enum blob_role)role))
            rc = keep_role(db, j, (enum blob_role)role, err);
    return rc;
}

/* Its own name, if that much can be read. */
static void name_it(struct job *j)
{
    struct yaml_doc doc;
    const struct yaml_node *name = NULL;
    if (yaml_parse(j->yaml, strlen(j->yaml), "job.yaml", &doc, NULL) < 0)
        return;
    name = yaml_get(doc.root, "name");
    if (name != NULL && name->kind == YAML_SCALAR && str_is_name(name->text, 64)) {
        mem_free(j->spec.name);
        j->spec.name = str_dup(name->text);
    }
    yaml_release(&doc);
}

static int make_unread(sqlite3 *db, struct job *j, struct err *err)
{
    composition_release(&j->comp);
    job_release(&j->spec);
    int rc = job_parse(BLANK, sizeof(BLANK) - 1, "job.yaml", &j->spec, NULL);
    if (rc == 0)
        rc = recipe_compose(&j->spec, &j->comp, NULL);
    assert(rc == 0); /* as any test that comes here shows */
    name_it(j);
    j->unread = true;
    return keep_blobs(db, j, err);
}

/* Has the composition the modules, paths and replicas that are on record? */
static int fits(sqlite3 *db, const struct job *j, bool *ret, struct err *err)
{
    sqlite3_stmt *q = NULL;
    uint64_t replicas = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        replicas += j->comp.paths[p].replicas;
    int rc = prepare(db,
                     "SELECT (SELECT count(*) FROM modules WHERE job=?1),"
                     " (SELECT count(*) FROM paths WHERE job=?1),"
                     " (SELECT count(*) FROM replicas WHERE job=?1),"
                     " (SELECT length(sizes) FROM jobs WHERE id=?1)",
                     j->id, &q, err);
    if (rc < 0)
        return rc;
    *ret = false;
    if (sqlite3_step(q) == SQLITE_ROW) {
        uint64_t sizes = (uint64_t)sqlite3_column_int64(q, 3);
        *ret = (uint64_t)sqlite3_column_int64(q, 0) == j->comp.n_modules &&
               (uint64_t)sqlite3_column_int64(q, 1) == j->comp.n_paths &&
               (uint64_t)sqlite3_column_int64(q, 2) == replicas &&
               (sizes == 0 || sizes == j->comp.n_partitions * sizeof(*j->sizes));
    }
    sqlite3_finalize(q);
    return 0;
}

int persist_read_job(sqlite3 *db, struct job *j, struct err *err)
{
    struct err why = {0};
    bool whole = true;
    int refused = job_parse_saved(j->yaml, strlen(j->yaml), "job.yaml", &j->spec, &why);
    int rc = refused < 0 ? refused : recipe_compose(&j->spec, &j->comp, refused ? NULL : &why);
    if (rc == 0 && !refused)
        refused = recipe_limits(&j->spec, &j->comp, &why) < 0;
    if (rc == 0 && !refused)
        return 0;
    if (rc == 0 && (rc = fits(db, j, &whole, err)) < 0)
        return rc;
    j->refused =
        str_printf("%s: this release no longer accepts that; submit the job anew (%s)", why.msg,
                   rc == 0 && whole ? "what it has learned can still be exported"
                                    : "its files are kept for the release that wrote them");
    return rc < 0 || !whole ? make_unread(db, j, err) : 0;
}
