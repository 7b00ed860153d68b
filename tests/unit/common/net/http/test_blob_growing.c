/* Over HTTP, a file that is still written: it is followed to its end, waited for, or given up. */
#include "tests/unit/common/net/http/http_test.h"

#define BYTES 2000000u
#define FROM 5000u

struct writing {
    struct world *w;
    uint8_t *data;
    int fd;
};

static struct writing begin(bool tls)
{
    struct writing g = {.w = start(tls), .data = mem_alloc(BYTES)};
    char *path = path_in(g.w, "delta");
    hash_random(g.data, BYTES);
    g.fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(g.fd >= 0);
    mem_free(path);
    return g;
}

static void put(struct writing *g, size_t from, size_t to)
{
    assert_int_equal(pwrite(g->fd, g->data + from, to - from, (off_t)from), to - from);
    if (!g->w->growing)
        g->w->growing = growing_new(g->fd, FROM, BYTES);
    growing_reach(g->w->growing, to);
}

static void put_all(struct writing *g)
{
    put(g, 0, FROM);
    put(g, FROM, BYTES);
}

static void end(struct writing *g)
{
    growing_drop(g->w->growing);
    stop(g->w);
    close(g->fd);
    mem_free(g->data);
}

/* Begins to fetch it; the outcome will be in w. */
static void fetch(struct writing *g, uint64_t *ret_id)
{
    struct err err = {0};
    char *url = ticket_url(g->w, TICKET_GET, &GROWING, 0), *path = path_in(g->w, "sent");
    const struct xfer_get get = {.url = url,
                                 .pin = g->w->user.pin,
                                 .path = path,
                                 .cached = true,
                                 .follow = true,
                                 .done = on_done,
                                 .arg = g->w};
    if (xfer_get(g->w->xfer, &get, ret_id, &err) < 0)
        fail_msg("%s", err.msg);
    mem_free(url);
    mem_free(path);
}

static uint64_t came(const struct writing *g)
{
    uint64_t size = 0;
    char *path = path_in(g->w, "sent.part");
    (void)file_size(path, &size, NULL); /* it may not be there yet */
    mem_free(path);
    return size;
}

static void expect_file(const struct writing *g)
{
    struct err err = {0};
    uint8_t got[32], want[32];
    uint64_t bytes = 0;
    char *sent = path_in(g->w, "sent"), *to = path_in(g->w, "to");
    if (g->w->code < 0)
        fail_msg("%s", g->w->detail);
    if (growing_restore(sent, to, got, &bytes, &err) < 0)
        fail_msg("%s", err.msg);
    hash_sha256(g->data, BYTES, want);
    assert_memory_equal(got, want, 32);
    mem_free(sent);
    mem_free(to);
}

/* What is written arrives before the rest is. */
static void follow(bool tls)
{
    struct writing g = begin(tls);
    static const size_t pieces[] = {FROM + 1, 300000, 300001, 1500000};
    size_t at = FROM;
    for (size_t i = 0; i < 4; at = pieces[i++]) {
        put(&g, at, pieces[i]);
        if (i == 0)
            fetch(&g, NULL);
        WAIT_FOR(&g.w->t, came(&g) == 8 + pieces[i] - FROM);
    }
    put(&g, 0, FROM);
    put(&g, at, BYTES);
    WAIT_FOR(&g.w->t, g.w->done == 1);
    expect_file(&g);
    end(&g);
}

static void test_follow(void **state)
{
    follow(true);
    follow(false);
}

/* Whoever asks before it is begun waits, and is told to come again. */
static void test_waits(void **state)
{
    struct writing g = begin(true);
    fetch(&g, NULL);
    WAIT_FOR(&g.w->t,
             blob_http_counters(g.w->blobs).rejected > 3); /* 30 ms each, and tries are 2 */
    assert_int_equal(g.w->done, 0);
    put_all(&g);
    WAIT_FOR(&g.w->t, g.w->done == 1);
    expect_file(&g);
    end(&g);
}

/* There is none after all. */
static void test_never(void **state)
{
    struct writing g = begin(true);
    fetch(&g, NULL);
    WAIT_FOR(&g.w->t, http_server_counters(g.w->server).requests > 0);
    g.w->never = true;
    WAIT_FOR(&g.w->t, g.w->done == 1);
    assert_int_equal(g.w->code, -ERR_NOTFOUND);
    end(&g);
}

/* It is given up half way: readers are cut, and find nothing when they ask again. */
static void test_given_up(void **state)
{
    struct writing g = begin(true);
    put(&g, FROM, 700000);
    fetch(&g, NULL);
    WAIT_FOR(&g.w->t, came(&g) == 8 + 700000 - FROM);
    growing_give_up(g.w->growing);
    g.w->never = true;
    WAIT_FOR(&g.w->t, g.w->done == 1);
    assert_int_equal(g.w->code, -ERR_NOTFOUND);
    end(&g);
}

/* Readers leave while they wait for more, and the server stops while others do. */
static void test_abandoned(void **state)
{
    struct writing g = begin(true);
    uint64_t id;
    put(&g, FROM, 700000);
    fetch(&g, &id);
    WAIT_FOR(&g.w->t, came(&g) == 8 + 700000 - FROM);
    xfer_cancel(g.w->xfer, id);
    assert_int_equal(g.w->code, -ERR_CANCELLED);
    put(&g, 700000, 900000); /* it is woken, and found gone */
    WAIT_FOR(&g.w->t, http_server_counters(g.w->server).connections == 0);
    fetch(&g, &id);
    WAIT_FOR(&g.w->t, came(&g) == 8 + 900000 - FROM);
    end(&g);
}

/* A reader that is slower than the writer gets all of it. */
static void test_slow_reader(void **state)
{
    struct writing g = begin(false);
    char *url = ticket_url(g.w, TICKET_GET, &GROWING, 0);
    char *request = str_printf("GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                               url + strlen(g.w->url));
    char piece[1000];
    size_t got = 0;
    put_all(&g);
    int fd = tcp(g.w);
    send_text(fd, request);
    for (ssize_t n = -1; n != 0;) {
        loop_turn(g.w->t.loop, false);
        n = recv(fd, piece, sizeof(piece), MSG_DONTWAIT);
        got += n > 0 ? (size_t)n : 0;
    }
    assert_true(got > BYTES + 8 && got < BYTES + 1000);
    close(fd);
    mem_free(request);
    mem_free(url);
    end(&g);
}

/* Waits for so much of it, and cuts the connection. */
static void cut_at(struct writing *g, uint64_t reached)
{
    WAIT_FOR(&g->w->t, came(g) == 8 + reached - FROM);
    http_server_cut(g->w->server, TICKET_HOLDER);
}

/* A transfer that is cut goes on where it was: each byte comes once, and counts once. */
static void resume(bool tls)
{
    struct writing g = begin(tls);
    put(&g, FROM, 700000);
    fetch(&g, NULL);
    cut_at(&g, 700000);
    put(&g, 700000, 900000);
    cut_at(&g, 900000);
    put_all(&g);
    WAIT_FOR(&g.w->t, g.w->done == 1);
    expect_file(&g);
    assert_int_equal(g.w->moved, BYTES + 8);
    end(&g);
}

static void test_resumed(void **state)
{
    resume(true);
    resume(false);
}

/* If the file was begun anew, of other contributions, the transfer begins again. */
static void test_begun_anew(void **state)
{
    struct writing g = begin(true);
    put(&g, FROM, 700000);
    fetch(&g, NULL);
    WAIT_FOR(&g.w->t, came(&g) == 8 + 700000 - FROM);
    growing_give_up(g.w->growing);
    growing_drop(g.w->growing);
    g.w->growing = NULL;
    hash_random(g.data, BYTES);
    put_all(&g);
    WAIT_FOR(&g.w->t, g.w->done == 1);
    expect_file(&g);
    assert_int_equal(g.w->moved, 8 + 700000 - FROM + BYTES + 8);
    end(&g);
}

/* Only bytes that went out count. */
static void test_counts(void **state)
{
    struct writing g = begin(true);
    put(&g, FROM, 700000);
    fetch(&g, NULL);
    cut_at(&g, 700000);
    g.w->never = true;
    WAIT_FOR(&g.w->t, g.w->done == 1);
    assert_int_equal(g.w->grown, 8 + 700000 - FROM);
    assert_int_equal(blob_http_counters(g.w->blobs).bytes_out, g.w->grown);
    assert_int_equal(g.w->served, 0);
    end(&g);
}

/* It takes a ticket, as a blob does. */
static void test_ticket(void **state)
{
    struct writing g = begin(true);
    char hex[BLOB_HEX_MAX];
    put_all(&g);
    blob_id_hex(&GROWING, hex);
    char *path = str_printf("/v1/blobs/%s", hex);
    ask(g.w, "GET", path, NULL, NULL, NULL);
    assert_int_equal(g.w->status, 403);
    ask(g.w, "GET", path, g.w->bearer, NULL, NULL); /* a role that may read blobs */
    assert_int_equal(g.w->status, 404);
    mem_free(path);
    end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_follow),     cmocka_unit_test(test_waits),
        cmocka_unit_test(test_never),      cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_abandoned),  cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_ticket),     cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_begun_anew), cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
