/* Who of a site is led to whom for a blob. */
#include "tests/unit/coordinator/rig.h"

#include "common/base/hash.h"
#include "common/net/http/blob_http.h"
#include "coordinator/rpc/neighbours.h"
#include "coordinator/state/access.h"

static const struct blob_id blob = {{1, 2, 3}}, other = {{4}};
static struct keys *keys[3];
static struct blob_neighbour led;

static void arrive(struct rig *r, unsigned n, const char *site)
{
    struct fake *w = &r->workers[n];
    struct err err = {0};
    char name[8];
    (void)snprintf(name, sizeof(name), "k%u", n);
    char *dir = fx_path(&r->f, name);
    assert_int_equal(file_mkdirs(dir, 0700, &err), 0);
    assert_int_equal(keys_open(dir, &keys[n], &err), 0);
    mem_free(dir);
    w->keys = keys[n];
    w->site = site;
    w->share_key[0] = (uint8_t)n;
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
}

static void leave(struct rig *r, unsigned n)
{
    hang_up(&r->workers[n]);
    while (state_worker(&r->co->state, r->workers[n].id)->peer != NULL)
        loop_turn(r->loop, true);
}

static bool finds(struct rig *r, unsigned n, const struct blob_id *id, const char *asks)
{
    return neighbours_find(r->co, id, 9, access_holder_worker(r->workers[n].id), asks, &led);
}

static const char *pin_of(unsigned n)
{
    static char text[HASH_HEX_MAX];
    return hash_hex(keys_pin(keys[n]), 32, text);
}

static int finish(void **state)
{
    struct rig *r = *state;
    for (unsigned n = 0; n < 3; n++)
        hang_up(&r->workers[n]);
    const int rc = end(state);
    for (unsigned n = 0; n < 3; n++) {
        keys_free(keys[n]);
        keys[n] = NULL;
    }
    return rc;
}

static void test_the_first_has_it(void **state)
{
    struct rig *r = *state;
    struct ticket t;
    arrive(r, 0, "hall");
    arrive(r, 1, "hall");
    arrive(r, 2, "attic");
    assert_false(finds(r, 0, &blob, "follow"));
    assert_false(finds(r, 0, &blob, "follow")); /* not to itself */
    assert_true(finds(r, 1, &blob, "follow"));
    assert_true(str_starts(led.url, "https://10.0.0.7:7720/v1/blobs/0102030"));
    assert_string_equal(led.pin, pin_of(0));
    const uint64_t now_s = clock_now_ns() / CLOCK_NS_PER_S;
    assert_int_equal(ticket_check(r->workers[0].share_key, TICKET_GET, blob.sha256,
                                  strchr(led.url, '?') + 1, now_s, &t, NULL),
                     0);
    assert_int_equal(t.holder, r->workers[1].id);
    assert_false(finds(r, 1, &other, "follow"));
    assert_false(finds(r, 2, &blob, "follow")); /* of another site */
}

/* Who was failed, or does not want to be led, is sent it, and has it from then on. */
static void test_the_next_takes_its_place(void **state)
{
    struct rig *r = *state;
    arrive(r, 0, "hall");
    arrive(r, 1, "hall");
    arrive(r, 2, "hall");
    assert_false(finds(r, 0, &blob, "follow"));
    assert_false(finds(r, 1, &blob, pin_of(0)));
    assert_true(finds(r, 2, &blob, pin_of(0)));
    assert_string_equal(led.pin, pin_of(1));
    assert_false(finds(r, 2, &blob, NULL));
    assert_true(finds(r, 0, &blob, "follow"));
    assert_string_equal(led.pin, pin_of(2));
}

static void test_the_first_is_gone(void **state)
{
    struct rig *r = *state;
    arrive(r, 0, "hall");
    arrive(r, 1, "hall");
    assert_false(finds(r, 0, &blob, "follow"));
    leave(r, 0);
    assert_false(finds(r, 1, &blob, "follow"));
}

/* Who shares nothing is led nowhere, and who asks with a token of a person. */
static void test_who_does_not_share(void **state)
{
    struct rig *r = *state;
    arrive(r, 0, "hall");
    arrive(r, 1, NULL);
    arrive(r, 2, "a hall"); /* no name of a site */
    assert_false(finds(r, 0, &blob, "follow"));
    assert_false(finds(r, 1, &blob, "follow"));
    assert_false(finds(r, 2, &blob, "follow"));
    assert_false(neighbours_find(r->co, &blob, 9, access_holder_token(1), "follow", &led));
}

#define NEIGHBOURS_TEST(f) cmocka_unit_test_setup_teardown(f, begin, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        NEIGHBOURS_TEST(test_the_first_has_it),
        NEIGHBOURS_TEST(test_the_next_takes_its_place),
        NEIGHBOURS_TEST(test_the_first_is_gone),
        NEIGHBOURS_TEST(test_who_does_not_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
