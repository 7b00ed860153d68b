#include "coordinator/state/access.h"

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "coordinator/state/state.h"

static struct token_rec *find(const struct state *s, uint64_t id)
{
    for (size_t i = 0; i < s->n_tokens; i++)
        if (s->tokens[i].id == id)
            return &s->tokens[i];
    return NULL;
}

const struct token_rec *access_token(const struct state *s, uint64_t id)
{
    return find(s, id);
}

bool access_is_live(const struct token_rec *t, int64_t now_unix_ms)
{
    return t->revoked_unix_ms == 0 && (t->ends_unix_ms == 0 || now_unix_ms < t->ends_unix_ms);
}

const struct token_rec *access_by_name(const struct state *s, const char *name)
{
    for (size_t i = 0; i < s->n_tokens; i++)
        if (s->tokens[i].revoked_unix_ms == 0 && strcmp(s->tokens[i].name, name) == 0)
            return &s->tokens[i];
    return NULL;
}

static void verifier_of(enum token_role role, const uint8_t secret[KEYS_SECRET_BYTES],
                        uint8_t ret[32])
{
    if (role == TOKEN_ROLE_WORKER)
        memcpy(ret, secret, 32);
    else
        hash_sha256(secret, KEYS_SECRET_BYTES, ret);
}

const struct token_rec *access_by_secret(const struct state *s, enum token_role role,
                                         const uint8_t secret[KEYS_SECRET_BYTES])
{
    const struct token_rec *found = NULL;
    uint8_t want[32];
    verifier_of(role, secret, want);
    for (size_t i = 0; i < s->n_tokens; i++)
        if (s->tokens[i].role == role && hash_equal(s->tokens[i].verifier, want, sizeof(want)))
            found = &s->tokens[i];
    return found;
}

struct token_rec *access_edit(struct state *s, uint64_t id)
{
    struct token_rec *t = find(s, id);
    if (t != NULL)
        t->edited = true;
    return t;
}

/* Below 0: nobody misses it.  Who came in by a revoked one is revoked for himself. */
static int64_t worth(const struct token_rec *t)
{
    if (t->revoked_unix_ms != 0)
        return t->revoked_unix_ms - INT64_MAX;
    return access_is_live(t, (int64_t)clock_wall_ms()) ? 0 : -1;
}

static bool make_room(struct state *s)
{
    size_t least = 0;
    for (size_t i = 1; i < s->n_tokens; i++)
        if (worth(&s->tokens[i]) < worth(&s->tokens[least]))
            least = i;
    if (worth(&s->tokens[least]) == 0)
        return false;
    marks_add(&s->tokens_gone, s->tokens[least].id);
    memmove(&s->tokens[least], &s->tokens[least + 1],
            (s->n_tokens - least - 1) * sizeof(s->tokens[0]));
    s->n_tokens--;
    return true;
}

struct token_rec *access_add(struct state *s, uint64_t id, enum token_role role,
                             const uint8_t secret[KEYS_SECRET_BYTES])
{
    if (s->n_tokens == TOKENS_MAX && !make_room(s))
        return NULL;
    if (s->tokens == NULL)
        s->tokens = mem_alloc_array(TOKENS_MAX, sizeof(s->tokens[0]));
    struct token_rec *t = &s->tokens[s->n_tokens++];
    *t = (struct token_rec){.id = id ? id : s->next_token, .role = role, .edited = true};
    if (t->id >= s->next_token)
        s->next_token = t->id + 1;
    verifier_of(role, secret, t->verifier);
    return t;
}

uint32_t access_workers_here(const struct state *s, uint64_t id, const struct worker *but)
{
    uint32_t n = 0;
    for (size_t i = 0; i < s->n_workers; i++)
        n += s->workers[i] != but && s->workers[i]->token_id == id &&
             s->workers[i]->state == WORKER_HERE;
    return n;
}

const struct worker *access_worker_by_key(const struct state *s, const uint8_t key[KEYS_PIN_BYTES])
{
    for (size_t i = 0; i < s->n_workers; i++)
        if (s->workers[i]->has_key && memcmp(s->workers[i]->key, key, KEYS_PIN_BYTES) == 0)
            return s->workers[i];
    return NULL;
}

uint64_t access_holder_worker(uint64_t worker_id)
{
    return 2 * worker_id;
}

uint64_t access_holder_token(uint64_t token_id)
{
    return 2 * token_id + 1;
}

const struct token_rec *access_token_of(const struct state *s, uint64_t holder)
{
    return holder % 2 == 1 ? access_token(s, holder / 2) : NULL;
}

bool access_holds(const struct state *s, uint64_t holder, int64_t now_unix_ms)
{
    if (holder % 2 == 0) {
        const struct worker *w = state_worker(s, holder / 2);
        return w != NULL && w->revoked_unix_ms == 0;
    }
    const struct token_rec *t = access_token_of(s, holder);
    return t != NULL && access_is_live(t, now_unix_ms);
}
