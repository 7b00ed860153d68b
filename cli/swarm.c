#include "cli/swarm.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "common/base/moving.h"
#include "common/base/clock.h"
#include "common/base/file.h"

#define START_MS 30000
#define STOP_MS 4000
#define LOGS_MAX 65536
#define LOG_LINE_MAX 2048     /* as common/base/log.c has it */
#define WHY_MAX 1024          /* as of an error's sentence, in which it is told */
#define UNTRAINED "untrained" /* in the state, made first and last: nothing is lost with it */
#define ASIDE_MAX 9           /* states that were moved aside */
#define FULL_BYTES (1u << 20) /* with less left, that is why nothing was written */
#define DEATHS_MAX 16         /* workers that die more often than this do not die by chance */

/* The read end of a pipe without a writer: an empty input, also if there is no /dev/null. */
static int no_input(void)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    close(ends[1]);
    return ends[0];
}

/* A child takes our handlers along, which would swallow a signal until it is another program.  So
 * it begins with these signals blocked, and ends by one that comes before that. */
static pid_t fork_without_handlers(void)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t block, before;
    sigemptyset(&block);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        sigaddset(&block, caught[i]);
    sigprocmask(SIG_BLOCK, &block, &before);
    const pid_t pid = fork();
    for (size_t i = 0; pid == 0 && i < sizeof caught / sizeof *caught; i++)
        if (signal(caught[i], SIG_DFL) == SIG_IGN)
            (void)signal(caught[i], SIG_IGN); /* as SIGHUP under nohup */
    sigprocmask(SIG_SETMASK, &before, NULL);
    return pid;
}

/* Starts bin/program with its output in logs/NAME.log. */
static pid_t launch(const struct swarm *s, const char *program, const char *name,
                    const char *const *argv, struct err *err)
{
    char *path = file_join(s->bin, program);
    char *log = str_printf("%s/%s.log", s->logs, name);
    pid_t parent = getpid();
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    int input = no_input();
    pid_t pid = -1;

    if (fd < 0 || input < 0) {
        err_errno(err, "opening %s", log);
    } else if (access(path, X_OK) != 0) {
        err_errno(err, "%s is not beside this program", path);
    } else if ((pid = fork_without_handlers()) == 0) {
        /* Its own group: Ctrl-C reaches only this program, which ends the daemons in order. */
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(127);
        dup2(input, 0);
        dup2(fd, 1);
        dup2(fd, 2);
        execv(path, (char *const *)argv); /* exec does not change them */
        _exit(127);
    } else if (pid < 0) {
        err_errno(err, "starting %s", path);
    }
    if (fd >= 0)
        close(fd);
    if (input >= 0)
        close(input);
    mem_free(log);
    mem_free(path);
    return pid;
}

/* Without the time, "error" and the area of the log, which people do not ask for. */
static const char *sentence_of(const char *line)
{
    int end = 0;
    (void)sscanf(line, "%*4d-%*2d-%*2d %*2d:%*2d:%*2d.%*3d error %*[a-z_]: %n", &end);
    return line + end;
}

/* The last line of a log, usually the reason why a daemon ended, or that the disk is full. */
static void last_line(const struct swarm *s, const char *name, char *out, size_t cap)
{
    char *log = str_printf("%s/%s.log", s->logs, name), line[LOG_LINE_MAX],
         free_text[STR_HUMAN_MAX];
    uint64_t disk_free = 0;
    FILE *f = fopen(log, "r");
    (void)file_disk_free(s->logs, &disk_free, NULL);
    snprintf(out, cap, "nothing is in %s; its disk has %s left%s", log,
             str_human_bytes(disk_free, free_text),
             disk_free < FULL_BYTES ? ": make room there, or give another folder with --out" : "");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0]) /* a long one is cut, so that the log's name is told, also by err_set */
            snprintf(out, cap, "%.*s (%s)", (int)(cap / 2), sentence_of(line), log);
    }
    if (f)
        fclose(f);
    mem_free(log);
}

static int wait_for_token(struct swarm *s, struct err *err)
{
    uint64_t deadline = clock_now_ms() + START_MS;
    char *worker = file_join(s->state, "coordinator/worker.token");
    char *ports = file_join(s->state, "coordinator/ports.json");
    int rc = 0;

    while (!file_exists(s->user_token) || !file_exists(worker) || !file_exists(ports)) {
        char why[WHY_MAX];
        if (waitpid(s->coordinator, NULL, WNOHANG) == s->coordinator) {
            s->coordinator = 0;
            last_line(s, "coordinatord", why, sizeof why);
            rc = err_set(err, -ECHILD, "coordinatord ended at its start: %s", why);
            break;
        }
        if (cli_interrupted) {
            rc = err_set(err, -ERR_CANCELLED, "interrupted");
            break;
        }
        if (clock_now_ms() > deadline) {
            rc = err_set(err, -ETIMEDOUT,
                         "coordinatord did not start within %d s; see %s/coordinatord.log",
                         START_MS / 1000, s->logs);
            break;
        }
        cli_sleep_ms(20);
    }
    mem_free(ports);
    mem_free(worker);
    return rc;
}

/* Locks the directory until the end: a new run there moves or removes what the one before left. */
static int hold(struct swarm *s, const char *dir, struct err *err)
{
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "opening %s", dir);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
        close(fd);
        return err_set(err, -EBUSY,
                       "another `skerry run` is at work in %s: wait for its end, or give another "
                       "folder with --out",
                       dir);
    }
    s->folder = fd;
    return 0;
}

/* Removes the logs of an earlier run, but no other files in a folder named logs. */
static int remove_logs(const char *dir, struct err *err)
{
    struct file_names names = {0};
    unsigned n;
    int end, rc = file_is_dir(dir) ? file_list(dir, LOGS_MAX, &names, err) : 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        const char *name = names.items[i];
        end = 0;
        (void)sscanf(name, "worker-%u.log%n", &n, &end);
        if (strcmp(name, "coordinatord.log") != 0 && (end == 0 || name[end]))
            continue;
        char *path = file_join(dir, name);
        rc = file_remove(path, err);
        mem_free(path);
    }
    file_names_release(&names);
    return rc;
}

/* As a shell reads it back as one word (mem_free). */
static char *quoted(const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "/._-+,:=@%";
    if (word[strspn(word, plain)] == '\0')
        return str_dup(word);
    char *out = mem_alloc(4 * strlen(word) + 3), *to = out;
    *to++ = '\'';
    for (; *word; word++) {
        if (*word == '\'')
            to = stpcpy(to, "'\\'");
        *to++ = *word;
    }
    strcpy(to, "'");
    return out;
}

/* How to save what is in a state that was kept (mem_free). */
static char *how_to_save(const char *state)
{
    char *bin = cli_own_folder(), *coordinator = file_join(bin, "coordinatord"),
         *skerry = file_join(bin, "skerry"), *data = file_join(state, "coordinator"),
         *token = str_printf("@%s/user.token", data);
    char **const words[] = {&coordinator, &skerry, &data, &token};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char *const word = quoted(*words[i]);
        mem_free(*words[i]);
        *words[i] = word;
    }
    char *how = str_printf(
        "to save it, start `%s --data-dir %s --listen 127.0.0.1 --host 127.0.0.1 --rpc-port 0 "
        "--http-port 0`, run `%s export --server %s --out MODEL`, and then remove %s",
        coordinator, data, skerry, token, state);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        mem_free(*words[i]);
    mem_free(bin);
    return how;
}

/* Moves what an earlier run trained and did not save out of the way. */
static int move_aside(const char *state, const char *data, struct err *err)
{
    struct file_lock lock;
    char *aside = str_printf("%s-unsaved", state), *how;
    for (int n = 2; file_exists(aside) && n <= ASIDE_MAX; n++) {
        mem_free(aside);
        aside = str_printf("%s-unsaved-%d", state, n);
    }
    int rc = file_lock_dir(data, "lock", &lock, err);
    if (rc == 0) {
        file_unlock(&lock);
        rc = file_exists(aside) ? err_set(err, -EEXIST, "%s is there, too", aside)
                                : file_move(state, aside, err);
    }
    moving_clear();
    how = how_to_save(aside);
    if (rc == 0)
        fprintf(stderr, "skerry: what an earlier run trained and did not save is in %s now; %s\n",
                aside, how);
    else
        (void)err_wrap(err,
                       "%s has what an earlier run trained and did not save: move it, or give "
                       "another folder with --out",
                       state);
    mem_free(how);
    mem_free(aside);
    return rc;
}

/* Makes the folder of the daemons' state, marked as one that may go. */
static int make_state(const char *state, struct err *err)
{
    char *mark = file_join(state, UNTRAINED), *data = file_join(state, "coordinator");
    int rc = file_exists(data) && !file_exists(mark) ? move_aside(state, data, err)
                                                     : file_remove_tree(state, err);
    if (rc == 0)
        rc = file_mkdirs(state, 0700, err);
    if (rc == 0)
        rc = file_write_atomic(mark, "", 0, 0600, err);
    if (rc == 0)
        rc = file_mkdirs(data, 0700, err);
    mem_free(data);
    mem_free(mark);
    return rc;
}

int swarm_start(struct swarm *s, const char *dir, struct err *err)
{
    char *state = file_join(dir, ".swarm");
    int rc = hold(s, dir, err);
    if (rc == 0)
        rc = make_state(state, err);
    if (rc < 0) {
        mem_free(state);
        return rc;
    }
    s->state = state;
    s->bin = cli_own_folder();
    s->logs = file_join(dir, "logs");
    s->user_token = file_join(s->state, "coordinator/user.token");
    char *data = file_join(s->state, "coordinator");

    rc = remove_logs(s->logs, err);
    if (rc == 0)
        rc = file_mkdirs(s->logs, 0777, err);
    if (rc == 0) {
        const char *argv[] = {"coordinatord",
                              "--data-dir",
                              data,
                              "--listen",
                              "127.0.0.1",
                              "--host",
                              "127.0.0.1",
                              "--rpc-port",
                              "0",
                              "--http-port",
                              "0",
                              "--local",
                              NULL};
        s->coordinator = launch(s, "coordinatord", "coordinatord", argv, err);
        rc = s->coordinator > 0 ? wait_for_token(s, err) : err->code;
    }
    mem_free(data);
    return rc;
}

#define WORDS_MAX 64 /* words of a worker's command line */

/* Appends the words of text, which owns them, to the `own` words of argv. */
static int add_words(char *text, const char *argv[WORDS_MAX + 1], int own, struct err *err)
{
    char *save = NULL;
    int n = own;
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        if (n == WORDS_MAX)
            return err_set(err, -ERR_LIMIT, "--workerd has too many words: at most %d are possible",
                           WORDS_MAX - own);
        argv[n++] = w;
    }
    argv[n] = NULL;
    return 0;
}

static int add_worker(struct swarm *s, int place, struct err *err)
{
    char name[32], threads[16];

    if (s->n_workers == SWARM_WORKERS_MAX)
        return err_set(err, -ERR_LIMIT, "at most %d workers", SWARM_WORKERS_MAX);
    snprintf(name, sizeof name, "worker-%d", ++s->next_name);
    snprintf(threads, sizeof threads, "%d", s->threads);
    /* The token is passed in a file, because every user can read command lines. */
    char *token = str_printf("@%s/coordinator/worker.token", s->state);
    char *work = file_join(s->state, name);
    size_t at = (size_t)place < s->extra.n ? (size_t)place : s->extra.n - 1;
    char *extra = str_dup(s->extra.n ? s->extra.items[at] : "");
    const char *argv[WORDS_MAX + 1] = {"workerd",
                                       "--join",
                                       token,
                                       "--name",
                                       name,
                                       "--work-dir",
                                       work,
                                       "--threads",
                                       threads,
                                       "--device",
                                       s->device ? s->device : "auto",
                                       s->trainers ? "--allow-trainers" : NULL};
    const int rc = add_words(extra, argv, s->trainers ? 12 : 11, err);
    pid_t pid = rc == 0 ? launch(s, "workerd", name, argv, err) : rc;
    mem_free(extra);
    mem_free(work);
    mem_free(token);
    if (pid <= 0)
        return err->code;
    s->workers[s->n_workers] = pid;
    s->places[s->n_workers] = place;
    s->names[s->n_workers++] = s->next_name;
    return 0;
}

int swarm_add_worker(struct swarm *s, struct err *err)
{
    return add_worker(s, s->n_workers, err);
}

/* Who ends a worker of ours by SIGKILL, if not a drill? */
static const char *killer(int signo)
{
    return signo == SIGKILL ? ", as the kernel does when memory is short" : "";
}

static int replace_worker(struct swarm *s, int i, int wait_status, bool drill, struct err *err)
{
    char why[WHY_MAX], name[32];
    int place = s->places[i];

    snprintf(name, sizeof name, "worker-%d", s->names[i]);
    last_line(s, name, why, sizeof why);
    memmove(&s->workers[i], &s->workers[i + 1], (size_t)(s->n_workers - i - 1) * sizeof(pid_t));
    memmove(&s->places[i], &s->places[i + 1], (size_t)(s->n_workers - i - 1) * sizeof(int));
    memmove(&s->names[i], &s->names[i + 1], (size_t)(s->n_workers - i - 1) * sizeof(int));
    s->n_workers--;
    if (WIFEXITED(wait_status))
        return err_set(err, -ECHILD, "%s ended by itself: %s", name, why);
    const int signo = WTERMSIG(wait_status);
    s->deaths += !drill; /* whose kill is no fault of the worker */
    if (s->deaths > DEATHS_MAX)
        return err_set(err, -ECHILD, "%d workers have died, %s as the last one (%s%s): %s",
                       s->deaths, name, strsignal(signo), killer(signo), why);
    int rc = add_worker(s, place, err);
    moving_clear();
    if (rc == 0)
        fprintf(stderr, "%s died (%s%s); worker-%d takes its place\n", name, strsignal(signo),
                drill ? "" : killer(signo), s->next_name);
    return rc;
}

/* Waits for the death, so that the next poll sees the replacement at work. */
int swarm_kill_worker(struct swarm *s, unsigned i, struct err *err)
{
    int wait_status;
    if (s->n_workers == 0)
        return 0;
    i %= (unsigned)s->n_workers;
    moving_clear();
    fprintf(stderr, "drill: SIGKILL for worker-%d\n", s->names[i]);
    kill(s->workers[i], SIGKILL);
    while (waitpid(s->workers[i], &wait_status, 0) < 0 && errno == EINTR)
        ;
    return replace_worker(s, (int)i, wait_status, true, err);
}

int swarm_check(struct swarm *s, struct err *err)
{
    int wait_status;
    char why[WHY_MAX];

    if (s->coordinator > 0 && waitpid(s->coordinator, &wait_status, WNOHANG) == s->coordinator) {
        s->coordinator = 0;
        last_line(s, "coordinatord", why, sizeof why);
        return err_set(err, -ECHILD, "coordinatord ended by itself: %s", why);
    }
    for (int i = 0; i < s->n_workers; i++) {
        if (waitpid(s->workers[i], &wait_status, WNOHANG) == s->workers[i]) {
            int rc = replace_worker(s, i, wait_status, false, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* Waits for a child that was asked to end; kills it at the deadline. */
static void reap(pid_t pid, uint64_t deadline)
{
    while (waitpid(pid, NULL, WNOHANG) == 0) {
        if (clock_now_ms() > deadline) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            return;
        }
        struct timespec t = {0, 10000000};
        nanosleep(&t, NULL);
    }
}

void swarm_keep(struct swarm *s)
{
    char *mark = file_join(s->state, UNTRAINED);
    (void)file_remove(mark, NULL); /* which needs no room on a disk that is full */
    mem_free(mark);
    s->keep = true;
}

void swarm_saved(struct swarm *s)
{
    char *mark = file_join(s->state, UNTRAINED);
    (void)file_write_atomic(mark, "", 0, 0600, NULL); /* without it the next run keeps too much */
    mem_free(mark);
    s->keep = false;
}

/* Of a state that is kept the workers' caches can go. */
static void remove_state(const struct swarm *s)
{
    if (!s->keep) {
        (void)file_remove_tree(s->state, NULL); /* the next run takes care of a leftover */
        return;
    }
    for (int i = 1; i <= s->next_name; i++) {
        char *work = str_printf("%s/worker-%d", s->state, i);
        (void)file_remove_tree(work, NULL);
        mem_free(work);
    }
    char *how = how_to_save(s->state);
    fprintf(stderr, "skerry: what was trained is kept in %s; %s\n", s->state, how);
    mem_free(how);
}

void swarm_stop(struct swarm *s)
{
    uint64_t deadline = clock_now_ms() + STOP_MS;

    for (int i = 0; i < s->n_workers; i++)
        kill(s->workers[i], SIGTERM);
    for (int i = 0; i < s->n_workers; i++)
        reap(s->workers[i], deadline);
    s->n_workers = 0;
    if (s->coordinator > 0) {
        kill(s->coordinator, SIGTERM);
        reap(s->coordinator, clock_now_ms() + STOP_MS);
        s->coordinator = 0;
    }
    if (s->state)
        remove_state(s);
    if (s->folder > 0)
        close(s->folder);
    mem_free(s->bin);
    mem_free(s->state);
    mem_free(s->logs);
    mem_free(s->user_token);
    memset(s, 0, sizeof *s);
}
