/* Tokens over HTTP. */
#include "coordinator/http/http_api_impl.h"

#include "common/base/base.h"
#include "common/base/clock.h"
#include "coordinator/http/http_json.h"
#include "coordinator/view/view.h"
#include "coordinator/work/tokens.h"

#define LIFE_MAX_S (100.0 * 366 * 24 * 3600)
#define COUNT_MAX 4294967295.0
#define N(a) (sizeof(a) / sizeof((a)[0]))

static json_t *limit(uint32_t n)
{
    return n ? json_integer(n) : json_null();
}

static void put_bounds(json_t *o, const struct token_rec *t)
{
    http_json_put(o, "uses_max", limit(t->uses_max));
    http_json_put(o, "workers_max", limit(t->workers_max));
    http_json_put(o, "jobs_max", limit(t->jobs_max));
    http_json_put(o, "budget", t->budget > 0 ? http_json_real(t->budget) : json_null());
}

static void add_token(void *arg, const struct view_token *v)
{
    const struct token_rec *t = v->token;
    json_t *o = json_object();
    http_json_put(o, "id", http_json_id(t->id));
    http_json_put(o, "name", http_json_text(t->name));
    http_json_put(o, "role", http_json_text(token_role_name(t->role)));
    http_json_put(o, "state", http_json_text(v->state));
    http_json_put(o, "made_at", http_json_at(t->made_unix_ms));
    http_json_put(o, "left_ms", v->left_ms < 0 ? json_null() : json_integer(v->left_ms));
    http_json_put(o, "uses", json_integer(t->uses));
    http_json_put(o, "workers_here", json_integer(v->workers_here));
    http_json_put(o, "cost", http_json_real(v->cost));
    put_bounds(o, t);
    http_json_push(arg, o);
}

void http_get_tokens(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    json_t *list = json_array();
    view_each_token(api->o.co, add_token, list);
    http_answer_shown(api, r, 0, http_json_items(list), http_get_tokens);
}

static int take_order(const json_t *body, struct token_order *o, struct err *err)
{
    const char *role = json_string_value(json_object_get(body, "role"));
    o->name = json_string_value(json_object_get(body, "name"));
    o->role = token_role_parse(role);
    o->life_ms = 1000 * (uint64_t)json_integer_value(json_object_get(body, "life_s"));
    o->uses_max = (uint32_t)json_integer_value(json_object_get(body, "uses"));
    o->workers_max = (uint32_t)json_integer_value(json_object_get(body, "workers"));
    o->jobs_max = (uint32_t)json_integer_value(json_object_get(body, "jobs"));
    o->budget = json_number_value(json_object_get(body, "budget"));
    if (o->role == TOKEN_ROLE_NONE)
        return err_set(err, -EINVAL, "role is '%.20s', expected worker, operator or viewer", role);
    if (o->role != TOKEN_ROLE_WORKER && (o->uses_max || o->workers_max))
        return err_set(err, -EINVAL, "uses and workers limit a worker's token, not %s %s's",
                       o->role == TOKEN_ROLE_OPERATOR ? "an" : "a", role);
    if (o->role != TOKEN_ROLE_OPERATOR && (o->jobs_max || o->budget > 0))
        return err_set(err, -EINVAL, "jobs and budget limit an operator's token, not a %s's", role);
    if (o->name != NULL && !str_is_name(o->name, NAME_MAX_BYTES - 1))
        return err_set(err, -EINVAL,
                       "name is '%.80s', expected up to %d letters, digits, '.', '_' or '-'",
                       o->name, NAME_MAX_BYTES - 1);
    return 0;
}

void http_post_token(void *arg, struct http_request *r)
{
    static const struct http_field fields[] = {
        {"role", HTTP_STRING, .required = true, .min = 1, .max = 16},
        {"name", HTTP_STRING, .min = 1, .max = NAME_MAX_BYTES - 1},
        {"life_s", HTTP_INT, .min = 1, .max = LIFE_MAX_S},
        {"uses", HTTP_INT, .min = 1, .max = COUNT_MAX},
        {"workers", HTTP_INT, .min = 1, .max = COUNT_MAX},
        {"jobs", HTTP_INT, .min = 1, .max = COUNT_MAX},
        {"budget", HTTP_REAL, .min = 0.01, .max = JOB_BUDGET_MAX},
    };
    struct http_api *api = arg;
    struct err err = {0};
    struct token_order order;
    char text[TOKEN_STRING_MAX];
    uint64_t id;
    json_t *body = http_take_body(r, fields, N(fields));
    if (body == NULL)
        return;
    if (take_order(body, &order, &err) < 0 || tokens_make(api->o.co, &order, &id, text, &err) < 0) {
        http_answer_refused(api, r, &err);
    } else {
        json_t *o = http_json_with_id(id, "token", http_json_text(text));
        http_reply_header(r, "Cache-Control", "no-store");
        http_answer_when_durable(api, r, 201, o);
    }
    json_decref(body);
}

void http_post_token_adjust(void *arg, struct http_request *r)
{
    static const struct http_field fields[] = {
        {"uses", HTTP_INT, .min = 0, .max = COUNT_MAX},
        {"workers", HTTP_INT, .min = 0, .max = COUNT_MAX},
        {"jobs", HTTP_INT, .min = 0, .max = COUNT_MAX},
        {"budget", HTTP_REAL, .min = 0, .max = JOB_BUDGET_MAX},
        {"life_s", HTTP_INT, .min = 0, .max = LIFE_MAX_S},
    };
    struct http_api *api = arg;
    struct err err = {0};
    const struct token_rec *t;
    uint64_t id;
    json_t *body = http_take_id_and_body(r, &id, fields, N(fields));
    if (body == NULL)
        return;
    const struct token_bounds bounds = {
        .uses = http_real_or(body, "uses", NAN),
        .workers = http_real_or(body, "workers", NAN),
        .jobs = http_real_or(body, "jobs", NAN),
        .budget = http_real_or(body, "budget", NAN),
        .life_s = http_real_or(body, "life_s", NAN),
    };
    json_decref(body);
    if (tokens_adjust(api->o.co, id, http_request_holder(r), &bounds, &t, &err) < 0) {
        http_answer_refused(api, r, &err);
        return;
    }
    json_t *o = http_json_with_id(id, NULL, NULL);
    put_bounds(o, t);
    const int64_t left_ms = t->ends_unix_ms - (int64_t)clock_wall_ms();
    http_json_put(o, "left_ms",
                  t->ends_unix_ms ? json_integer(left_ms > 0 ? left_ms : 0) : json_null());
    http_answer_when_durable(api, r, 200, o);
}

void http_post_token_revoke(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    uint64_t id;
    if (!http_take_id(r, &id))
        return;
    int rc = tokens_revoke(api->o.co, id, http_request_holder(r), &err);
    http_answer_command(api, r, rc, &err, http_json_with_id(id, NULL, NULL));
}

void http_post_worker_revoke(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    struct err err = {0};
    uint64_t id;
    if (!http_take_id(r, &id))
        return;
    int rc = view_worker_revoke(api->o.co, id, &err);
    http_answer_command(api, r, rc, &err, http_json_with_id(id, NULL, NULL));
}
