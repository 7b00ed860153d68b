#include "worker/external/external.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/pbmem.h"
#include "common/trainer/channel.h"
#include "worker/external/process.h"

#define LOOK_MS 50       /* between looks at whether the task is stopped */
#define ANSWER_MS 10000  /* to complete a frame that has begun, and to read one of ours */
#define STARTING_MS 5000 /* between two signs that a trainer is being set up, or started */
#define STOP_S 5         /* that a trainer has after a stop */
#define GIVE_MS 60000    /* to copy the weights that are asked for during a phase */
#define USE_EVERY_MS 1000
#define WEIGH_EVERY_MS 10000       /* processes that share memory take long to weigh */
#define BUSY_PART 20               /* a trainer that uses 1/20 of a core is at work */
#define SILENT_MS (60 * 60 * 1000) /* longest silence of a trainer that is at work */
#define PROCESSES_MAX 4096         /* most processes of a trainer, with those that it starts */
#define MESSAGE_MEMORY (128u << 20)
#define SETUP_MS (30 * 60 * 1000)
#define REASON_TAIL 150 /* bytes of a trainer's last lines in a reason */

/* The last measured use of a session. */
struct watch {
    uint64_t looked_ms, cpu_ms, weighed_ms;
    uint64_t may_bytes; /* up to which the processes' sum may grow before it is weighed anew */
    bool busy;          /* it was busy between the last two looks */
};

struct external {
    struct process *process;
    int fd;
    struct tensors tensors;
    uint8_t *shared;
    uint64_t *seal;
    bool evaluates, draws, keeps_state, exchanges;
    char library[65];
    uint64_t memory_bytes;
    struct watch watch;
    uint64_t heard_ms;                    /* time of its last message */
    bool wrote;                           /* it has written since the last look at its use */
    const struct external_events *events; /* of the running order */
    struct pbmem mem;                     /* memory of the present message */
};

/* ---- failures ---- */

/* Sets the sentence, followed by the trainer's last lines. */
static int blame(struct process *p, int code, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static int blame(struct process *p, int code, struct err *err, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    const char *tail = process_tail(p);
    const size_t len = strlen(tail);
    const char *end = len > REASON_TAIL ? tail + len - REASON_TAIL : tail;
    while (((unsigned char)*end & 0xc0) == 0x80)
        end++;
    if (*end)
        return err_set(err, code, "%s; its last lines: %s%s", text, end > tail ? "..." : "", end);
    return err_set(err, code, "%s; it wrote nothing", text);
}

static int died(struct process *p, struct err *err)
{
    char how[128];
    for (int i = 0; i < 20 && !process_is_over(p, how, sizeof(how)); i++)
        (void)poll(NULL, 0, LOOK_MS); /* its socket closes a moment before the process ends */
    if (!process_is_over(p, how, sizeof(how)))
        return blame(p, -ERR_TRAINER, err, "the trainer closed its socket and goes on");
    return blame(p, process_lacked_memory(p) ? -ENOMEM : -ERR_TRAINER, err, "the trainer %s", how);
}

static int gave_up(struct external *x, const Skerry__Trainer__V1__Failed *m, struct err *err)
{
    return blame(x->process, m->memory ? -ENOMEM : -ERR_TRAINER, err, "the trainer gave up: %.300s",
                 m->reason);
}

/* most: most bytes of memory; 0: no bound. */
static int check_use(struct process *p, uint64_t most, struct watch *w, struct err *err)
{
    char used[STR_HUMAN_MAX], may[STR_HUMAN_MAX];
    const uint64_t now_ms = clock_now_ms(), passed_ms = now_ms - w->looked_ms;
    if (passed_ms < USE_EVERY_MS)
        return 0;
    struct process_use now = process_use(p);
    bool too_much = false;
    const bool more = now.cpu_ms > w->cpu_ms;
    w->busy = w->looked_ms && more && now.cpu_ms - w->cpu_ms >= passed_ms / BUSY_PART;
    w->looked_ms = now_ms;
    w->cpu_ms = now.cpu_ms;
    if (most > 0 && now.bytes > most &&
        (now.bytes > w->may_bytes || now_ms - w->weighed_ms >= WEIGH_EVERY_MS)) {
        const uint64_t sum = now.bytes;
        now.bytes = process_memory(p);
        w->may_bytes = sum + (now.bytes < most ? most - now.bytes : 0);
        w->weighed_ms = now_ms;
        too_much = now.bytes > most;
    }
    if (too_much)
        return blame(p, -ENOMEM, err,
                     "the trainer takes %s of memory, more than the %s that this worker gives "
                     "(--trainer-memory)",
                     str_human_bytes(now.bytes, used), str_human_bytes(most, may));
    if (now.processes > PROCESSES_MAX)
        return blame(p, -ERR_TRAINER, err, "the trainer has %zu processes, more than %d",
                     now.processes, PROCESSES_MAX);
    return 0;
}

/* ---- listening ---- */

/* The command has ended; its children may hold the socket, and its last message may still be
 * unread. */
static int look_at_end(struct external *x, struct err *err)
{
    struct pollfd message = {.fd = x->fd, .events = POLLIN};
    char how[128];
    if (!process_is_over(x->process, how, sizeof(how)))
        return 0;
    (void)poll(&message, 1, 0);
    return message.revents ? 1 : died(x->process, err);
}

/* Waits a moment for output or a message; 1: there is a message to be read. */
static int look(struct external *x, size_t *ret_wrote, struct err *err)
{
    struct pollfd fds[2] = {{.fd = x->fd, .events = POLLIN},
                            {.fd = process_output_fd(x->process), .events = POLLIN}};
    (void)poll(fds, 2, LOOK_MS); /* if it is interrupted it has found nothing */
    *ret_wrote = 0;
    if (fds[1].revents & POLLIN)
        *ret_wrote = process_take_output(x->process);
    const int rc = check_use(x->process, x->memory_bytes, &x->watch, err);
    if (rc < 0 || fds[0].revents)
        return rc < 0 ? rc : 1;
    if (fds[1].revents & ~POLLIN)
        (void)poll(fds, 1, LOOK_MS); /* it has closed its output: poll returned at once */
    return fds[0].revents ? 1 : look_at_end(x, err);
}

/* Receives a message; *ret is valid until the next one. */
static int hear(struct external *x, const Skerry__Trainer__V1__FromTrainer **ret, int *ret_passed,
                struct err *err)
{
    struct channel_frame f;
    struct err why = {0};
    const int rc = channel_receive(x->fd, 0, ANSWER_MS, &f, &why);
    if (rc == -EPIPE)
        return died(x->process, err);
    if (rc < 0)
        return blame(x->process, -ERR_TRAINER, err, "the trainer cannot be understood: %s",
                     why.msg);
    if (rc == 0)
        return 0;
    pbmem_clear(&x->mem);
    *ret = skerry__trainer__v1__from_trainer__unpack(pbmem_allocator(&x->mem), f.len, f.data);
    *ret_passed = f.passed;
    mem_free(f.data);
    if (*ret)
        return 1;
    if (f.passed >= 0)
        (void)close(f.passed);
    return blame(x->process, -ERR_TRAINER, err, "the trainer sent %zu bytes that are no message",
                 f.len);
}

static int tell(struct external *x, const Skerry__Trainer__V1__FromWorker *m, int passed,
                struct err *err)
{
    struct err why = {0};
    const int rc = channel_send(x->fd, &m->base, passed, ANSWER_MS, &why);
    if (rc == -EPIPE)
        return died(x->process, err);
    return rc < 0 ? blame(x->process, -ERR_TRAINER, err, "the trainer does not listen: %s", why.msg)
                  : 0;
}

/* ---- opening ---- */

static int start(const struct external_options *opt, const char *command, const char *what,
                 int passed, struct process **ret, struct err *err)
{
    const struct process_options p = {
        .command = command,
        .folder = opt->folder,
        .what = what,
        .env = opt->job->env.items,
        .n_env = opt->job->env.n,
        .passed = passed,
        .memory_bytes = opt->memory_bytes,
        .threads = opt->threads,
    };
    return process_start(&p, ret, err);
}

static int wait_hello(struct external *x, const struct external_options *opt,
                      const Skerry__Trainer__V1__FromTrainer **ret, struct err *err)
{
    const uint64_t begun = clock_now_ms(), until = begun + (uint64_t)opt->hello_ms;
    uint64_t told = begun;
    int rc = 0, passed = -1;
    while (rc == 0) {
        size_t wrote = 0;
        if (opt->stopped(opt->arg))
            return err_set(err, -ERR_CANCELLED, "the task was taken back");
        if (clock_now_ms() > until)
            return blame(x->process, -ERR_TRAINER, err, "the trainer said no hello within %d s",
                         opt->hello_ms / 1000);
        rc = look(x, &wrote, err);
        if (wrote > 0 || clock_now_ms() - told > STARTING_MS) {
            told = clock_now_ms();
            opt->goes_on(opt->arg);
        }
        if (rc == 1)
            rc = hear(x, ret, &passed, err);
    }
    if (passed >= 0)
        (void)close(passed);
    return rc < 0 ? rc : 0;
}

static int take_hello(struct external *x, const struct external_options *opt,
                      const Skerry__Trainer__V1__FromTrainer *m, struct err *err)
{
    if (m->what_case == SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_FAILED)
        return gave_up(x, m->failed, err);
    if (m->what_case != SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_HELLO)
        return blame(x->process, -ERR_TRAINER, err, "the trainer's first message is no hello");
    const Skerry__Trainer__V1__Hello *h = m->hello;
    if (h->protocol != CHANNEL_PROTOCOL)
        return blame(x->process, -ERR_CONFIG, err,
                     "the trainer speaks version %u of the protocol, this worker version %d",
                     h->protocol, CHANNEL_PROTOCOL);
    x->evaluates = h->evaluates;
    x->draws = h->draws;
    x->keeps_state = h->keeps_state;
    x->exchanges = h->exchanges;
    str_copy(x->library, sizeof(x->library), h->library);
    int rc = tensors_from_hello(h, &x->tensors, err);
    return rc < 0 ? rc : tensors_choose(&x->tensors, opt->job, opt->cut, err);
}

static int send_places(struct external *x, int memory, struct err *err)
{
    const struct tensors *t = &x->tensors;
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Weights w = SKERRY__TRAINER__V1__WEIGHTS__INIT;
    Skerry__Trainer__V1__Place *items = mem_try_array(t->n, sizeof(*items));
    Skerry__Trainer__V1__Place **list = mem_try_array(t->n, sizeof(*list));
    int rc = items && list ? 0 : err_set(err, -ENOMEM, "no memory for %zu tensors", t->n);
    for (size_t i = 0; i < t->n && rc == 0; i++) {
        list[i] = &items[i];
        skerry__trainer__v1__place__init(&items[i]);
        if (t->items[i].level < 0)
            continue;
        items[i].offset = t->items[i].offset;
        items[i].level = (uint32_t)t->items[i].level;
    }
    w.bytes = t->bytes;
    w.places = list;
    w.n_places = t->n;
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_WEIGHTS;
    m.weights = &w;
    if (rc == 0)
        rc = tell(x, &m, memory, err);
    mem_free(items);
    mem_free(list);
    return rc;
}

static int share(struct external *x, struct err *err)
{
    int memory = -1;
    int rc = channel_memory("skerry-weights", x->tensors.bytes, &memory, err);
    if (rc < 0)
        return rc;
    x->shared = mmap(NULL, x->tensors.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (x->shared == MAP_FAILED) {
        x->shared = NULL;
        rc = err_errno(err, "mapping %" PRIu64 " bytes of weights", x->tensors.bytes);
    } else {
        (void)madvise(x->shared, x->tensors.bytes, MADV_HUGEPAGE); /* where the machine has some */
        memcpy(x->shared, x->tensors.header.data, x->tensors.header.len);
        rc = send_places(x, memory, err);
    }
    (void)close(memory);
    return rc;
}

int external_open(const struct external_options *opt, struct external **ret, struct err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_errno(err, "making a socket for the trainer");
    struct external *x = mem_alloc(sizeof(*x));
    x->fd = pair[0];
    x->memory_bytes = opt->memory_bytes;
    pbmem_init(&x->mem, MESSAGE_MEMORY);
    int rc = start(opt, opt->job->command, "trainer", pair[1], &x->process, err);
    (void)close(pair[1]);
    const Skerry__Trainer__V1__FromTrainer *m = NULL;
    if (rc == 0)
        rc = wait_hello(x, opt, &m, err);
    if (rc == 0)
        rc = take_hello(x, opt, m, err);
    if (rc == 0 && !(x->seal = mem_try_array(x->tensors.n_pieces, sizeof(*x->seal))))
        rc = err_set(err, -ENOMEM, "no memory to watch over the trainer's weights");
    if (rc == 0)
        rc = share(x, err);
    if (rc < 0) {
        external_close(x);
        return rc;
    }
    log_info("external", "a trainer is here library=\"%s\" tensors=%zu shared=%zu bytes=%" PRIu64,
             x->library, x->tensors.n, tensors_chosen(&x->tensors, -1), x->tensors.bytes);
    *ret = x;
    return 0;
}

void external_close(struct external *x)
{
    if (!x)
        return;
    process_end(x->process);
    (void)close(x->fd);
    if (x->shared)
        (void)munmap(x->shared, x->tensors.bytes);
    mem_free(x->seal);
    tensors_release(&x->tensors);
    pbmem_release(&x->mem);
    mem_free(x);
}

int external_setup(const struct external_options *opt, const char *command, struct err *err)
{
    struct process *p = NULL;
    char how[128];
    const uint64_t begun = clock_now_ms(), until = begun + SETUP_MS;
    uint64_t told = begun;
    struct watch watch = {0};
    int rc = start(opt, command, "setup", -1, &p, err);
    while (rc == 0 && !process_is_over(p, how, sizeof(how))) {
        struct pollfd out = {.fd = process_output_fd(p), .events = POLLIN};
        (void)poll(&out, 1, LOOK_MS);
        const bool wrote = process_take_output(p) > 0;
        if (!wrote && (out.revents & ~POLLIN))
            (void)poll(NULL, 0, LOOK_MS); /* it has closed its output: poll returned at once */
        if (wrote || clock_now_ms() - told > STARTING_MS) {
            told = clock_now_ms();
            opt->goes_on(opt->arg);
        }
        if (opt->stopped(opt->arg))
            rc = err_set(err, -ERR_CANCELLED, "the task was taken back");
        else if (clock_now_ms() > until)
            rc = blame(p, -ERR_TRAINER, err, "trainer.setup took longer than %d minutes",
                       SETUP_MS / 60000);
        else
            rc = check_use(p, opt->memory_bytes, &watch, err);
    }
    if (rc == 0)
        opt->goes_on(opt->arg); /* of one that was over at once, this is the only sign */
    if (rc == 0 && strcmp(how, "ended with exit status 0") != 0)
        rc = blame(p, process_lacked_memory(p) ? -ENOMEM : -ERR_TRAINER, err, "trainer.setup %s",
                   how);
    process_end(p);
    return rc;
}

const struct tensors *external_tensors(const struct external *x)
{
    return &x->tensors;
}

bool external_evaluates(const struct external *x)
{
    return x->evaluates;
}

bool external_draws(const struct external *x)
{
    return x->draws;
}

bool external_keeps_state(const struct external *x)
{
    return x->keeps_state;
}

bool external_exchanges(const struct external *x)
{
    return x->exchanges;
}

uint8_t *external_shared(struct external *x)
{
    return x->shared;
}

uint64_t *external_seal(struct external *x)
{
    return x->seal;
}

/* ---- orders ---- */

static int send_samples(struct external *x, const struct external_events *ev, struct err *err)
{
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Samples s = SKERRY__TRAINER__V1__SAMPLES__INIT;
    int fd = -1;
    if (!ev->samples)
        return blame(x->process, -ERR_TRAINER, err,
                     "the trainer asks for samples, but there are none");
    int rc = ev->samples(ev->arg, &s, &fd, err);
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_SAMPLES;
    m.samples = &s;
    if (rc == 0)
        rc = tell(x, &m, fd, err);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

static void take_done(const Skerry__Trainer__V1__Done *m, int passed, struct external_done *ret)
{
    *ret = (struct external_done){
        .loss_sum = m->loss_sum, .units = m->units, .text = str_dup(m->text), .passed = passed};
    for (; ret->n_numbers < m->n_numbers && ret->n_numbers < EXTERNAL_NUMBERS_MAX;
         ret->n_numbers++) {
        struct external_number *to = &ret->numbers[ret->n_numbers];
        (void)str_copy(to->name, sizeof(to->name), m->numbers[ret->n_numbers]->name);
        to->value = m->numbers[ret->n_numbers]->value;
    }
}

/* One message while an order runs; *ret_over: it is done. */
static int serve(struct external *x, const struct external_events *ev, bool stopping,
                 struct external_done *ret, bool *ret_over, struct err *err)
{
    const Skerry__Trainer__V1__FromTrainer *m = NULL;
    int passed = -1, rc = hear(x, &m, &passed, err);
    if (rc != 1)
        return rc;
    const bool done = m->what_case == SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_DONE;
    if (passed >= 0 && !done) {
        (void)close(passed);
        passed = -1;
    }
    if (stopping && m->what_case == SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_GIVEN)
        return 0; /* the trainer asked before the stop */
    switch (m->what_case) {
    case SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_PROGRESS:
        return ev->progress && !stopping ? ev->progress(ev->arg, m->progress, err) : 0;
    case SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_SAMPLES_WANTED:
        return stopping ? 0 : send_samples(x, ev, err); /* a stopped trainer needs none */
    case SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_DONE:
        take_done(m->done, passed, ret);
        *ret_over = true;
        return 0;
    case SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_FAILED:
        return gave_up(x, m->failed, err);
    default:
        return blame(x->process, -ERR_TRAINER, err,
                     "the trainer sent message %d, which has no place here", (int)m->what_case);
    }
}

/* ---- during a phase ---- */

/* Waits for the answer to Give, unless the task is taken back. */
static int wait_given(struct external *x, struct err *err)
{
    const Skerry__Trainer__V1__FromTrainer *m = NULL;
    const uint64_t until = clock_now_ms() + GIVE_MS;
    size_t wrote;
    int passed = -1, rc = 0;
    while (rc == 0) {
        if (x->events->stopped(x->events->arg))
            return err_set(err, -ERR_CANCELLED, "the task was taken back");
        if (clock_now_ms() > until)
            return blame(x->process, -ERR_TRAINER, err,
                         "the trainer did not give its weights within %d s", GIVE_MS / 1000);
        rc = look(x, &wrote, err);
        if (rc == 1)
            rc = hear(x, &m, &passed, err);
    }
    if (passed >= 0)
        (void)close(passed);
    if (rc < 0)
        return rc;
    if (m->what_case == SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_FAILED)
        return gave_up(x, m->failed, err);
    if (m->what_case != SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_GIVEN)
        return blame(x->process, -ERR_TRAINER, err,
                     "the trainer sent message %d in place of its weights", (int)m->what_case);
    return 0;
}

int external_give(struct external *x, uint32_t level, struct err *err)
{
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Give give = SKERRY__TRAINER__V1__GIVE__INIT;
    give.level = level;
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_GIVE;
    m.give = &give;
    const int rc = tell(x, &m, -1, err);
    return rc < 0 ? rc : wait_given(x, err);
}

int external_take(struct external *x, uint32_t level, struct err *err)
{
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Take take = SKERRY__TRAINER__V1__TAKE__INIT;
    take.level = level;
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_TAKE;
    m.take = &take;
    return tell(x, &m, -1, err);
}

int external_go_on(struct external *x, uint32_t pause, struct err *err)
{
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__GoOn go_on = SKERRY__TRAINER__V1__GO_ON__INIT;
    go_on.pause = pause;
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_GO_ON;
    m.go_on = &go_on;
    return tell(x, &m, -1, err);
}

static int send_stop(struct external *x, struct err *err)
{
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Stop s = SKERRY__TRAINER__V1__STOP__INIT;
    s.seconds = STOP_S;
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_STOP;
    m.stop = &s;
    return tell(x, &m, -1, err);
}

void external_done_release(struct external_done *d)
{
    mem_free(d->text);
    if (d->passed >= 0)
        (void)close(d->passed);
    *d = (struct external_done){.passed = -1};
}

/* After each look: signs of work other than messages, which are reported by themselves. */
static void tell_signs(struct external *x, const struct external_events *ev, uint64_t looked_ms,
                       size_t wrote)
{
    x->wrote = x->wrote || wrote > 0;
    if (x->watch.looked_ms == looked_ms)
        return;
    if (ev->goes_on && (x->watch.busy || x->wrote) && clock_now_ms() - x->heard_ms < SILENT_MS)
        ev->goes_on(ev->arg);
    x->wrote = false;
}

int external_ask(struct external *x, const Skerry__Trainer__V1__FromWorker *order, int passed,
                 const struct external_events *ev, struct external_done *ret, bool *ret_alive,
                 struct err *err)
{
    uint64_t stopped_ms = 0;
    bool over = false;
    struct external_done done = {.passed = -1};
    x->events = ev;
    x->heard_ms = clock_now_ms();
    int rc = tell(x, order, passed, err);
    while (rc == 0 && !over) {
        size_t wrote;
        const uint64_t looked_ms = x->watch.looked_ms;
        if (!stopped_ms && ev->stopped(ev->arg)) {
            stopped_ms = clock_now_ms();
            if ((rc = send_stop(x, err)) < 0)
                break;
        }
        if (stopped_ms && clock_now_ms() - stopped_ms > STOP_S * 1000)
            rc = blame(x->process, -ERR_TRAINER, err, "the trainer did not stop within %d s",
                       STOP_S);
        else if ((rc = look(x, &wrote, err)) >= 0)
            tell_signs(x, ev, looked_ms, wrote);
        if (rc == 1) {
            x->heard_ms = clock_now_ms();
            rc = serve(x, ev, stopped_ms != 0, &done, &over, err);
        }
    }
    *ret_alive = rc == 0;
    if (stopped_ms) { /* whatever its result, it is not wanted any more */
        external_done_release(&done);
        return err_set(err, -ERR_CANCELLED, "the task was taken back");
    }
    if (rc == 0)
        *ret = done;
    return rc;
}
