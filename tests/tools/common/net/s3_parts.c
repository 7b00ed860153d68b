/* Puts a file into an object store in parts, and reads it back.  Its words: the endpoint, the
 * bucket, the key, the file, and the bytes of a part.  Prints the requests that it took. */
#include "common/base/base.h"
#include "common/base/hash.h"
#include "common/net/s3/client.h"

static int add(void *arg, const void *data, size_t len)
{
    hash_update(arg, data, len);
    return 0;
}

int main(int argc, char **argv)
{
    struct err err = {0};
    struct s3 *c = NULL;
    struct hash h;
    uint8_t want[HASH_BYTES], got[HASH_BYTES];
    uint64_t size = 0, part = 0, found = 0;
    char sum[S3_SUM_MAX];
    if (argc != 6 || str_parse_u64(argv[5], &part) < 0)
        return 2;
    const struct s3_options o = {
        .endpoint = argv[1], .bucket = argv[2], .plain = true, .tries = 2, .part_bytes = part};
    hash_init(&h);
    int rc = s3_open(&o, &c, &err);
    if (rc == 0)
        rc = hash_file(argv[4], want, &size, &err);
    if (rc == 0)
        rc = s3_put(c, argv[3], argv[4], size, want, &err);
    if (rc == 0)
        rc = s3_head(c, argv[3], &found, sum, &err);
    if (rc == 0)
        rc = s3_get(c, argv[3], 0, found, add, &h, &err);
    hash_final(&h, got);
    if (rc == 0 && (found != size || !hash_equal(got, want, sizeof(got))))
        rc = err_set(&err, -ERR_HASH, "the store gives back %llu other bytes",
                     (unsigned long long)found);
    if (rc < 0)
        (void)fprintf(stderr, "%s\n", err.msg);
    else
        (void)printf("%llu\n", (unsigned long long)s3_health(c).requests);
    s3_close(c);
    return rc < 0;
}
