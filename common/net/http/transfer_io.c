/* One attempt of a transfer: its request, the way of its bytes, the judgement of
 * its outcome. */
#include "common/base/base.h"
#include "common/base/file.h"
#include "common/net/http/http_curl.h"
#include "common/net/address.h"
#include "common/net/http/blob_http.h"
#include "common/net/loop.h"
#include "common/net/http/transfer_impl.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES (128L * 1024)
#define AWAY_FAILURES_MAX 3
#define LOCATION_MAX 16384
#define PIN_HEADER "Skerry-Pin: "
#define NEAR_FAILURES_MAX 2
#define NEAR_WAITS_MAX 45u /* waits of 3 s each at neighbours, and pauses: three minutes */
#define SHUN_MS 60000u     /* time without a neighbour that has failed */
#define HOME_MS 300000u    /* time without a store that could not be dialled */
#define PACE_MS 5          /* between tries while the bandwidth is used up */

void transfer_close_file(struct transfer *t)
{
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
}

static long status_of(struct transfer *t)
{
    long status = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

/* ---- the limit of bandwidth ---- */

/* The number of bytes that may move now; 0: the transfer is paused until there is room. */
static size_t allowance(struct transfer *t, bool up, size_t want)
{
    struct transfer_link *link = t->shared;
    uint64_t room = rate_allows(up ? &link->up : &link->down, loop_now_ms(link->loop));
    if (room == 0 && want > 0) {
        t->paused = true;
        if (!loop_timer_active(link->pace))
            loop_timer_start(link->pace, PACE_MS, 0);
    }
    return room < want ? (size_t)room : want;
}

/* ---- bytes in ---- */

/* A header of the present answer; NULL: it has none. */
static const char *header_of(const struct transfer *t, const char *name)
{
    struct curl_header *h;
    return curl_easy_header(t->easy, name, 0, CURLH_HEADER, -1, &h) == CURLHE_OK ? h->value : NULL;
}

/* What says which version of the file this is: a strong ETag, else the date; NULL: nothing. */
static const char *version_of(const struct transfer *t)
{
    const char *tag = header_of(t, "ETag");
    return tag && *tag == '"' ? tag : header_of(t, "Last-Modified");
}

static void keep_version(struct transfer *t)
{
    const char *version = version_of(t);
    if (!version || !str_copy(t->version, sizeof(t->version), version))
        t->version[0] = '\0';
}

/* Is the rest that comes of another version, by a server that does not heed If-Range? */
static bool is_of_another(const struct transfer *t)
{
    const char *version = t->has_sha256 || !t->version[0] ? NULL : version_of(t);
    const bool alike = version && (*version == '"') == (t->version[0] == '"');
    return alike && strcmp(version, t->version) != 0;
}

/* If the server sends the whole file, whatever was asked for, begins again. */
static int on_first_bytes(struct transfer *t, long status)
{
    unsigned long long from;
    if (t->resumed && status == 206) {
        const char *range = header_of(t, "Content-Range");
        t->elsewhere = !range || sscanf(range, "bytes %llu-", &from) != 1 || from != t->offset ||
                       is_of_another(t);
    } else if (t->resumed) {
        if (ftruncate(t->fd, 0) < 0)
            return -errno;
        t->offset = 0;
    }
    if (t->offset == 0)
        keep_version(t);
    t->resumed = false;
    return 0;
}

static size_t on_body(char *data, size_t one, size_t len, void *arg)
{
    struct transfer *t = arg;
    long status = status_of(t);
    if (t->kind != TRANSFER_GET || status >= 300) {
        (void)buf_append(&t->answer, data, len); /* the start of an error page is enough */
        return len;
    }
    if (len > 0 && allowance(t, false, len) == 0)
        return CURL_WRITEFUNC_PAUSE; /* libcurl repeats the data */
    rate_take(&t->shared->down, len);
    int rc = on_first_bytes(t, status);
    if (t->elsewhere)
        return 0;
    if (rc == 0 && len > t->max_bytes - t->offset) {
        t->over_limit = true;
        return 0;
    }
    struct err err = {0};
    if (rc == 0)
        rc = file_pwrite_all(t->fd, data, len, t->offset, t->part, &err);
    if (rc < 0) {
        t->io_error = -rc;
        return 0;
    }
    t->offset += len;
    t->moved += len;
    return len;
}

static size_t on_header(char *data, size_t one, size_t len, void *arg)
{
    struct transfer *t = arg;
    unsigned long long to;
    char line[96];
    const bool leads = (t->follow || t->near) && !t->away, puts = t->kind == TRANSFER_PUT;
    if (leads && len > 10 && len < LOCATION_MAX && strncasecmp(data, "Location: ", 10) == 0) {
        mem_free(t->location);
        t->location = str_ndup(data + 10, strcspn(data + 10, "\r\n"));
    }
    if (len >= sizeof(line))
        return len;
    memcpy(line, data, len);
    line[len] = '\0';
    if (leads || (t->away ? t->is_near : puts)) {
        line[strcspn(line, "\r\n")] = '\0';
        t->told_to_wait |= strcasecmp(line, "Skerry-Store: wait") == 0;
    }
    if (leads) {
        t->is_near |= t->near && strncasecmp(line, PIN_HEADER, strlen(PIN_HEADER)) == 0 &&
                      hash_unhex(line + strlen(PIN_HEADER), t->neighbour, 32) == 0;
    }
    if (puts && strncasecmp(line, "Range: bytes=0-", 15) == 0 &&
        sscanf(line + 15, "%llu", &to) == 1)
        t->have = to + 1;
    return len;
}

/* ---- bytes out ---- */

static size_t on_read(char *out, size_t one, size_t len, void *arg)
{
    struct transfer *t = arg;
    if (len > t->size - t->offset)
        len = (size_t)(t->size - t->offset);
    size_t room = allowance(t, true, len);
    if (len > 0 && room == 0)
        return CURL_READFUNC_PAUSE;
    len = room < len ? room : len;
    ssize_t n = pread(t->fd, out, len, (off_t)t->offset);
    if (n < 0 || (n == 0 && len > 0)) {
        t->io_error = n < 0 ? errno : EIO; /* the file has become shorter */
        return CURL_READFUNC_ABORT;
    }
    t->offset += (uint64_t)n;
    t->moved += (uint64_t)n;
    rate_take(&t->shared->up, (size_t)n);
    return (size_t)n;
}

static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct transfer *t = arg;
    if (origin != SEEK_SET)
        return CURL_SEEKFUNC_CANTSEEK;
    t->offset = t->sent_from + (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

uint64_t transfer_reached(const struct transfer *t)
{
    curl_off_t sent = 0;
    if (t->kind != TRANSFER_PUT || !t->easy)
        return t->offset;
    curl_easy_getinfo(t->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    const uint64_t queued = socket_bytes_queued(&t->shared->bytes, t->easy);
    return t->sent_from + ((uint64_t)sent > queued ? (uint64_t)sent - queued : 0);
}

/* ---- where to ---- */

/* Checks the address, from a name or a redirect, to which libcurl is about to connect. */
static curl_socket_t on_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct transfer *t = arg;
    if (!address_is_public(&a->addr)) {
        if (getnameinfo(&a->addr, a->addrlen, t->refused, sizeof(t->refused), NULL, 0,
                        NI_NUMERICHOST) != 0)
            (void)str_copy(t->refused, sizeof(t->refused), "an unknown address");
        return CURL_SOCKET_BAD;
    }
    return socket_bytes_open(&t->shared->bytes, a);
}

/* Checks the address of a request on a connection that another transfer may have opened. */
static int on_request(void *arg, char *to, char *from, int to_port, int from_port)
{
    struct transfer *t = arg;
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST}, *list = NULL;
    bool may = getaddrinfo(to, NULL, &hints, &list) == 0 && address_is_public(list->ai_addr);
    if (list)
        freeaddrinfo(list);
    if (may)
        return CURL_PREREQFUNC_OK;
    (void)str_copy(t->refused, sizeof(t->refused), to);
    return CURL_PREREQFUNC_ABORT;
}

static void stay_public(struct transfer *t)
{
    t->refused[0] = '\0';
    curl_easy_setopt(t->easy, CURLOPT_OPENSOCKETFUNCTION, on_socket);
    curl_easy_setopt(t->easy, CURLOPT_OPENSOCKETDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_PREREQFUNCTION, on_request);
    curl_easy_setopt(t->easy, CURLOPT_PREREQDATA, t);
}

/* ---- an attempt ---- */

static int prepare_get(struct transfer *t, struct err *err)
{
    struct stat st;
    char range[32], line[sizeof(t->version) + 16];
    if (t->fd < 0)
        t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC, t->mode);
    if (t->fd < 0 || fstat(t->fd, &st) < 0)
        return err_errno(err, "cannot open %s", t->part);
    t->offset = (uint64_t)st.st_size;
    const bool unknown = !t->has_sha256 && t->moved == 0; /* the part may be another file's */
    if (unknown || t->offset > t->max_bytes || (t->size && t->offset > t->size)) {
        if (ftruncate(t->fd, 0) < 0)
            return err_errno(err, "cannot empty %s", t->part);
        t->offset = 0;
    }
    t->resumed = t->offset > 0;
    if (t->resumed) {
        snprintf(range, sizeof(range), "%llu-", (unsigned long long)t->offset);
        curl_easy_setopt(t->easy, CURLOPT_RANGE, range);
        (void)snprintf(line, sizeof(line), "If-Range: %s", t->version);
        if (!t->has_sha256 && t->version[0])
            t->headers = curl_slist_append(t->headers, line);
    }
    curl_easy_setopt(t->easy, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)t->max_bytes);
    if (t->public_only)
        stay_public(t);
    if (!t->has_pin && !t->follow && !t->near) {
        curl_easy_setopt(t->easy, CURLOPT_FOLLOWLOCATION, 1L);
        curl_easy_setopt(t->easy, CURLOPT_MAXREDIRS, 5L);
    }
    return 0;
}

/* Adds the checksum that the store needs with a blob. */
static void add_sum(struct transfer *t)
{
    char line[80] = "x-amz-checksum-sha256: ";
    http_curl_base64(t->sha256, line + strlen(line));
    t->headers = curl_slist_append(t->headers, line);
}

static int prepare_put(struct transfer *t, struct err *err)
{
    struct stat st;
    char range[96];
    if (t->fd < 0)
        t->fd = open(t->path, O_RDONLY | O_CLOEXEC);
    if (t->fd < 0 || fstat(t->fd, &st) < 0)
        return err_errno(err, "cannot open %s", t->path);
    t->size = (uint64_t)st.st_size;
    if (t->away) {
        t->asking = false;
        t->sent_from = 0;
    }
    t->offset = t->asking ? t->size : t->sent_from;
    unsigned long long size = t->size;
    if (t->asking)
        snprintf(range, sizeof(range), "Content-Range: bytes */%llu", size);
    else
        snprintf(range, sizeof(range), "Content-Range: bytes %llu-%llu/%llu",
                 (unsigned long long)t->offset, size - 1, size);
    if (t->away)
        add_sum(t);
    else if (t->size) /* an empty file has no range, and needs none */
        t->headers = curl_slist_append(t->headers, range);
    t->have = 0;
    curl_easy_setopt(t->easy, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(t->easy, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(t->easy, CURLOPT_READDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(t->easy, CURLOPT_SEEKDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)(t->size - t->offset));
    curl_easy_setopt(t->easy, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_BYTES);
    return 0;
}

/* True if the request must say that it may go to the store, or was there. */
static bool asks_away(const struct transfer *t)
{
    return t->follow && !t->away && t->away_failures < AWAY_FAILURES_MAX &&
           (t->was_away || loop_now_ms(t->shared->loop) >= t->shared->home_until_ms);
}

/* Says that the request may go to a neighbour, and which one has failed, or that it was told to
 * wait for one. */
static void ask_near(struct transfer *t)
{
    const struct transfer_link *link = t->shared;
    char line[96], pin[HASH_HEX_MAX];
    if (!t->near || t->away || t->near_failures >= NEAR_FAILURES_MAX)
        return;
    const bool shuns = loop_now_ms(link->loop) < link->shunned_until_ms;
    (void)snprintf(line, sizeof(line), "Skerry-Near: %s",
                   t->near_failures > 0 ? hash_hex(t->neighbour, sizeof(t->neighbour), pin)
                   : shuns              ? link->shunned
                   : t->near_waits > 0  ? BLOB_NEAR_AGAIN
                                        : "follow");
    t->headers = curl_slist_append(t->headers, line);
}

/* True if the attempt at the store failed before its request. */
static bool was_shut_out(const struct transfer *t, CURLcode rc)
{
    curl_off_t us = 0;
    curl_easy_getinfo(t->easy, CURLINFO_PRETRANSFER_TIME_T, &us);
    return rc != CURLE_OK && us == 0;
}

int transfer_prepare(struct transfer *t, struct err *err)
{
    t->easy = curl_easy_init();
    if (!t->easy)
        return err_set(err, -ENOMEM, "libcurl gives no handle");
    t->headers = http_curl_headers(NULL, t->away ? NULL : t->bearer);
    if (asks_away(t))
        t->headers = curl_slist_append(t->headers,
                                       t->was_away ? "Skerry-Store: done" : "Skerry-Store: follow");
    ask_near(t);
    t->is_near &= t->away != NULL;
    t->io_error = 0;
    t->elsewhere = false;
    t->status = 0;
    t->wait = (struct patience_wait){
        .sockets = &t->shared->bytes,
        .has_body = t->kind == TRANSFER_PUT,
        .began_ms = loop_now_ms(t->shared->loop),
    };
    t->told_to_wait = false;
    t->curl_error[0] = '\0';
    buf_clear(&t->answer);
    const char *url = t->away ? t->away : t->url;
    curl_easy_setopt(t->easy, CURLOPT_URL, url);
    curl_easy_setopt(t->easy, CURLOPT_PATH_AS_IS, t->away ? 1L : 0L); /* signed like this */
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->curl_error);
    curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_TCP_KEEPALIVE, 1L);
    socket_bytes_attach(&t->shared->bytes, t->easy);
    http_curl_tls(t->easy, url,
                  t->away ? (t->is_near ? t->neighbour : NULL) : (t->has_pin ? t->pin : NULL));
    int rc = 0;
    if (t->kind == TRANSFER_GET) {
        curl_easy_setopt(t->easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
        rc = prepare_get(t, err);
    } else {
        rc = prepare_put(t, err);
    }
    curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
    return rc;
}

/* ---- waiting for an answer ---- */

static struct patience *patience_of(const struct transfer *t)
{
    return t->kind == TRANSFER_PUT ? &t->shared->put : &t->shared->got;
}

bool transfer_is_unanswered(struct transfer *t)
{
    if (!t->easy || !t->away || t->is_near)
        return false;
    const uint64_t waited =
        patience_waited_ms(&t->wait, t->easy, t->offset == t->size, loop_now_ms(t->shared->loop));
    const double most =
        patience_ms(patience_of(t), t->away_failures, t->kind == TRANSFER_PUT ? t->size : 0);
    if ((double)waited < most)
        return false;
    patience_silent(patience_of(t));
    (void)snprintf(t->curl_error, sizeof(t->curl_error),
                   "the store has the whole request and has not answered for %.0f s", most / 1e3);
    return true;
}

/* ---- the outcome ---- */

static enum transfer_next failed(int code)
{
    return http_curl_is_retryable(code) ? TRANSFER_RETRY : TRANSFER_FAILED;
}

static const char *asked(const struct transfer *t)
{
    return t->away ? t->away : t->url;
}

static enum transfer_next judge_get(struct transfer *t, struct err *err)
{
    if (t->status == 416 && t->offset > 0 && ftruncate(t->fd, 0) == 0) {
        (void)err_set(err, -ERR_REMOTE,
                      "the file at the server is shorter than the part that is here");
        return TRANSFER_RETRY;
    }
    if (t->status != 200 && t->status != 206)
        return failed(http_curl_status_error(t->status, buf_str(&t->answer), asked(t), err));
    if (t->size && t->offset != t->size) {
        (void)err_set(err, -ECONNRESET, "%llu of %llu bytes came", (unsigned long long)t->offset,
                      (unsigned long long)t->size);
        return TRANSFER_RETRY;
    }
    return TRANSFER_VERIFY;
}

static enum transfer_next judge_put(struct transfer *t, struct err *err)
{
    if (t->status == 200 || t->status == 201) {
        t->existed = t->asking && t->size > 0;
        return TRANSFER_DONE;
    }
    if (t->status == 308) {
        bool news = t->asking || t->have > t->sent_from;
        t->sent_from = t->have < t->size ? t->have : 0;
        t->asking = false;
        (void)err_set(err, -ECONNRESET, "the server took nothing");
        return news ? TRANSFER_AGAIN : TRANSFER_RETRY;
    }
    return failed(http_curl_status_error(t->status, buf_str(&t->answer), asked(t), err));
}

static enum transfer_next judge(struct transfer *t, CURLcode rc, struct err *err)
{
    if (t->io_error) {
        (void)err_set(err, -t->io_error, "%s: %s", t->part ? t->part : t->path,
                      strerror(t->io_error));
        return TRANSFER_FAILED;
    }
    if (rc != CURLE_OK && t->refused[0]) {
        (void)err_set(err, -EACCES,
                      "%s is not a public address: the source is there, or leads there, and this "
                      "worker fetches only from public addresses (workerd --allow-private-sources)",
                      t->refused);
        return TRANSFER_FAILED;
    }
    if (t->over_limit || rc == CURLE_FILESIZE_EXCEEDED) {
        (void)err_set(err, -ERR_LIMIT, "the server sends more than the %llu bytes allowed",
                      (unsigned long long)t->max_bytes);
        return TRANSFER_FAILED;
    }
    if (t->elsewhere) {
        (void)err_set(err, -ERR_REMOTE,
                      "the server sends another part of the file than the one asked for");
        return ftruncate(t->fd, 0) < 0 ? TRANSFER_FAILED : TRANSFER_RETRY;
    }
    /* A server may refuse an upload before it has read it all. */
    bool refused = t->kind == TRANSFER_PUT && t->status >= 400;
    if (rc != CURLE_OK && !refused)
        return failed(http_curl_error(rc, t->curl_error, asked(t), err));
    if (t->kind == TRANSFER_GET)
        return judge_get(t, err);
    return judge_put(t, err);
}

void transfer_shun(struct transfer *t)
{
    struct transfer_link *link = t->shared;
    (void)hash_hex(t->neighbour, sizeof(t->neighbour), link->shunned);
    link->shunned_until_ms = loop_now_ms(link->loop) + SHUN_MS;
}

/* After any failure of a neighbour the server is asked at once; a blob on its way to the neighbour
 * is waited for, for some minutes. */
static enum transfer_next judge_near(struct transfer *t)
{
    if (t->told_to_wait && t->near_waits++ < NEAR_WAITS_MAX)
        return TRANSFER_RETRY;
    t->told_to_wait = false;
    if (t->status != 404) /* 404: it only lacks this blob */
        transfer_shun(t);
    t->near_failures++;
    t->over_limit = false;
    return TRANSFER_AGAIN;
}

/* The next attempt asks the server again, for another URL or for the blob itself. */
static enum transfer_next judge_away(struct transfer *t, CURLcode rc, struct err *err)
{
    const enum transfer_next next = judge(t, rc, err);
    mem_free(t->away);
    t->away = NULL;
    if (t->is_near && next != TRANSFER_VERIFY && !t->io_error)
        return judge_near(t);
    t->was_away = t->kind == TRANSFER_PUT;
    if (next == TRANSFER_VERIFY || t->io_error)
        return next;
    if (t->over_limit || rc == CURLE_FILESIZE_EXCEEDED) { /* other bytes: the server decides */
        t->over_limit = t->follow = false;
        t->tries = 0;
        t->best = t->offset = 0;
        return ftruncate(t->fd, 0) < 0 ? TRANSFER_FAILED : TRANSFER_RETRY;
    }
    /* Ends the tries also with a store that takes a blob, but then does not have it. */
    t->away_failures = t->kind == TRANSFER_GET && t->offset > t->best ? 0 : t->away_failures + 1;
    if (t->away_failures >= AWAY_FAILURES_MAX && was_shut_out(t, rc))
        t->shared->home_until_ms = loop_now_ms(t->shared->loop) + HOME_MS;
    t->tries = 0; /* tries at the store do not count as the server's */
    if (next != TRANSFER_DONE)
        return TRANSFER_RETRY;
    t->asking = true;
    return TRANSFER_AGAIN;
}

enum transfer_next transfer_judge(struct transfer *t, CURLcode rc, struct err *err)
{
    t->status = status_of(t);
    if (t->away && !t->is_near && t->status >= 200)
        patience_answered(patience_of(t), &t->wait, t->easy, loop_now_ms(t->shared->loop));
    if (t->away)
        return judge_away(t, rc, err);
    const bool led = t->status == 307 && t->location && rc == CURLE_OK;
    if (!led || !(t->is_near ? str_starts(t->location, "https://") : t->follow))
        return judge(t, rc, err);
    t->away = t->location;
    t->location = NULL;
    return TRANSFER_AGAIN;
}
