#include "cli/base/program.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "common/base/clock.h"
#include "common/base/file.h"

#define ARGS_MAX 32
#define PULSE_MS 100

extern char **environ;

/* Its three standard files. */
struct files {
    FILE *in, *out, *errors;
};

/* In memory: wherever we run, it may be that no disk takes a file. */
static FILE *file_new(void)
{
    const int fd = memfd_create("said", MFD_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w+");
    if (fd >= 0 && !f)
        close(fd);
    return f;
}

static int files_open(struct files *f, const char *input, struct err *err)
{
    *f = (struct files){file_new(), file_new(), file_new()};
    if (!f->in || !f->out || !f->errors || (input && fputs(input, f->in) == EOF) ||
        fflush(f->in) != 0)
        return err_errno(err, "making a file in memory for the output of a program");
    rewind(f->in);
    return 0;
}

static void files_close(struct files *f)
{
    FILE *const all[] = {f->in, f->out, f->errors};
    for (size_t i = 0; i < 3; i++)
        if (all[i])
            (void)fclose(all[i]);
}

static void read_back(FILE *f, char *out, size_t size)
{
    rewind(f);
    out[fread(out, 1, size - 1, f)] = '\0';
}

/* Waits for the program's end; kills it after limit_ms (0: no limit), or if the command is
 * interrupted. */
static int wait_for(pid_t pid, const char *path, int limit_ms, int *ret_status, struct err *err)
{
    struct pollfd end = {.fd = pidfd_open(pid, 0), .events = POLLIN};
    const uint64_t begun = clock_now_ms();
    bool late = false;
    pid_t ended;
    while (end.fd >= 0 && !cli_interrupted && !late && poll(&end, 1, PULSE_MS) <= 0)
        late = limit_ms && clock_now_ms() - begun >= (uint64_t)limit_ms;
    if (end.fd >= 0)
        close(end.fd);
    do {
        if (late || cli_interrupted)
            (void)kill(pid, SIGKILL);
        ended = waitpid(pid, ret_status, 0);
    } while (ended < 0 && errno == EINTR);
    if (ended != pid)
        return err_errno(err, "waiting for %s", path);
    if (cli_interrupted)
        return err_set(err, -ERR_CANCELLED, "interrupted");
    return late ? err_set(err, -ETIMEDOUT, "%s did not end within %d s", path, limit_ms / 1000) : 0;
}

static int spawn(char *const *argv, const struct files *f, int limit_ms, int *ret_status,
                 struct err *err)
{
    posix_spawn_file_actions_t to;
    pid_t pid;
    posix_spawn_file_actions_init(&to);
    posix_spawn_file_actions_adddup2(&to, fileno(f->in), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&to, fileno(f->out), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&to, fileno(f->errors), STDERR_FILENO);
    const int failed = posix_spawn(&pid, argv[0], &to, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&to);
    if (failed)
        return err_set(err, -failed, "%s cannot be started: %s", argv[0], strerror(failed));
    return wait_for(pid, argv[0], limit_ms, ret_status, err);
}

int program_run(const char *name, const char *const *args, const char *input, int limit_ms,
                struct program_said *ret, struct err *err)
{
    char *folder = cli_own_folder(), *path = file_join(folder, name);
    char *argv[ARGS_MAX + 2] = {path};
    struct files f;
    for (size_t i = 0; i < ARGS_MAX && args[i]; i++)
        argv[i + 1] = (char *)(uintptr_t)args[i];
    int rc = files_open(&f, input, err);
    if (rc == 0)
        rc = spawn(argv, &f, limit_ms, &ret->status, err);
    if (rc == 0) {
        read_back(f.out, ret->out, sizeof ret->out);
        read_back(f.errors, ret->errors, sizeof ret->errors);
    }
    files_close(&f);
    mem_free(path);
    mem_free(folder);
    return rc;
}

const char *program_reason(const struct program_said *said, const char *name, char *out,
                           size_t size)
{
    size_t end = strlen(said->errors);
    while (end > 0 && said->errors[end - 1] == '\n')
        end--;
    size_t begin = end, n = strlen(name);
    while (begin > 0 && said->errors[begin - 1] != '\n')
        begin--;
    const char *line = said->errors + begin;
    if (strncmp(line, name, n) == 0 && line[n] == ':')
        begin += n + 1 + (line[n + 1] == ' ');
    (void)snprintf(out, size, "%.*s", (int)(end - begin), said->errors + begin);
    return out;
}
