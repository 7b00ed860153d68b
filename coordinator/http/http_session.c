#include "coordinator/http/http_session.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"

struct session {
    uint8_t hash[HASH_BYTES]; /* hash of its id */
    uint64_t used_ms;
    int64_t opened_ms; /* below 0: before the machine was started */
    uint64_t holder;   /* 0: free */
};

struct http_sessions {
    struct session at[SESSIONS_MAX];
    char *path;
};

/* A line of the file: the hash, the holder, and the seconds of the wall clock at the login. */
#define LINE "%64[0-9a-f] t%llu %llu %n"
#define FILE_BYTES_MAX (SESSIONS_MAX * 128)

static void load(struct http_sessions *s)
{
    struct buf text;
    char hex[HASH_HEX_MAX];
    unsigned long long holder, opened_s;
    int end = 0;
    const uint64_t now = clock_now_ms(), wall_s = clock_wall_ms() / 1000;
    if (file_read(s->path, FILE_BYTES_MAX, &text, NULL) < 0)
        return;
    const char *at = buf_str(&text);
    for (size_t i = 0; i < SESSIONS_MAX && sscanf(at, LINE, hex, &holder, &opened_s, &end) == 3;
         i++, at += end) {
        const uint64_t age_ms = wall_s > opened_s ? (wall_s - opened_s) * 1000 : 0;
        struct session e = {.opened_ms = (int64_t)(now - age_ms), .used_ms = now, .holder = holder};
        if (age_ms < SESSION_LIFE_MS && hash_unhex(hex, e.hash, HASH_BYTES) == 0)
            s->at[i] = e;
    }
    buf_release(&text);
}

static void save(const struct http_sessions *s)
{
    struct buf text;
    struct err err = {0};
    char hex[HASH_HEX_MAX];
    buf_init(&text, FILE_BYTES_MAX);
    for (size_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *e = &s->at[i];
        const uint64_t opened_ms = clock_wall_ms() - (clock_now_ms() - (uint64_t)e->opened_ms);
        if (e->holder != 0)
            (void)buf_printf(&text, "%s t%llu %llu\n", hash_hex(e->hash, HASH_BYTES, hex),
                             (unsigned long long)e->holder, (unsigned long long)(opened_ms / 1000));
    }
    /* Not flushed, since the loop waits for no disk: a loss of power may end logins. */
    if (file_write_put(s->path, buf_str(&text), text.len, 0600, &err) < 0)
        log_warn("http", "logins of browsers end with this process: %s", err.msg);
    buf_release(&text);
}

struct http_sessions *http_sessions_new(const char *path)
{
    struct http_sessions *s = mem_alloc(sizeof(*s));
    s->path = str_dup(path);
    load(s);
    return s;
}

void http_sessions_free(struct http_sessions *s)
{
    if (s != NULL)
        mem_free(s->path);
    mem_free(s);
}

static bool is_alive(const struct session *e, uint64_t now_ms)
{
    return e->holder != 0 && now_ms - e->used_ms < SESSION_IDLE_MS &&
           (int64_t)now_ms - e->opened_ms < (int64_t)SESSION_LIFE_MS;
}

void http_session_open(struct http_sessions *s, uint64_t holder, char ret_id[SESSION_ID_MAX])
{
    uint8_t random[HASH_BYTES];
    const uint64_t now = clock_now_ms();
    struct session *e = &s->at[0];
    for (size_t i = 1; i < SESSIONS_MAX; i++) /* a free one, else the least recently used */
        if (e->holder != 0 && (s->at[i].holder == 0 || s->at[i].used_ms < e->used_ms))
            e = &s->at[i];
    hash_random(random, sizeof(random));
    (void)hash_b64url(random, sizeof(random), ret_id);
    *e = (struct session){.opened_ms = (int64_t)now, .used_ms = now, .holder = holder};
    hash_sha256(ret_id, strlen(ret_id), e->hash);
    save(s);
}

static struct session *find(struct http_sessions *s, const char *id)
{
    uint8_t hash[HASH_BYTES];
    hash_sha256(id, strlen(id), hash);
    for (size_t i = 0; i < SESSIONS_MAX; i++)
        if (is_alive(&s->at[i], clock_now_ms()) && hash_equal(s->at[i].hash, hash, HASH_BYTES))
            return &s->at[i];
    return NULL;
}

uint64_t http_session_holder(struct http_sessions *s, const char *id)
{
    struct session *e = find(s, id);
    if (e == NULL)
        return 0;
    e->used_ms = clock_now_ms();
    return e->holder;
}

void http_session_close(struct http_sessions *s, const char *id)
{
    struct session *e = find(s, id);
    if (e == NULL)
        return;
    e->holder = 0;
    save(s);
}
