#include "common/net/s3/answer.h"

#include <time.h>

#include "common/net/s3/xml.h"

int64_t s3_answer_date(const char *text)
{
    struct tm tm = {0};
    return strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm) ? (int64_t)timegm(&tm) : 0;
}

static bool is(const char *code, const char *name)
{
    return strcmp(code, name) == 0;
}

static int64_t skew_of(const struct s3_answer *a)
{
    return a->date_s ? a->now_s - a->date_s : 0;
}

static int clock_error(const struct s3_answer *a, struct err *err)
{
    const int64_t skew = skew_of(a);
    return err_set(err, -ERR_AUTH,
                   "the clock of this machine is %lld s %s that of the store %s, which refuses "
                   "requests that are more than %d s off: set it right (timedatectl set-ntp true)",
                   (long long)(skew < 0 ? -skew : skew), skew < 0 ? "behind" : "ahead of",
                   a->endpoint, S3_SKEW_S);
}

static int region_error(const struct s3_answer *a, const char *region, struct err *err)
{
    return err_set(err, -ERR_CONFIG,
                   "the bucket %s is in the region %s, not in %s: set AWS_REGION=%s", a->bucket,
                   region, a->region, region);
}

/* The error of a request that was refused because of the key or its rights. */
static int auth_error(const struct s3_answer *a, const char *code, const char *message,
                      struct err *err)
{
    const int64_t skew = skew_of(a);
    if (is(code, "RequestTimeTooSkewed") || skew > S3_SKEW_S || skew < -S3_SKEW_S)
        return clock_error(a, err);
    if (is(code, "ExpiredToken") || is(code, "TokenRefreshRequired"))
        return a->of_role
                   ? err_set(err, -ERR_STALE, "the session of the store's key has ended")
                   : err_set(err, -ERR_AUTH,
                             "the session of the store's key has ended: start again with a new "
                             "AWS_SESSION_TOKEN");
    if (strstr(message, "has expired") || strstr(message, "Request expired"))
        return err_set(err, -EAGAIN, "a signed request reached the store %s after it had expired",
                       a->endpoint);
    if (is(code, "InvalidAccessKeyId"))
        return err_set(err, -ERR_AUTH,
                       "the store %s does not know the key of AWS_ACCESS_KEY_ID (that of a session "
                       "needs its AWS_SESSION_TOKEN, too)",
                       a->endpoint);
    if (is(code, "InvalidToken"))
        return err_set(err, -ERR_AUTH,
                       "the store %s refuses the session: AWS_SESSION_TOKEN does not belong to "
                       "AWS_ACCESS_KEY_ID, or is cut off",
                       a->endpoint);
    if (is(code, "SignatureDoesNotMatch"))
        return err_set(err, -ERR_AUTH,
                       "the store %s refuses the signature: AWS_SECRET_ACCESS_KEY does not belong "
                       "to AWS_ACCESS_KEY_ID, or a proxy changes requests",
                       a->endpoint);
    return err_set(err, -ERR_AUTH,
                   "the key of the store may not %s the bucket %s (HTTP %ld%s%.200s): give it "
                   "s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket, "
                   "s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts there",
                   a->writes ? "write into" : "read", a->bucket, a->status, *message ? ", " : "",
                   message);
}

int s3_answer_error(const struct s3_answer *a, struct err *err)
{
    char code[128] = "", message[512] = "", region[64] = "";
    if (a->body && a->len > 0) {
        (void)s3_xml_find(a->body, a->len, "Code", code, sizeof(code));
        (void)s3_xml_find(a->body, a->len, "Message", message, sizeof(message));
        (void)s3_xml_find(a->body, a->len, "Region", region, sizeof(region));
    }
    if (*a->its_region)
        (void)str_copy(region, sizeof(region), a->its_region);
    if (is(code, "NoSuchBucket"))
        return err_set(err, -ERR_CONFIG, "there is no bucket %s at %s: make it, or correct --store",
                       a->bucket, a->endpoint);
    if (is(code, "NoSuchKey") || is(code, "NoSuchUpload") || (a->status == 404 && !a->body))
        return err_set(err, -ERR_NOTFOUND, "the store has no such object");
    if (a->status == 412 || is(code, "PreconditionFailed"))
        return err_set(err, -EEXIST, "the store has such an object already");
    if (a->status == 501 || is(code, "NotImplemented"))
        return err_set(err, -ERR_UNIMPLEMENTED, "the store %s cannot do this: %.200s", a->endpoint,
                       message);
    if (*region && !is(region, a->region) &&
        (a->status == 301 || a->status == 307 || a->status == 400 || a->status == 403))
        return region_error(a, region, err);
    if (a->status == 403 || a->status == 401 || is(code, "ExpiredToken") ||
        is(code, "TokenRefreshRequired") || is(code, "InvalidToken") ||
        is(code, "RequestTimeTooSkewed"))
        return auth_error(a, code, message, err);
    if (is(code, "SlowDown") || is(code, "RequestTimeout") || is(code, "OperationAborted") ||
        is(code, "ConditionalRequestConflict") || a->status == 429 || a->status == 408 ||
        (a->status >= 500 && a->status != 501))
        return err_set(err, -EAGAIN, "the store %s is busy or broken: HTTP %ld %s", a->endpoint,
                       a->status, code);
    if (is(code, "BadDigest") || is(code, "InvalidDigest") ||
        is(code, "XAmzContentSHA256Mismatch") ||
        is(code, "XAmzContentChecksumMismatch")) /* MinIO's */
        return err_set(err, -ERR_HASH,
                       "the store %s got other bytes than the hash that was sent with them",
                       a->endpoint);
    return err_set(
        err, -ERR_REMOTE,
        "%s answered HTTP %ld %s%s%.200s, which is not the answer of an S3 store: is it one?",
        a->endpoint, a->status, code, *message ? ": " : "", message);
}
