#include "cli/upload.h"

#include "cli/cli.h"
#include "common/net/http/http_client.h"

int upload_blob(struct cli *cli, const char *path, const uint8_t sha256[HASH_BYTES], uint64_t size,
                const char *what, uint64_t *ret_sent, struct err *err)
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
        rc = http_put_file(cli->http, cli_str(answer, "url", ""), path, NULL, NULL, err);
        if (rc < 0)
            err_wrap(err, "uploading %s", what);
        sent = size;
    }
    json_decref(answer);
    if (rc == 0 && ret_sent)
        *ret_sent = sent;
    return rc;
}

int upload_file(struct cli *cli, const char *path, const char *what, json_t **ret, struct err *err)
{
    uint8_t sha256[HASH_BYTES];
    char hex[HASH_HEX_MAX];
    uint64_t size;

    int rc = hash_file(path, sha256, &size, err);
    if (rc == 0)
        rc = upload_blob(cli, path, sha256, size, what, NULL, err);
    if (rc < 0)
        return rc;
    hash_hex(sha256, HASH_BYTES, hex);
    *ret = json_pack("{s:s,s:I}", "sha256", hex, "size", (json_int_t)size);
    return 0;
}
