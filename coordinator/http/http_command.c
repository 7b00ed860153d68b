/* The POST side of the API: bodies are checked key by key, then handed to the
 * commands of coordinator/view/view.h, and answered when the change is durable. */
#include "coordinator/http/http_api_impl.h"

#include "common/base/base.h"
#include "common/base/hash.h"
#include "common/job/job.h"
#include "common/net/http/blob_http.h"
#include "common/net/blobstore.h"
#include "coordinator/http/http_json.h"
#include "coordinator/view/view.h"

#define CLASSES_MAX 4096
#define BAD_MAX 1024
#define UPLOAD_MAX_BYTES 1099511627776.0 /* 1 TiB */
#define N(a) (sizeof(a) / sizeof((a)[0]))

json_t *http_take_body(struct http_request *r, const struct http_field *fields, size_t n)
{
    size_t len;
    struct err err = {0};
    json_t *body = NULL;
    (void)http_request_body(r, &len);
    if (len == 0)
        body = json_object();
    else if (http_request_json(r, &body) < 0)
        return NULL;
    if (http_body_check(body, "the body", fields, n, &err) == 0)
        return body;
    json_decref(body);
    http_answer_fail(r, &err);
    return NULL;
}

/* ---- submit -------------------------------------------------------------- */

/* Arrays that a struct submit borrows; they borrow the body's texts. */
struct dataset {
    const char **classes;
    uint64_t *counts;
    struct submit_shard *shards;
    struct bad_sample *bad;
    struct blob_ref tokenizer, warm_start;
    struct encoder_file *encoders;
    struct network_input input;
};

static void dataset_release(struct dataset *d)
{
    mem_free(d->classes);
    mem_free(d->counts);
    mem_free(d->shards);
    mem_free(d->bad);
    mem_free(d->encoders);
}

static int take_classes(const json_t *dataset, struct dataset *d, struct submit *s, struct err *err)
{
    static const struct http_field name = {"name", HTTP_STRING, .min = 1, .max = 256};
    static const struct http_field count = {"count", HTTP_INT, .min = 0, .max = 4294967295.0};
    const json_t *classes = json_object_get(dataset, "classes");
    const json_t *counts = json_object_get(dataset, "counts");
    size_t n = json_array_size(classes);
    if (json_array_size(counts) != n)
        return err_set(err, -EINVAL, "\"counts\" of the dataset has %zu items, \"classes\" has %zu",
                       json_array_size(counts), n);
    d->classes = mem_try_array(n, sizeof d->classes[0]);
    d->counts = mem_try_array(n, sizeof d->counts[0]);
    if (d->classes == NULL || d->counts == NULL)
        return err_set(err, -ENOMEM, "out of memory for %zu classes", n);
    for (size_t i = 0; i < n; i++) {
        char where[32];
        (void)snprintf(where, sizeof where, "classes[%zu]", i);
        if (http_body_check_value(json_array_get(classes, i), where, &name, err) < 0)
            return err->code;
        (void)snprintf(where, sizeof where, "counts[%zu]", i);
        if (http_body_check_value(json_array_get(counts, i), where, &count, err) < 0)
            return err->code;
        d->classes[i] = json_string_value(json_array_get(classes, i));
        d->counts[i] = (uint64_t)json_integer_value(json_array_get(counts, i));
    }
    s->classes = d->classes;
    s->counts = d->counts;
    s->n_classes = n;
    return 0;
}

static int take_shards(const json_t *list, struct dataset *d, struct submit *s, struct err *err)
{
    static const struct http_field fields[] = {
        {"sha256", HTTP_SHA256, .required = true},
        {"size", HTTP_INT, .required = true, .min = 1, .max = UPLOAD_MAX_BYTES},
        {"samples", HTTP_INT, .required = true, .min = 1, .max = 65536},
        {"tokens", HTTP_INT, .min = 0, .max = 68719476736.0},
        {"holdout", HTTP_BOOL, .required = true},
    };
    size_t n = json_array_size(list);
    d->shards = mem_try_array(n, sizeof d->shards[0]);
    if (d->shards == NULL)
        return err_set(err, -ENOMEM, "out of memory for %zu shards", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        struct submit_shard *shard = &d->shards[i];
        char where[32];
        (void)snprintf(where, sizeof where, "shards[%zu]", i);
        if (http_body_check(item, where, fields, N(fields), err) < 0)
            return err->code;
        (void)hash_unhex(json_string_value(json_object_get(item, "sha256")), shard->sha256,
                         HASH_BYTES); /* checked just now */
        shard->size = (uint64_t)json_integer_value(json_object_get(item, "size"));
        shard->samples = (uint32_t)json_integer_value(json_object_get(item, "samples"));
        shard->tokens = (uint64_t)json_integer_value(json_object_get(item, "tokens"));
        shard->holdout = json_is_true(json_object_get(item, "holdout"));
    }
    s->shards = d->shards;
    s->n_shards = n;
    return 0;
}

static int take_bad(const json_t *list, struct dataset *d, struct submit *s, struct err *err)
{
    static const struct http_field fields[] = {
        {"key", HTTP_STRING, .required = true, .min = 0, .max = 4096},
        {"reason", HTTP_STRING, .required = true, .min = 0, .max = 1024},
    };
    size_t n = json_array_size(list);
    if (n == 0)
        return 0;
    d->bad = mem_try_array(n, sizeof d->bad[0]);
    if (d->bad == NULL)
        return err_set(err, -ENOMEM, "out of memory for %zu bad samples", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        char where[32];
        (void)snprintf(where, sizeof where, "bad[%zu]", i);
        if (http_body_check(item, where, fields, N(fields), err) < 0)
            return err->code;
        d->bad[i].shard = "";
        d->bad[i].key = json_string_value(json_object_get(item, "key"));
        d->bad[i].reason = json_string_value(json_object_get(item, "reason"));
    }
    s->bad = d->bad;
    s->n_bad = n;
    return 0;
}

static int take_dataset(const json_t *dataset, struct dataset *d, struct submit *s, struct err *err)
{
    static const struct http_field fields[] = {
        {"classes", HTTP_ARRAY, .required = true, .min = 0, .max = CLASSES_MAX},
        {"counts", HTTP_ARRAY, .required = true, .min = 0, .max = CLASSES_MAX},
        {"shards", HTTP_ARRAY, .required = true, .min = 1, .max = SUBMIT_SHARDS_MAX},
        {"bad", HTTP_ARRAY, .min = 0, .max = BAD_MAX},
    };
    if (dataset == NULL)
        return 0;
    if (http_body_check(dataset, "the dataset", fields, N(fields), err) < 0 ||
        take_classes(dataset, d, s, err) < 0 ||
        take_shards(json_object_get(dataset, "shards"), d, s, err) < 0 ||
        take_bad(json_object_get(dataset, "bad"), d, s, err) < 0)
        return err->code;
    return 0;
}

/* A file that was uploaded for the job; absent: *ret stays NULL. */
static int take_file(const json_t *body, const char *name, struct blob_ref *room,
                     const struct blob_ref **ret, struct err *err)
{
    static const struct http_field fields[] = {
        {"sha256", HTTP_SHA256, .required = true},
        {"size", HTTP_INT, .required = true, .min = 1, .max = UPLOAD_MAX_BYTES},
    };
    const json_t *file = json_object_get(body, name);
    if (file == NULL)
        return 0;
    if (http_body_check(file, name, fields, N(fields), err) < 0)
        return err->code;
    (void)hash_unhex(json_string_value(json_object_get(file, "sha256")), room->sha256,
                     HASH_BYTES); /* checked just now */
    room->size = (uint64_t)json_integer_value(json_object_get(file, "size"));
    *ret = room;
    return 0;
}

/* The files of the frozen networks. */
static int take_encoders(const json_t *list, struct dataset *d, struct submit *s, struct err *err)
{
    static const struct http_field fields[] = {
        {"part", HTTP_INT, .required = true, .min = 0, .max = 4},
        {"name", HTTP_STRING, .required = true, .min = 1, .max = ENCODER_NAME_MAX - 1},
        {"sha256", HTTP_SHA256, .required = true},
        {"size", HTTP_INT, .required = true, .min = 1, .max = UPLOAD_MAX_BYTES},
    };
    size_t n = json_array_size(list);
    if (n == 0)
        return 0;
    d->encoders = mem_try_array(n, sizeof d->encoders[0]);
    if (d->encoders == NULL)
        return err_set(err, -ENOMEM, "out of memory for %zu files", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        struct encoder_file *f = &d->encoders[i];
        char where[32];
        (void)snprintf(where, sizeof where, "encoders[%zu]", i);
        if (http_body_check(item, where, fields, N(fields), err) < 0)
            return err->code;
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!str_is_name(name, ENCODER_NAME_MAX - 1))
            return err_set(err, -EINVAL, "%s.name is '%.80s', expected the name of a file", where,
                           name);
        *f = (struct encoder_file){
            .part = (uint32_t)json_integer_value(json_object_get(item, "part")),
            .blob.size = (uint64_t)json_integer_value(json_object_get(item, "size"))};
        (void)str_copy(f->name, sizeof f->name, name);
        (void)hash_unhex(json_string_value(json_object_get(item, "sha256")), f->blob.sha256,
                         HASH_BYTES); /* checked just now */
    }
    s->encoders = d->encoders;
    s->n_encoders = n;
    return 0;
}

static int take_input(const json_t *input, struct dataset *d, struct submit *s, struct err *err)
{
    static const struct http_field fields[] = {
        {"channels", HTTP_INT, .min = 0, .max = 1024},
        {"side", HTTP_INT, .min = 0, .max = 4096},
        {"caption", HTTP_INT, .min = 0, .max = 65536},
        {"caption_tokens", HTTP_INT, .min = 0, .max = 4096},
    };
    uint32_t *const values[] = {&d->input.channels, &d->input.side, &d->input.caption,
                                &d->input.caption_tokens};
    if (input == NULL)
        return 0;
    if (http_body_check(input, "input", fields, N(fields), err) < 0)
        return err->code;
    for (size_t i = 0; i < N(fields); i++)
        *values[i] = (uint32_t)json_integer_value(json_object_get(input, fields[i].name));
    s->input = &d->input;
    return 0;
}

void http_post_job(void *arg, struct http_request *r)
{
    static const struct http_field fields[] = {
        {"spec", HTTP_STRING, .required = true, .min = 1, .max = JOB_SPEC_MAX},
        {"dataset", HTTP_OBJECT},
        {"vocab", HTTP_INT, .min = 0, .max = 4294967295.0},
        {"tokenizer", HTTP_OBJECT},
        {"warm_start", HTTP_OBJECT},
        {"encoders", HTTP_ARRAY, .min = 0, .max = ENCODER_FILES_MAX},
        {"input", HTTP_OBJECT},
    };
    struct http_api *api = arg;
    struct err err = {0};
    json_t *body = http_take_body(r, fields, N(fields));
    if (body == NULL)
        return;
    struct dataset d = {0};
    struct submit submit = {
        .spec = json_string_value(json_object_get(body, "spec")),
        .vocab = (uint32_t)json_integer_value(json_object_get(body, "vocab")),
        .holder = http_request_holder(r),
    };
    uint64_t id;
    if (take_file(body, "tokenizer", &d.tokenizer, &submit.tokenizer, &err) < 0 ||
        take_file(body, "warm_start", &d.warm_start, &submit.warm_start, &err) < 0 ||
        take_encoders(json_object_get(body, "encoders"), &d, &submit, &err) < 0 ||
        take_input(json_object_get(body, "input"), &d, &submit, &err) < 0 ||
        take_dataset(json_object_get(body, "dataset"), &d, &submit, &err) < 0 ||
        view_job_submit(api->o.co, &submit, &id, &err) < 0) {
        http_answer_refused(api, r, &err);
    } else {
        char location[40];
        (void)snprintf(location, sizeof location, "/v1/jobs/%" PRIu64, id);
        http_reply_header(r, "Location", location);
        http_answer_when_durable(api, r, 201, http_json_with_id(id, NULL, NULL));
    }
    dataset_release(&d);
    json_decref(body);
}

/* ---- smaller commands ---------------------------------------------------- */

double http_real_or(const json_t *body, const char *name, double other)
{
    const json_t *v = json_object_get(body, name);
    return v != NULL ? json_number_value(v) : other;
}

json_t *http_json_with_id(uint64_t id, const char *key, json_t *value)
{
    json_t *o = json_object();
    http_json_put(o, "id", http_json_id(id));
    if (key != NULL)
        http_json_put(o, key, value);
    return o;
}

/* {"id", "state"} with the state after the command. */
static json_t *id_state(uint64_t id, const char *state)
{
    return http_json_with_id(id, "state", http_json_word(state));
}

json_t *http_take_id_and_body(struct http_request *r, uint64_t *ret_id,
                              const struct http_field *fields, size_t n)
{
    return http_request_param_u64(r, "id", ret_id) < 0 ? NULL : http_take_body(r, fields, n);
}

bool http_take_id(struct http_request *r, uint64_t *ret)
{
    json_t *body = http_take_id_and_body(r, ret, NULL, 0);
    json_decref(body);
    return body != NULL;
}

void http_post_cancel(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    struct view_job j;
    uint64_t id;
    if (!http_take_id(r, &id))
        return;
    if (view_job_cancel(api->o.co, id, &err) < 0 || view_job(api->o.co, id, &j, &err) < 0)
        http_answer_refused(api, r, &err);
    else
        http_answer_when_durable(api, r, 200, id_state(id, j.state));
}

void http_post_remove(void *arg, struct http_request *r)
{
    static const struct http_field fields[] = {{"dry_run", HTTP_BOOL}};
    struct http_api *api = arg;
    struct err err = {0};
    struct view_removal was;
    uint64_t id;
    json_t *body = http_take_id_and_body(r, &id, fields, N(fields));
    if (body == NULL)
        return;
    const bool dry_run = json_is_true(json_object_get(body, "dry_run"));
    json_decref(body);
    if (view_job_remove(api->o.co, id, http_request_holder(r), dry_run, &was, &err) < 0) {
        http_answer_refused(api, r, &err);
        return;
    }
    json_t *o = id_state(id, was.state);
    http_json_put(o, "name", http_json_text(was.name));
    http_json_put(o, "reason", http_json_text(was.reason));
    http_json_put(o, "bytes", json_integer((json_int_t)was.bytes));
    http_json_put(o, "removed", json_boolean(!dry_run));
    http_answer_when_durable(api, r, 200, o);
}

static void set_paused(struct http_api *api, struct http_request *r, bool paused)
{
    struct err err = {0};
    uint64_t id;
    if (!http_take_id(r, &id))
        return;
    const int rc = view_job_pause(api->o.co, id, paused, &err);
    http_answer_command(api, r, rc, &err, http_json_with_id(id, "paused", json_boolean(paused)));
}

void http_post_pause(void *arg, struct http_request *r)
{
    set_paused(arg, r, true);
}

void http_post_resume(void *arg, struct http_request *r)
{
    set_paused(arg, r, false);
}

void http_post_rollback(void *arg, struct http_request *r)
{
    static const struct http_field fields[] = {
        {"to", HTTP_INT, .min = 0, .max = 1000000, .required = true},
        {"path", HTTP_INT, .min = 0, .max = UINT32_MAX - 1},
    };
    struct http_api *api = arg;
    struct err err = {0};
    uint64_t id;
    json_t *body = http_take_id_and_body(r, &id, fields, N(fields));
    if (body == NULL)
        return;
    const uint64_t to = (uint64_t)json_integer_value(json_object_get(body, "to"));
    const json_t *one = json_object_get(body, "path");
    const uint32_t path = one != NULL ? (uint32_t)json_integer_value(one) : UINT32_MAX;
    json_decref(body);
    const int rc = view_job_rollback(api->o.co, id, path, to, &err);
    http_answer_command(api, r, rc, &err,
                        http_json_with_id(id, "to", json_integer((json_int_t)to)));
}

void http_post_adjust(void *arg, struct http_request *r)
{
    static const struct http_field fields[] = {
        {"priority", HTTP_INT, .min = JOB_PRIORITY_MIN, .max = JOB_PRIORITY_MAX},
        {"share", HTTP_REAL, .min = JOB_SHARE_MIN, .max = JOB_SHARE_MAX},
        {"budget", HTTP_REAL, .min = 0, .max = JOB_BUDGET_MAX},
    };
    struct http_api *api = arg;
    struct err err = {0};
    struct job_swarm now = {0};
    uint64_t id;
    json_t *body = http_take_id_and_body(r, &id, fields, N(fields));
    if (body == NULL)
        return;
    const struct view_adjust a = {http_real_or(body, "priority", NAN),
                                  http_real_or(body, "share", NAN),
                                  http_real_or(body, "budget", NAN)};
    json_decref(body);
    const int rc = view_job_adjust(api->o.co, id, &a, &now, &err);
    http_answer_command(api, r, rc, &err, http_json_quota(&now));
}

void http_post_task_cancel(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    uint64_t id;
    if (!http_take_id(r, &id))
        return;
    const int rc = view_task_cancel(api->o.co, id, &err);
    http_answer_command(api, r, rc, &err, id_state(id, "cancelled"));
}

void http_post_drain(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    struct view_worker w;
    uint64_t id;
    if (!http_take_id(r, &id))
        return;
    if (view_worker_drain(api->o.co, id, &err) < 0 || view_worker(api->o.co, id, &w, &err) < 0)
        http_answer_refused(api, r, &err);
    else
        http_answer_when_durable(api, r, 200, id_state(id, w.state));
}

static int take_labels(const json_t *list, uint32_t *out, struct draw_request *s, struct err *err)
{
    static const struct http_field label = {"label", HTTP_INT, .min = 0, .max = CLASSES_MAX - 1};
    s->n_labels = json_array_size(list);
    for (size_t i = 0; i < s->n_labels; i++) {
        char where[32];
        (void)snprintf(where, sizeof where, "labels[%zu]", i);
        if (http_body_check_value(json_array_get(list, i), where, &label, err) < 0)
            return err->code;
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
    s->labels = out;
    return 0;
}

static int take_sampler(const json_t *body, struct draw_request *s, struct err *err)
{
    s->sampler = json_string_value(json_object_get(body, "sampler"));
    if (s->sampler == NULL || strcmp(s->sampler, "euler") == 0 || strcmp(s->sampler, "heun") == 0)
        return 0;
    return err_set(err, -EINVAL,
                   "\"sampler\" of the body must be \"euler\" or \"heun\", not \"%s\"", s->sampler);
}

static void take_mixture(const json_t *body, struct draw_request *s)
{
    const json_t *path = json_object_get(body, "path");
    s->strategy = json_string_value(json_object_get(body, "strategy"));
    s->top = (uint32_t)json_integer_value(json_object_get(body, "top"));
    s->nucleus = http_real_or(body, "nucleus", 0);
    s->threshold = http_real_or(body, "threshold", 0);
    s->remote = json_is_true(json_object_get(body, "remote"));
    s->has_path = path != NULL;
    s->path = (uint32_t)json_integer_value(path);
}

static void take_text(const json_t *body, struct draw_request *s)
{
    s->prompt = json_string_value(json_object_get(body, "prompt"));
    s->tokens = (uint32_t)json_integer_value(json_object_get(body, "tokens"));
    s->temperature = http_real_or(body, "temperature", (double)NAN);
    s->top_p = http_real_or(body, "top_p", 0);
}

void http_post_sample(void *arg, struct http_request *r)
{
    static const struct http_field fields[] = {
        {"count", HTTP_INT, .min = 1, .max = VIEW_LABELS_MAX},
        {"labels", HTTP_ARRAY, .min = 1, .max = VIEW_LABELS_MAX},
        {"steps", HTTP_INT, .min = 1, .max = 1000},
        {"guidance", HTTP_REAL, .min = 0, .max = 100},
        {"seed", HTTP_INT, .min = 0, .max = 9223372036854775807.0},
        {"sampler", HTTP_STRING, .min = 1, .max = 16},
        {"columns", HTTP_INT, .min = 1, .max = VIEW_LABELS_MAX},
        {"ema", HTTP_BOOL},
        {"strategy", HTTP_STRING, .min = 1, .max = 16},
        {"top", HTTP_INT, .min = 1, .max = 256},
        {"nucleus", HTTP_REAL, .min = 0.01, .max = 1},
        {"threshold", HTTP_REAL, .min = 0, .max = 1},
        {"remote", HTTP_BOOL},
        {"path", HTTP_INT, .min = 0, .max = 1023},
        {"prompt", HTTP_STRING, .min = 0, .max = 8192},
        {"tokens", HTTP_INT, .min = 1, .max = VIEW_TOKENS_MAX},
        {"temperature", HTTP_REAL, .min = 0, .max = VIEW_TEMPERATURE_MAX},
        {"top_p", HTTP_REAL, .min = 0.01, .max = 1},
    };
    struct http_api *api = arg;
    struct err err = {0};
    uint64_t id, task;
    json_t *b = http_take_id_and_body(r, &id, fields, N(fields));
    if (b == NULL)
        return;
    const json_t *seed = json_object_get(b, "seed"), *ema = json_object_get(b, "ema");
    const json_t *guidance = json_object_get(b, "guidance");
    struct draw_request s = {
        .count = (uint32_t)json_integer_value(json_object_get(b, "count")),
        .steps = (uint32_t)json_integer_value(json_object_get(b, "steps")),
        .columns = (uint32_t)json_integer_value(json_object_get(b, "columns")),
        .guidance = guidance ? json_number_value(guidance) : (double)NAN,
        .has_seed = seed != NULL,
        .seed = (uint64_t)json_integer_value(seed),
        .ema = ema ? json_is_true(ema) : -1,
    };
    take_mixture(b, &s);
    take_text(b, &s);
    uint32_t labels[VIEW_LABELS_MAX];
    if (take_sampler(b, &s, &err) < 0 ||
        take_labels(json_object_get(b, "labels"), labels, &s, &err) < 0 ||
        view_sample_request(api->o.co, id, &s, &task, &err) < 0) {
        http_answer_refused(api, r, &err);
    } else {
        json_t *o = json_object();
        http_json_put(o, "task", http_json_id(task));
        http_answer_when_durable(api, r, 202, o);
    }
    json_decref(b);
}

void http_post_upload(void *arg, struct http_request *r)
{
    static const struct http_field fields[] = {
        {"sha256", HTTP_SHA256, .required = true},
        {"size", HTTP_INT, .required = true, .min = 1, .max = UPLOAD_MAX_BYTES},
    };
    struct http_api *api = arg;
    struct err err = {0};
    json_t *body = http_take_body(r, fields, N(fields));
    if (body == NULL)
        return;
    struct blob_id id;
    uint64_t size = (uint64_t)json_integer_value(json_object_get(body, "size")), stored;
    (void)blob_id_parse(json_string_value(json_object_get(body, "sha256")), &id); /* checked */
    json_decref(body);
    bool have = blobstore_has(api->o.store, &id, &stored);
    if (have && stored != size) {
        http_reply_error(r, 409, "conflict",
                         "The blob of that hash is %" PRIu64 " bytes long, not %" PRIu64 ".",
                         stored, size);
        return;
    }
    /* Also when it is here: it must stay until the job names it. */
    if (view_upload_expect(api->o.co, id.sha256, size, &err) < 0) {
        http_answer_refused(api, r, &err);
        return;
    }
    char url[TICKET_PATH_MAX] = "";
    if (!have)
        blob_http_ticket(api->o.blobs, TICKET_PUT, &id, size, http_request_holder(r), url);
    json_t *o = json_object();
    http_json_put(o, "have", json_boolean(have));
    http_json_put(o, "url", http_json_text(url));
    http_reply_json(r, 200, o);
}
