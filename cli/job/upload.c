#include "cli/job/upload.h"

#include <unistd.h>

#include "cli/base/cli.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/http/http_client.h"

#define LARGE_BYTES (16u << 20) /* files that are told of */

/* A large file on its way. */
struct show {
    const char *what;
    bool to_terminal;
    uint64_t begun_ms, shown_ms;
};

/* At most five times a second on a terminal, every five seconds elsewhere. */
static void show_upload(void *arg, uint64_t done, uint64_t total)
{
    struct show *s = arg;
    const uint64_t now = clock_now_ms();
    char sent[STR_HUMAN_MAX], all[STR_HUMAN_MAX], rate[STR_HUMAN_MAX];
    if (now - s->shown_ms < (s->to_terminal ? 200 : 5000) && done < total)
        return;
    s->shown_ms = now;
    const uint64_t ms = now - s->begun_ms + 1, per_s = done * 1000 / ms;
    fprintf(stderr, "%suploading %s: %s of %s, %s/s, %llu s left%s",
            s->to_terminal ? "\r\033[K" : "", s->what, str_human_bytes(done, sent),
            str_human_bytes(total, all), str_human_bytes(per_s, rate),
            (unsigned long long)(per_s ? (total - done) / per_s : 0), s->to_terminal ? "" : "\n");
    fflush(stderr);
}

static int send(struct cli *cli, const char *path, const uint8_t sha256[HASH_BYTES], uint64_t size,
                const char *what, struct show *show, uint64_t *ret_sent, struct err *err)
{
    char hex[HASH_HEX_MAX];
    json_t *answer;

    hash_hex(sha256, HASH_BYTES, hex);
    json_t *ask = json_pack("{s:s,s:I}", "sha256", hex, "size", (json_int_t)size);
    int rc = cli_call(cli, "POST", ask, &answer, err, "/v1/uploads");
    json_decref(ask);
    if (rc < 0)
        return err_wrap(err, "asking to upload %s", what);
    uint64_t sent = 0;
    if (!json_is_true(json_object_get(answer, "have"))) {
        rc = http_put_file(cli->http, cli_str(answer, "url", ""), path, show ? show_upload : NULL,
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
                const char *what, uint64_t *ret_sent, struct err *err)
{
    return send(cli, path, sha256, size, what, NULL, ret_sent, err);
}

int upload_file(struct cli *cli, const char *path, const char *what, bool progress, json_t **ret,
                struct err *err)
{
    uint8_t sha256[HASH_BYTES];
    char hex[HASH_HEX_MAX], human[STR_HUMAN_MAX];
    uint64_t size = 0;
    struct show show = {.what = what, .to_terminal = isatty(STDERR_FILENO)};

    const bool large = progress && file_size(path, &size, NULL) == 0 && size >= LARGE_BYTES;
    if (large)
        fprintf(stderr, "reading %s (%s)%s", what, str_human_bytes(size, human),
                show.to_terminal ? "" : "\n");
    int rc = hash_file(path, sha256, &size, err);
    show.begun_ms = clock_now_ms();
    if (rc == 0)
        rc = send(cli, path, sha256, size, what, large ? &show : NULL, NULL, err);
    if (large && show.to_terminal)
        fputs("\r\033[K", stderr);
    if (rc < 0)
        return rc;
    hash_hex(sha256, HASH_BYTES, hex);
    *ret = json_pack("{s:s,s:I}", "sha256", hex, "size", (json_int_t)size);
    return 0;
}
