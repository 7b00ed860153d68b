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

/* The worth of keeping a token; below 0: it may go.  A worker that joined by a revoked one is
 * itself revoked; a job that goes on needs its token's budget. */
static int64_t worth(const struct state *s, const struct token_rec *t)
{
    for (size_t i = 0; i < s->n_jobs; i++)
        if (s->jobs[i]->token_id == t->id && !job_is_ended(s->jobs[i]))
            return 0;
    if (t->revoked_unix_ms != 0)
        return t->revoked_unix_ms - INT64_MAX;
    return access_is_live(t, (int64_t)clock_wall_ms()) ? 0 : -1;
}

static bool make_room(struct state *s)
{
    size_t least = 0;
    for (size_t i = 1; i < s->n_tokens; i++)
        if (worth(s, &s->tokens[i]) < worth(s, &s->tokens[least]))
            least = i;
    if (worth(s, &s->tokens[least]) == 0)
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

/* ---- workers by their keys and identities ("faces") ------------------------ */

typedef bool (*is_face_fn)(const struct worker *w, const uint8_t *face);

static bool is_key(const struct worker *w, const uint8_t *face)
{
    return w->has_key && memcmp(w->key, face, sizeof(w->key)) == 0;
}

static bool is_identity(const struct worker *w, const uint8_t *face)
{
    return memcmp(w->identity, face, sizeof(w->identity)) == 0;
}

/* The first bytes are random enough: keys are hashes, identities are drawn at random. */
static size_t place_of(const struct access_faces *f, const uint8_t *face)
{
    uint64_t h;
    memcpy(&h, face, sizeof(h));
    return (size_t)(h ^ h >> 32) & (f->cap - 1);
}

/* The worker, or NULL; *ret_at: its place, or the place for it. */
static const struct worker *find_face(const struct state *s, const uint8_t *face, is_face_fn is,
                                      size_t *ret_at)
{
    const struct access_faces *f = &s->faces;
    size_t at = f->cap > 0 ? place_of(f, face) : 0;
    for (; f->cap > 0 && f->ids[at] != 0; at = (at + 1) & (f->cap - 1)) {
        const struct worker *w = state_worker(s, f->ids[at]);
        if (w != NULL && is(w, face))
            return w;
    }
    *ret_at = at;
    return NULL;
}

static void add_face(struct state *s, const struct worker *w, const uint8_t *face, is_face_fn is)
{
    size_t at;
    if (find_face(s, face, is, &at) != NULL)
        return;
    s->faces.ids[at] = w->id;
    s->faces.n++;
}

static void add_faces(struct state *s, const struct worker *w)
{
    add_face(s, w, w->identity, is_identity);
    if (w->has_key)
        add_face(s, w, w->key, is_key);
}

/* At most half of the places are taken. */
void access_know(struct state *s, const struct worker *w)
{
    struct access_faces *f = &s->faces;
    if (2 * (f->n + 2) > f->cap) {
        mem_free(f->ids);
        f->n = 0;
        f->cap = 64;
        while (f->cap < 8 * s->n_workers) /* two per worker, as many old ones, and as many free */
            f->cap *= 2;
        f->ids = mem_alloc_array(f->cap, sizeof(f->ids[0]));
        for (size_t i = 0; i < s->n_workers; i++)
            add_faces(s, s->workers[i]);
    }
    add_faces(s, w);
}

const struct worker *access_worker_by_identity(const struct state *s, const uint8_t identity[16])
{
    size_t at;
    return find_face(s, identity, is_identity, &at);
}

const struct worker *access_worker_by_key(const struct state *s, const uint8_t key[KEYS_PIN_BYTES])
{
    size_t at;
    return find_face(s, key, is_key, &at);
}

/* ---- holders -------------------------------------------------------------- */

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

const struct worker *access_worker_of(const struct state *s, uint64_t holder)
{
    return holder % 2 == 0 ? state_worker(s, holder / 2) : NULL;
}

bool access_holds(const struct state *s, uint64_t holder, int64_t now_unix_ms)
{
    if (holder % 2 == 0) {
        const struct worker *w = access_worker_of(s, holder);
        return w != NULL && w->revoked_unix_ms == 0;
    }
    const struct token_rec *t = access_token_of(s, holder);
    return t != NULL && access_is_live(t, now_unix_ms);
}
