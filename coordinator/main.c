/* coordinatord: decides what the workers do. */
#include "common/base/base.h"
#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/job/yaml.h"
#include "common/net/loop.h"
#include "common/net/s3/client.h"
#include "coordinator/coordinator.h"
#include "coordinator/job/agree.h"
#include "coordinator/ship/restore.h"
#include "coordinator/ship/standby.h"
#include "coordinator/state/audit.h"
#include "coordinator/state/backup.h"
#include "coordinator/state/place.h"

#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { EXIT_OK = 0, EXIT_FAULT = 1, EXIT_CONFIG = 2, EXIT_BUSY = 3, EXIT_MOVED = 4 };

#define PRICE_MAX 1e6
#define STANDBY_MIN_MS 10000u
#define LARGE_BYTES (128 * 1024)

struct settings {
    struct coordinator_options o; /* but for these, which are taken over last: */
    uint64_t rpc_port, http_port, heartbeat_ms, lease_ms;
    int outer_threads;
    const char *config, *log_level;
    bool has_store_cache, die_with_parent, has_keep;
    uint64_t standby_ms;
    const char *backup, *restore, *from;
    uint64_t keep, audit;
};

/* Filled by the table below, from the file and the command line. */
static struct settings given = {.o.listen = "0.0.0.0",
                                .o.store_cache_bytes = 20000000000,
                                .o.look_again = AGREE_ONE_IN,
                                .rpc_port = 7710,
                                .http_port = 7711,
                                .heartbeat_ms = 2000,
                                .lease_ms = 8000,
                                .outer_threads = 2,
                                .log_level = "info"};

static const struct args_flag flag_table[] = {
    {"data-dir", 'd', ARGS_STR, &given.o.data_dir, "DIR", "folder of state, keys and blobs",
     .required = true, .line_only = true},
    {"config", 'c', ARGS_STR, &given.config, "FILE",
     "YAML file of settings, the flags' names with _ for - (rpc_port: 7710, lease: 8s); flags win",
     .line_only = true},
    {"listen", 0, ARGS_STR, &given.o.listen, "ADDR", "address to listen on"},
    {"host", 0, ARGS_STR, &given.o.host, "NAME",
     "name or address by which workers and people reach this machine (default: "
     "its host name)"},
    {"rpc-port", 0, ARGS_U64, &given.rpc_port, "N", "port for workers, 0: any free", .max = 65535},
    {"http-port", 0, ARGS_U64, &given.http_port, "N", "port for people and blobs, 0: any free",
     .max = 65535},
    {"plain-http", 0, ARGS_BOOL, &given.o.plain_http, NULL,
     "HTTP without TLS; only with --listen on a loopback address"},
    {"heartbeat", 0, ARGS_DURATION_MS, &given.heartbeat_ms, "TIME", "how often workers report",
     .min = 100, .max = 60000},
    {"lease", 0, ARGS_DURATION_MS, &given.lease_ms, "TIME",
     "time without a report after which a worker loses its lease", .min = 500, .max = 600000},
    {"blob-quota", 0, ARGS_BYTES, &given.o.blob_quota_bytes, "BYTES",
     "most bytes of blobs, 0: as the disk holds (default: 0)"},
    {"store", 0, ARGS_STR, &given.o.store, "URL",
     "keep blobs in an object store, s3://BUCKET/PREFIX (default: in the data dir)"},
    {"store-endpoint", 0, ARGS_STR, &given.o.store_endpoint, "URL",
     "https://HOST of the store (default: AWS_ENDPOINT_URL, or Amazon's of AWS_REGION)"},
    {"store-workers", 0, ARGS_STR, &given.o.store_workers, "yes|no",
     "workers exchange blobs with the store directly (default: yes, "
     "unless its endpoint is this machine)"},
    {"store-plain", 0, ARGS_BOOL, &given.o.store_plain, NULL,
     "the store's endpoint may be http://"},
    {"store-virtual-host", 0, ARGS_BOOL, &given.o.store_virtual_host, NULL,
     "the bucket is part of the endpoint's name, as at Amazon"},
    {"store-state", 0, ARGS_BOOL, &given.o.store_state, NULL,
     "keep the database in the store, too, so that another machine can take "
     "over"},
    {"standby", 0, ARGS_DURATION_MS, &given.standby_ms, "TIME",
     "with --store-state: wait until the coordinator of that state has been "
     "silent for TIME, at least 10s, then take over",
     .min = STANDBY_MIN_MS, .max = 86400000},
    {"store-cache", 0, ARGS_BYTES, &given.o.store_cache_bytes, "BYTES",
     "disk space for a cache of the store's blobs", .min = 1e6, .max = 1e18,
     .given = &given.has_store_cache},
    {"egress-price", 0, ARGS_DOUBLE, &given.o.egress_price, "DOLLARS",
     "price of a GB downloaded by workers, for `skerry cost` (default: 0)", .max = PRICE_MAX},
    {"request-price", 0, ARGS_DOUBLE, &given.o.request_price, "DOLLARS",
     "price of a million requests to the store (default: 0)", .max = PRICE_MAX},
    {"outer-threads", 0, ARGS_INT, &given.outer_threads, "N", "outer steps that run at once",
     .min = 1, .max = 64},
    {"log-level", 0, ARGS_STR, &given.log_level, "LEVEL", "debug, info, warn or error"},
    {"local", 0, ARGS_BOOL, &given.o.local, NULL,
     "all workers are of one person who waits for the end, as with `skerry "
     "run`: one machine is enough to say that a job cannot be done"},
    {"die-with-parent", 0, ARGS_BOOL, &given.die_with_parent, NULL,
     "stop when the parent process ends", .line_only = true},
    {"backup", 0, ARGS_STR, &given.backup, "FOLDER",
     "back the data dir up to a folder and exit, also while a coordinator "
     "runs on it",
     .line_only = true},
    {"keep", 0, ARGS_U64, &given.keep, "N",
     "with --backup: number of backups to keep, 0: all (default: 0)", .max = 60000,
     .given = &given.has_keep, .line_only = true},
    {"restore", 0, ARGS_STR, &given.restore, "FOLDER|s3://...",
     "restore the data dir from the newest backup in a folder, or from the "
     "store of a coordinator with --store-state, which then stops, and exit",
     .line_only = true},
    {"from", 0, ARGS_STR, &given.from, "NAME",
     "with --restore: take this backup instead of the newest", .line_only = true},
    {"audit", 0, ARGS_U64, &given.audit, "JOB",
     "check the stored versions of a job and exit, also while a coordinator "
     "runs",
     .min = 1, .max = 9e15, .line_only = true},
    {0},
};

static int load_config(const struct args *a, const char *path, struct yaml_doc *ret,
                       struct err *err)
{
    struct buf text;
    struct err why = {0};
    int rc = file_read(path, YAML_BYTES_MAX, &text, &why);
    if (rc < 0) /* a restart would not help */
        return err_set(err, -ERR_CONFIG, "--config: %s", why.msg);
    rc = yaml_parse(buf_str(&text), text.len, path, ret, err);
    buf_release(&text);
    for (const struct yaml_node *n = rc < 0 ? NULL : ret->root->first; n && rc == 0; n = n->next) {
        char *where = str_printf("%s:%d: ", path, n->key_line);
        const bool one = n->kind == YAML_SCALAR && !yaml_is_null(n);
        rc = args_set(a, where, n->key, one ? n->text : NULL, err);
        mem_free(where);
    }
    return rc;
}

/* `ret_doc` has the texts of the settings that a file gave. */
static int parse(int argc, char **argv, struct yaml_doc *ret_doc, int *ret_status)
{
    struct err err = {0};
    struct args args = {
        .program = "coordinatord",
        .usage = "--data-dir DIR [--config FILE] [--host NAME]",
        .about = "Coordinates the workers of a Skerry swarm and keeps their results.",
        .after = "exit status:\n"
                 "  0  stopped by a signal\n"
                 "  1  fault\n"
                 "  2  wrong flags or configuration, or a state of a newer release\n"
                 "  3  the data dir or a port is in use\n"
                 "  4  another coordinator has taken over this state",
        .flags = flag_table,
    };
    int rc = args_parse(&args, argc, argv, &err);
    if (rc == 0 && given.config && (rc = load_config(&args, given.config, ret_doc, &err)) == 0)
        rc = args_parse(&args, argc, argv, &err);
    if (rc != 0)
        *ret_status = args_exit(&args, rc, &err);
    return rc;
}

static int check_named(const char *flag, const char *folder, struct err *err)
{
    return folder && !folder[0] ? err_set(err, -EINVAL, "%s: " FILE_NAMELESS, flag, "directory")
                                : 0;
}

static int check_modes(const struct settings *s, struct err *err)
{
    if ((s->audit != 0) + (s->backup != NULL) + (s->restore != NULL) > 1)
        return err_set(err, -EINVAL,
                       "--audit, --backup and --restore exclude each other: give one of them");
    if (check_named("--data-dir", s->o.data_dir, err) < 0 ||
        check_named("--backup", s->backup, err) < 0 ||
        check_named("--restore", s->restore, err) < 0)
        return err->code;
    if (s->has_keep && s->backup == NULL)
        return err_set(err, -EINVAL, "--keep goes only with --backup FOLDER");
    if (s->from != NULL && s->restore == NULL)
        return err_set(err, -EINVAL, "--from goes only with --restore FOLDER");
    if (s->from != NULL && str_starts(s->restore, "s3://"))
        return err_set(err, -EINVAL,
                       "--from goes only with --restore FOLDER: a store has only the newest state");
    return 0;
}

/* A restore names its own store. */
static int check_store(const struct settings *s, struct err *err)
{
    const char *of = s->o.store_endpoint       ? "--store-endpoint"
                     : s->o.store_workers      ? "--store-workers"
                     : s->o.store_plain        ? "--store-plain"
                     : s->o.store_virtual_host ? "--store-virtual-host"
                     : s->has_store_cache      ? "--store-cache"
                                               : NULL;
    if (of && !s->o.store && !s->restore)
        return err_set(err, -ERR_CONFIG,
                       "%s is for an object store: name that with --store s3://...", of);
    return 0;
}

static int check_settings(const struct settings *s, struct err *err)
{
    enum log_level level;
    if (log_level_parse(s->log_level, &level) < 0)
        return err_set(err, -ERR_CONFIG, "log_level is '%s', expected debug, info, warn or error",
                       s->log_level);
    log_set_level(level);
    if (s->rpc_port != 0 && s->rpc_port == s->http_port)
        return err_set(err, -ERR_CONFIG,
                       "both ports are %llu: give --rpc-port and --http-port different ones",
                       (unsigned long long)s->rpc_port);
    if (s->standby_ms && !s->o.store_state)
        return err_set(err, -ERR_CONFIG,
                       "--standby needs --store-state: it goes on with the state in a store");
    if (s->lease_ms < 2 * s->heartbeat_ms)
        return err_set(err, -ERR_CONFIG,
                       "the lease of %llu ms is shorter than two heartbeats of "
                       "%llu ms",
                       (unsigned long long)s->lease_ms, (unsigned long long)s->heartbeat_ms);
    return 0;
}

static void on_signal(void *arg, int signo)
{
    log_info("coord", "stops: %s", strsignal(signo));
    loop_stop(arg);
}

/* Prints commands to paste for a person at a terminal; in a file or a journal, which
 * others may read, only the paths of the tokens, since they are passwords.  Revoked
 * tokens have no file. */
static void greet(const struct coordinator *co, const char *dir)
{
    const char *user = coordinator_user_token(co);
    const bool worker = coordinator_has_worker_token(co);
    (void)printf("coordinatord %s is ready at %s. State: %s", SKERRY_VERSION,
                 coordinator_http_url(co), dir);
    if (!isatty(STDOUT_FILENO)) {
        (void)printf(*user && worker ? "; tokens: worker.token and user.token there\n"
                     : *user         ? "; the operator's token: user.token there\n"
                     : worker        ? "; the workers' token: worker.token there\n"
                                     : "\n");
    } else {
        (void)printf("\n\n");
        if (worker)
            (void)printf("On each worker, with a copy of %s/worker.token:\n"
                         "    workerd --join @worker.token\n\n",
                         dir);
        else
            (void)printf("The first token of workers is revoked: `skerry tokens --new worker` "
                         "makes another.\n\n");
        if (*user)
            (void)printf("On your machine, with a copy of %s/user.token:\n"
                         "    skerry login @user.token\n\n"
                         "Status page:\n    %s/?token=%s\n\n"
                         "Tokens are passwords. `skerry tokens --help` makes others, with an "
                         "end.\n",
                         dir, coordinator_http_url(co), user);
        else
            (void)printf("The first operator's token is revoked: `skerry login` with another.\n");
    }
    if (coordinator_guesses_host(co))
        (void)printf("%sTokens lead to that name of this machine, as no --host was given: start it "
                     "again with --host NAME if workers elsewhere do not find it by that.\n",
                     isatty(STDOUT_FILENO) ? "\n" : "");
    (void)fflush(stdout);
}

static int status_of(int rc)
{
    if (rc == -EADDRINUSE || rc == -EBUSY)
        return EXIT_BUSY;
    if (rc == -ERR_STALE)
        return EXIT_MOVED;
    return rc == -ERR_CONFIG || rc == -EINVAL || rc == -ERR_VERSION ? EXIT_CONFIG : EXIT_FAULT;
}

static struct coordinator_options options_of(const struct settings *s)
{
    struct coordinator_options o = s->o;
    o.rpc_port = (uint16_t)s->rpc_port;
    o.http_port = (uint16_t)s->http_port;
    o.heartbeat_ms = (uint32_t)s->heartbeat_ms;
    o.lease_ms = (uint32_t)s->lease_ms;
    o.outer_threads = (unsigned)s->outer_threads;
    return o;
}

static int serve(const struct settings *s, struct err *err)
{
    struct loop *loop = NULL;
    struct coordinator *co = NULL;
    int rc = loop_new(&loop, err);
    if (rc < 0)
        return rc;
    const struct coordinator_options o = options_of(s);
    rc = loop_on_signals(loop, on_signal, loop, err);
    if (rc == 0)
        rc = coordinator_open(loop, &o, &co, err);
    if (rc == 0) {
        greet(co, s->o.data_dir);
        loop_run(loop);
        rc = coordinator_owns(co, err);
        coordinator_close(co);
    }
    loop_free(loop);
    return rc;
}

/* Root's files become the owner's: what was restored, or the lock that a failure has left. */
static int give(const struct settings *s, int rc, struct err *err)
{
    const int done = place_give(s->o.data_dir, rc < 0 ? NULL : err);
    return rc < 0 ? rc : done;
}

static int restore_from(const char *store, const struct settings *s, struct err *err)
{
    struct restore_result r;
    struct coordinator_options o = options_of(s);
    o.store = store;
    const int rc = give(s, restore_state(&o, &r, err), err);
    if (rc == 0)
        (void)printf("%s is as in %s: a snapshot of entry %llu and %llu entries after it; entry "
                     "%llu says that this is the coordinator now\n",
                     s->o.data_dir, store, (unsigned long long)r.snapshot,
                     (unsigned long long)r.entries, (unsigned long long)r.owned);
    (void)fflush(stdout);
    return rc;
}

/* Waits while another coordinator has the state, and serves whenever none has. */
static int stand_by(const struct settings *s, struct err *err)
{
    const struct coordinator_options o = options_of(s);
    char *database = file_join(s->o.data_dir, "coordinator.db");
    int rc = 0;
    while (rc == 0) {
        if (file_exists(database)) {
            rc = serve(s, err);
            if (rc != -ERR_STALE)
                break;
            log_warn("standby", "%s", err->msg);
        }
        rc = place_set_aside(s->o.data_dir, err);
        if (rc == 0)
            rc = standby_wait(&o, s->standby_ms, err);
        if (rc == 0 && s3_may_pass(rc = restore_from(s->o.store, s, err))) {
            log_warn("standby", "%s; it is tried again", err->msg);
            rc = 0;
        }
    }
    mem_free(database);
    return rc;
}

static int lock_dir(const struct settings *s, struct file_lock *ret, struct err *err)
{
    int rc = s->restore ? place_check_new(s->o.data_dir, err) : place_check_own(s->o.data_dir, err);
    if (rc == 0)
        rc = file_mkdirs(s->o.data_dir, 0700, err);
    if (rc == 0)
        rc = file_lock_dir(s->o.data_dir, "lock", ret, err);
    return rc < 0 && rc != -EBUSY ? err_wrap(err, "--data-dir %s cannot be used", s->o.data_dir)
                                  : rc;
}

static int start(const struct settings *s, struct err *err)
{
    struct file_lock lock;
    int rc;
    if ((rc = check_settings(s, err)) < 0 || (rc = check_store(s, err)) < 0 ||
        (rc = lock_dir(s, &lock, err)) < 0)
        return rc;
    if (s->restore)
        rc = restore_from(s->restore, s, err);
    else
        rc = s->standby_ms ? stand_by(s, err) : serve(s, err);
    file_unlock(&lock);
    return rc;
}

/* ---- backups ------------------------------------------------------------- */

static int restore_backup(const struct settings *s, struct backup_result *ret, struct err *err)
{
    struct file_lock lock;
    int rc = lock_dir(s, &lock, err);
    if (rc < 0)
        return rc;
    rc = give(s, backup_restore(s->restore, s->from, s->o.data_dir, ret, err), err);
    file_unlock(&lock);
    return rc;
}

static int back_up(const struct settings *s, struct err *err)
{
    struct backup_result r;
    char all[STR_HUMAN_MAX], fresh[STR_HUMAN_MAX];
    const int rc = s->backup ? backup_make(s->o.data_dir, s->backup, (unsigned)s->keep, &r, err)
                             : restore_backup(s, &r, err);
    if (rc < 0)
        return rc;
    str_human_bytes(r.bytes, all);
    if (s->backup)
        (void)printf("backup %s: %llu files, %s; %llu of them new, %s; %u older backup%s dropped\n",
                     r.name, (unsigned long long)r.files, all, (unsigned long long)r.new_files,
                     str_human_bytes(r.new_bytes, fresh), r.dropped, str_plural(r.dropped));
    else
        (void)printf(
            "%s is as in the backup %s: %llu files, %s\n"
            "start coordinatord with --data-dir %s, never beside the old one; workers come "
            "where its --host leads, or by its new worker.token\n",
            s->o.data_dir, r.name, (unsigned long long)r.files, all, s->o.data_dir);
    return 0;
}

static int audit(const struct settings *s, struct err *err)
{
    struct audit_result r;
    char bytes[STR_HUMAN_MAX];
    const struct coordinator_options o = options_of(s);
    const int rc = audit_job(&o, s->audit, stdout, &r, err);
    if (rc < 0)
        return rc;
    (void)printf("%s: %llu file%s of %s, %u version%s, %u of them made again from deltas, %u outer "
                 "step%s folded again, %u fault%s\n",
                 r.faults ? "FAULTY" : "good", (unsigned long long)r.files, str_plural(r.files),
                 str_human_bytes(r.bytes, bytes), r.versions, str_plural(r.versions), r.deltas,
                 r.steps, str_plural(r.steps), r.faults, str_plural(r.faults));
    return r.faults ? err_set(err, -ERR_HASH, "job %llu has %u fault%s",
                              (unsigned long long)s->audit, r.faults, str_plural(r.faults))
                    : 0;
}

static int run(const struct settings *s, struct err *err)
{
    int rc = check_modes(s, err);
    if (rc < 0)
        return rc;
    if (s->audit)
        return audit(s, err);
    const bool far = s->restore && str_starts(s->restore, "s3://");
    return s->backup || (s->restore && !far) ? back_up(s, err) : start(s, err);
}

/* Ten thousand workers are as many connections, and an outer step opens a file
 * for each contribution. */
static void allow_many_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files); /* with fewer it serves fewer workers */
    }
}

/* Few arenas for few threads, and large blocks go back to the system at once.  Without fixed bounds
 * glibc raises them with each large block that is freed, and the heap keeps holes of that size. */
static void stay_small(void)
{
    (void)mallopt(M_ARENA_MAX, 2);
    (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, LARGE_BYTES);
}

int main(int argc, char **argv)
{
    struct yaml_doc file = {0};
    struct err err = {0};
    int status = 0;
    file_first();
    if (parse(argc, argv, &file, &status) != 0) {
        yaml_release(&file);
        return status;
    }
    stay_small();
    allow_many_files();
    pid_t parent = getppid();
    if (given.die_with_parent && (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != parent))
        return EXIT_FAULT;
    int rc = run(&given, &err);
    yaml_release(&file);
    if (rc < 0) {
        (void)fprintf(stderr, "coordinatord: %s\n", err.msg);
        return status_of(rc);
    }
    return EXIT_OK;
}
