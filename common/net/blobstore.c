#include "common/net/blobstore.h"

#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"

void blob_id_hex(const struct blob_id *id, char ret_hex[BLOB_HEX_MAX])
{
    hash_hex(id->sha256, sizeof(id->sha256), ret_hex);
}

int blob_id_parse(const char *hex, struct blob_id *ret)
{
    struct blob_id id;
    if (strlen(hex) != 64 || strspn(hex, "0123456789abcdef") != 64 ||
        hash_unhex(hex, id.sha256, sizeof(id.sha256)) < 0)
        return -ERR_FORMAT;
    *ret = id;
    return 0;
}

bool blob_id_equal(const struct blob_id *a, const struct blob_id *b)
{
    return memcmp(a->sha256, b->sha256, sizeof(a->sha256)) == 0;
}

bool blob_ref_equal(const struct blob_ref *a, const struct blob_ref *b)
{
    return a->size == b->size && blob_id_equal(&a->id, &b->id);
}

int blobstore_read_here(struct blobstore *s, const struct blob_id *id, uint64_t from, void *data,
                        size_t len, struct err *err)
{
    uint64_t size;
    int fd, rc = s->ops->get(s, id, &fd, &size, err);
    if (rc < 0)
        return rc;
    if (from > size || len > size - from)
        rc = err_set(err, -ERR_FORMAT, "a blob of %llu bytes is shorter than expected",
                     (unsigned long long)size);
    else
        rc = file_pread_all(fd, data, len, from, "a blob", err);
    (void)close(fd); /* read only: nothing to lose */
    return rc;
}

bool blobstore_has(struct blobstore *s, const struct blob_id *id, uint64_t *ret_size)
{
    struct blob_stat st;
    bool has = s->ops->stat(s, id, &st, NULL) == 0;
    if (has && ret_size)
        *ret_size = st.size;
    return has;
}
