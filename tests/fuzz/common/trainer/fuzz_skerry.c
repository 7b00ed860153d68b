/* A worker that says anything: libskerry joins, or refuses with a sentence, and gives nothing out
 * that is not mapped. */
#include <sys/socket.h>

#define SKERRY_VERSION "fuzz"

#include "libskerry/skerry.c" /* with its statics; the layer is what is below it */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct skerry *joined;

/* Weights are exchanged where they are mapped. */
static int touch(void *arg, size_t i)
{
    (void)arg;
    memset(skerry_weights(joined, i), 1, 16);
    return 0;
}

/* The first message is the library's own answer to Hello, with memory: what comes behind is fuzzed.
 */
static int join_here(int fd, struct skerry **ret)
{
    const struct skerry_tensor tensor = {.name = "w", .dtype = SKERRY_F32, .rank = 1, .shape = {4}};
    char number[16];
    (void)snprintf(number, sizeof(number), "%d", fd);
    (void)setenv("SKERRY_TRAINER_FD", number, 1);
    return skerry_join(&(struct skerry_options){.give = touch, .take = touch}, &tensor, 1, ret);
}

static void answer(int fd)
{
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Weights w = SKERRY__TRAINER__V1__WEIGHTS__INIT;
    Skerry__Trainer__V1__Place place = SKERRY__TRAINER__V1__PLACE__INIT, *places[] = {&place};
    int memory = -1;
    if (channel_memory("fuzz", 4096, &memory, NULL) < 0)
        abort();
    place.offset = 64;
    w.bytes = 4096;
    w.places = places;
    w.n_places = 1;
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_WEIGHTS;
    m.weights = &w;
    if (channel_send(fd, &m.base, memory, 0, NULL) < 0)
        abort();
    (void)close(memory);
}

static volatile uint8_t sink; /* all bytes are looked at */

static void use(struct skerry *s)
{
    joined = s;
    struct skerry_order o;
    struct skerry_sample samples[8];
    int n = 0;
    for (int i = 0; i < 64 && skerry_next(s, &o) > SKERRY_END; i++) {
        while ((n = skerry_samples(s, samples, 8)) > 0)
            for (int k = 0; k < n; k++)
                for (size_t b = 0; b < samples[k].bytes; b++)
                    sink ^= ((const uint8_t *)samples[k].data)[b];
        if (n < 0 && skerry_error()[0] == '\0')
            abort();
        if (skerry_more(s))
            (void)skerry_step(s, &(struct skerry_progress){.loss = 1, .samples = 1});
        if (!isfinite(skerry_lr_scale(s)) && o.kind != SKERRY_PHASE)
            abort();
        (void)skerry_done(s, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    struct skerry *s = NULL;
    if (size == 0 || size > 60000 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        return 0;
    const bool greets = data[0] & 1; /* else the answer to Hello is fuzzed, too */
    if (greets)
        answer(pair[1]);
    if (send(pair[1], data + 1, size - 1, MSG_DONTWAIT) != (ssize_t)size - 1)
        abort();
    (void)shutdown(pair[1], SHUT_WR);
    if (join_here(pair[0], &s) == 0)
        use(s);
    skerry_leave(s);
    if (!s)
        (void)close(pair[0]);
    (void)close(pair[1]);
    return 0;
}
