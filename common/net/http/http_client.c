#include "common/net/http/http_client.h"

#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/net/loop.h"
#include "common/net/http/http_curl.h"

#define ANSWER_MAX ((size_t)64 << 20)
#define CONNECT_MS 10000L
#define IDLE_S 60L
#define PULSE_MS 200
#define GONE_MS 60000u /* a server that restarts is back by then */
#define AGAIN_MS 4000u

struct http_client {
    CURL *easy;
    char *base, *bearer;
    uint8_t pin[32];
    bool has_pin;
    const volatile sig_atomic_t *flag;          /* NULL: nobody interrupts */
    void (*tell_slow)(void *arg, bool command); /* NULL: nobody is told */
    void *slow_arg;
    unsigned slow_ms;
    uint64_t begun_ms;  /* start of the call */
    bool command, told; /* command: not a GET; told: tell_slow was called */
    bool after;         /* the call was begun after *flag was set */
    char error[CURL_ERROR_SIZE];
};

int http_client_new(const char *base, const uint8_t *pin, const char *bearer,
                    struct http_client **ret, struct err *err)
{
    http_curl_init();
    struct http_client *c = mem_alloc(sizeof(*c));
    c->easy = curl_easy_init();
    if (!c->easy) {
        mem_free(c);
        return err_set(err, -ENOMEM, "libcurl cannot start");
    }
    c->base = str_dup(base);
    c->bearer = str_dup(bearer);
    c->has_pin = pin != NULL;
    if (pin)
        memcpy(c->pin, pin, sizeof(c->pin));
    *ret = c;
    return 0;
}

void http_client_free(struct http_client *c)
{
    if (!c)
        return;
    curl_easy_cleanup(c->easy);
    mem_free(c->base);
    mem_free(c->bearer);
    mem_free(c);
}

void http_client_heed(struct http_client *c, const volatile sig_atomic_t *flag)
{
    c->flag = flag;
}

void http_client_on_slow(struct http_client *c, unsigned ms, void (*tell)(void *arg, bool command),
                         void *arg)
{
    c->tell_slow = tell;
    c->slow_arg = arg;
    c->slow_ms = ms;
}

/* A command may have been done once a byte of it was sent; one that is begun after the interruption
 * is part of what is done about it. */
static bool may_abort(const struct http_client *c)
{
    curl_off_t sent_us = 0;
    if (!c->command)
        return true;
    return !c->after && !curl_easy_getinfo(c->easy, CURLINFO_PRETRANSFER_TIME_T, &sent_us) &&
           sent_us == 0;
}

static int on_pulse(void *arg, curl_off_t down, curl_off_t of_down, curl_off_t up, curl_off_t of_up)
{
    struct http_client *c = arg;
    if (c->tell_slow && !c->told && down == 0 && clock_now_ms() - c->begun_ms >= c->slow_ms) {
        c->told = true;
        c->tell_slow(c->slow_arg, c->command);
    }
    return c->flag && *c->flag && may_abort(c);
}

/* Sets up a request; only the connection is kept from the one before. */
static void prepare(struct http_client *c, const char *url, unsigned idle_s, bool command)
{
    curl_easy_reset(c->easy);
    c->error[0] = '\0';
    curl_easy_setopt(c->easy, CURLOPT_URL, url);
    curl_easy_setopt(c->easy, CURLOPT_ERRORBUFFER, c->error);
    curl_easy_setopt(c->easy, CURLOPT_USERAGENT, "skerry");
    curl_easy_setopt(c->easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    if (idle_s) {
        curl_easy_setopt(c->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(c->easy, CURLOPT_LOW_SPEED_TIME, (long)idle_s);
    }
    http_curl_tls(c->easy, url, c->has_pin ? c->pin : NULL);
    curl_easy_setopt(c->easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c->easy, CURLOPT_XFERINFOFUNCTION, on_pulse);
    curl_easy_setopt(c->easy, CURLOPT_XFERINFODATA, c);
    c->command = command;
    c->after = c->flag && *c->flag;
    c->told = false;
    c->begun_ms = clock_now_ms();
}

static int perform(struct http_client *c, const char *url, struct err *err)
{
    const CURLcode cc = curl_easy_perform(c->easy);
    if (cc == CURLE_ABORTED_BY_CALLBACK)
        return err_set(err, -ERR_CANCELLED, "interrupted");
    return cc == CURLE_OK ? 0 : http_curl_error(cc, c->error, url, err);
}

int http_client_connect(struct http_client *c, struct err *err)
{
    prepare(c, c->base, 0, false);
    curl_easy_setopt(c->easy, CURLOPT_CONNECT_ONLY, 1L);
    return perform(c, c->base, err);
}

int http_call(struct http_client *c, const char *method, const char *path, const void *body,
              size_t len, struct http_response *ret, struct err *err)
{
    struct buf answer;
    char *url = str_printf("%s%s", c->base, path);
    struct curl_slist *headers = http_curl_headers(NULL, c->bearer);
    buf_init(&answer, ANSWER_MAX);
    prepare(c, url, IDLE_S, strcmp(method, "GET") != 0);
    if (body) {
        headers = curl_slist_append(headers, "Content-Type: application/json");
        curl_easy_setopt(c->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
        curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, body);
    } else if (strcmp(method, "POST") == 0) {
        curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, "");
    }
    curl_easy_setopt(c->easy, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, http_curl_collect);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, &answer);
    const int rc = perform(c, url, err);
    curl_slist_free_all(headers);
    if (rc < 0) {
        buf_release(&answer);
    } else {
        curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &ret->status);
        ret->body = (char *)buf_take(&answer, &ret->len);
    }
    mem_free(url);
    return rc;
}

void http_response_release(struct http_response *r)
{
    mem_free(r->body);
    *r = (struct http_response){0};
}

int http_response_check(const struct http_response *r, struct err *err)
{
    return r->status < 300 ? 0 : http_curl_status_error(r->status, r->body, "the server", err);
}

/* ---- files: the loop's transfers, on a loop of their own ---- */

struct waiter {
    struct loop *loop;
    xfer_progress_fn progress;
    void *arg;
    int code;
    bool done;
    struct err *err;
};

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct waiter *w = arg;
    if (w->progress)
        w->progress(w->arg, done, total);
}

static void on_done(void *arg, const struct xfer_result *r)
{
    struct waiter *w = arg;
    w->code = r->code;
    w->done = true;
    if (r->code < 0)
        (void)err_set(w->err, r->code, "%s", r->detail);
}

/* Makes the loop turn, so that the flag is seen. */
static void wake(void *arg)
{
}

static int run_file(struct http_client *c, const char *path, const char *file, bool put,
                    const uint8_t *sha256, struct waiter *w)
{
    struct xfer *x = NULL;
    int rc = loop_new(&w->loop, w->err);
    if (rc < 0)
        return rc;
    char *url = str_printf("%s%s", c->base, path);
    const uint8_t *pin = c->has_pin ? c->pin : NULL;
    const struct xfer_options patient = {.patience_ms = GONE_MS, .backoff_max_ms = AGAIN_MS};
    rc = xfer_new(w->loop, &patient, &x, w->err);
    if (rc == 0 && put) {
        struct xfer_put p = {.url = url,
                             .pin = pin,
                             .path = file,
                             .progress = on_progress,
                             .done = on_done,
                             .arg = w};
        rc = xfer_put(x, &p, NULL, w->err);
    } else if (rc == 0) {
        struct xfer_get g = {.url = url,
                             .pin = pin,
                             .bearer = c->bearer,
                             .path = file,
                             .sha256 = sha256,
                             .mode = 0666,
                             .progress = on_progress,
                             .done = on_done,
                             .arg = w};
        rc = xfer_get(x, &g, NULL, w->err);
    }
    struct loop_timer *pulse = rc == 0 && c->flag ? loop_timer_new(w->loop, wake, NULL) : NULL;
    if (pulse)
        loop_timer_start(pulse, PULSE_MS, PULSE_MS);
    while (rc == 0 && !w->done && !(c->flag && *c->flag))
        loop_turn(w->loop, true);
    bool interrupted = rc == 0 && !w->done;
    loop_timer_free(pulse);
    xfer_free(x);
    if (interrupted)
        rc = err_set(w->err, -ERR_CANCELLED, "interrupted");
    loop_free(w->loop);
    mem_free(url);
    return rc < 0 ? rc : w->code;
}

bool http_get_goes_on(int code)
{
    return code == -ERR_CANCELLED || http_curl_is_retryable(code);
}

int http_get_file(struct http_client *c, const char *path, const char *file, const uint8_t *sha256,
                  xfer_progress_fn progress, void *arg, struct err *err)
{
    struct err local = {0};
    struct waiter w = {.progress = progress, .arg = arg, .err = err ? err : &local};
    const int rc = run_file(c, path, file, false, sha256, &w);
    if (rc < 0 && !(sha256 && http_get_goes_on(rc))) {
        char *part = str_printf("%s.part", file);
        (void)unlink(part);
        mem_free(part);
    }
    return rc;
}

int http_put_file(struct http_client *c, const char *path, const char *file,
                  xfer_progress_fn progress, void *arg, struct err *err)
{
    struct err local = {0};
    struct waiter w = {.progress = progress, .arg = arg, .err = err ? err : &local};
    return run_file(c, path, file, true, NULL, &w);
}
