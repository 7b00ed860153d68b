/* Transfers that are cancelled while a thread works for them: it may be in the middle of a name's
 * look-up, or of a hash. */
#include "tests/unit/common/net/http/http_test.h"

#include <dlfcn.h>
#include <gnutls/crypto.h>
#include <netdb.h>
#include <stdatomic.h>

/* Where a thread waits until the test lets it go on. */
#define GATE_S 5 /* by then the test has failed */

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed, reached, passed;
};

static void gate_pass(struct gate *g)
{
    const struct timespec until = {.tv_sec = time(NULL) + GATE_S};
    int rc = 0;
    pthread_mutex_lock(&g->lock);
    g->reached = true;
    while (g->closed && rc == 0)
        rc = pthread_cond_timedwait(&g->changed, &g->lock, &until);
    g->passed = true;
    pthread_mutex_unlock(&g->lock);
}

static void gate_close(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->closed = true;
    g->reached = g->passed = false;
    pthread_mutex_unlock(&g->lock);
}

static void gate_open(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->closed = false;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static bool gate_is(struct gate *g, const bool *what)
{
    pthread_mutex_lock(&g->lock);
    const bool is = *what;
    pthread_mutex_unlock(&g->lock);
    return is;
}

static struct gate naming = {.lock = PTHREAD_MUTEX_INITIALIZER,
                             .changed = PTHREAD_COND_INITIALIZER},
                   hashing = {.lock = PTHREAD_MUTEX_INITIALIZER,
                              .changed = PTHREAD_COND_INITIALIZER};

#define SLOW_NAME "slow.test"

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **ret)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strcmp(name, SLOW_NAME) != 0)
        return real(name, service, hints, ret);
    gate_pass(&naming);
    return EAI_AGAIN;
}

static atomic_size_t hashed;

int gnutls_hash(gnutls_hash_hd_t h, const void *data, size_t len)
{
    int (*real)(gnutls_hash_hd_t, const void *, size_t);
    *(void **)&real = dlsym(RTLD_NEXT, "gnutls_hash");
    gate_pass(&hashing);
    atomic_fetch_add(&hashed, len);
    return real(h, data, len);
}

static pthread_t loop_thread;
static atomic_uint flushed_here; /* by the thread of the loop */

int fsync(int fd)
{
    int (*real)(int);
    *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    atomic_fetch_add(&flushed_here, pthread_equal(pthread_self(), loop_thread));
    return real(fd);
}

/* Nobody waits for a name server, which may need half a minute to give up. */
static void test_slow_name(void **state)
{
    struct world *w = start(true);
    char *path = path_in(w, "s");
    const struct xfer_get g = {
        .url = "http://" SLOW_NAME "/", .path = path, .done = on_done, .arg = w};
    uint64_t id;
    gate_close(&naming);
    assert_int_equal(xfer_get(w->xfer, &g, &id, NULL), 0);
    WAIT_FOR(&w->t, gate_is(&naming, &naming.reached));
    xfer_cancel(w->xfer, id);
    assert_int_equal(w->code, -ERR_CANCELLED);
    assert_false(gate_is(&naming, &naming.passed));
    gate_open(&naming);
    WAIT_FOR(&w->t, gate_is(&naming, &naming.passed));
    mem_free(path);
    stop(w);
}

/* Cancelled while its hash is looked at, which ends that, and asked for again: what came is still
 * there.  None of it keeps the loop waiting. */
static void test_cancel_verifying(void **state)
{
    struct world *w = start(true);
    const size_t len = 32 << 20;
    const struct blob_id id = make_file(w, "b.part", len);
    char *path = path_in(w, "b");
    const struct xfer_get g = {.url = w->url,
                               .pin = w->user.pin,
                               .path = path,
                               .size = len,
                               .sha256 = id.sha256,
                               .done = on_done,
                               .arg = w};
    uint64_t transfer;
    loop_thread = pthread_self();
    const unsigned flushed = atomic_load(&flushed_here);
    gate_close(&hashing);
    atomic_store(&hashed, 0);
    assert_int_equal(xfer_get(w->xfer, &g, &transfer, NULL), 0);
    WAIT_FOR(&w->t, gate_is(&hashing, &hashing.reached));
    assert_int_equal(w->done, 0);
    xfer_cancel(w->xfer, transfer);
    assert_int_equal(w->code, -ERR_CANCELLED);
    gate_open(&hashing);
    assert_int_equal(xfer_get(w->xfer, &g, NULL, NULL), 0);
    WAIT_FOR(&w->t, w->done == 2);
    assert_in_range(atomic_load(&hashed), len, len + len / 2);
    assert_int_equal(atomic_load(&flushed_here), flushed);
    if (w->code < 0)
        fail_msg("%s", w->detail);
    assert_int_equal(w->moved, 0);
    assert_true(file_exists(path));
    mem_free(path);
    stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_name),
        cmocka_unit_test(test_cancel_verifying),
    };
    return cmocka_run_group_tests_name("transfer_cancel", tests, NULL, NULL);
}
