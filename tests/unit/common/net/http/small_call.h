/* Small requests of a test, on the loop that also answers them. */
#ifndef TESTS_UNIT_NET_SMALL_CALL_H
#define TESTS_UNIT_NET_SMALL_CALL_H

#include "common/base/buf.h"
#include "common/net/http/http_curl.h"
#include "tests/unit/common/net/net_test.h"

struct small_call {
    const char *method, *url;
    const uint8_t *pin;
    const char *bearer, *body, *header; /* or NULL */
    /* code < 0: no answer came, and body has the reason. */
    void (*done)(void *arg, int code, long status, const char *body);
    void *arg;
};

struct small_callers {
    CURLM *multi;
    struct loop_timer *tick;
    unsigned waiting;
};

struct small_calling {
    CURL *easy;
    struct curl_slist *headers;
    struct buf answer;
    char *url, *body, text[CURL_ERROR_SIZE];
    void (*done)(void *arg, int code, long status, const char *body);
    void *arg;
};

static inline size_t small_call_take(char *data, size_t one, size_t len, void *arg)
{
    return buf_append(arg, data, len) < 0 ? 0 : len;
}

static inline void small_call_end(struct small_callers *all, CURL *easy, CURLcode rc)
{
    struct small_calling *c;
    struct err err = {0};
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&c);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    const int code = rc == CURLE_OK ? 0 : http_curl_error(rc, c->text, c->url, &err);
    curl_multi_remove_handle(all->multi, easy);
    all->waiting--;
    c->done(c->arg, code, status, code < 0 ? err.msg : buf_str(&c->answer));
    curl_easy_cleanup(easy);
    curl_slist_free_all(c->headers);
    buf_release(&c->answer);
    mem_free(c->url);
    mem_free(c->body);
    mem_free(c);
}

static inline void small_callers_turn(void *arg)
{
    struct small_callers *all = arg;
    const CURLMsg *m;
    int n;
    curl_multi_perform(all->multi, &n);
    while ((m = curl_multi_info_read(all->multi, &n)))
        small_call_end(all, m->easy_handle, m->data.result);
    if (all->waiting == 0)
        loop_timer_stop(all->tick);
}

static inline void small_callers_init(struct small_callers *all, struct loop *loop)
{
    http_curl_init();
    *all = (struct small_callers){.multi = curl_multi_init()};
    all->tick = loop_timer_new(loop, small_callers_turn, all);
}

/* Once the server is closed: what still waits ends by that. */
static inline void small_callers_release(struct small_callers *all)
{
    while (all->waiting > 0)
        small_callers_turn(all);
    loop_timer_free(all->tick);
    curl_multi_cleanup(all->multi);
}

static inline void small_call(struct small_callers *all, const struct small_call *a)
{
    struct small_calling *c = mem_alloc(sizeof(*c));
    c->easy = curl_easy_init();
    c->url = str_dup(a->url);
    c->body = str_dup(a->body);
    c->headers = http_curl_headers(NULL, a->bearer);
    c->done = a->done;
    c->arg = a->arg;
    buf_init(&c->answer, 1 << 20);
    if (a->header)
        c->headers = curl_slist_append(c->headers, a->header);
    if (c->body) {
        c->headers = curl_slist_append(c->headers, "Content-Type: application/json");
        curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, c->body);
    }
    if (strcmp(a->method, "HEAD") == 0)
        curl_easy_setopt(c->easy, CURLOPT_NOBODY, 1L);
    else
        curl_easy_setopt(c->easy, CURLOPT_CUSTOMREQUEST, a->method);
    curl_easy_setopt(c->easy, CURLOPT_URL, c->url);
    curl_easy_setopt(c->easy, CURLOPT_PRIVATE, c);
    curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, small_call_take);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, &c->answer);
    curl_easy_setopt(c->easy, CURLOPT_ERRORBUFFER, c->text);
    curl_easy_setopt(c->easy, CURLOPT_TIMEOUT_MS, (long)TEST_DEADLINE_MS);
    http_curl_tls(c->easy, c->url, a->pin);
    curl_multi_add_handle(all->multi, c->easy);
    all->waiting++;
    loop_timer_start(all->tick, 1, 1);
}

#endif
