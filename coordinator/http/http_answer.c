/* How the API answers: errors by their code, and changes when they are on the disk. */
#include "coordinator/http/http_api_impl.h"

#include "common/base/base.h"
#include "coordinator/view/view.h"

/* ---- answers that wait for the disk -------------------------------------- */

struct pending {
    struct list link;         /* in api->pending; alone once it was answered */
    struct http_request *req; /* NULL: answered by close, the callback only frees */
    unsigned status;
    json_t *body;
};

static void durable(void *arg, int rc)
{
    struct pending *p = arg;
    list_remove(&p->link);
    if (p->req != NULL && rc == 0)
        http_reply_json(p->req, p->status, json_incref(p->body));
    else if (p->req != NULL)
        http_reply_error(p->req, 503, "stopping",
                         "The coordinator stops before this is on the disk: ask again later.");
    json_decref(p->body);
    mem_free(p);
}

void http_answer_when_durable(struct http_api *api, struct http_request *r, unsigned status,
                              json_t *body)
{
    struct pending *p = mem_alloc(sizeof *p);
    *p = (struct pending){.req = r, .status = status, .body = body};
    list_push(&api->pending, &p->link);
    view_when_durable(api->o.co, durable, p);
}

void http_answer_stop(struct http_api *api)
{
    struct list *l;
    while ((l = list_pop(&api->pending)) != NULL) {
        struct pending *p = list_entry(l, struct pending, link);
        http_reply_error(p->req, 503, "stopping",
                         "The coordinator stops before this is on the disk: ask again later.");
        p->req = NULL;
    }
}

/* ---- errors -------------------------------------------------------------- */

void http_answer_fail(struct http_request *r, const struct err *err)
{
    static const struct {
        int code;
        unsigned status;
        const char *word;
    } map[] = {
        {-ERR_NOTFOUND, 404, "not_found"}, {-ENOENT, 404, "not_found"},
        {-EEXIST, 409, "conflict"},        {-EBUSY, 409, "conflict"},
        {-ERR_STALE, 409, "conflict"},     {-ERR_LIMIT, 429, "limit"},
        {-ENOSPC, 507, "no_space"},        {-EIO, 503, "unavailable"},
        {-EAGAIN, 503, "unavailable"},     {-ERR_CANCELLED, 503, "unavailable"},
        {-EINVAL, 400, "invalid"},         {-ERR_CONFIG, 400, "invalid"},
        {-ERR_FORMAT, 400, "invalid"},     {-ERR_HASH, 422, "hash_mismatch"},
        {-ERANGE, 400, "invalid"},         {-ERR_UNIMPLEMENTED, 400, "invalid"},
        {-ERR_VERSION, 400, "invalid"},    {-ENOMEM, 503, "unavailable"},
    };
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++) {
        if (map[i].code == err->code) {
            http_reply_error(r, map[i].status, map[i].word, "%s", err->msg);
            return;
        }
    }
    http_reply_error(r, 500, "internal", "%s", err->msg);
}
