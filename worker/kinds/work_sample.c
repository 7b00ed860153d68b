/* SAMPLE: a grid of images drawn from a path's model or a mixture of paths, as a PNG; or, from a
 * language model, a prompt and its continuation, streamed while it is made (METHOD_STREAM, shown
 * but not acknowledged) and whole in the report. */

#include "common/base/base.h"
#include "common/base/hash.h"
#include "common/data/image.h"
#include "worker/net/cascade_sample.h"
#include "worker/net/dit_rows.h"
#include "worker/engine/encoders.h"
#include "worker/engine/engine.h"
#include "worker/engine/forward.h"
#include "worker/net/image_net.h"
#include "worker/engine/mixture.h"
#include "worker/net/sample.h"
#include "worker/order/task_check.h"
#include "worker/kinds/kinds.h"
#include "worker/link/uplink.h"
#include "worker/net/generate.h"
#include "worker/net/llama.h"
#include "worker/net/net_parts.h"

/* Points of one evaluation, two per sample with guidance: enough to make swapping experts
 * worth while, and few enough for a small device. */
#define SAMPLE_ROWS_MAX 128
_Static_assert(JOB_GRID_SIDE_MAX == IMAGE_SIDE_MAX, "a grid that a job may have can be written");
#define STREAM_MS 10000

/* ---- images ---- */

static int on_progress(void *arg, unsigned done, unsigned total)
{
    struct work *w = arg;
    progress_units(&w->progress, done, total);
    return work_stopped(w, NULL);
}

/* Decodes latents to pictures. */
static int decode(void *arg, const float *latents, int count, uint8_t *images, struct err *err)
{
    return encoders_decode(arg, latents, (unsigned)count, images, err);
}

/* Encodes the captions to draw; none if the model reads classes. */
static int read_prompts(struct engine *e, struct encoders *enc, const struct work *w,
                        struct encoder_prompts *ret, struct err *err)
{
    if (!enc || !enc->text)
        return 0;
    engine_room(e, encoders_missing(enc, FROZEN_TEXT));
    return encoders_prompts(enc, w->task->sample->prompt, TASK_LABELS_MAX, ret, err);
}

/* The parameters of a grid, besides its model. */
struct drawing {
    struct encoders *enc; /* NULL: pixels are drawn, from classes */
    struct encoder_prompts prompts;
    char doing[PROGRESS_ACTIVITY_MAX];
    int rows;        /* points of one evaluation */
    uint8_t *images; /* (n_labels,S,S,3) */
};

/* The progress shown to the person who asked, with the number of tokens that are cut off. */
static void say_drawing(struct work *w, struct drawing *d, size_t n)
{
    char cut[96] = "";
    if (d->prompts.cut > 0)
        (void)snprintf(cut, sizeof cut, "; captions are cut by %d token%s, for %d are read of each",
                       d->prompts.cut, str_plural((uint64_t)d->prompts.cut), d->prompts.reads);
    (void)snprintf(d->doing, sizeof d->doing, "drawing %zu sample%s%s", n, str_plural(n), cut);
    progress_activity(&w->progress, "%s", d->doing);
}

/* Where the velocities come from: one of these. */
struct drawn_from {
    const struct sample_source *one;
    struct net *cascade;
    struct mixture *cascades; /* experts of two chains */
};

/* Draws from experts of two chains. */
static int draw_cascades(struct work *w, struct mixture *m, const struct sample_options *opt,
                         const int32_t *labels, uint8_t *images, struct err *err)
{
    const size_t n = w->task->sample->n_labels;
    uint8_t *low = mem_try_array(n, mixture_low_bytes(m));
    const struct cascade_source src = mixture_cascade(m, low);
    int rc = low ? cascade_sample_from(&src, opt, labels, (int)n, images, low, err)
                 : err_set(err, -ENOMEM, "no memory for %zu small images", n);
    mem_free(low);
    return rc;
}

static int draw(struct work *w, const struct drawing *d, const struct drawn_from *from,
                struct err *err)
{
    const Skerry__V1__SampleTask *t = w->task->sample;
    const struct sample_options opt = {.steps = (int)t->steps,
                                       .heun = t->heun,
                                       .shift = (float)w->spec.train.shift,
                                       .guidance = t->guidance,
                                       .seed = t->seed,
                                       .decode = encoders_moments(d->enc) ? decode : NULL,
                                       .decoder = d->enc,
                                       .pixels = w->spec.data.image_size,
                                       .progress = on_progress,
                                       .arg = w};
    int32_t labels[TASK_LABELS_MAX];
    for (size_t i = 0; i < t->n_labels; i++)
        labels[i] = (int32_t)t->labels[i];
    const struct net_captions *captions = d->prompts.states ? &d->prompts.captions : NULL;
    if (from->cascades)
        return draw_cascades(w, from->cascades, &opt, labels, d->images, err);
    return from->cascade ? cascade_sample(from->cascade, &opt, captions, labels, (int)t->n_labels,
                                          d->images, NULL, err)
                         : sample_run(from->one, &opt, labels, (int)t->n_labels, d->images, err);
}

static int draw_path(struct engine *e, struct work *w, const struct drawing *d, struct err *err)
{
    struct forward f = {0};
    struct dit_rows dit = {0};
    int rc = forward_open(e, w, d->rows, &f, err);
    const bool cascade = rc == 0 && model_has_upscaler(&f.model->spec);
    if (rc == 0)
        rc = cascade ? draw(w, d, &(struct drawn_from){.cascade = f.net}, err)
                     : dit_rows_open_net(&dit, f.net, err);
    if (rc == 0 && !cascade) {
        if (d->prompts.states)
            dit_rows_captions(&dit, &d->prompts.captions);
        const struct sample_source src = sample_of_dit(&dit);
        rc = draw(w, d, &(struct drawn_from){.one = &src}, err);
    }
    dit_rows_close(&dit);
    forward_close(&f);
    return rc;
}

static int draw_mixture(struct engine *e, struct work *w, const struct drawing *d, struct err *err)
{
    const struct mixture_options opt = {.rows = mixture_rows(w, d->rows), .doing = d->doing};
    struct mixture *m = NULL;
    int rc = mixture_open(e, w, &opt, &m, err);
    if (rc == 0) {
        if (d->prompts.states)
            mixture_captions(m, &d->prompts.captions);
        const struct sample_source src = mixture_source(m);
        const bool cascades = mixture_low_bytes(m) > 0;
        rc = draw(w, d, &(struct drawn_from){.one = &src, .cascades = cascades ? m : NULL}, err);
    }
    mixture_close(m);
    return rc;
}

static int write_grid(struct work *w, const uint8_t *images, struct err *err)
{
    const Skerry__V1__SampleTask *t = w->task->sample;
    int n = (int)t->n_labels, columns = t->columns ? (int)t->columns : 8, width, height;
    if (columns > n)
        columns = n;
    uint8_t *rgb;
    int rc = image_grid(images, n, w->spec.data.image_size, columns, JOB_GRID_GAP, &rgb, &width,
                        &height, err);
    if (rc < 0)
        return rc;
    struct work_output *o;
    rc = work_output_new(w, WORK_RESULT, "samples.png", &o, err);
    if (rc == 0)
        rc = image_write_png(o->path, rgb, width, height, err);
    if (rc == 0)
        rc = hash_file(o->path, o->sha256, &o->size, err);
    mem_free(rgb);
    return rc;
}

static int draw_images(struct engine *e, struct work *w, struct err *err)
{
    const size_t n = w->task->sample->n_labels, side = (size_t)w->spec.data.image_size;
    const int rows = 2 * n < SAMPLE_ROWS_MAX ? (int)(2 * n) : SAMPLE_ROWS_MAX;
    struct drawing d = {.rows = rows < DIT_ROWS_MIN ? DIT_ROWS_MIN : rows,
                        .images = mem_try_array(n, side * side * 3)};
    say_drawing(w, &d, n);
    int rc = d.images ? 0 : err_set(err, -ENOMEM, "out of memory for %zu samples", n);
    if (rc == 0)
        rc = encoders_get(e, w, &d.enc, err);
    if (rc == 0)
        rc = read_prompts(e, d.enc, w, &d.prompts, err);
    if (rc == 0)
        say_drawing(w, &d, n);
    if (rc == 0)
        rc = w->task->mixture ? draw_mixture(e, w, &d, err) : draw_path(e, w, &d, err);
    if (rc == 0)
        rc = write_grid(w, d.images, err);
    w->result.samples = n;
    encoder_prompts_release(&d.prompts);
    mem_free(d.images);
    return rc;
}

/* ---- text ---- */

struct speaker {
    struct work *w;
    struct buf text;        /* whole characters, no NUL */
    size_t sent;            /* bytes of it that were streamed */
    struct uplink_job *job; /* the piece being sent */
};

/* The most bytes, up to `most`, that do not end within a character. */
static size_t whole_characters(const char *text, size_t len, size_t most)
{
    if (len <= most)
        return len;
    while (most > 0 && ((unsigned char)text[most] & 0xc0) == 0x80)
        most--;
    return most;
}

/* Sends the new text, unless the last piece is still being sent: then it goes with the
 * next one, and the report has all of it. */
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

/* Strings of the wire end at a NUL, so a NUL becomes U+FFFD. */
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
    progress_units(&s->w->progress, done, s->w->task->sample->tokens);
    if (append(&s->text, text, len) == -ERR_LIMIT)
        return 1; /* as long as a report can be */
    stream(s);
    return work_stopped(s->w, NULL) ? -ERR_CANCELLED : 0;
}

static int write_text(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__SampleTask *t = w->task->sample;
    const struct generate_options opt = {
        .tokens = t->tokens, .temperature = t->temperature, .top_p = t->top_p, .seed = t->seed};
    struct forward f = {0};
    struct tokenizer *tokenizer = NULL;
    struct speaker s = {.w = w};
    buf_init(&s.text, TASK_TEXT_MAX);
    progress_activity(&w->progress, "writing %u token%s", t->tokens, str_plural(t->tokens));

    int rc = work_tokenizer(w, &tokenizer, err);
    if (rc == 0 && !tokenizer)
        rc = err_set(err, -ERR_CONFIG, "the job does not name the tokenizer of its token ids");
    if (rc == 0)
        rc = forward_open(e, w, 1, &f, err);
    if (rc == 0 && (rc = append(&s.text, t->prompt, strlen(t->prompt))) < 0)
        (void)err_set(err, rc, "no memory for a text");
    struct net *first = rc == 0 ? net_parts_first(f.net) : NULL;
    if (rc == 0)
        rc = generate_text(llama_of(first ? first : f.net), tokenizer, t->prompt, &opt, on_text, &s,
                           err);
    uplink_free(s.job);
    if (rc == 0) {
        mem_free(w->result.text);
        w->result.text = (char *)buf_take(&s.text, NULL);
        w->result.samples = 1;
    }
    forward_close(&f);
    tokenizer_free(tokenizer);
    buf_release(&s.text);
    return rc;
}

/* ---- both ---- */

static int check_text_sample(const Skerry__V1__SampleTask *t, struct err *err)
{
    int rc = task_check_text(t->prompt, TASK_PROMPT_MAX, "sample.prompt", err);
    if (rc < 0)
        return rc;
    if (t->tokens > TASK_TOKENS_MAX)
        return err_set(err, -ERR_LIMIT, "task: sample.tokens is %u, at most %u are allowed",
                       t->tokens, TASK_TOKENS_MAX);
    if (!isfinite(t->temperature) || t->temperature < 0 || t->temperature > 10)
        return err_set(err, -ERR_LIMIT, "task: sample.temperature is %g, expected 0..10",
                       (double)t->temperature);
    if (!(t->top_p > 0) || t->top_p > 1)
        return err_set(err, -ERR_LIMIT, "task: sample.top_p is %g, expected above 0, at most 1",
                       (double)t->top_p);
    return 0;
}

static size_t lines_of(const char *text)
{
    size_t n = 1;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static int check(const Skerry__V1__Task *task, struct err *err)
{
    const Skerry__V1__SampleTask *t = task->sample;
    const bool captions = task->input && task->input->caption > 0;
    if (t->tokens > 0)
        return check_text_sample(t, err);
    int rc = task_check_text(t->prompt, TASK_PROMPT_MAX, "sample.prompt", err);
    const size_t n_labels = captions && rc == 0 ? lines_of(t->prompt) : task->n_classes;
    if (rc == 0)
        rc = task_check_count(t->n_labels, TASK_LABELS_MAX, "sample.labels", err);
    if (rc < 0)
        return rc;
    if (t->n_labels == 0)
        return err_set(err, -ERR_FORMAT, "task: sample.labels is empty");
    if (t->steps < 1 || t->steps > 1000)
        return err_set(err, -ERR_LIMIT, "task: sample.steps is %u, expected 1..1000", t->steps);
    if (!isfinite(t->guidance) || t->guidance < 0 || t->guidance > 100)
        return err_set(err, -ERR_LIMIT, "task: sample.guidance is %g, expected 0..100",
                       (double)t->guidance);
    if (t->columns > t->n_labels && t->columns > TASK_LABELS_MAX)
        return err_set(err, -ERR_LIMIT, "task: sample.columns is %u, at most %u are allowed",
                       t->columns, TASK_LABELS_MAX);
    for (size_t i = 0; i < t->n_labels; i++)
        if (t->labels[i] >= n_labels)
            return err_set(err, -ERR_LIMIT, "task: sample.labels[%zu] is %u, but there are %zu %s",
                           i, t->labels[i], n_labels, captions ? "captions" : "classes");
    return 0;
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    return w->task->sample->tokens > 0 ? write_text(e, w, err) : draw_images(e, w, err);
}

const struct kind kind_sample = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE,
    .name = "sample",
    .part = offsetof(Skerry__V1__Task, sample),
    .encoders = true,
    .modules = KIND_MODULES_OR_MIXTURE,
    .labels = true,
    .check = check,
    .run = run,
};
