#include "cli/job/link.h"

#include <unistd.h>

#include "cli/base/cli.h"
#include "common/base/moving.h"
#include "cli/job/upload.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/http/http_client.h"

#define SMALL_BYTES (256u << 10)
#define LARGE_MAX_S 10 /* on a slower link the small file is enough */

/* Sends a file of random bytes and fetches it again; ret: seconds up and down. */
static int there_and_back(struct cli *cli, const char *file, size_t size, double ret[2],
                          struct err *err)
{
    uint8_t sha256[HASH_BYTES], *bytes = mem_alloc(size);
    char hex[HASH_HEX_MAX], path[HASH_HEX_MAX + 16];
    hash_random(bytes, size);
    hash_sha256(bytes, size, sha256);
    int rc = file_write_atomic(file, bytes, size, 0600, err);
    mem_free(bytes);
    const uint64_t begun = clock_now_ns();
    if (rc == 0)
        rc = upload_blob(cli, file, sha256, size, "a file that times the link", NULL, NULL, NULL,
                         err);
    ret[0] = clock_since_s(begun);
    const uint64_t sent = clock_now_ns();
    (void)snprintf(path, sizeof path, "/v1/blobs/%s", hash_hex(sha256, sizeof sha256, hex));
    if (rc == 0)
        rc = file_remove(file, err);
    if (rc == 0)
        rc = http_get_file(cli->http, path, file, sha256, NULL, NULL, err);
    ret[1] = clock_since_s(sent);
    (void)file_remove(file, NULL);
    return rc;
}

/* The time to connect and ask is in both files' times, and so not in the difference. */
static double speed(double small_s, double large_s)
{
    return large_s > small_s ? (LINK_LARGE_BYTES - SMALL_BYTES) / (large_s - small_s)
                             : LINK_LARGE_BYTES / large_s;
}

int link_time(struct cli *cli, const char *folder, double *ret_up, double *ret_down,
              struct err *err)
{
    double small[2], large[2], up = 0, down = 0;
    moving_now("measuring the link to the coordinator: files there and back");
    char *file = str_printf("%s/skerry-link.%ld", folder, (long)getpid());
    int rc = there_and_back(cli, file, SMALL_BYTES, small, err);
    if (rc == 0) {
        up = SMALL_BYTES / small[0];
        down = SMALL_BYTES / small[1];
    }
    if (rc == 0 && LINK_LARGE_BYTES / fmin(up, down) < LARGE_MAX_S) {
        rc = there_and_back(cli, file, LINK_LARGE_BYTES, large, err);
        up = speed(small[0], large[0]);
        down = speed(small[1], large[1]);
    }
    if (rc == 0) {
        *ret_up = up;
        *ret_down = down;
    }
    moving_clear();
    mem_free(file);
    return rc;
}
