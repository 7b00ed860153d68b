#include "cli/job/upload.h"

#include <time.h>

#include "cli/base/cli.h"
#include "common/base/moving.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/http/http_client.h"

#define LARGE_BYTES (16u << 20) /* uploads from this size on show their progress */
#define AGAIN_MS 200
#define KEEP_S (4 * 3600)
#define TICKETS_MAX 4 /* in a row by which a file came no further */

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

/* An upload, and how far its tickets have carried it. */
struct carried {
    xfer_progress_fn tell; /* may be NULL */
    void *arg;
    uint64_t most;
    unsigned tickets; /* in a row by which it came no further */
};

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct carried *c = arg;
    if (done > c->most) {
        c->most = done;
        c->tickets = 1;
    }
    if (c->tell)
        c->tell(c->arg, done, total);
}

/* Sends the file unless it is there.  A ticket lasts for an hour and dies with the coordinator's
 * machine: the next one goes on where the file was cut. */
static int send(struct cli *cli, const char *path, const json_t *about, const char *what,
                xfer_progress_fn tell, void *arg, bool *ret_sent, struct err *err)
{
    struct carried c = {.tell = tell, .arg = arg};
    for (;;) {
        json_t *answer;
        int rc = ask(cli, about, &answer, err);
        if (rc < 0)
            return err_wrap(err, "asking to upload %s", what);
        const bool have = json_is_true(json_object_get(answer, "have"));
        *ret_sent |= !have; /* it may have come whole by an earlier ticket */
        c.tickets++;
        if (!have)
            rc = http_put_file(cli->http, cli_str(answer, "url", ""), path, on_progress, &c, err);
        json_decref(answer);
        if (rc < 0 && (rc != -ERR_AUTH || c.tickets >= TICKETS_MAX))
            return err_wrap(err, "uploading %s", what);
        if (rc == 0)
            return 0;
    }
}

static time_t now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t); /* a laptop's sleep counts */
    return t.tv_sec;
}

/* Asks for all uploads again from time to time: what no job names is deleted after a day, and a
 * large dataset takes longer. */
static int keep(struct cli *cli, json_t *about, struct err *err)
{
    size_t i;
    json_t *each, *answer;
    if (!cli->uploads) {
        cli->uploads = json_array();
        cli->uploads_s = now_s();
    }
    if (now_s() - cli->uploads_s >= KEEP_S) {
        cli->uploads_s = now_s();
        json_array_foreach(cli->uploads, i, each)
        {
            const int rc = ask(cli, each, &answer, err);
            if (rc < 0)
                return err_wrap(err, "asking for earlier uploads");
            const bool have = json_is_true(json_object_get(answer, "have"));
            json_decref(answer);
            if (!have)
                return err_set(err, -ERR_NOTFOUND,
                               "what was uploaded first is gone from the coordinator, since no job "
                               "named it for a day: submit again, which uploads what is missing");
        }
    }
    json_array_append(cli->uploads, about);
    return 0;
}

int upload_blob(struct cli *cli, const char *path, const uint8_t sha256[HASH_BYTES], uint64_t size,
                const char *what, xfer_progress_fn tell, void *arg, uint64_t *ret_sent,
                struct err *err)
{
    char hex[HASH_HEX_MAX];
    bool sent = false;
    hash_hex(sha256, HASH_BYTES, hex);
    json_t *about = json_pack("{s:s,s:I}", "sha256", hex, "size", (json_int_t)size);
    int rc = send(cli, path, about, what, tell, arg, &sent, err);
    if (rc == 0)
        rc = keep(cli, about, err);
    if (rc == 0 && ret_sent)
        *ret_sent = sent ? size : 0;
    json_decref(about);
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
    char hex[HASH_HEX_MAX], human[STR_HUMAN_MAX], *does = str_printf("uploading %s", what);
    uint64_t size = 0;

    const bool large = progress && file_size(path, &size, NULL) == 0 && size >= LARGE_BYTES;
    if (large)
        fprintf(stderr, "reading %s (%s)\n", what, str_human_bytes(size, human));
    int rc = hash_file_until(path, is_interrupted, NULL, sha256, &size, err);
    struct moving show = moving_begin(does);
    if (rc == 0)
        rc = upload_blob(cli, path, sha256, size, what, large ? moving_show : NULL, &show, NULL,
                         err);
    moving_clear();
    mem_free(does);
    if (rc < 0)
        return rc;
    hash_hex(sha256, HASH_BYTES, hex);
    *ret = json_pack("{s:s,s:I}", "sha256", hex, "size", (json_int_t)size);
    return 0;
}
