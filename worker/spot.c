#include "worker/spot.h"

#include <curl/curl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/http/http_curl.h"
#include "common/net/loop.h"

#define PAUSE_MS 2000 /* between two rounds of requests */
#define LOOK_MS 1000  /* between two looks at a file, or runs of a program */
#define ANSWER_MAX (256u << 10)
#define CONNECT_MS 2000L
#define ANSWER_MS 10000L
#define AZURE_MS 130000L /* the first answer may take two minutes */
#define WAIT_S 5         /* GCP: how long a request waits for a change */
#define PROGRAM_MS 10000
#define TOKEN_AGAIN_S 18000 /* after which a new token is requested */

/* A request and its answer. */
struct asked {
    const char *method, *path;
    const char *headers[2]; /* NULL: none */
    long ms;
    long status;
    struct buf body;
    int64_t now_s; /* by the service's clock, which tells when the machine goes; else by ours */
    char etag[128];
};

struct spot {
    struct loop *loop;
    const char *what, *at;
    spot_fn fn;
    void *arg;
    pthread_t thread;
    bool running;
    atomic_bool stop;
    atomic_int refs; /* the owner, and posts that the loop has not handled yet */
    CURLM *multi;
    CURL *easy;
    struct log_change trouble;
    bool advised; /* a recommendation to leave was logged */
    /* Values that services want back. */
    char token[512], vm[SPOT_NAME_MAX], etag[128];
    int64_t token_s;
};

/* ---- reporting ---- */

struct told {
    struct spot *s;
    struct spot_notice notice;
};

static void unref(struct spot *s)
{
    if (atomic_fetch_sub(&s->refs, 1) == 1)
        mem_free(s);
}

static void told_free(struct told *t)
{
    unref(t->s);
    mem_free(t);
}

static void tell(void *arg)
{
    struct told *t = arg;
    if (!atomic_load(&t->s->stop))
        t->s->fn(t->s->arg, &t->notice);
    told_free(t);
}

/* True: the machine goes, and no more requests are needed. */
static bool notice(struct spot *s, const struct spot_notice *n)
{
    if (!n->leave && s->advised)
        return false;
    struct told *t = mem_alloc(sizeof(*t));
    *t = (struct told){s, *n};
    atomic_fetch_add(&s->refs, 1);
    if (loop_post(s->loop, tell, t) < 0) {
        told_free(t); /* too many posts wait: try again soon */
        return false;
    }
    s->advised |= !n->leave;
    return n->leave;
}

static void complain(struct spot *s, const struct err *err)
{
    log_on_change(&s->trouble, LOG_LEVEL_WARN, "spot", "%s; asking again", err->msg);
}

/* ---- requests ---- */

/* Runs the transfer until it ends, or we must stop. */
static CURLcode perform(struct spot *s)
{
    CURLcode code = CURLE_ABORTED_BY_CALLBACK;
    int running = 1, left;
    curl_multi_add_handle(s->multi, s->easy);
    while (running > 0 && !atomic_load(&s->stop)) {
        if (curl_multi_perform(s->multi, &running) != CURLM_OK)
            break;
        if (running > 0)
            (void)curl_multi_poll(s->multi, NULL, 0, 1000, NULL);
    }
    const CURLMsg *m;
    while ((m = curl_multi_info_read(s->multi, &left)) != NULL)
        if (m->msg == CURLMSG_DONE)
            code = m->data.result;
    curl_multi_remove_handle(s->multi, s->easy);
    return code;
}

static struct curl_slist *headers_of(const struct asked *a)
{
    struct curl_slist *list = http_curl_headers(NULL, NULL);
    for (size_t i = 0; i < 2 && a->headers[i]; i++) {
        struct curl_slist *more = curl_slist_append(list, a->headers[i]);
        list = more ? more : list;
    }
    return list;
}

static int64_t now_s(void)
{
    return (int64_t)time(NULL);
}

/* a->body: release it, whatever this returns. */
static int ask(struct spot *s, struct asked *a, struct err *err)
{
    char *url = str_printf("%s%s", s->at, a->path), text[CURL_ERROR_SIZE] = "";
    struct curl_slist *headers = headers_of(a);
    struct curl_header *header;
    buf_init(&a->body, ANSWER_MAX);
    curl_easy_reset(s->easy);
    http_curl_tls(s->easy, url, NULL);
    curl_easy_setopt(s->easy, CURLOPT_URL, url);
    curl_easy_setopt(s->easy, CURLOPT_NOPROXY, "*"); /* the service is this very machine's */
    curl_easy_setopt(s->easy, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(s->easy, CURLOPT_CUSTOMREQUEST, a->method);
    curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, http_curl_collect);
    curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, &a->body);
    curl_easy_setopt(s->easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    curl_easy_setopt(s->easy, CURLOPT_TIMEOUT_MS, a->ms ? a->ms : ANSWER_MS);
    const CURLcode code = perform(s);
    int rc = 0;
    if (code != CURLE_OK)
        rc = http_curl_error(code, text, url, err);
    else if (curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &a->status) == CURLE_OK &&
             curl_easy_header(s->easy, "ETag", 0, CURLH_HEADER, -1, &header) == CURLHE_OK)
        str_copy(a->etag, sizeof(a->etag), header->value);
    a->now_s = now_s();
    if (curl_easy_header(s->easy, "Date", 0, CURLH_HEADER, -1, &header) == CURLHE_OK &&
        curl_getdate(header->value, NULL) > 0)
        a->now_s = (int64_t)curl_getdate(header->value, NULL);
    curl_slist_free_all(headers);
    mem_free(url);
    return rc;
}

/* A request with a text as its answer (200), or none (404: *ret is NULL). */
static int ask_text(struct spot *s, struct asked *a, const char **ret, struct err *err)
{
    int rc = ask(s, a, err);
    *ret = rc == 0 && a->status == 200 ? buf_str(&a->body) : NULL;
    if (rc < 0 || a->status == 200 || a->status == 404)
        return rc;
    return err_set(err, -ERR_REMOTE, "%s%s answered HTTP %ld", s->at, a->path, a->status);
}

/* A request that must have an answer: 404 means that it is another service. */
static int need_text(struct spot *s, struct asked *a, const char **ret, struct err *err)
{
    int rc = ask_text(s, a, ret, err);
    if (rc == 0 && *ret == NULL)
        rc = err_set(err, -ERR_NOTFOUND, "%s does not know %s", s->at, a->path);
    return rc;
}

/* ---- AWS ---- */

static int aws_token(struct spot *s, struct err *err)
{
    struct asked a = {.method = "PUT",
                      .path = "/latest/api/token",
                      .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}};
    const char *text;
    int rc = need_text(s, &a, &text, err);
    if (rc == 0 && (strlen(text) >= sizeof(s->token) || strpbrk(text, "\r\n")))
        rc = err_set(err, -ERR_FORMAT, "%s has no token for us", s->at);
    if (rc == 0) {
        str_copy(s->token, sizeof(s->token), text);
        s->token_s = now_s();
    }
    buf_release(&a.body);
    return rc;
}

static int aws_get(struct spot *s, const char *path, bool action, struct spot_notice *ret,
                   struct err *err)
{
    char header[sizeof(s->token) + 32];
    struct asked a = {.method = "GET", .path = path, .headers = {header}};
    const char *text;
    (void)snprintf(header, sizeof(header), "X-aws-ec2-metadata-token: %s", s->token);
    int rc = ask_text(s, &a, &text, err);
    if (a.status == 401)
        s->token[0] = '\0';
    if (text != NULL)
        rc = action ? spot_aws_action(text, a.now_s, ret, err) : spot_aws_rebalance(text, ret, err);
    buf_release(&a.body);
    return rc;
}

static int watch_aws(struct spot *s, struct spot_notice *ret, struct err *err)
{
    int rc = 0;
    if (s->token[0] == '\0' || now_s() - s->token_s > TOKEN_AGAIN_S)
        rc = aws_token(s, err);
    if (rc == 0)
        rc = aws_get(s, "/latest/meta-data/spot/instance-action", true, ret, err);
    if (rc == 0)
        rc = aws_get(s, "/latest/meta-data/events/recommendations/rebalance", false, ret, err);
    return rc;
}

/* ---- GCP ---- */

#define GCP "/computeMetadata/v1/instance/"
#define GCP_HEADER "Metadata-Flavor: Google"

/* The first answer comes at once, the next ones when something changes. */
static int gcp_preempted(struct spot *s, struct spot_notice *ret, struct err *err)
{
    char path[256] = GCP "preempted";
    struct asked a = {.method = "GET", .path = path, .headers = {GCP_HEADER}};
    const char *text;
    if (s->etag[0])
        (void)snprintf(path, sizeof(path),
                       GCP "preempted?wait_for_change=true&timeout_sec=%d&last_etag=%s", WAIT_S,
                       s->etag);
    int rc = need_text(s, &a, &text, err);
    if (rc == 0)
        rc = spot_gcp_preempted(text, ret, err);
    const bool plain = a.etag[strspn(a.etag, "0123456789abcdefABCDEF")] == '\0';
    str_copy(s->etag, sizeof(s->etag), rc == 0 && plain ? a.etag : "");
    buf_release(&a.body);
    return rc;
}

static int watch_gcp(struct spot *s, struct spot_notice *ret, struct err *err)
{
    struct asked a = {.method = "GET", .path = GCP "maintenance-event", .headers = {GCP_HEADER}};
    const char *text;
    int rc = gcp_preempted(s, ret, err);
    if (rc != 0)
        return rc;
    rc = need_text(s, &a, &text, err);
    if (rc == 0)
        rc = spot_gcp_maintenance(text, ret, err);
    buf_release(&a.body);
    return rc;
}

/* ---- Azure ---- */

#define AZURE_HEADER "Metadata: true"

static int azure_name(struct spot *s, struct err *err)
{
    struct asked a = {.method = "GET",
                      .path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text",
                      .headers = {AZURE_HEADER}};
    const char *text;
    int rc = need_text(s, &a, &text, err);
    if (rc == 0 && (text[0] == '\0' || strlen(text) >= sizeof(s->vm)))
        rc = err_set(err, -ERR_FORMAT, "%s does not say how this machine is called", s->at);
    if (rc == 0)
        str_copy(s->vm, sizeof(s->vm), text);
    buf_release(&a.body);
    return rc;
}

static int watch_azure(struct spot *s, struct spot_notice *ret, struct err *err)
{
    struct asked a = {.method = "GET",
                      .path = "/metadata/scheduledevents?api-version=2020-07-01",
                      .headers = {AZURE_HEADER},
                      .ms = AZURE_MS};
    const char *text;
    int rc = s->vm[0] ? 0 : azure_name(s, err);
    if (rc < 0)
        return rc;
    rc = need_text(s, &a, &text, err);
    if (rc == 0)
        rc = spot_azure_events(text, s->vm, a.now_s, ret, err);
    buf_release(&a.body);
    return rc;
}

/* ---- a file, a program ---- */

static int say_local(const struct spot *s, uint32_t ms, struct spot_notice *ret)
{
    *ret = (struct spot_notice){.leave = true, .ms = ms};
    (void)snprintf(ret->reason, sizeof(ret->reason), "%.100s says so", s->what);
    return 1;
}

static int check_path(const char *path, struct err *err)
{
    if (!file_is_dir(path))
        return 0;
    return err_set(err, -EINVAL,
                   "--spot %s is a directory: expected the path of a program, or of a file that "
                   "appears when this machine is taken back",
                   path);
}

/* The milliseconds that a text of a number of seconds, and nothing else, stands for. */
static uint32_t left_ms(const char *text)
{
    char *end;
    const double seconds = strtod(text, &end);
    if (end == text || end[strspn(end, " \t\r\n")] != '\0' || !(seconds >= 0))
        return SPOT_MS;
    return (uint32_t)fmin(seconds * 1e3, SPOT_MS_MAX);
}

static int watch_file(struct spot *s, struct spot_notice *ret, struct err *err)
{
    struct buf text;
    uint32_t ms = SPOT_MS;
    if (!file_exists(s->what))
        return 0;
    if (check_path(s->what, err) < 0)
        return -EINVAL;
    if (file_read(s->what, 4096, &text, NULL) == 0) {
        ms = left_ms(buf_str(&text));
        buf_release(&text);
    }
    return say_local(s, ms, ret);
}

static void pause_for(struct spot *s, int ms)
{
    if (!atomic_load(&s->stop))
        (void)curl_multi_poll(s->multi, NULL, 0, ms, NULL); /* spot_close wakes it */
}

static int watch_program(struct spot *s, struct spot_notice *ret, struct err *err)
{
    char *argv[] = {(char *)(uintptr_t)s->what, NULL};
    pid_t pid;
    int status = -1, waited = 0;
    const int rc = posix_spawn(&pid, s->what, NULL, NULL, argv, environ);
    if (rc != 0)
        return err_set(err, -rc, "running %s: %s", s->what, strerror(rc));
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (waited >= PROGRAM_MS || atomic_load(&s->stop)) {
            (void)kill(pid, SIGKILL); /* it is our child */
            (void)waitpid(pid, &status, 0);
            return atomic_load(&s->stop) ? 0
                                         : err_set(err, -ETIMEDOUT, "%s does not end within %d s",
                                                   s->what, PROGRAM_MS / 1000);
        }
        pause_for(s, 20);
        waited += 20;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? say_local(s, SPOT_MS, ret) : 0;
}

/* ---- the services ---- */

struct watcher {
    const char *name; /* NULL: a path */
    /* As spot_notice.h: 1, 0 or an error that is logged and tried again. */
    int (*watch)(struct spot *s, struct spot_notice *ret, struct err *err);
    /* Does this service answer? */
    int (*probe)(struct spot *s, struct err *err);
    int pause_ms;
};

static int probe_gcp(struct spot *s, struct err *err)
{
    struct spot_notice n;
    const int rc = gcp_preempted(s, &n, err);
    s->etag[0] = '\0'; /* ask for its state again */
    return rc < 0 ? rc : 0;
}

static const struct watcher watchers[] = {
    {"gcp", watch_gcp, probe_gcp, 100}, /* the question itself waits */
    {"azure", watch_azure, azure_name, PAUSE_MS},
    {"aws", watch_aws, aws_token, PAUSE_MS},
};
static const struct watcher of_file = {NULL, watch_file, NULL, LOOK_MS};
static const struct watcher of_program = {NULL, watch_program, NULL, LOOK_MS};

#define N_WATCHERS (sizeof(watchers) / sizeof(watchers[0]))

static const struct watcher *which(struct spot *s)
{
    struct err err = {0};
    if (strchr(s->what, '/') != NULL)
        return access(s->what, X_OK) == 0 && !file_is_dir(s->what) ? &of_program : &of_file;
    for (size_t i = 0; i < N_WATCHERS; i++) {
        const bool any = strcmp(s->what, "auto") == 0;
        if (strcmp(s->what, watchers[i].name) == 0 ||
            (any && !atomic_load(&s->stop) && watchers[i].probe(s, &err) == 0))
            return &watchers[i];
    }
    return NULL;
}

static void *run(void *arg)
{
    struct spot *s = arg;
    const struct watcher *w;
    struct spot_notice n;
    while ((w = which(s)) == NULL && !atomic_load(&s->stop)) {
        log_on_change(&s->trouble, LOG_LEVEL_WARN, "spot",
                      "no cloud's metadata service answers at %s, and only SIGTERM is a notice; "
                      "asking again",
                      s->at);
        pause_for(s, PAUSE_MS); /* the network may not be up yet */
    }
    if (w != NULL)
        log_info("spot", "watching %s for the notice that this machine is taken back",
                 w->name ? w->name : s->what);
    while (w != NULL && !atomic_load(&s->stop)) {
        struct err err = {0};
        const int rc = w->watch(s, &n, &err);
        if (rc < 0 && !atomic_load(&s->stop))
            complain(s, &err);
        if (rc == 0)
            s->trouble.hash = 0;
        if (rc > 0 && notice(s, &n))
            break;
        pause_for(s, rc < 0 ? PAUSE_MS : w->pause_ms);
    }
    return NULL;
}

static bool is_known(const char *what)
{
    bool known = strchr(what, '/') != NULL || strcmp(what, "auto") == 0;
    for (size_t i = 0; i < N_WATCHERS; i++)
        known |= strcmp(what, watchers[i].name) == 0;
    return known;
}

int spot_open(struct loop *loop, const char *what, const char *at, spot_fn fn, void *arg,
              struct spot **ret, struct err *err)
{
    if (!is_known(what))
        return err_set(err, -EINVAL,
                       "--spot %s: expected auto, aws, gcp, azure, or the path (with a /) of a "
                       "program or a file",
                       what);
    if (strchr(what, '/') != NULL && check_path(what, err) < 0)
        return -EINVAL;
    http_curl_init();
    struct spot *s = mem_alloc(sizeof(*s));
    *s = (struct spot){.loop = loop, .what = what, .at = at, .fn = fn, .arg = arg, .refs = 1};
    s->multi = curl_multi_init();
    s->easy = curl_easy_init();
    int rc = s->multi && s->easy ? 0 : err_set(err, -ENOMEM, "libcurl cannot start");
    if (rc == 0 && (rc = pthread_create(&s->thread, NULL, run, s)) != 0)
        rc = err_set(err, -rc, "no thread for --spot: %s", strerror(rc));
    s->running = rc == 0;
    if (rc < 0)
        spot_close(s);
    else
        *ret = s;
    return rc;
}

void spot_close(struct spot *s)
{
    if (s == NULL)
        return;
    atomic_store(&s->stop, true);
    if (s->running) {
        (void)curl_multi_wakeup(s->multi);
        (void)pthread_join(s->thread, NULL);
    }
    curl_easy_cleanup(s->easy);
    curl_multi_cleanup(s->multi);
    unref(s);
}
