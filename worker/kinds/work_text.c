/* SAMPLE of a language model: a prompt and the text that goes on from it, streamed while
 * it is made (METHOD_STREAM, shown but not acknowledged) and whole in the report. */
#include <errno.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/kinds/engine.h"
#include "worker/kinds/forward.h"
#include "worker/net/generate.h"
#include "worker/net/llama.h"
#include "worker/order/task_check.h"
#include "worker/link/uplink.h"

#define STREAM_MS 10000

int work_text_plan(struct work *w, struct err *err)
{
    const Skerry__V1__Blob *b = w->task->tokenizer;
    return b ? work_need(w, b->sha256.data, b->size, b->url, "the tokenizer", err) : 0;
}

int work_own_file(int rc, struct err *err)
{
    if (rc != -ERR_FORMAT && rc != -ERR_LIMIT && rc != -ERR_NOTFOUND)
        return rc;
    if (err)
        err->code = -ERR_CONFIG;
    return -ERR_CONFIG;
}

int work_tokenizer(const struct work *w, struct tokenizer **ret, struct err *err)
{
    const Skerry__V1__Blob *b = w->task->tokenizer;
    char path[CACHE_PATH_MAX];
    if (!b) {
        *ret = tokenizer_bytes();
        return 0;
    }
    work_blob_path(w, b->sha256.data, path);
    return work_own_file(tokenizer_open(path, ret, err), err);
}

struct speaker {
    struct work *w;
    struct buf text;        /* whole characters, no NUL */
    size_t sent;            /* bytes of it that were streamed */
    struct uplink_job *job; /* the piece on its way */
};

/* Bytes of a string does not end in the middle of a character. */
static size_t whole_characters(const char *text, size_t len, size_t most)
{
    if (len <= most)
        return len;
    while (most > 0 && ((unsigned char)text[most] & 0xc0) == 0x80)
        most--;
    return most;
}

/* Sends what is new, unless the last piece is still on its way: it goes with the next
 * one then, and the report has it all. */
static void stream(struct speaker *s)
{
    char piece[TASK_STREAM_MAX + 1];
    if (!s->w->uplink || s->sent == s->text.len || (s->job && !uplink_done(s->job)))
        return;
    uplink_free(s->job);
    const char *rest = buf_str(&s->text) + s->sent;
    const size_t n = whole_characters(rest, s->text.len - s->sent, TASK_STREAM_MAX);
    memcpy(piece, rest, n);
    piece[n] = '\0';
    Skerry__V1__StreamRequest req = SKERRY__V1__STREAM_REQUEST__INIT;
    req.task_id = s->w->task->id;
    req.attempt = s->w->task->attempt;
    req.offset = s->sent;
    req.text = piece;
    s->job = uplink_call(s->w->uplink, s->w, SKERRY__V1__METHOD__METHOD_STREAM, &req.base,
                         &skerry__v1__stream_reply__descriptor, STREAM_MS);
    s->sent += n;
}

/* Strings of the wire end at a NUL: it is shown as what cannot be shown. */
static int append(struct buf *out, const char *text, size_t len)
{
    int rc = 0;
    while (len > 0 && rc == 0) {
        const size_t n = strnlen(text, len);
        rc = buf_append(out, text, n);
        text += n;
        len -= n;
        if (len > 0 && rc == 0) {
            rc = buf_append_str(out, "\xef\xbf\xbd");
            text++;
            len--;
        }
    }
    return rc;
}

static int on_text(void *arg, const char *text, size_t len, unsigned done)
{
    struct speaker *s = arg;
    struct err ignored;
    progress_units(&s->w->progress, done, s->w->task->sample->tokens);
    if (append(&s->text, text, len) == -ERR_LIMIT)
        return 1; /* as long as a report can be */
    stream(s);
    return work_stopped(s->w, &ignored) ? -ERR_CANCELLED : 0;
}

int work_text_run(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__SampleTask *t = w->task->sample;
    const struct generate_options opt = {
        .tokens = t->tokens, .temperature = t->temperature, .top_p = t->top_p, .seed = t->seed};
    struct forward f = {0};
    struct tokenizer *tokenizer = NULL;
    struct speaker s = {.w = w};
    const uint64_t begun = clock_now_ns();
    buf_init(&s.text, TASK_TEXT_MAX);
    progress_activity(&w->progress, "writing %u tokens", t->tokens);

    int rc = work_tokenizer(w, &tokenizer, err);
    if (rc == 0)
        rc = forward_open(e, w, 1, &f, err);
    if (rc == 0 && (rc = append(&s.text, t->prompt, strlen(t->prompt))) < 0)
        (void)err_set(err, rc, "no memory for a text");
    if (rc == 0)
        rc = generate_text(llama_of(f.net), tokenizer, t->prompt, &opt, on_text, &s, err);
    uplink_free(s.job);
    if (rc == 0) {
        mem_free(w->result.text);
        w->result.text = (char *)buf_take(&s.text, NULL);
        w->result.samples = 1;
    }
    w->result.seconds = (float)(clock_now_ns() - begun) / 1e9f;
    forward_close(&f);
    tokenizer_free(tokenizer);
    buf_release(&s.text);
    return rc;
}
