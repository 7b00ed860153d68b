#include "common/net/blobstore.h"

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

bool blobstore_has(struct blobstore *s, const struct blob_id *id, uint64_t *ret_size)
{
    struct blob_stat st;
    bool has = s->ops->stat(s, id, &st, NULL) == 0;
    if (has && ret_size)
        *ret_size = st.size;
    return has;
}
