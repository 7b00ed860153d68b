#include "cli/job/upload.h"

#include "cli/base/cli.h"
#include "cli/base/moving.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/http/http_client.h"

#define LARGE_BYTES (16u << 20) /* uploads from this size on show their progress */
#define AGAIN_MS 200

/* Asks where the file goes, which may be asked again: a coordinator that restarts is waited for,
 * unless it was never heard of. */
static int ask(struct cli *cli, const json_t *about, json_t **ret, struct err *err)
{
    struct cli_away away = {.seen_ms = clock_now_ms()};
    for (;; cli_sleep_ms(AGAIN_MS)) {
        if (cli_interrupted)
            return err_set(err, -ERR_CANCELLED, "interrupted");
        const int rc = cli_call(cli, "POST", about, ret, err, "/v1/uploads");
        if (rc == 0)
            cli_say_back(&away);
        if (rc == 0 || !cli->answered || !cli_may_come_back(rc, away.seen_ms))
            return rc;
        moving_clear();
        cli_say_away(&away, err->msg);
    }
}

static int send(struct cli *cli, const char *path, const uint8_t sha256[HASH_BYTES], uint64_t size,
                const char *what, struct moving *show, uint64_t *ret_sent, struct err *err)
{
    char hex[HASH_HEX_MAX];
    json_t *answer;

    hash_hex(sha256, HASH_BYTES, hex);
    json_t *about = json_pack("{s:s,s:I}", "sha256", hex, "size", (json_int_t)size);
    int rc = ask(cli, about, &answer, err);
    json_decref(about);
    if (rc < 0)
        return err_wrap(err, "asking to upload %s", what);
    uint64_t sent = 0;
    if (!json_is_true(json_object_get(answer, "have"))) {
        rc = http_put_file(cli->http, cli_str(answer, "url", ""), path, show ? moving_show : NULL,
                           show, err);
        if (rc < 0)
            err_wrap(err, "uploading %s", what);
        sent = size;
    }
    json_decref(answer);
    if (rc == 0 && ret_sent)
        *ret_sent = sent;
    return rc;
}

int upload_blob(struct cli *cli, const char *path, const uint8_t sha256[HASH_BYTES], uint64_t size,
                const char *what, bool progress, uint64_t *ret_sent, struct err *err)
{
    char *does = str_printf("uploading %s", what);
    struct moving show = moving_begin(does);
    int rc = send(cli, path, sha256, size, what, progress ? &show : NULL, ret_sent, err);
    mem_free(does);
    return rc;
}

static bool is_interrupted(void *arg)
{
    return cli_interrupted;
}

int upload_file(struct cli *cli, const char *path, const char *what, bool progress, json_t **ret,
                struct err *err)
{
    uint8_t sha256[HASH_BYTES];
    char hex[HASH_HEX_MAX], human[STR_HUMAN_MAX];
    uint64_t size = 0;

    const bool large = progress && file_size(path, &size, NULL) == 0 && size >= LARGE_BYTES;
    if (large)
        fprintf(stderr, "reading %s (%s)\n", what, str_human_bytes(size, human));
    int rc = hash_file_until(path, is_interrupted, NULL, sha256, &size, err);
    if (rc == 0)
        rc = upload_blob(cli, path, sha256, size, what, large, NULL, err);
    moving_clear();
    if (rc < 0)
        return rc;
    hash_hex(sha256, HASH_BYTES, hex);
    *ret = json_pack("{s:s,s:I}", "sha256", hex, "size", (json_int_t)size);
    return 0;
}
