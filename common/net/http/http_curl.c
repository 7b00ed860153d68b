#include "common/net/http/http_curl.h"

#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>

#include "common/base/buf.h"
#include "common/base/hash.h"

static void global_init(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT); /* a failure shows at the first handle */
}

void http_curl_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
}

void http_curl_base64(const uint8_t in[32], char out[45])
{
    hash_b64url(in, 32, out);
    for (char *p = out; *p; p++) {
        if (*p == '-')
            *p = '+';
        else if (*p == '_')
            *p = '/';
    }
    out[43] = '=';
    out[44] = '\0';
}

/* Ends connections whose peer acknowledges nothing: its machine or network is gone. */
static int on_socket_made(void *arg, curl_socket_t fd, curlsocktype purpose)
{
    const unsigned ms = HTTP_CURL_USER_TIMEOUT_MS;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms)); /* a failure is ignored */
    return CURL_SOCKOPT_OK;
}

void http_curl_tls(CURL *easy, const char *url, const uint8_t *pin)
{
    char text[64] = "sha256//";
    curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, on_socket_made);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* else a slow name server delays its end */
    if (pin || strncmp(url, "http://127.", 11) == 0 || strncmp(url, "http://[::1]", 12) == 0)
        curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    if (!pin)
        return;
    /* The pin replaces authorities, names and dates. */
    http_curl_base64(pin, text + strlen(text));
    curl_easy_setopt(easy, CURLOPT_PINNEDPUBLICKEY, text);
    curl_easy_setopt(easy, CURLOPT_CAINFO, NULL); /* else all authorities are read each time */
    curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
    curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
}

struct curl_slist *http_curl_headers(struct curl_slist *list, const char *bearer)
{
    struct curl_slist *grown = curl_slist_append(list, "Expect:");
    if (grown && bearer) {
        char *h = str_printf("Authorization: Bearer %s", bearer);
        struct curl_slist *more = curl_slist_append(grown, h);
        mem_free(h);
        if (more)
            grown = more;
    }
    return grown ? grown : list;
}

size_t http_curl_collect(char *data, size_t one, size_t len, void *buf)
{
    return buf_append(buf, data, len) < 0 ? 0 : len;
}

/* The length of a URL for messages: without the query, which may hold a ticket or token. */
static int shown(const char *url)
{
    size_t n = strcspn(url, "?");
    return (int)(n < 200 ? n : 200);
}

int http_curl_status_error(long status, const char *body, const char *url, struct err *err)
{
    int code = -ERR_REMOTE;
    if (status == 401 || status == 403)
        code = -ERR_AUTH;
    else if (status == 404 || status == 410)
        code = -ERR_NOTFOUND;
    else if (status == 400)
        code = -EINVAL;
    else if (status == 409)
        code = -EBUSY;
    else if (status == 413)
        code = -ERR_LIMIT;
    else if (status == 422)
        code = -ERR_HASH;
    else if (status == 507)
        code = -ENOSPC;
    else if (status == 408 || status == 429 || (status >= 500 && status != 501))
        code = -EAGAIN;
    json_t *j = body ? json_loads(body, 0, NULL) : NULL;
    const json_t *error = json_object_get(j, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    if (message)
        (void)err_set(err, code, "%s", message);
    else
        (void)err_set(err, code, "%.*s answered HTTP %ld", shown(url), url, status);
    json_decref(j);
    return code;
}

int http_curl_error(CURLcode rc, const char *text, const char *url, struct err *err)
{
    int code = -ECONNRESET;
    const char *why = text && *text ? text : curl_easy_strerror(rc);
    switch (rc) {
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
        return err_set(err, -ERR_AUTH,
                       "the key of the server at %.*s is not the one this token was made for: "
                       "wrong address, a reinstalled server (get a new token), or somebody in "
                       "between",
                       shown(url), url);
    case CURLE_PEER_FAILED_VERIFICATION:
        return err_set(err, -ERR_AUTH,
                       "%.*s: %s; only this machine's authorities are trusted: add one of your own "
                       "with update-ca-certificates",
                       shown(url), url, why);
    case CURLE_SSL_CONNECT_ERROR:
        return err_set(err, code,
                       "%.*s: %s; what answers may be without TLS, another program, or a portal or "
                       "proxy on the way",
                       shown(url), url, why);
    case CURLE_GOT_NOTHING:
        return err_set(
            err, code, "%.*s: %s%s", shown(url), url, why,
            str_starts(url, "http://") ? "; the address of one with TLS begins with https://" : "");
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        code = -EINVAL;
        break;
    case CURLE_COULDNT_RESOLVE_HOST:
        code = -EHOSTUNREACH;
        break;
    case CURLE_COULDNT_CONNECT:
        code = -ECONNREFUSED;
        break;
    case CURLE_OPERATION_TIMEDOUT:
        code = -ETIMEDOUT;
        break;
    case CURLE_OUT_OF_MEMORY:
        code = -ENOMEM;
        break;
    default:
        break;
    }
    return err_set(err, code, "%.*s: %s", shown(url), url, why);
}

bool http_curl_is_retryable(int code)
{
    return code == -ECONNRESET || code == -ECONNREFUSED || code == -ETIMEDOUT || code == -EAGAIN ||
           code == -EBUSY || code == -EHOSTUNREACH;
}
