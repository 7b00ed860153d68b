/* The API's answers: errors by their code; answers that show state once that is on disk. */
#include "coordinator/http/http_api_impl.h"

#include "common/base/base.h"
#include "common/net/token.h"
#include "coordinator/http/http_json.h"
#include "coordinator/view/view.h"

#define KEPT_BYTES_MAX (16u << 20)
#define SHOWN_MAX 64 /* most reads that wait for the disk: there are few connections */

/* ---- answers that wait for the disk -------------------------------------- */

struct pending {
    struct list link; /* in api->pending; in no list once it is answered */
    struct http_api *api;
    struct http_request *req; /* NULL: already answered, and the callback only frees */
    unsigned status;
    const char *type;
    char *text;
    size_t len;
    http_handler again; /* makes the answer anew if the commit has failed; NULL: 503 */
    bool keep;          /* it is the status, which is kept */
    bool shows;         /* it shows state and acknowledges nothing: counted in SHOWN_MAX */
};

/* Gives back its place among SHOWN_MAX. */
static void give_place_back(struct pending *p)
{
    if (p->shows)
        p->api->n_shown--;
    p->shows = false;
}

static void pending_free(struct pending *p)
{
    give_place_back(p);
    list_remove(&p->link);
    mem_free(p->text);
    mem_free(p);
}

static void send_pending(struct pending *p)
{
    http_reply_header(p->req, "Cache-Control", "no-store");
    http_reply_bytes(p->req, p->status, p->type, p->text, p->len);
    if (!p->keep)
        return;
    mem_free(p->api->kept); /* an old one would be shown as the present status */
    p->api->kept = NULL;
    if (p->len > KEPT_BYTES_MAX)
        return;
    p->api->kept = p->text;
    p->text = NULL;
}

static void durable(void *arg, int rc)
{
    struct pending *p = arg;
    give_place_back(p);
    if (p->req != NULL && rc == 0)
        send_pending(p);
    else if (p->req != NULL && rc == -EAGAIN && p->again != NULL)
        p->again(p->api, p->req);
    else if (p->req != NULL && rc == -EAGAIN)
        http_reply_error(p->req, 503, "unavailable",
                         "The coordinator cannot write its state: ask again later.");
    else if (p->req != NULL)
        http_reply_error(p->req, 503, "stopping",
                         "The coordinator stops before this is on the disk: ask again later.");
    pending_free(p);
}

/* Takes text. */
static struct pending *pending_new(struct http_api *api, struct http_request *r, unsigned status,
                                   const char *type, char *text, size_t len)
{
    struct pending *p = mem_alloc(sizeof *p);
    *p = (struct pending){
        .api = api, .req = r, .status = status, .type = type, .text = text, .len = len};
    list_push(&api->pending, &p->link);
    return p;
}

/* NULL: the request is answered. */
static struct pending *pending_json(struct http_api *api, struct http_request *r, unsigned status,
                                    json_t *takes)
{
    char *text = takes ? json_dumps(takes, HTTP_JSON_FLAGS) : NULL;
    json_decref(takes);
    if (text == NULL) {
        http_reply_error(r, 500, "internal", "the answer could not be written as JSON");
        return NULL;
    }
    return pending_new(api, r, status, "application/json", text, strlen(text));
}

void http_answer_when_durable(struct http_api *api, struct http_request *r, unsigned status,
                              json_t *body)
{
    struct pending *p = pending_json(api, r, status, body);
    if (p != NULL)
        view_when_durable(api->o.co, durable, p);
}

/* The status is the same for all, except for this. */
static json_t *with_role(json_t *status, const struct http_request *r)
{
    http_json_put(status, "role",
                  http_json_text(token_role_name((enum token_role)http_request_role(r))));
    return status;
}

/* Answers with the status from before the slow commit, plus the note that the disk is slow. */
static void answer_kept(struct http_api *api, struct http_request *r)
{
    json_t *o = api->kept ? json_loads(api->kept, 0, NULL) : NULL;
    if (o != NULL) {
        http_json_status_slow(api->o.co, o);
        http_reply_json(r, 200, with_role(o, r));
        return;
    }
    http_reply_error(r, 503, "unavailable",
                     "A commit to the coordinator's database has been under way for %" PRIu64
                     " s: the disk of the data dir is slow; ask again when it is done.",
                     view_writing_ms(api->o.co) / 1000);
}

static void refuse_to_wait(struct pending *p)
{
    if (p->keep && p->api->kept != NULL) {
        answer_kept(p->api, p->req);
    } else {
        http_reply_header(p->req, "Retry-After", "1");
        http_reply_error(p->req, 503, "unavailable",
                         "%d requests wait for a commit to the coordinator's database already: "
                         "the disk of the data dir is slow; ask again when it is done.",
                         SHOWN_MAX);
    }
    pending_free(p);
}

/* Answers once the state that it shows is durable. */
static void show(struct pending *p, uint64_t job, http_handler again)
{
    struct http_api *api = p->api;
    p->again = again;
    if (api->n_shown >= SHOWN_MAX && !view_is_shown(api->o.co, job)) {
        refuse_to_wait(p);
    } else if (view_when_shown(api->o.co, job, durable, p)) {
        p->shows = true;
        api->n_shown++;
    } else {
        durable(p, 0);
    }
}

void http_answer_shown(struct http_api *api, struct http_request *r, uint64_t job, json_t *body,
                       http_handler again)
{
    struct pending *p = pending_json(api, r, 200, body);
    if (p != NULL)
        show(p, job, again);
}

void http_answer_text(struct http_api *api, struct http_request *r, uint64_t job, const char *type,
                      struct buf *text, http_handler again)
{
    size_t n;
    char *bytes = (char *)buf_take(text, &n);
    show(pending_new(api, r, 200, type, bytes, n), job, again);
}

void http_answer_status(struct http_api *api, struct http_request *r, http_handler again)
{
    if (view_is_slow(api->o.co)) {
        answer_kept(api, r);
        return;
    }
    struct pending *p = pending_json(api, r, 200, with_role(http_json_status(api->o.co), r));
    if (p == NULL)
        return;
    p->keep = true;
    show(p, 0, again);
}

void http_answer_slow(struct http_api *api)
{
    for (struct list *l = api->pending.next, *next; l != &api->pending; l = next) {
        struct pending *p = list_entry(l, struct pending, link);
        next = l->next;
        if (!p->keep)
            continue;
        answer_kept(api, p->req);
        give_place_back(p);
        p->req = NULL;
        list_remove(&p->link);
    }
}

void http_answer_stop(struct http_api *api)
{
    struct list *l;
    while ((l = list_pop(&api->pending)) != NULL) {
        struct pending *p = list_entry(l, struct pending, link);
        http_reply_error(p->req, 503, "stopping",
                         "The coordinator stops before this is on the disk: ask again later.");
        give_place_back(p);
        p->req = NULL;
    }
}

/* ---- errors -------------------------------------------------------------- */

/* As everywhere, but what is above a limit is too many requests of its kind: a body that is too
 * large has been refused before. */
static unsigned status_of(int code, const char **ret_word)
{
    if (code != -ERR_LIMIT)
        return http_reply_status(code, ret_word);
    *ret_word = "limit";
    return 429;
}

void http_answer_fail(struct http_request *r, const struct err *err)
{
    const char *word;
    const unsigned status = status_of(err->code, &word);
    http_reply_error(r, status, word, "%s", err->msg);
}

void http_answer_refused(struct http_api *api, struct http_request *r, const struct err *err)
{
    const char *word;
    const unsigned status = status_of(err->code, &word);
    if (status == 404 || status == 409 || status == 429) {
        struct pending *p = pending_json(api, r, status,
                                         json_pack("{s:{s:s, s:o}}", "error", "code", word,
                                                   "message", http_json_text(err->msg)));
        if (p != NULL)
            show(p, 0, NULL);
    } else {
        http_answer_fail(r, err);
    }
}

void http_answer_command(struct http_api *api, struct http_request *r, int rc,
                         const struct err *err, json_t *body)
{
    if (rc == 0) {
        http_answer_when_durable(api, r, 200, body);
        return;
    }
    json_decref(body);
    http_answer_refused(api, r, err);
}
