#include "common/net/s3/client_impl.h"

#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/net/http/http_curl.h"
#include "common/net/s3/answer.h"

#define LIFE_S 3600
#define CONNECT_MS 15000L
#define WAIT_MAX_MS 10000u
#define LOOK_MS 50  /* at whether the store has answered */
#define EARLY_S 300 /* before a role's credentials end, new ones are asked for */
#define BUFFER_BYTES (256L * 1024)

void s3_request_init(struct s3_request *r, const char *method, const char *key)
{
    *r = (struct s3_request){.method = method, .key = key, .fd = -1};
    buf_init(&r->answer, S3_ANSWER_MAX);
}

void s3_request_release(struct s3_request *r)
{
    buf_release(&r->answer);
}

/* ---- bytes ---- */

/* The end of the wanted bytes, if the object's size is known. */
static uint64_t end_of(const struct s3_request *r)
{
    return r->until ? r->until : r->whole;
}

static size_t on_body(char *data, size_t one, size_t len, void *arg)
{
    struct s3_request *r = arg;
    curl_easy_getinfo(r->handle->easy, CURLINFO_RESPONSE_CODE, &r->status);
    atomic_fetch_add(&r->c->bytes_in, len);
    if (!r->sink || r->status >= 300)
        return buf_append(&r->answer, data, len) < 0 ? 0 : len;
    const size_t drop = r->skip < len ? (size_t)r->skip : len; /* it is sent again */
    r->skip -= drop;
    if (len > drop) {
        const bool more = r->whole && len - drop > end_of(r) - r->from - r->got;
        r->sink_rc = more ? -ERR_FORMAT : r->sink(r->arg, data + drop, len - drop);
        if (r->sink_rc < 0)
            return 0;
        r->got += len - drop;
    }
    return len;
}

static bool header_is(const char *line, const char *name, char *ret, size_t cap)
{
    const size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return false;
    const char *from = line + n + 1;
    from += strspn(from, " \t");
    char *value = str_ndup(from, strcspn(from, "\r\n"));
    (void)str_copy(ret, cap, value); /* cut: longer values are never needed */
    mem_free(value);
    return true;
}

static size_t on_header(char *data, size_t one, size_t len, void *arg)
{
    struct s3_request *r = arg;
    char line[512], value[160];
    const size_t n = len < sizeof(line) - 1 ? len : sizeof(line) - 1;
    memcpy(line, data, n);
    line[n] = '\0';
    if (header_is(line, "Date", value, sizeof(value)))
        r->date_s = s3_answer_date(value);
    else if (header_is(line, "Content-Length", value, sizeof(value)))
        (void)str_parse_u64(value, &r->length);
    else if (!header_is(line, "ETag", r->etag, sizeof(r->etag)) &&
             !header_is(line, "x-amz-checksum-sha256", r->sum, sizeof(r->sum)))
        (void)header_is(line, "x-amz-bucket-region", r->its_region, sizeof(r->its_region));
    long status = 0;
    curl_easy_getinfo(r->handle->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 206)
        r->skip = 0; /* it begins at the requested byte */
    return len;
}

static size_t on_read(char *out, size_t one, size_t len, void *arg)
{
    struct s3_request *r = arg;
    if (len > r->size - r->sent)
        len = (size_t)(r->size - r->sent);
    if (len == 0)
        return 0;
    if (r->between && r->sent > 0) {
        r->between(r->between_arg);
        r->between = NULL;
    }
    if (r->between)
        len = 1;
    if (r->text) {
        memcpy(out, r->text + r->sent, len);
    } else {
        const ssize_t n = pread(r->fd, out, len, (off_t)(r->offset + r->sent));
        if (n <= 0) {
            r->read_rc = n < 0 ? -errno : -ERR_HASH;
            return CURL_READFUNC_ABORT;
        }
        len = (size_t)n;
    }
    r->sent += len;
    atomic_fetch_add(&r->c->bytes_out, len);
    return len;
}

static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct s3_request *r = arg;
    if (origin != SEEK_SET)
        return CURL_SEEKFUNC_CANTSEEK;
    r->sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* ---- one try ---- */

static struct s3_handle *take_handle(struct s3 *c)
{
    pthread_mutex_lock(&c->lock);
    struct s3_handle *h = c->n_idle > 0 ? c->idle[--c->n_idle] : NULL;
    pthread_mutex_unlock(&c->lock);
    if (!h) {
        h = mem_alloc(sizeof(*h));
        h->easy = curl_easy_init();
        h->multi = curl_multi_init();
    }
    return h;
}

void s3_handle_free(struct s3_handle *h)
{
    if (!h)
        return;
    curl_easy_cleanup(h->easy);
    (void)curl_multi_cleanup(h->multi);
    mem_free(h);
}

static void give_handle(struct s3 *c, struct s3_handle *h)
{
    curl_easy_reset(h->easy); /* its connection stays */
    pthread_mutex_lock(&c->lock);
    if (c->n_idle < S3_IDLE_MAX) {
        c->idle[c->n_idle++] = h;
        h = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    s3_handle_free(h);
}

/* Copies the credentials; those of a role are fetched again before they end. */
static int sign_in(struct s3 *c, bool again, struct s3_credentials *ret, struct err *err)
{
    const int64_t now_s = (int64_t)(clock_wall_ms() / 1000);
    pthread_mutex_lock(&c->lock);
    *ret = c->who;
    pthread_mutex_unlock(&c->lock);
    if (!ret->of_role || (!again && (ret->ends_s == 0 || now_s < ret->ends_s - EARLY_S)))
        return 0;
    struct s3_credentials fresh;
    int rc = s3_credentials_read(&fresh, err);
    if (rc < 0 && !again && now_s < ret->ends_s)
        return 0;
    if (rc < 0) /* there was a key before: the service is busy, the settings are right */
        return err_set(err, -EAGAIN, "the machine's role gives no new key of the store just now");
    pthread_mutex_lock(&c->lock);
    *ret = c->who = fresh;
    pthread_mutex_unlock(&c->lock);
    return 0;
}

int s3_request_sign(struct s3 *c, const struct s3_request *r, const struct s3_credentials *who,
                    uint32_t life_s, struct buf *url)
{
    const struct s3_signer by = {.access_key = who->access_key,
                                 .secret_key = who->secret_key,
                                 .token = *who->token ? who->token : NULL,
                                 .region = c->region,
                                 .service = "s3"};
    char *path = c->virtual_host ? str_printf("/%s", r->key)
                 : *r->key       ? str_printf("/%s/%s", c->bucket, r->key)
                                 : str_printf("/%s", c->bucket);
    struct s3_ask ask = {.method = r->method,
                         .scheme = c->scheme,
                         .host = c->host,
                         .path = path,
                         .now_s = (int64_t)(clock_wall_ms() / 1000),
                         .life_s = life_s};
    memcpy(ask.query, r->query, sizeof(ask.query));
    memcpy(ask.headers, r->headers, sizeof(ask.headers));
    const int rc = s3_sign(&by, &ask, url);
    mem_free(path);
    return rc;
}

static struct curl_slist *headers_of(const struct s3_request *r)
{
    struct curl_slist *list = http_curl_headers(NULL, NULL);
    for (size_t i = 0; i < S3_HEADERS_MAX && r->headers[i].name; i++) {
        char *line = str_printf("%s: %s", r->headers[i].name, r->headers[i].value);
        list = curl_slist_append(list, line);
        mem_free(line);
    }
    return list;
}

static void set_method(CURL *easy, struct s3_request *r)
{
    char range[64];
    if (r->size > 0 || strcmp(r->method, "PUT") == 0 || strcmp(r->method, "POST") == 0) {
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(easy, CURLOPT_READDATA, r);
        curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(easy, CURLOPT_SEEKDATA, r);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->size);
        curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_BYTES);
    }
    if (strcmp(r->method, "HEAD") == 0)
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    else
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, r->method);
    r->skip = r->from + r->got;
    if (r->whole && (r->skip > 0 || r->until > 0)) {
        int n = snprintf(range, sizeof(range), "%llu-", (unsigned long long)r->skip);
        if (r->until > 0)
            (void)snprintf(range + n, sizeof(range) - (size_t)n, "%llu",
                           (unsigned long long)r->until - 1);
        curl_easy_setopt(easy, CURLOPT_RANGE, range);
    }
}

/* Patience with silence: a store has many machines, so the first try is short, later ones longer.
 */
static long stall_of(const struct s3 *c, const struct s3_request *r)
{
    const uint32_t s = c->first_stall_s << (r->tried < 8 ? r->tried : 8);
    return (long)(s < c->stall_s ? s : c->stall_s);
}

static struct patience *patience_of(struct s3 *c, const struct s3_request *r)
{
    return r->size > 0 ? &c->put : &c->got;
}

static void begin_waiting(struct s3 *c, struct s3_request *r)
{
    r->wait = (struct patience_wait){
        .sockets = &r->handle->sockets,
        .has_body = r->size > 0,
        .began_ms = clock_now_ms(),
    };
    r->silent = false;
    pthread_mutex_lock(&c->lock);
    /* A request with only one try gets more patience instead. */
    r->patience_ms = patience_ms(patience_of(c, r), r->tried + r->once, r->size);
    pthread_mutex_unlock(&c->lock);
    if (r->patience_ms > 1e3 * c->stall_s)
        r->patience_ms = 1e3 * c->stall_s;
}

static void end_waiting(struct s3 *c, struct s3_request *r)
{
    pthread_mutex_lock(&c->lock);
    if (r->silent)
        patience_silent(patience_of(c, r));
    else if (r->status >= 200)
        patience_answered(patience_of(c, r), &r->wait, r->handle->easy, clock_now_ms());
    pthread_mutex_unlock(&c->lock);
}

static void set_options(struct s3 *c, CURL *easy, struct s3_request *r, const char *url, char *text)
{
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, stall_of(c, r));
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    http_curl_tls(easy, url, NULL);
}

static int refused(struct s3 *c, const struct s3_request *r, struct err *err)
{
    const bool head = strcmp(r->method, "HEAD") == 0;
    const struct s3_answer a = {
        .bucket = c->bucket,
        .endpoint = c->host,
        .region = c->region,
        .writes = !head && strcmp(r->method, "GET") != 0,
        .of_role = r->of_role,
        .status = r->status,
        .body = head ? NULL : buf_str(&r->answer),
        .len = r->answer.len,
        .its_region = r->its_region,
        .date_s = r->date_s,
        .now_s = (int64_t)(clock_wall_ms() / 1000),
    };
    return s3_answer_error(&a, err);
}

static int judge(struct s3 *c, const struct s3_request *r, CURLcode rc, const char *text,
                 struct err *err)
{
    if (c->stopping)
        return err_set(err, -ERR_CANCELLED, "the coordinator is stopping");
    if (r->silent)
        return err_set(err, -ETIMEDOUT,
                       "%s has received a request and has not answered it for %.0f s", c->where,
                       r->patience_ms / 1e3);
    if (r->sink_rc < 0) /* the sink has given the reason, or too many bytes came */
        return r->sink_rc;
    if (r->read_rc == -ERR_HASH)
        return err_set(err, r->read_rc,
                       "the file that is sent as %s ends after %" PRIu64
                       " bytes, expected %" PRIu64,
                       r->key, r->offset + r->sent, r->offset + r->size);
    if (r->read_rc < 0)
        return err_set(err, r->read_rc, "the file that is sent as %s cannot be read: %s", r->key,
                       strerror(-r->read_rc));
    if (r->status >= 300) /* also if it was refused before everything was sent */
        return refused(c, r, err);
    if (rc == CURLE_OK || (r->whole && r->from + r->got == end_of(r)))
        return 0; /* everything came, perhaps with a cut after it */
    return http_curl_error(rc, text, c->where, err);
}

static bool is_given_up(struct s3_request *r)
{
    const uint64_t waited =
        patience_waited_ms(&r->wait, r->handle->easy, r->sent == r->size, clock_now_ms());
    r->silent |= (double)waited >= r->patience_ms;
    return r->silent || r->c->stopping;
}

/* As curl_easy_perform(), which while nothing comes calls its callbacks only once a second. */
static CURLcode perform(struct s3_request *r)
{
    struct s3_handle *h = r->handle;
    int running = 1, left = 0;
    CURLMcode rc = curl_multi_add_handle(h->multi, h->easy);
    while (rc == CURLM_OK && running > 0 && !is_given_up(r)) {
        rc = curl_multi_perform(h->multi, &running);
        if (rc == CURLM_OK && running > 0)
            rc = curl_multi_poll(h->multi, NULL, 0, LOOK_MS, NULL);
    }
    const CURLMsg *m = running == 0 ? curl_multi_info_read(h->multi, &left) : NULL;
    const CURLcode done = m ? m->data.result : CURLE_ABORTED_BY_CALLBACK;
    curl_multi_remove_handle(h->multi, h->easy);
    return done;
}

static int try_once(struct s3 *c, struct s3_request *r, bool sign_again, struct err *err)
{
    struct s3_credentials who;
    struct buf url;
    char text[CURL_ERROR_SIZE] = "";
    int rc = sign_in(c, sign_again, &who, err);
    if (rc < 0)
        return rc;
    buf_init(&url, S3_URL_MAX);
    if (s3_request_sign(c, r, &who, LIFE_S, &url) < 0) {
        buf_release(&url);
        return err_set(err, -ERR_LIMIT, "the URL of an object is longer than %d bytes", S3_URL_MAX);
    }
    r->c = c;
    r->status = 0;
    r->sent = r->length = 0;
    r->date_s = 0;
    r->sink_rc = r->read_rc = 0;
    r->of_role = who.of_role;
    r->etag[0] = r->sum[0] = r->its_region[0] = '\0';
    buf_clear(&r->answer);
    r->handle = take_handle(c);
    CURL *easy = r->handle->easy;
    struct curl_slist *headers = headers_of(r);
    set_options(c, easy, r, buf_str(&url), text);
    set_method(easy, r);
    socket_bytes_attach(&r->handle->sockets, easy);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    atomic_fetch_add(&c->requests, 1);
    begin_waiting(c, r);
    const CURLcode done = perform(r);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &r->status);
    end_waiting(c, r);
    rc = judge(c, r, done, text, err);
    curl_slist_free_all(headers);
    give_handle(c, r->handle);
    buf_release(&url);
    return rc;
}

/* ---- tries ---- */

bool s3_may_pass(int code)
{
    return http_curl_is_retryable(code);
}

/* An answer that takes longer than others is of a slow machine, not yet of a store that fails. */
static bool is_slow(struct s3 *c, const struct s3_request *r)
{
    const bool alone = r->once || c->tries == 1;
    return r->silent && (alone ? patience_of(c, r)->silences < 2 : r->tried == 0);
}

/* -ERR_NOTFOUND and -EEXIST are answers like others. */
static void remember(struct s3 *c, const struct s3_request *r, int rc, const struct err *err)
{
    if (rc == -ERR_CANCELLED)
        return;
    pthread_mutex_lock(&c->lock);
    if (rc == 0 || rc == -ERR_NOTFOUND || rc == -EEXIST) {
        c->failing_since_unix_ms = 0;
        c->error[0] = '\0';
    } else if (!is_slow(c, r)) {
        if (c->failing_since_unix_ms == 0)
            c->failing_since_unix_ms = (int64_t)clock_wall_ms();
        (void)snprintf(c->error, sizeof(c->error), "%.250s", err->msg);
    }
    pthread_mutex_unlock(&c->lock);
}

/* Waits for 0.5 to 1.5 times ms, so that many clients do not come back together. */
static void wait_ms(struct s3 *c, uint32_t ms)
{
    struct timespec until;
    uint16_t chance;
    hash_random(&chance, sizeof(chance));
    ms = ms / 2 + (uint32_t)((uint64_t)ms * chance / UINT16_MAX);
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + (int64_t)ms * 1000000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&c->lock);
    while (!c->stopping && pthread_cond_timedwait(&c->wake, &c->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&c->lock);
}

int s3_request_run(struct s3 *c, struct s3_request *r, struct err *err)
{
    struct err why = {0};
    bool renewed = false;
    for (;;) {
        const uint64_t before = r->got;
        int rc = try_once(c, r, renewed, &why);
        renewed = rc == -ERR_STALE && !renewed; /* a role's key: once more with a new one */
        if (rc == -ERR_STALE)
            rc = -EAGAIN;
        if (rc == 0 || (rc != r->sink_rc && rc != r->read_rc))
            remember(c, r, rc, &why);
        r->tried = r->got > before ? 0 : r->tried + 1;
        if (rc == 0 || !s3_may_pass(rc) || r->once || (r->tried >= c->tries && !renewed) ||
            r->sink_rc < 0) {
            if (rc < 0 && r->sink_rc == 0)
                (void)err_set(err, rc, "%s", why.msg);
            return rc;
        }
        const unsigned n = r->tried > 0 ? r->tried - 1 : 0;
        const uint64_t wait = (uint64_t)c->first_wait_ms << (n < 8 ? n : 8);
        wait_ms(c, wait < WAIT_MAX_MS ? (uint32_t)wait : WAIT_MAX_MS);
        atomic_fetch_add(&c->repeats, 1);
    }
}
