#include "coordinator/outer/outer_verify.h"

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/net/blobstore.h"
#include "common/outer/version.h"

int outer_verify(struct seen *seen, const char *path, const struct blob_ref *want, const char *what,
                 struct err *err)
{
    uint8_t got[HASH_BYTES];
    uint64_t bytes = 0;
    if (want->size == 0 || seen_lately(seen, path, want->sha256))
        return 0;
    int rc = hash_file(path, got, &bytes, err);
    if (rc < 0 && rc != -ENOENT && rc != -EIO) /* EIO: a sector cannot be read */
        return rc;
    if (rc == 0 && bytes == want->size && hash_equal(got, want->sha256, HASH_BYTES)) {
        seen_note(seen, path, got);
        return 0;
    }
    return err_set(err, -ERR_HASH,
                   "%s is %s on the coordinator's disk, put it back from a copy: %s", what,
                   rc == -ENOENT ? "gone" : "damaged", path);
}

int outer_verify_blob(struct seen *seen, struct blobstore *store, const char *path,
                      const struct blob_ref *want, const char *what, struct err *err)
{
    const int rc = outer_verify(seen, path, want, what, err);
    if (rc != -ERR_HASH || !store->ops->renew)
        return rc;
    const int renewed = store->ops->renew(store, &want->id, err);
    if (renewed == -ERR_NOTFOUND || renewed == -ERR_HASH)
        return outer_verify(seen, path, want, what, err); /* whose error names the file */
    if (renewed < 0)
        return renewed;
    log_warn("outer", "%s was damaged on the coordinator's disk and is fetched again", what);
    return outer_verify(seen, path, want, what, err);
}

int outer_verify_finite(const char *const *paths, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        struct err why = {0};
        const int rc = paths[i] != NULL ? version_check_finite(paths[i], &why) : 0;
        if (rc == -EDOM)
            return err_set(err, -ERR_HASH,
                           "what the step starts from is not finite, and no contribution is to "
                           "blame: %s of %s; submit the job anew, with another warm start if it "
                           "has one",
                           why.msg, paths[i]);
        if (rc < 0)
            return err_set(err, rc, "%s", why.msg);
    }
    return 0;
}

int outer_hold(struct blobstore *store, const struct blob_ref *blob, char **ret, struct err *err)
{
    return store->ops->local(store, &blob->id, true, ret, err);
}

void outer_let_go(struct blobstore *store, const struct blob_ref *blob, char *path)
{
    if (path)
        store->ops->let_go(store, &blob->id);
    mem_free(path);
}

int outer_missing(struct err *err, const char *what, const struct blob_ref *blob)
{
    char hex[HASH_HEX_MAX];
    return err_set(err, -ERR_HASH, "%s is gone from the blob store, put it back from a copy: %s",
                   what, hash_hex(blob->sha256, sizeof blob->sha256, hex));
}

/* Makes version v again, from v - 1 and the delta if they are kept; the hash shows whether they are
 * intact. */
static int make_again(struct blobstore *store, const struct outer_step *s, struct err *err)
{
    const struct blob_ref *full = &s->old[OUTER_FULL], *step = &s->old[OUTER_DELTA];
    if (!blob_ref_is_set(&s->before) || !blob_ref_is_set(step))
        return -ERR_NOTFOUND;
    char *before = NULL, *delta = NULL;
    char *made = outer_state_file(s->state_dir, "full", s->base);
    int rc = outer_hold(store, &s->before, &before, err);
    if (rc == 0)
        rc = outer_hold(store, step, &delta, err);
    if (rc == 0)
        rc = version_apply_delta(before, delta, s->module_id, s->base - 1, made, NULL, full->sha256,
                                 NULL, err);
    if (rc == 0)
        rc = file_sync_all(s->state_dir, err);
    if (rc == 0)
        rc = store->ops->remove(store, &full->id, err);
    if (rc == 0)
        rc = store->ops->adopt(store, &(struct blob_file){made, full->id, full->size}, 1, err);
    if (rc == 0)
        log_warn("outer", "version %llu of module %llu was damaged or gone and is made again",
                 (unsigned long long)s->base, (unsigned long long)s->module_id);
    outer_let_go(store, &s->before, before);
    outer_let_go(store, step, delta);
    mem_free(made);
    return rc;
}

/* The version to start from is lost, as `lost` and err say.  0: it is made again; `lost`: it cannot
 * be, as what that takes is lost, too; else another reason, as a full disk. */
static int restore(struct blobstore *store, const struct outer_step *s, int lost, struct err *err)
{
    struct err why = {0};
    const int rc = make_again(store, s, &why);
    if (rc == -ERR_NOTFOUND || rc == -ERR_HASH || rc == -ERR_FORMAT)
        return lost;
    return rc < 0 ? err_set(err, rc, "%s", why.msg) : 0;
}

int outer_hold_base(struct blobstore *store, const struct outer_step *s, char **ret,
                    struct err *err)
{
    int rc = outer_hold(store, &s->old[OUTER_FULL], ret, err);
    if (rc != -ERR_NOTFOUND && rc != -ERR_HASH)
        return rc;
    rc = restore(store, s, rc, err);
    if (rc == -ERR_NOTFOUND)
        return outer_missing(err, "the version to start from", &s->old[OUTER_FULL]);
    return rc == 0 ? outer_hold(store, &s->old[OUTER_FULL], ret, err) : rc;
}

int outer_verify_base(struct seen *seen, struct blobstore *store, const struct outer_step *s,
                      const char *path, struct err *err)
{
    const int rc =
        outer_verify_blob(seen, store, path, &s->old[OUTER_FULL], "the version to start from", err);
    return rc == -ERR_HASH ? restore(store, s, rc, err) : rc;
}
