#include "common/net/s3/credentials.h"

#include <jansson.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/net/http/http_curl.h"

#define ANSWER_MAX 16384
#define WAIT_MS 3000L
#define TRIES 3
#define WAIT_US 100000u /* before the second try; then twice as long */
#define ROLES "/latest/meta-data/iam/security-credentials/"

static int from_environment(struct s3_credentials *ret, struct err *err)
{
    const char *access = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
    const char *token = getenv("AWS_SESSION_TOKEN");
    memset(ret, 0, sizeof(*ret));
    if (!secret || !*secret)
        return err_set(err, -ERR_CONFIG,
                       "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not: set both");
    if (!str_copy(ret->access_key, sizeof(ret->access_key), access) ||
        !str_copy(ret->secret_key, sizeof(ret->secret_key), secret) ||
        !str_copy(ret->token, sizeof(ret->token), token ? token : ""))
        return err_set(
            err, -ERR_CONFIG,
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN is too long to be one");
    return 0;
}

/* One request to the metadata service.  -ERR_NOTFOUND: there is no such service, or no such path;
 * -EAGAIN: there is one, but it does not answer now. */
static int ask_once(const char *path, const char *header, bool put, struct buf *answer)
{
    const char *base = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    char *url = str_printf("%s%s", base ? base : "http://169.254.169.254", path);
    CURL *easy = curl_easy_init();
    struct curl_slist *list = curl_slist_append(NULL, header);
    long status = 0;
    curl_off_t connected_us = 0;
    buf_clear(answer);
    http_curl_tls(easy, url, NULL);
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, WAIT_MS);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, http_curl_collect);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, answer);
    if (put)
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "PUT");
    const CURLcode rc = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy, CURLINFO_CONNECT_TIME_T, &connected_us);
    curl_slist_free_all(list);
    curl_easy_cleanup(easy);
    mem_free(url);
    if (rc == CURLE_OK && status == 200 && answer->len > 0)
        return 0;
    const bool broke_off = rc != CURLE_OK && connected_us > 0; /* else there is no such service */
    return broke_off || status >= 500 || status == 429 ? -EAGAIN : -ERR_NOTFOUND;
}

static int ask(const char *path, const char *header, bool put, struct buf *answer)
{
    int rc = -EAGAIN;
    for (unsigned i = 0; i < TRIES && rc == -EAGAIN; i++) {
        if (i > 0)
            (void)usleep(WAIT_US << i);
        rc = ask_once(path, header, put, answer);
    }
    return rc;
}

static int text_of(const json_t *doc, const char *name, char *ret, size_t cap, struct err *err)
{
    const char *text = json_string_value(json_object_get(doc, name));
    if (text && *text && str_copy(ret, cap, text))
        return 0;
    return err_set(err, -ERR_FORMAT, "the metadata service's credentials have no usable %s", name);
}

int s3_credentials_parse(const char *json, struct s3_credentials *ret, struct err *err)
{
    struct s3_credentials c = {.of_role = true};
    json_t *doc = json_loads(json, 0, NULL);
    int rc = text_of(doc, "AccessKeyId", c.access_key, sizeof(c.access_key), err);
    if (rc == 0)
        rc = text_of(doc, "SecretAccessKey", c.secret_key, sizeof(c.secret_key), err);
    if (rc == 0)
        rc = text_of(doc, "Token", c.token, sizeof(c.token), err);
    const char *ends = json_string_value(json_object_get(doc, "Expiration"));
    struct tm tm = {0};
    if (ends && strptime(ends, "%Y-%m-%dT%H:%M:%SZ", &tm))
        c.ends_s = (int64_t)timegm(&tm);
    json_decref(doc);
    if (rc == 0)
        *ret = c;
    return rc;
}

static int from_role(struct s3_credentials *ret, struct err *err)
{
    struct buf answer;
    buf_init(&answer, ANSWER_MAX);
    int rc = ask("/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 21600", true, &answer);
    char *header = str_printf("X-aws-ec2-metadata-token: %s", buf_str(&answer));
    if (rc == 0)
        rc = ask(ROLES, header, false, &answer);
    if (rc == 0) {
        char *path =
            str_printf(ROLES "%.*s", (int)strcspn(buf_str(&answer), "\r\n"), buf_str(&answer));
        rc = ask(path, header, false, &answer);
        mem_free(path);
    }
    if (rc == 0)
        rc = s3_credentials_parse(buf_str(&answer), ret, err);
    else if (rc == -EAGAIN)
        rc = err_set(err, rc,
                     "there is no key of the object store: AWS_ACCESS_KEY_ID is not set, and this "
                     "machine's metadata service does not answer just now");
    else
        rc = err_set(err, -ERR_CONFIG,
                     "there is no key of the object store: set AWS_ACCESS_KEY_ID and "
                     "AWS_SECRET_ACCESS_KEY (this machine has no instance role either)");
    mem_free(header);
    buf_release(&answer);
    return rc;
}

int s3_credentials_read(struct s3_credentials *ret, struct err *err)
{
    const char *access = getenv("AWS_ACCESS_KEY_ID");
    struct s3_credentials c;
    http_curl_init();
    int rc = access && *access ? from_environment(&c, err) : from_role(&c, err);
    if (rc == 0)
        *ret = c;
    return rc;
}
