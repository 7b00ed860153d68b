/* coordinatord: decides what the workers do. */
#include "common/base/base.h"
#include "common/base/args.h"
#include "common/job/conf.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/job/yaml.h"
#include "common/net/loop.h"
#include "common/net/s3/client.h"
#include "coordinator/coordinator.h"
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
    char *listen, *host, *log_level;
    uint64_t rpc_port, http_port, heartbeat_ms, lease_ms, blob_quota;
    int outer_threads;
    bool plain_http;
    char *store, *store_endpoint, *store_workers;
    bool store_plain, store_virtual_host, store_state;
    uint64_t store_cache, standby_ms;
    double egress_price, request_price;
};

static const struct conf_key keys[] = {
    CONF(struct settings, listen, STR, .def = "0.0.0.0", .doc = "address to listen on"),
    CONF(struct settings, host, STR, .doc = "name or address by which workers reach this machine"),
    CONF(struct settings, rpc_port, U64, .def = "7710", .max = 65535,
         .doc = "port for workers (0: any free)"),
    CONF(struct settings, http_port, U64, .def = "7711", .max = 65535,
         .doc = "port for people and blobs (0: any free)"),
    CONF(struct settings, plain_http, BOOL, .def = "false",
         .doc = "HTTP without TLS, on a loopback address only"),
    CONF(struct settings, heartbeat_ms, DURATION_MS, .def = "2s", .min = 100, .max = 60000,
         .doc = "how often workers report"),
    CONF(struct settings, lease_ms, DURATION_MS, .def = "8s", .min = 500, .max = 600000,
         .doc = "time without a report after which a worker loses its lease"),
    CONF(struct settings, blob_quota, BYTES, .def = "0",
         .doc = "most bytes of blobs (0: as the disk holds)"),
    CONF(struct settings, store, STR,
         .doc = "object store of the blobs, s3://BUCKET/PREFIX (none: in the data dir)"),
    CONF(struct settings, store_endpoint, STR, .doc = "https://HOST of the store (none: Amazon's)"),
    CONF(struct settings, store_workers, STR,
         .doc = "yes or no: workers exchange blobs with the store directly (none: yes, "
                "unless it is on this machine)"),
    CONF(struct settings, store_plain, BOOL, .def = "false", .doc = "the endpoint may be http://"),
    CONF(struct settings, store_virtual_host, BOOL, .def = "false",
         .doc = "the bucket is part of the endpoint's name"),
    CONF(struct settings, store_state, BOOL, .def = "false",
         .doc = "keep the database in the store, too, so that another machine can take "
                "over"),
    CONF(struct settings, standby_ms, DURATION_MS, .def = "0", .max = 86400000,
         .doc = "take over the state in the store when its coordinator is silent for "
                "this long (0: now)"),
    CONF(struct settings, store_cache, BYTES, .def = "20GB", .min = 1e6, .max = 1e18,
         .doc = "disk space for a cache of the store's blobs"),
    CONF(struct settings, egress_price, DOUBLE, .def = "0", .max = PRICE_MAX,
         .doc = "dollars a GB that workers download, for `skerry cost`"),
    CONF(struct settings, request_price, DOUBLE, .def = "0", .max = PRICE_MAX,
         .doc = "dollars a million requests to the store, for `skerry cost`"),
    CONF(struct settings, outer_threads, INT, .def = "2", .min = 1, .max = 64,
         .doc = "outer steps that run at once"),
    CONF(struct settings, log_level, STR, .def = "info", .doc = "debug, info, warn or error"),
    CONF_END,
};

struct flags {
    const char *data_dir, *config, *listen, *host, *log_level;
    uint64_t rpc_port, http_port, heartbeat_ms, lease_ms, blob_quota;
    int outer_threads;
    bool plain_http;
    bool has_rpc, has_http, has_plain, has_heartbeat, has_lease, has_quota, has_threads, has_keep;
    bool die_with_parent;
    const char *store, *store_endpoint, *store_workers;
    bool store_plain, store_virtual_host, store_state;
    bool has_store_plain, has_store_host, has_store_state, has_store_cache;
    const char *backup, *restore, *from;
    uint64_t keep, audit, store_cache, standby_ms;
    double egress_price, request_price;
    bool has_egress, has_request, has_standby;
};

/* Filled by the table below. */
static struct flags given;

static const struct args_flag flag_table[] = {
    {"data-dir", 'd', ARGS_STR, &given.data_dir, "DIR", "folder of state, keys and blobs",
     .required = true},
    {"config", 'c', ARGS_STR, &given.config, "FILE",
     "YAML file of settings (rpc_port: 7710, lease_ms: 8s); flags win"},
    {"listen", 0, ARGS_STR, &given.listen, "ADDR", "address to listen on (default: 0.0.0.0)"},
    {"host", 0, ARGS_STR, &given.host, "NAME",
     "name or address by which workers and people reach this machine (default: "
     "its host name)"},
    {"rpc-port", 0, ARGS_U64, &given.rpc_port, "N", "port for workers, 0: any free (default: 7710)",
     .max = 65535, .given = &given.has_rpc},
    {"http-port", 0, ARGS_U64, &given.http_port, "N",
     "port for people and blobs, 0: any free (default: 7711)", .max = 65535,
     .given = &given.has_http},
    {"plain-http", 0, ARGS_BOOL, &given.plain_http, NULL,
     "HTTP without TLS; only with --listen on a loopback address", .given = &given.has_plain},
    {"heartbeat", 0, ARGS_DURATION_MS, &given.heartbeat_ms, "TIME",
     "how often workers report (default: 2s)", .min = 100, .max = 60000,
     .given = &given.has_heartbeat},
    {"lease", 0, ARGS_DURATION_MS, &given.lease_ms, "TIME",
     "time without a report after which a worker loses its lease (default: 8s)", .min = 500,
     .max = 600000, .given = &given.has_lease},
    {"blob-quota", 0, ARGS_BYTES, &given.blob_quota, "BYTES",
     "most bytes of blobs, 0: as the disk holds (default: 0)", .given = &given.has_quota},
    {"store", 0, ARGS_STR, &given.store, "URL",
     "keep blobs in an object store, s3://BUCKET/PREFIX (default: in the data dir)"},
    {"store-endpoint", 0, ARGS_STR, &given.store_endpoint, "URL",
     "https://HOST of the store (default: AWS_ENDPOINT_URL, or Amazon's of AWS_REGION)"},
    {"store-workers", 0, ARGS_STR, &given.store_workers, "yes|no",
     "workers exchange blobs with the store directly (default: yes, "
     "unless its endpoint is this machine)"},
    {"store-plain", 0, ARGS_BOOL, &given.store_plain, NULL, "the store's endpoint may be http://",
     .given = &given.has_store_plain},
    {"store-virtual-host", 0, ARGS_BOOL, &given.store_virtual_host, NULL,
     "the bucket is part of the endpoint's name, as at Amazon", .given = &given.has_store_host},
    {"store-state", 0, ARGS_BOOL, &given.store_state, NULL,
     "keep the database in the store, too, so that another machine can take "
     "over",
     .given = &given.has_store_state},
    {"standby", 0, ARGS_DURATION_MS, &given.standby_ms, "TIME",
     "with --store-state: wait until the coordinator of that state has been "
     "silent for TIME, at least 10s, then take over",
     .max = 86400000, .given = &given.has_standby},
    {"store-cache", 0, ARGS_BYTES, &given.store_cache, "BYTES",
     "disk space for a cache of the store's blobs (default: 20GB)", .min = 1e6, .max = 1e18,
     .given = &given.has_store_cache},
    {"egress-price", 0, ARGS_DOUBLE, &given.egress_price, "DOLLARS",
     "price of a GB downloaded by workers, for `skerry cost` (default: 0)", .max = PRICE_MAX,
     .given = &given.has_egress},
    {"request-price", 0, ARGS_DOUBLE, &given.request_price, "DOLLARS",
     "price of a million requests to the store (default: 0)", .max = PRICE_MAX,
     .given = &given.has_request},
    {"outer-threads", 0, ARGS_INT, &given.outer_threads, "N",
     "outer steps that run at once (default: 2)", .min = 1, .max = 64, .given = &given.has_threads},
    {"log-level", 0, ARGS_STR, &given.log_level, "LEVEL",
     "debug, info, warn or error (default: info)"},
    {"die-with-parent", 0, ARGS_BOOL, &given.die_with_parent, NULL,
     "stop when the parent process ends"},
    {"backup", 0, ARGS_STR, &given.backup, "FOLDER",
     "back the data dir up to a folder and exit, also while a coordinator "
     "runs on it"},
    {"keep", 0, ARGS_U64, &given.keep, "N",
     "with --backup: number of backups to keep, 0: all (default: 0)", .max = 60000,
     .given = &given.has_keep},
    {"restore", 0, ARGS_STR, &given.restore, "FOLDER|s3://...",
     "restore the data dir from the newest backup in a folder, or from the "
     "store of a coordinator with --store-state, which then stops, and exit"},
    {"from", 0, ARGS_STR, &given.from, "NAME",
     "with --restore: take this backup instead of the newest"},
    {"audit", 0, ARGS_U64, &given.audit, "JOB",
     "check the stored versions of a job and exit, also while a coordinator "
     "runs",
     .min = 1, .max = 9e15},
    {0},
};

static int parse_flags(int argc, char **argv, struct err *err, int *ret_status)
{
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
    int rc = args_parse(&args, argc, argv, err);
    if (rc != 0)
        *ret_status = args_exit(&args, rc, err);
    return rc;
}

static int check_named(const char *flag, const char *folder, struct err *err)
{
    return folder && !folder[0] ? err_set(err, -EINVAL, "%s: " FILE_NAMELESS, flag, "directory")
                                : 0;
}

static int check_modes(const struct flags *f, struct err *err)
{
    if ((f->audit != 0) + (f->backup != NULL) + (f->restore != NULL) > 1)
        return err_set(err, -EINVAL,
                       "--audit, --backup and --restore exclude each other: give one of them");
    if (check_named("--data-dir", f->data_dir, err) < 0 ||
        check_named("--backup", f->backup, err) < 0 ||
        check_named("--restore", f->restore, err) < 0)
        return err->code;
    if (f->has_keep && f->backup == NULL)
        return err_set(err, -EINVAL, "--keep goes only with --backup FOLDER");
    if (f->from != NULL && f->restore == NULL)
        return err_set(err, -EINVAL, "--from goes only with --restore FOLDER");
    if (f->from != NULL && str_starts(f->restore, "s3://"))
        return err_set(err, -EINVAL,
                       "--from goes only with --restore FOLDER: a store has only the newest state");
    return 0;
}

static int load_config(const char *path, struct settings *s, struct err *err)
{
    struct buf text;
    struct yaml_doc doc;
    struct err why = {0};
    if (path == NULL) {
        conf_defaults(keys, s);
        return 0;
    }
    int rc = file_read(path, YAML_BYTES_MAX, &text, &why);
    if (rc < 0) /* a restart would not help */
        return err_set(err, -ERR_CONFIG, "--config: %s", why.msg);
    rc = yaml_parse(buf_str(&text), text.len, path, &doc, err);
    buf_release(&text);
    if (rc < 0)
        return rc;
    rc = conf_bind(&doc, doc.root, keys, s, err);
    yaml_release(&doc);
    return rc;
}

static void override_text(char **field, const char *flag)
{
    if (flag == NULL)
        return;
    mem_free(*field);
    *field = str_dup(flag);
}

static void apply_flags(struct settings *s, const struct flags *f)
{
    override_text(&s->listen, f->listen);
    override_text(&s->host, f->host);
    override_text(&s->log_level, f->log_level);
    override_text(&s->store, f->store);
    override_text(&s->store_endpoint, f->store_endpoint);
    override_text(&s->store_workers, f->store_workers);
    s->store_plain = f->has_store_plain ? f->store_plain : s->store_plain;
    s->store_virtual_host = f->has_store_host ? f->store_virtual_host : s->store_virtual_host;
    s->store_state = f->has_store_state ? f->store_state : s->store_state;
    s->store_cache = f->has_store_cache ? f->store_cache : s->store_cache;
    s->standby_ms = f->has_standby ? f->standby_ms : s->standby_ms;
    s->rpc_port = f->has_rpc ? f->rpc_port : s->rpc_port;
    s->http_port = f->has_http ? f->http_port : s->http_port;
    s->plain_http = f->has_plain ? f->plain_http : s->plain_http;
    s->heartbeat_ms = f->has_heartbeat ? f->heartbeat_ms : s->heartbeat_ms;
    s->lease_ms = f->has_lease ? f->lease_ms : s->lease_ms;
    s->blob_quota = f->has_quota ? f->blob_quota : s->blob_quota;
    s->egress_price = f->has_egress ? f->egress_price : s->egress_price;
    s->request_price = f->has_request ? f->request_price : s->request_price;
    s->outer_threads = f->has_threads ? f->outer_threads : s->outer_threads;
}

/* A restore names its own store. */
static int check_store(const struct settings *s, const struct flags *f, struct err *err)
{
    const char *of = s->store_endpoint       ? "--store-endpoint"
                     : s->store_workers      ? "--store-workers"
                     : s->store_plain        ? "--store-plain"
                     : s->store_virtual_host ? "--store-virtual-host"
                     : f->has_store_cache    ? "--store-cache"
                                             : NULL;
    if (of && !s->store && !f->restore)
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
    if (s->standby_ms && !s->store_state)
        return err_set(err, -ERR_CONFIG,
                       "--standby needs --store-state: it goes on with the state in a store");
    if (s->standby_ms && s->standby_ms < STANDBY_MIN_MS)
        return err_set(err, -ERR_CONFIG,
                       "--standby is %llu ms, expected %u s or more: signs of life come every few",
                       (unsigned long long)s->standby_ms, STANDBY_MIN_MS / 1000);
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

static struct coordinator_options options_of(const struct flags *f, const struct settings *s)
{
    return (struct coordinator_options){
        .data_dir = f->data_dir,
        .listen = s->listen,
        .host = s->host,
        .rpc_port = (uint16_t)s->rpc_port,
        .http_port = (uint16_t)s->http_port,
        .plain_http = s->plain_http,
        .heartbeat_ms = (uint32_t)s->heartbeat_ms,
        .lease_ms = (uint32_t)s->lease_ms,
        .blob_quota_bytes = s->blob_quota,
        .store = s->store,
        .store_endpoint = s->store_endpoint,
        .store_workers = s->store_workers,
        .store_plain = s->store_plain,
        .store_virtual_host = s->store_virtual_host,
        .store_state = s->store_state,
        .store_cache_bytes = s->store_cache,
        .outer_threads = (unsigned)s->outer_threads,
        .egress_price = s->egress_price,
        .request_price = s->request_price,
    };
}

static int serve(const struct flags *f, const struct settings *s, struct err *err)
{
    struct loop *loop = NULL;
    struct coordinator *co = NULL;
    int rc = loop_new(&loop, err);
    if (rc < 0)
        return rc;
    const struct coordinator_options o = options_of(f, s);
    rc = loop_on_signals(loop, on_signal, loop, err);
    if (rc == 0)
        rc = coordinator_open(loop, &o, &co, err);
    if (rc == 0) {
        greet(co, f->data_dir);
        loop_run(loop);
        rc = coordinator_owns(co, err);
        coordinator_close(co);
    }
    loop_free(loop);
    return rc;
}

/* Root's files become the owner's: what was restored, or the lock that a failure has left. */
static int give(const struct flags *f, int rc, struct err *err)
{
    const int done = place_give(f->data_dir, rc < 0 ? NULL : err);
    return rc < 0 ? rc : done;
}

static int restore_from(const char *store, const struct flags *f, const struct settings *s,
                        struct err *err)
{
    struct restore_result r;
    struct coordinator_options o = options_of(f, s);
    o.store = store;
    const int rc = give(f, restore_state(&o, &r, err), err);
    if (rc == 0)
        (void)printf("%s is as in %s: a snapshot of entry %llu and %llu entries after it; entry "
                     "%llu says that this is the coordinator now\n",
                     f->data_dir, store, (unsigned long long)r.snapshot,
                     (unsigned long long)r.entries, (unsigned long long)r.owned);
    (void)fflush(stdout);
    return rc;
}

/* Waits while another coordinator has the state, and serves whenever none has. */
static int stand_by(const struct flags *f, const struct settings *s, struct err *err)
{
    const struct coordinator_options o = options_of(f, s);
    char *database = file_join(f->data_dir, "coordinator.db");
    int rc = 0;
    while (rc == 0) {
        if (file_exists(database)) {
            rc = serve(f, s, err);
            if (rc != -ERR_STALE)
                break;
            log_warn("standby", "%s", err->msg);
        }
        rc = place_set_aside(f->data_dir, err);
        if (rc == 0)
            rc = standby_wait(&o, s->standby_ms, err);
        if (rc == 0 && s3_may_pass(rc = restore_from(s->store, f, s, err))) {
            log_warn("standby", "%s; it is tried again", err->msg);
            rc = 0;
        }
    }
    mem_free(database);
    return rc;
}

static int lock_dir(const struct flags *f, struct file_lock *ret, struct err *err)
{
    int rc = f->restore ? place_check_new(f->data_dir, err) : place_check_own(f->data_dir, err);
    if (rc == 0)
        rc = file_mkdirs(f->data_dir, 0700, err);
    if (rc == 0)
        rc = file_lock_dir(f->data_dir, "lock", ret, err);
    return rc < 0 && rc != -EBUSY ? err_wrap(err, "--data-dir %s cannot be used", f->data_dir) : rc;
}

static int start(const struct flags *f, struct settings *s, struct err *err)
{
    struct file_lock lock;
    int rc = load_config(f->config, s, err);
    if (rc < 0)
        return rc;
    apply_flags(s, f);
    if ((rc = check_settings(s, err)) < 0 || (rc = check_store(s, f, err)) < 0 ||
        (rc = lock_dir(f, &lock, err)) < 0)
        return rc;
    if (f->restore)
        rc = restore_from(f->restore, f, s, err);
    else
        rc = s->standby_ms ? stand_by(f, s, err) : serve(f, s, err);
    file_unlock(&lock);
    return rc;
}

/* ---- backups ------------------------------------------------------------- */

static int restore_backup(const struct flags *f, struct backup_result *ret, struct err *err)
{
    struct file_lock lock;
    int rc = lock_dir(f, &lock, err);
    if (rc < 0)
        return rc;
    rc = give(f, backup_restore(f->restore, f->from, f->data_dir, ret, err), err);
    file_unlock(&lock);
    return rc;
}

static int back_up(const struct flags *f, struct err *err)
{
    struct backup_result r;
    char all[STR_HUMAN_MAX], fresh[STR_HUMAN_MAX];
    const int rc = f->backup ? backup_make(f->data_dir, f->backup, (unsigned)f->keep, &r, err)
                             : restore_backup(f, &r, err);
    if (rc < 0)
        return rc;
    str_human_bytes(r.bytes, all);
    if (f->backup)
        (void)printf("backup %s: %llu files, %s; %llu of them new, %s; %u older backup%s dropped\n",
                     r.name, (unsigned long long)r.files, all, (unsigned long long)r.new_files,
                     str_human_bytes(r.new_bytes, fresh), r.dropped, str_plural(r.dropped));
    else
        (void)printf(
            "%s is as in the backup %s: %llu files, %s\n"
            "start coordinatord with --data-dir %s, never beside the old one; workers come "
            "where its --host leads, or by its new worker.token\n",
            f->data_dir, r.name, (unsigned long long)r.files, all, f->data_dir);
    return 0;
}

static int audit(const struct flags *f, struct settings *s, struct err *err)
{
    struct audit_result r;
    char bytes[STR_HUMAN_MAX];
    int rc = load_config(f->config, s, err);
    if (rc < 0)
        return rc;
    apply_flags(s, f);
    const struct coordinator_options o = options_of(f, s);
    rc = audit_job(&o, f->audit, stdout, &r, err);
    if (rc < 0)
        return rc;
    (void)printf("%s: %llu file%s of %s, %u version%s, %u of them made again from deltas, %u outer "
                 "step%s folded again, %u fault%s\n",
                 r.faults ? "FAULTY" : "good", (unsigned long long)r.files, str_plural(r.files),
                 str_human_bytes(r.bytes, bytes), r.versions, str_plural(r.versions), r.deltas,
                 r.steps, str_plural(r.steps), r.faults, str_plural(r.faults));
    return r.faults ? err_set(err, -ERR_HASH, "job %llu has %u fault%s",
                              (unsigned long long)f->audit, r.faults, str_plural(r.faults))
                    : 0;
}

static int run(const struct flags *f, struct settings *s, struct err *err)
{
    int rc = check_modes(f, err);
    if (rc < 0)
        return rc;
    if (f->audit)
        return audit(f, s, err);
    const bool far = f->restore && str_starts(f->restore, "s3://");
    return f->backup || (f->restore && !far) ? back_up(f, err) : start(f, s, err);
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
    struct settings s = {0};
    struct err err = {0};
    int status = 0;
    file_first();
    if (parse_flags(argc, argv, &err, &status) != 0)
        return status;
    stay_small();
    allow_many_files();
    pid_t parent = getppid();
    if (given.die_with_parent && (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != parent))
        return EXIT_FAULT;
    int rc = run(&given, &s, &err);
    conf_release(keys, &s);
    if (rc < 0) {
        (void)fprintf(stderr, "coordinatord: %s\n", err.msg);
        return status_of(rc);
    }
    return EXIT_OK;
}
