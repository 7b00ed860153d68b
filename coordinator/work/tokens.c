#include "coordinator/work/tokens.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/net/http/http_server.h"
#include "coordinator/work/cost.h"
#include "coordinator/work/member.h"

static int64_t now_unix_ms(void)
{
    return (int64_t)clock_wall_ms();
}

static void name_by_number(const struct coordinator *co, struct token_rec *t)
{
    char name[sizeof(t->name)];
    unsigned long long n = t->id;
    do {
        (void)snprintf(name, sizeof(name), "%s-%llu", token_role_name(t->role), n++);
    } while (access_by_name(&co->state, name) != NULL);
    (void)str_copy(t->name, sizeof(t->name), name);
}

/* ---- the first two ------------------------------------------------------- */

/* Its file is gone, and another token has its name.  An operator's token is no longer valid;
 * workers that joined with a worker token go on. */
static void let_go(const struct coordinator *co, struct token_rec *t)
{
    if (t->role == TOKEN_ROLE_WORKER)
        name_by_number(co, t);
    else
        t->revoked_unix_ms = now_unix_ms();
}

static uint64_t of_file(struct coordinator *co, const struct token *file, const char *name)
{
    const struct token_rec *have = access_by_secret(&co->state, file->role, file->secret);
    if (have != NULL)
        return have->id;
    const struct token_rec *lost = access_by_name(&co->state, name);
    if (lost != NULL)
        let_go(co, access_edit(&co->state, lost->id));
    struct token_rec *t = access_add(&co->state, 0, file->role, file->secret);
    if (t == NULL)
        return 0; /* live tokens take all places, and stay valid */
    (void)str_copy(t->name, sizeof(t->name), name);
    t->made_unix_ms = now_unix_ms();
    return t->id;
}

void tokens_of_files(struct coordinator *co)
{
    const uint64_t worker = of_file(co, &co->worker_token, "worker.token");
    (void)of_file(co, &co->user_token, "user.token");
    for (size_t i = 0; i < co->state.n_tokens; i++) /* these revocations are not news */
        co->state.tokens[i].told = !access_is_live(&co->state.tokens[i], now_unix_ms());
    for (size_t i = 0; i < co->state.n_workers; i++)
        if (co->state.workers[i]->token_id == 0)
            state_edit_worker(&co->state, co->state.workers[i])->token_id = worker;
}

/* ---- making -------------------------------------------------------------- */

int tokens_make(struct coordinator *co, const struct token_order *o, uint64_t *ret_id,
                char ret_text[TOKEN_STRING_MAX], struct err *err)
{
    struct token text = co->user_token; /* our address and key */
    int rc = core_writable(co, err);
    if (rc < 0)
        return rc;
    if (o->name != NULL && access_by_name(&co->state, o->name) != NULL)
        return err_set(err, -EEXIST,
                       "there is already a token '%s': revoke it, or take another name", o->name);
    text.role = o->role;
    hash_random(text.secret, sizeof(text.secret));
    if ((rc = token_format(&text, ret_text, err)) < 0)
        return rc;
    struct token_rec *t = access_add(&co->state, 0, o->role, text.secret);
    if (t == NULL)
        return err_set(err, -ERR_LIMIT, "%d tokens are in use, no more are possible: revoke some",
                       TOKENS_MAX);
    if (o->name != NULL)
        (void)str_copy(t->name, sizeof(t->name), o->name);
    else
        name_by_number(co, t);
    t->made_unix_ms = now_unix_ms();
    t->ends_unix_ms = o->life_ms ? t->made_unix_ms + (int64_t)o->life_ms : 0;
    t->uses_max = o->uses_max;
    t->workers_max = o->workers_max;
    t->jobs_max = o->jobs_max;
    t->budget = o->budget;
    *ret_id = t->id;
    core_say(co, 0, 0, "the %s token '%s' was made", token_role_name(t->role), t->name);
    core_touch(co);
    return 0;
}

/* ---- bounds --- */

/* A token of somebody else's, to be changed; for the asker's own: why it cannot be. */
static int others_token(struct coordinator *co, uint64_t id, uint64_t asker, const char *own,
                        struct token_rec **ret, struct err *err)
{
    const int rc = core_writable(co, err);
    if (rc < 0)
        return rc;
    if ((*ret = access_edit(&co->state, id)) == NULL)
        return err_set(err, -ERR_NOTFOUND, "token %llu does not exist", (unsigned long long)id);
    if (access_holder_token(id) == asker)
        return err_set(err, -EBUSY, "this is your own token: %s", own);
    return 0;
}

static void set_count(double n, uint32_t *max)
{
    if (!isnan(n))
        *max = (uint32_t)n;
}

int tokens_adjust(struct coordinator *co, uint64_t id, uint64_t asker, const struct token_bounds *b,
                  const struct token_rec **ret, struct err *err)
{
    struct token_rec *t;
    const int rc =
        others_token(co, id, asker, "only another operator can change its bounds", &t, err);
    if (rc < 0)
        return rc;
    if (t->role != TOKEN_ROLE_WORKER && !(isnan(b->uses) && isnan(b->workers)))
        return err_set(err, -EINVAL, "uses and workers bound a worker's token, and '%s' is %s's",
                       t->name, t->role == TOKEN_ROLE_OPERATOR ? "an operator" : "a viewer");
    if (t->role != TOKEN_ROLE_OPERATOR && !(isnan(b->jobs) && isnan(b->budget)))
        return err_set(err, -EINVAL,
                       "jobs and budget bound an operator's token, and '%s' is a %s's", t->name,
                       token_role_name(t->role));
    if (t->revoked_unix_ms != 0 && !isnan(b->life_s))
        return err_set(err, -ERR_STALE,
                       "the token '%s' was revoked, which no other end undoes: make a new one",
                       t->name);
    for (size_t i = 0; i < co->state.n_jobs; i++) /* as long as a budget is spent */
        if (co->state.jobs[i]->token_id == id && !job_is_ended(co->state.jobs[i]))
            cost_settle(co, co->state.jobs[i]);
    set_count(b->uses, &t->uses_max);
    set_count(b->workers, &t->workers_max);
    set_count(b->jobs, &t->jobs_max);
    if (!isnan(b->budget))
        t->budget = b->budget;
    if (!isnan(b->life_s))
        t->ends_unix_ms = b->life_s > 0 ? now_unix_ms() + (int64_t)(b->life_s * 1000) : 0;
    t->told &= !access_is_live(t, now_unix_ms());
    core_say(co, 0, 0, "the %s token '%s' has other bounds", token_role_name(t->role), t->name);
    core_touch(co);
    *ret = t;
    return 0;
}

/* ---- ending -------------------------------------------------------------- */

/* Removes the file of an invalid secret, which would only mislead. */
static void remove_file(const struct coordinator *co, const char *name)
{
    char *path = file_join(co->opt.data_dir, name);
    (void)file_remove(path, NULL); /* it may be gone already */
    mem_free(path);
}

static bool is_of_file(const struct coordinator *co, const struct token *file, uint64_t id)
{
    const struct token_rec *t = access_by_secret(&co->state, file->role, file->secret);
    return t != NULL && t->id == id;
}

int tokens_revoke(struct coordinator *co, uint64_t id, uint64_t asker, struct err *err)
{
    char why[REASON_MAX];
    struct token_rec *t;
    const int rc = others_token(
        co, id, asker, "revoke it with another operator's, so that nobody is locked out", &t, err);
    if (rc < 0)
        return rc;
    if (t->revoked_unix_ms != 0)
        return err_set(err, -ERR_STALE, "token %llu (%s) was revoked already",
                       (unsigned long long)id, t->name);
    t->revoked_unix_ms = now_unix_ms();
    t->told = true;
    (void)snprintf(why, sizeof(why), "its token '%s' was revoked", t->name);
    core_say(co, 0, 0, "the %s token '%s' was revoked", token_role_name(t->role), t->name);
    for (size_t i = 0; t->role == TOKEN_ROLE_WORKER && i < co->state.n_workers; i++)
        if (co->state.workers[i]->token_id == id)
            member_revoke(co, state_edit_worker(&co->state, co->state.workers[i]), why);
    http_server_cut(co->http, access_holder_token(id));
    if (is_of_file(co, &co->worker_token, id))
        remove_file(co, "worker.token");
    if (is_of_file(co, &co->user_token, id))
        remove_file(co, "user.token");
    core_touch(co);
    return 0;
}

void tokens_check(struct coordinator *co)
{
    const int64_t now = now_unix_ms();
    for (size_t i = 0; i < co->state.n_tokens; i++) {
        struct token_rec *t = &co->state.tokens[i];
        if (t->told || t->ends_unix_ms == 0 || access_is_live(t, now))
            continue;
        t->told = true;
        core_say(co, 0, 0, "the %s token '%s' has ended", token_role_name(t->role), t->name);
        if (t->role != TOKEN_ROLE_WORKER)
            http_server_cut(co->http, access_holder_token(t->id));
    }
}

/* ---- rights -------------------------------------------------------------- */

static enum token_role role_of(const struct token_rec *t)
{
    const bool may = t != NULL && t->role != TOKEN_ROLE_WORKER && access_is_live(t, now_unix_ms());
    return may ? t->role : TOKEN_ROLE_NONE;
}

enum token_role tokens_role(const struct coordinator *co, const char *presented,
                            uint64_t *ret_holder)
{
    static const enum token_role roles[] = {TOKEN_ROLE_OPERATOR, TOKEN_ROLE_VIEWER};
    uint8_t secret[KEYS_SECRET_BYTES];
    if (token_bearer_read(presented, secret) < 0)
        return TOKEN_ROLE_NONE;
    for (int i = 0; i < 2; i++) {
        const struct token_rec *t = access_by_secret(&co->state, roles[i], secret);
        if (role_of(t) == TOKEN_ROLE_NONE)
            continue;
        *ret_holder = access_holder_token(t->id);
        return t->role;
    }
    return TOKEN_ROLE_NONE;
}

enum token_role tokens_role_of(const struct coordinator *co, uint64_t holder)
{
    return role_of(access_token_of(&co->state, holder));
}

bool tokens_may_get(const struct coordinator *co, enum token_role role, const uint8_t sha256[32])
{
    if (role != TOKEN_ROLE_VIEWER)
        return role == TOKEN_ROLE_OPERATOR;
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i];
        for (size_t g = 0; g < j->n_grids; g++)
            if (memcmp(j->grids[g].blob.sha256, sha256, 32) == 0)
                return true;
    }
    return false;
}
