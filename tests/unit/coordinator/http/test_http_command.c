/* The commands on a real server with a made-up coordinator: bodies are refused with the key that
 * is wrong, before anything is commanded, and uploads are compared with the store. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/net/blobstore.h"
#include "common/net/token.h"
#include "coordinator/http/http_api.h"
#include "tests/unit/coordinator/fake_view.h"
#include "tests/unit/coordinator/http/client.h"

#define SHA "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define SHARD "{\"sha256\":\"" SHA "\",\"size\":9,\"samples\":3,\"holdout\":true}"

static struct http_api *api;

/* A store that has one blob of nine bytes: SHA. */
static int stat_blob(struct blobstore *s, const struct blob_id *id, struct blob_stat *ret,
                     struct err *err)
{
    char hex[BLOB_HEX_MAX];
    blob_id_hex(id, hex);
    if (strcmp(hex, SHA) != 0)
        return err_set(err, -ERR_NOTFOUND, "no such blob");
    *ret = (struct blob_stat){.size = 9};
    return 0;
}

static const struct blobstore_ops ops = {.stat = stat_blob};
static struct blobstore store = {.ops = &ops};

static unsigned authenticate(void *arg, const char *presented, uint64_t *ret_holder)
{
    *ret_holder = 1;
    if (strcmp(presented, "right") == 0)
        return TOKEN_ROLE_OPERATOR;
    if (strcmp(presented, "viewer") == 0)
        return TOKEN_ROLE_VIEWER;
    return strcmp(presented, "worker") == 0 ? TOKEN_ROLE_WORKER : 0;
}

static int open_all(void **state)
{
    struct err err = {0};
    const struct http_server_options so = {.host = "127.0.0.1", .authenticate = authenticate};
    memset(&fake, 0, sizeof fake);
    fake.fail = -EBUSY; /* answered at once; a body that is taken gets 409 */
    if (loop_new(&loop, &err) < 0 || http_server_open(loop, &so, &server, &err) < 0)
        return -1;
    const struct http_api_options ao = {
        .server = server, .store = &store, .authenticate = authenticate};
    return http_api_open(&ao, &api, &err);
}

static int close_all(void **state)
{
    http_api_close(api);
    http_server_close(server);
    loop_free(loop);
    api = NULL;
    return 0;
}

/* ---- tests --------------------------------------------------------------- */

struct body {
    const char *body, *why;
};

/* Every body is refused with its sentence; nothing is commanded. */
static void refuse_all(const char *path, const struct body *bodies, size_t n)
{
    static struct answer a;
    for (size_t i = 0; i < n; i++) {
        ask(&a, "POST", path, BEARER, bodies[i].body);
        expect(&a, 400, bodies[i].why);
    }
    assert_int_equal(fake.submits, 0);
    assert_int_equal(fake.cancels, 0);
    assert_null(fake.durable);
}

#define DATASET(classes, counts, shards)                                                           \
    "{\"spec\":\"x\",\"dataset\":{\"classes\":[" classes "],\"counts\":[" counts                   \
    "],\"shards\":[" shards "]}}"

static void test_tokens_are_refused(void **state)
{
    static const struct body bodies[] = {
        {"", "role"},
        {"{\"role\":\"root\"}", "expected worker, operator or viewer"},
        {"{\"role\":\"viewer\",\"uses\":3}", "limit a worker's token, not a viewer's"},
        {"{\"role\":\"operator\",\"workers\":3}", "not an operator"},
        {"{\"role\":\"viewer\",\"workers\":3}", "limit a worker's token, not a viewer's"},
        {"{\"role\":\"viewer\",\"jobs\":3}", "limit an operator's token, not a viewer's"},
        {"{\"role\":\"worker\",\"budget\":3}", "limit an operator's token, not a worker's"},
        {"{\"role\":\"worker\",\"name\":\"a/b\"}", "name is 'a/b'"},
        {"{\"role\":\"worker\",\"life_s\":0}", "life_s"},
        {"{\"role\":\"worker\",\"life_s\":31622400000}", "life_s"},
        {"{\"role\":\"worker\",\"uses\":4294967296}", "uses"},
    };
    static const struct body bounds[] = {
        {"{\"uses\":-1}", "uses"},
        {"{\"jobs\":1.5}", "jobs"},
        {"{\"budget\":1e10}", "budget"},
        {"{\"life_s\":-1}", "life_s"},
    };
    refuse_all("/v1/tokens", bodies, sizeof bodies / sizeof bodies[0]);
    refuse_all("/v1/tokens/2/adjust", bounds, sizeof bounds / sizeof bounds[0]);
}

static void test_submissions_are_refused(void **state)
{
    static const struct body bodies[] = {
        {"", "spec"},
        {"{\"spec\":7}", "spec"},
        {"{\"spec\":\"\"}", "spec"},
        {"{\"spec\":\"x\",\"vocab\":-1}", "vocab"},
        {"{\"spec\":\"x\",\"vocab\":4294967296}", "vocab"},
        {"{\"spec\":\"x\",\"dataset\":[]}", "dataset"},
        {"{\"spec\":\"x\",\"dataset\":{\"classes\":[],\"counts\":[]}}", "shards"},
        {DATASET("", "", ""), "shards"},
        {DATASET("\"a\"", "1,2", SHARD),
         "\\\"counts\\\" of the dataset has 2 items, \\\"classes\\\" has 1"},
        {DATASET("\"a\",\"\"", "1,2", SHARD), "classes[1]"},
        {DATASET("\"a\",\"b\"", "1,-2", SHARD), "counts[1]"},
        {DATASET("", "", SHARD ",{\"sha256\":\"" SHA "\",\"size\":9,\"samples\":3}"), "shards[1]"},
        {DATASET("", "", "{\"sha256\":\"" SHA "\",\"size\":0,\"samples\":3,\"holdout\":true}"),
         "size"},
        {DATASET("", "", "{\"sha256\":\"" SHA "\",\"size\":1,\"samples\":65537,\"holdout\":true}"),
         "samples"},
        {DATASET("", "", "{\"sha256\":\"0011\",\"size\":1,\"samples\":1,\"holdout\":true}"),
         "sha256"},
        {"{\"spec\":\"x\",\"tokenizer\":{\"sha256\":\"" SHA "\"}}", "tokenizer"},
        {"{\"spec\":\"x\",\"warm_start\":{\"sha256\":\"" SHA "\",\"size\":0}}", "warm_start"},
    };
    refuse_all("/v1/jobs", bodies, sizeof bodies / sizeof *bodies);
}

static void test_a_submission_at_its_bounds_is_taken(void **state)
{
    static const char *const bodies[] = {
        "{\"spec\":\"x\"}",
        "{\"spec\":\"x\",\"vocab\":4294967295,\"tokenizer\":{\"sha256\":\"" SHA "\",\"size\":1}}",
        DATASET("", "", SHARD "," SHARD),
    };
    static const size_t shards[] = {0, 0, 2};
    static struct answer a;
    for (size_t i = 0; i < 3; i++) {
        ask(&a, "POST", "/v1/jobs", BEARER, bodies[i]);
        expect(&a, 409, "the fake refuses");
        assert_int_equal(fake.submits, i + 1);
        assert_int_equal(fake.n_shards, shards[i]);
    }
}

static void test_sample_requests_are_refused(void **state)
{
    static const struct body bodies[] = {
        {"{\"count\":0}", "count"},
        {"{\"labels\":[]}", "labels"},
        {"{\"labels\":[4096]}", "labels[0]"},
        {"{\"labels\":[1,\"2\"]}", "labels[1]"},
        {"{\"steps\":1001}", "steps"},
        {"{\"guidance\":100.5}", "guidance"},
        {"{\"seed\":-1}", "seed"},
        {"{\"ema\":1}", "ema"},
        {"{\"sampler\":\"Euler\"}", "\\\"euler\\\" or \\\"heun\\\", not \\\"Euler\\\""},
        {"{\"nucleus\":1.01}", "nucleus"},
        {"{\"path\":1024}", "path"},
        {"{\"top_p\":-0.1}", "top_p"},
        {"{\"step\":4}", "did you mean \\\"steps\\\"?"},
    };
    refuse_all("/v1/jobs/7/sample", bodies, sizeof bodies / sizeof *bodies);
    assert_int_equal(fake.n_labels, 0);
}

static void test_commands_without_a_body_take_none(void **state)
{
    static const char *const paths[] = {"/v1/jobs/7/cancel", "/v1/jobs/7/pause",
                                        "/v1/jobs/7/resume", "/v1/workers/3/drain"};
    static const struct body bodies[] = {{"{\"now\":true}", "now"}};
    static struct answer a;
    for (size_t i = 0; i < 4; i++) {
        refuse_all(paths[i], bodies, 1);
        ask(&a, "POST", paths[i], BEARER, "{}");
        expect(&a, 409, "the fake refuses");
        fake.cancels = 0;
    }
    ask(&a, "POST", "/v1/jobs/x/cancel", BEARER, "");
    expect(&a, 400, NULL);
    assert_int_equal(fake.cancels, 0);
}

static void test_a_rollback_names_a_version(void **state)
{
    static const struct body bodies[] = {{"{}", "to"},
                                         {"{\"to\":-1}", "to"},
                                         {"{\"to\":1.5}", "to"},
                                         {"{\"to\":1,\"path\":-1}", "path"}};
    static struct answer a;
    refuse_all("/v1/jobs/7/rollback", bodies, sizeof bodies / sizeof *bodies);
    ask(&a, "POST", "/v1/jobs/7/rollback", BEARER, "{\"to\":3}");
    expect(&a, 409, "the fake refuses");
    assert_true(fake.rolled_back_to == 3 && fake.rolled_back_path == UINT32_MAX);
    ask(&a, "POST", "/v1/jobs/7/rollback", BEARER, "{\"to\":4,\"path\":2}");
    expect(&a, 409, "the fake refuses");
    assert_true(fake.rolled_back_to == 4 && fake.rolled_back_path == 2);
}

static void test_a_removal_may_be_a_dry_run(void **state)
{
    static const struct body bodies[] = {{"{\"dry_run\":1}", "dry_run"}, {"{\"dry\":true}", "dry"}};
    static struct answer a;
    refuse_all("/v1/jobs/7/remove", bodies, sizeof bodies / sizeof *bodies);
    assert_int_equal(fake.removes, 0);
    ask(&a, "POST", "/v1/jobs/7/remove", BEARER, "");
    expect(&a, 409, "the fake refuses");
    assert_true(fake.removes == 1 && !fake.dry_run);
    fake.fail = 0;
    send_request(&a, "POST", "/v1/jobs/7/remove", BEARER, "{\"dry_run\":true}");
    while (fake.durable == NULL)
        pump(&a);
    fake.durable(fake.durable_arg, 0);
    while (!a.ended)
        pump(&a);
    expect(&a, 200,
           "{\"id\":7,\"state\":\"done\",\"name\":\"s\",\"reason\":\"\",\"bytes\":1234,"
           "\"removed\":false}");
    assert_true(fake.removes == 2 && fake.dry_run);
}

static void test_uploads_are_compared_with_the_store(void **state)
{
    static const struct body bodies[] = {
        {"{\"size\":9}", "sha256"},
        {"{\"sha256\":\"" SHA "\"}", "size"},
        {"{\"sha256\":\"" SHA "\",\"size\":0}", "size"},
        {"{\"sha256\":\"" SHA "\",\"size\":1099511627777}", "size"},
    };
    static struct answer a;
    refuse_all("/v1/uploads", bodies, sizeof bodies / sizeof *bodies);
    ask(&a, "POST", "/v1/uploads", BEARER, "{\"sha256\":\"" SHA "\",\"size\":10}");
    expect(&a, 409, "The blob of that hash is 9 bytes long, not 10.");
    ask(&a, "POST", "/v1/uploads", BEARER, "{\"sha256\":\"" SHA "\",\"size\":9}");
    expect(&a, 409, "the fake refuses"); /* the coordinator is asked to keep it */
    fake.fail = 0;
    ask(&a, "POST", "/v1/uploads", BEARER, "{\"sha256\":\"" SHA "\",\"size\":9}");
    expect(&a, 200, "{\"have\":true,\"url\":\"\"}");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_tokens_are_refused),
        TEST(test_submissions_are_refused),
        TEST(test_a_submission_at_its_bounds_is_taken),
        TEST(test_sample_requests_are_refused),
        TEST(test_commands_without_a_body_take_none),
        TEST(test_a_rollback_names_a_version),
        TEST(test_a_removal_may_be_a_dry_run),
        TEST(test_uploads_are_compared_with_the_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
