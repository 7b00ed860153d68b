/* Requests of people, who may send anything: bodies of every POST, queries of every GET, in a world
 * of tests/sim with an honest worker and a job.
 *
 *   header   the job's kind, the seed of chance, and by it whether the coordinator is started again
 *   turns    who asks for what, of which job, task, worker or token; a body is as `skerry` sends
 * it, with some values changed to anything, or with some bytes changed; and time
 *
 * Whoever shows no token is told nothing, a viewer changes nothing, and each refusal is one
 * sentence in JSON.  After every event the oracle (tests/sim/oracle.h) looks at the records, and
 * after a restart at what the files say. */
#include <jansson.h>
#include <stdio.h>

#include "common/base/hash.h"
#include "tests/fuzz/coordinator/http/door.h"
#include "tests/sim/disk.h"
#include "tests/sim/oracle.h"
#include "tests/sim/spec.h"

#define TURNS_MAX 24
#define CHANGES_MAX 3
#define TARGET_MAX 320
#define TOKEN_MAX 600

/* {}: a number, or anything.  body: "" of a GET; "job": the submission of one. */
static const struct command {
    const char *method, *target, *body;
} commands[] = {
    {"POST", "/v1/jobs", "job"},
    {"POST", "/v1/jobs", "job"},
    {"POST", "/v1/jobs/{}/cancel", "{}"},
    {"POST", "/v1/jobs/{}/remove", "{\"dry_run\":true}"},
    {"POST", "/v1/jobs/{}/remove", "{}"},
    {"POST", "/v1/jobs/{}/pause", "{}"},
    {"POST", "/v1/jobs/{}/resume", "{}"},
    {"POST", "/v1/jobs/{}/rollback", "{\"to\":1,\"path\":0}"},
    {"POST", "/v1/jobs/{}/adjust", "{\"priority\":1,\"share\":2.5,\"budget\":10}"},
    {"POST", "/v1/jobs/{}/sample",
     "{\"count\":2,\"labels\":[0,1],\"steps\":2,\"guidance\":2.5,\"seed\":3,\"sampler\":\"heun\","
     "\"columns\":2,\"ema\":false}"},
    {"POST", "/v1/jobs/{}/sample",
     "{\"count\":1,\"strategy\":\"topk\",\"top\":2,\"nucleus\":0.5,\"threshold\":0.1,"
     "\"remote\":true,\"path\":1}"},
    {"POST", "/v1/jobs/{}/sample",
     "{\"prompt\":\"once\",\"tokens\":8,\"temperature\":0.5,\"top_p\":0.9}"},
    {"POST", "/v1/tasks/{}/cancel", "{}"},
    {"POST", "/v1/workers/{}/drain", "{}"},
    {"POST", "/v1/workers/{}/revoke", "{}"},
    {"POST", "/v1/uploads",
     "{\"sha256\":\"0000000000000000000000000000000000000000000000000000000000000000\","
     "\"size\":10}"},
    {"POST", "/v1/tokens",
     "{\"role\":\"operator\",\"name\":\"ann\",\"life_s\":60,\"jobs\":2,\"budget\":5}"},
    {"POST", "/v1/tokens", "{\"role\":\"viewer\"}"},
    {"POST", "/v1/tokens", "{\"role\":\"worker\",\"name\":\"spot\",\"uses\":2,\"workers\":2}"},
    {"POST", "/v1/tokens/{}/adjust",
     "{\"uses\":1,\"workers\":1,\"jobs\":1,\"budget\":1,\"life_s\":10}"},
    {"POST", "/v1/tokens/{}/adjust", "{\"workers\":3,\"life_s\":0}"},
    {"POST", "/v1/tokens/{}/revoke", "{}"},
    {"GET", "/v1/status", ""},
    {"GET", "/v1/jobs", ""},
    {"GET", "/v1/jobs/{}?history={}&samples={}", ""},
    {"GET", "/v1/jobs/{}/metrics?after={}", ""},
    {"GET", "/v1/jobs/{}/trace", ""},
    {"GET", "/v1/jobs/{}/trace.svg", ""},
    {"GET", "/v1/tasks?job={}&before={}&limit={}", ""},
    {"GET", "/v1/tasks?state={}", ""},
    {"GET", "/v1/tasks/{}", ""},
    {"GET", "/v1/workers?after={}&gone={}&limit={}", ""},
    {"GET", "/v1/modules?job={}", ""},
    {"GET", "/v1/tokens", ""},
    {"GET", "/v1/log", ""},
    {"GET", "/metrics", ""},
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static char viewer[TOKEN_MAX], operator[TOKEN_MAX]; /* the newest that were made; "": none */

/* ---- bodies ---------------------------------------------------------------------------- */

/* What was uploaded by that name, as JSON has it, but for the last brace. */
static int put_file(char *to, size_t max, const char *name)
{
    struct blob_id id;
    char hex[2 * HASH_BYTES + 1];
    struct coordinator *co = world_coordinator();
    hash_sha256(name, strlen(name), id.sha256);
    if (co != NULL)
        (void)disk_upload(co->blobs, &id, name, strlen(name)); /* it may be cut */
    return snprintf(to, max, "{\"sha256\":\"%s\",\"size\":%zu",
                    hash_hex(id.sha256, HASH_BYTES, hex), strlen(name));
}

/* As `skerry submit` sends a job of that kind; json_decref() it. */
static json_t *submission(const struct spec *s)
{
    const bool texts = s->data == SPEC_TEXTS, latents = s->data == SPEC_LATENTS;
    char list[2048], *at = list, *const end = list + sizeof(list), name[32], vae[160];
    for (int i = 0; i < 6; i++) {
        (void)snprintf(name, sizeof(name), "shard %d", i);
        at += snprintf(at, (size_t)(end - at), i > 0 ? "," : "");
        at += put_file(at, (size_t)(end - at), name);
        at += snprintf(at, (size_t)(end - at), ",\"samples\":%d,\"holdout\":%s", i < 4 ? 20 : 6,
                       i < 4 ? "false" : "true");
        at += snprintf(at, (size_t)(end - at), texts ? ",\"tokens\":60}" : "}");
    }
    char *classes = str_printf(texts ? "[],\"counts\":[]" : "[\"cat\",\"dog\"],\"counts\":[20,20]");
    char *text = str_printf("{\"classes\":%s,\"shards\":[%s]}", classes, list);
    json_t *o = json_object();
    (void)json_object_set_new(o, "spec", json_string(s->yaml));
    if (s->data != SPEC_URL && s->data != SPEC_OWN)
        (void)json_object_set_new(o, "dataset", json_loads(text, 0, NULL));
    if (texts)
        (void)json_object_set_new(o, "vocab", json_integer(257));
    if (latents) {
        (void)put_file(vae, sizeof(vae), "a vae");
        mem_free(text);
        text = str_printf("[%s,\"part\":0,\"name\":\"config.json\"}]", vae);
        (void)json_object_set_new(o, "encoders", json_loads(text, 0, NULL));
        (void)json_object_set_new(o, "input", json_loads("{\"channels\":4,\"side\":8}", 0, NULL));
    }
    mem_free(classes);
    mem_free(text);
    return o;
}

static json_t *odd_value(void)
{
    static const json_int_t numbers[] = {
        0, 1, -1, 2, 255, 4096, INT32_MAX, UINT32_MAX, 1ll << 40, 1ll << 53, INT64_MAX, INT64_MIN};
    static const double reals[] = {0.5, -0.0, 1e-320, 1e300, -1e300, 0.1};
    static const char *const values[] = {
        "null",    "true",          "false",      "[]",
        "{}",      "[[]]",          "[1,2]",      "{\"a\":1}",
        "\"\"",    "\"a\\u0000b\"", "\"../etc\"", "\"e\\u0301\\u202e\\n<b>\"",
        "\"%s%n\""};
    char text[256];
    const unsigned n = message_byte();
    if (n < 96)
        return json_integer(numbers[n % (sizeof(numbers) / sizeof(numbers[0]))]);
    if (n < 128)
        return json_real(reals[n % (sizeof(reals) / sizeof(reals[0]))]);
    if (n < 192)
        return json_loads(values[n % (sizeof(values) / sizeof(values[0]))],
                          JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (n < 224)
        return json_integer((json_int_t)message_byte());
    json_t *made = json_string(door_text(text, sizeof(text)));
    return made != NULL ? made : json_string("\u00e9\u00e9"); /* it is no UTF-8 */
}

/* Puts something in the place of a value, which is within `o`, or takes it away. */
static void change(json_t *o)
{
    const size_t n = json_is_array(o) ? json_array_size(o) : json_object_size(o);
    const size_t at = n > 0 ? message_byte() % n : 0;
    const unsigned how = message_byte() % 8;
    void *iter = json_object_iter(o);
    for (size_t i = 0; i < at; i++)
        iter = json_object_iter_next(o, iter);
    json_t *was = json_is_array(o) ? json_array_get(o, at) : json_object_iter_value(iter);
    if (how < 4 && (json_is_array(was) || json_is_object(was)))
        change(was);
    else if (how == 4 && json_is_array(o))
        (void)json_array_append(o, was);
    else if (how == 4)
        (void)json_object_set_new(o, "prioritee", odd_value());
    else if (how == 5 && n > 0 && json_is_array(o))
        (void)json_array_remove(o, at);
    else if (how == 5 && n > 0)
        (void)json_object_del(o, json_object_iter_key(iter));
    else if (n > 0 && json_is_array(o))
        (void)json_array_set_new(o, at, odd_value());
    else if (n > 0)
        (void)json_object_iter_set_new(o, iter, odd_value());
}

/* Some bytes of its text are others: of a job file's, say. */
static void change_text(json_t *o, const char *key)
{
    char *text = str_dup(json_string_value(json_object_get(o, key)));
    const size_t len = strlen(text);
    for (unsigned n = message_byte() % 8; n > 0 && len > 0; n--) {
        const size_t at = (message_byte() * 256u + message_byte()) % len;
        text[at] = (char)(' ' + message_byte() % 95);
    }
    (void)json_object_set_new(o, key, json_string(text));
    mem_free(text);
}

/* mem_free() it. */
static char *body_of(const struct command *c, size_t *ret_len)
{
    json_t *o = strcmp(c->body, "job") == 0 ? submission(spec_at(message_byte()))
                                            : json_loads(c->body, 0, NULL);
    const unsigned how = message_byte();
    for (unsigned n = how % (CHANGES_MAX + 1); n > 0; n--)
        change(o);
    if (how >= 128 && json_is_string(json_object_get(o, "spec")))
        change_text(o, "spec");
    char *text = json_dumps(o, JSON_COMPACT);
    *ret_len = strlen(text);
    json_decref(o);
    for (unsigned n = how >= 240 ? how % 4 : 0; n > 0 && *ret_len > 0; n--)
        text[(message_byte() * 256u + message_byte()) % *ret_len] = (char)message_byte();
    *ret_len = how == 255 ? message_byte() % (*ret_len + 1) : *ret_len;
    return text;
}

/* ---- requests ---------------------------------------------------------------------------- */

/* What is in the place of a {}. */
static const char *put_word(char *to, size_t max)
{
    static const char *const odd[] = {"",
                                      "-1",
                                      "+1",
                                      "1.5",
                                      "0x1",
                                      " 1",
                                      "leased",
                                      "done",
                                      "all",
                                      "%00",
                                      "..",
                                      "18446744073709551615",
                                      "9223372036854775807",
                                      "99999999999999999999",
                                      "\xff\xfe"};
    const unsigned n = message_byte();
    if (n < 200)
        (void)snprintf(to, max, "%u", n % 16);
    else if (n < 240)
        (void)str_copy(to, max, odd[n % (sizeof(odd) / sizeof(odd[0]))]);
    else
        (void)door_text(to, max);
    to[strcspn(to, "?&#/ ")] = '\0';
    return to;
}

static void make_target(const struct command *c, char to[TARGET_MAX])
{
    char word[48];
    size_t used = 0;
    for (const char *p = c->target; *p != '\0'; p++) {
        if (*p != '{') {
            to[used++] = *p;
            continue;
        }
        (void)put_word(word, sizeof(word));
        used += (size_t)snprintf(to + used, TARGET_MAX - used, "%s", word);
        p++;
    }
    to[used] = '\0';
}

/* One sentence, whose code is a word. */
static void check_refusal(const char *target, const struct door_said *s)
{
    json_t *o = json_loadb(s->body, s->len, 0, NULL), *e = json_object_get(o, "error");
    const char *code = json_string_value(json_object_get(e, "code"));
    const char *message = json_string_value(json_object_get(e, "message"));
    if (code == NULL || code[strspn(code, "abcdefghijklmnopqrstuvwxyz_")] != '\0' ||
        message == NULL || message[0] == '\0' || strpbrk(message, "\r\n") != NULL)
        sim_fail("%s is refused with %u by '%.*s'", target, s->status, (int)s->len, s->body);
    json_decref(o);
}

static void keep_token(const json_t *asked, const char *text, size_t len)
{
    json_t *o = json_loadb(text, len, 0, NULL);
    const char *role = json_string_value(json_object_get(asked, "role"));
    const char *token = json_string_value(json_object_get(o, "token"));
    if (token != NULL && role != NULL && strcmp(role, "viewer") == 0)
        (void)str_copy(viewer, sizeof(viewer), token);
    else if (token != NULL && role != NULL && strcmp(role, "operator") == 0)
        (void)str_copy(operator, sizeof(operator), token);
    json_decref(o);
}

static void check(const struct command *c, const char *target, const struct door_said *s)
{
    const bool text = str_ends(c->target, ".svg") || strstr(c->target, "/metrics") != NULL;
    json_t *o = NULL;
    if (s->status >= 400) {
        check_refusal(target, s);
    } else if (!text && s->len < DOOR_BODY_MAX) {
        if ((o = json_loadb(s->body, s->len, 0, NULL)) == NULL)
            sim_fail("%s is answered with %u by '%.*s'", target, s->status, (int)s->len, s->body);
        json_decref(o);
    }
}

static void ask(const struct coordinator *co)
{
    const struct command *c = &commands[message_byte() % COMMANDS];
    const bool post = c->body[0] != '\0';
    const char *const who[] = {co->user_text, co->user_text, co->user_text, viewer, operator,
                               NULL };
    const unsigned n = message_byte() % 6;
    const char *bearer = who[n];
    char target[TARGET_MAX];
    size_t len = 0;
    make_target(c, target);
    char *body = post ? body_of(c, &len) : NULL;
    const struct door_said *s = door_ask(&(struct http_ask){
        .method = c->method, .target = target, .bearer = bearer, .body = body, .len = len});
    check(c, target, s);
    if (s->status < 400 && (bearer == NULL || (bearer == viewer && post)))
        sim_fail("%s is answered with %u to %s", target, s->status, bearer ? "a viewer" : "nobody");
    if (s->status == 201 && strcmp(c->target, "/v1/tokens") == 0) {
        json_t *asked = json_loadb(body, len, 0, NULL);
        keep_token(asked, s->body, s->len);
        json_decref(asked);
    }
    mem_free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const unsigned header = size > 0 ? data[0] : 0, seed = size > 1 ? data[1] : 0;
    message_next = data + (size < 2 ? size : 2);
    message_end = data + size;
    viewer[0] = operator[0] = '\0';
    door_make();
    world_open(seed, fuzz_folder, header / 128);
    while (world_coordinator()->state.n_jobs == 0) /* an upload of its data may be cut */
        world_submit(spec_at(header % 128));
    world_pass(200);
    for (unsigned i = 0; i < TURNS_MAX && message_next < message_end; i++) {
        const unsigned n = message_byte();
        if (n < 224)
            ask(world_coordinator());
        else
            world_pass(100ull << n % 8);
    }
    if (seed % 2) /* what was saved is read */
        world_restart();
    world_pass(2000);
    world_close();
    return 0;
}
