/* What `skerry doctor` finds: programs that are this one, folders, and a coordinator that answers
 * as it is told.  (What it makes of that: test_diagnosis.c.) */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "tests/unit/cli/beside.h"
#include "tests/unit/cli/ran.h"
#include "tests/unit/deaf.h"

#define MEASURED                                                                                   \
    "{\"device\":\"cpu: CPU, 2 threads, AVX2\",\"parameters\":1e6,\"batch\":4,\"step_s\":0.5,"     \
    "\"room_bytes\":1073741824}"

static char dir[64];

static int make(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-doctor.XXXXXX");
    assert_non_null(mkdtemp(dir));
    beside_link("coordinatord");
    beside_link("workerd");
    setenv("DOCTOR_COORDINATORD", "coordinatord " SKERRY_VERSION, 1);
    setenv("DOCTOR_WORKERD", "workerd " SKERRY_VERSION, 1);
    setenv("DOCTOR_MEASURED", MEASURED, 1);
    setenv("XDG_CACHE_HOME", dir, 1);
    setenv("XDG_CONFIG_HOME", dir, 1);
    setenv("TMPDIR", dir, 1);
    unsetenv("SKERRY_TOKEN");
    return 0;
}

static int unmake(void **state)
{
    return file_remove_tree(dir, NULL);
}

/* A program that says what its variable has, on standard error if that begins with '!'. */
static int speak(const char *variable)
{
    const char *text = getenv(variable);
    (void)fputs(text + (*text == '!'), *text == '!' ? stderr : stdout);
    return *text == '!';
}

static int be(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "measure") == 0)
        return speak("DOCTOR_MEASURED");
    return speak(beside_is(argv[0], "workerd") ? "DOCTOR_WORKERD" : "DOCTOR_COORDINATORD");
}

/* ---- the command ---- */

/* Runs it; the findings as {"checks": ..}. */
static json_t *doctor(struct cli *cli, int *ret_status)
{
    char *path = file_join(dir, "said");
    const struct args args = {0};
    struct err err = {0};
    const int out = dup(STDOUT_FILENO), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(out >= 0 && file >= 0);
    fflush(stdout);
    assert_true(dup2(file, STDOUT_FILENO) >= 0);
    cli->json = true;
    *ret_status = command_doctor.run(cli, &args, &err);
    fflush(stdout);
    assert_true(dup2(out, STDOUT_FILENO) >= 0);
    close(out);
    close(file);
    json_t *said = json_load_file(path, 0, NULL);
    if (!said && *ret_status >= 0)
        fail_msg("no JSON, status %d", *ret_status);
    mem_free(path);
    return said;
}

/* The nth finding of this name, "VERDICT TEXT"; "" if there is none; static. */
static const char *found(const json_t *said, const char *name, size_t nth)
{
    static char text[2048];
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(said, "checks"), i, item)
    {
        if (strcmp(cli_str(item, "name", ""), name) == 0 && nth-- == 0) {
            (void)snprintf(text, sizeof text, "%s %s", cli_str(item, "verdict", ""),
                           cli_str(item, "found", ""));
            return text;
        }
    }
    return "";
}

static void expect(const json_t *said, const char *name, size_t nth, const char *words)
{
    if (!strstr(found(said, name, nth), words))
        fail_msg("'%s' is not in: %s: %s", words, name, found(said, name, nth));
}

static json_t *alone(void)
{
    struct cli cli = {0};
    int status;
    return doctor(&cli, &status);
}

/* ---- this machine ---- */

static void programs_and_their_device(void **state)
{
    json_t *said = alone();
    expect(said, "programs", 0, "ok coordinatord, workerd and skerry " SKERRY_VERSION " start");
    expect(said, "device", 0, "trains a DiT of 1 M parameters at 8 images/s, and has 1.0 GiB");
    expect(said, "instructions", 0, "ok AVX2");
    expect(said, "coordinator", 0, "none is known here");
    json_decref(said);

    setenv("DOCTOR_COORDINATORD", "coordinatord 0.0.1\nmore", 1);
    setenv("DOCTOR_MEASURED", "{\"device\":\"cpu: CPU, AVX2\",\"refused\":\"too small\"}", 1);
    said = alone();
    expect(said, "programs", 0, "warn coordinatord is 0.0.1, and this is ");
    expect(said, "device", 0, "fail no device can train: too small");
    json_decref(said);

    setenv("DOCTOR_MEASURED", "!workerd: no device\n", 1);
    said = alone();
    expect(said, "device", 0, "fail no device can train: no device");
    json_decref(said);

    setenv("DOCTOR_MEASURED", "no JSON", 1);
    said = alone();
    expect(said, "device", 0, "fail no device can train: `workerd measure` said nothing");
    json_decref(said);

    setenv("DOCTOR_WORKERD", "!", 1);
    said = alone();
    expect(said, "programs", 0, "fail workerd does not start: it ended at once");
    expect(said, "device", 0, ""); /* which is not tried then */
    assert_string_equal(found(said, "device", 0), "");
    json_decref(said);
}

/* Work directories are made where they are needed, the folder of temporary files never is. */
static void folders(void **state)
{
    char *none = file_join(dir, "none/deeper");
    json_t *said = alone();
    assert_null(strstr(found(said, "disk", 0), "cannot be written to"));
    assert_null(strstr(found(said, "disk", 1), "cannot be written to"));
    expect(said, "disk", 1, dir);
    json_decref(said);

    setenv("XDG_CACHE_HOME", none, 1);
    setenv("TMPDIR", none, 1);
    said = alone();
    expect(said, "disk", 0, none);
    assert_null(strstr(found(said, "disk", 0), "cannot be written to"));
    expect(said, "disk", 1, "fail ");
    expect(said, "disk", 1, "none/deeper (temporary files) cannot be written to");
    json_decref(said);

    setenv("XDG_CACHE_HOME", "/skerry-none/cache", 1); /* the nearest is the root */
    setenv("TMPDIR", "", 1);
    said = alone();
    expect(said, "disk", 0, "/skerry-none/cache/skerry (work directories)");
    assert_int_equal(strstr(found(said, "disk", 0), "cannot be written to") != NULL,
                     access("/", W_OK) != 0);
    expect(said, "disk", 1, "/tmp (temporary files)");
    json_decref(said);
    mem_free(none);
}

static void interrupted(void **state)
{
    struct cli cli = {0};
    int status;
    cli_interrupted = SIGINT;
    assert_null(doctor(&cli, &status));
    cli_interrupted = 0;
    assert_int_equal(status, -ERR_CANCELLED);
}

/* ---- a coordinator ---- */

/* It is there by its token, of this role. */
static json_t *with(const char *const *answers, enum token_role role, int *ret_status)
{
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    struct script s;
    struct cli first = {0}, cli = {0};
    char text[TOKEN_STRING_MAX];
    struct err err = {0};
    connect_to(&s, &first, answers);
    assert_int_equal(getsockname(s.listener, (struct sockaddr *)&a, &len), 0);
    const struct token t = {.host = "127.0.0.1",
                            .rpc_port = 1,
                            .http_port = ntohs(a.sin_port),
                            .http_plain = true,
                            .role = role};
    assert_int_equal(token_format(&t, text, &err), 0);
    cli.token = text;
    json_t *said = doctor(&cli, ret_status);
    cli_close(&cli);
    disconnect(&s, &first);
    return said;
}

#define PINGS "", "{}", "{}", "{}", "{}", "{}" /* a connection without a request, and five */

static void a_coordinator_and_its_clock(void **state)
{
    char at[CLOCK_ISO_MAX], *status_text;
    const uint64_t now = clock_wall_ms();
    int status;
    static const struct {
        int64_t off_s;
        const char *words;
    } cases[] = {{0, "ok less than a minute from the coordinator's"},
                 {-3600, "warn 1h00m ahead of the coordinator's"},
                 {3600, "warn "}};
    for (size_t i = 0; i < 3; i++) {
        status_text = str_printf("{\"version\":\"%s\",\"at\":\"%s\"}", SKERRY_VERSION,
                                 clock_iso(now + (uint64_t)(cases[i].off_s * 1000), at));
        const char *const answers[] = {PINGS, status_text, NULL};
        json_t *said = with(answers, TOKEN_ROLE_VIEWER, &status);
        expect(said, "clock", 0, cases[i].words);
        expect(said, "coordinator", 0, "ok version " SKERRY_VERSION);
        expect(said, "link", 0, "its speed is measured with an operator's token");
        expect(said, "ports", 0, "fail port 1 of 127.0.0.1, for workers: ");
        assert_int_equal(status, CLI_FAILED);
        json_decref(said);
        mem_free(status_text);
    }
}

static void roles_and_refusals(void **state)
{
    static const char refused[] =
        "{\"error\":{\"code\":\"full\",\"message\":\"there is no room\"}}";
    static const char *const link[] = {PINGS, "{\"version\":\"9.9.9\",\"at\":\"soon\"}", refused,
                                       NULL};
    static const char *const wrong[] = {PINGS, refused, NULL};
    static const char *const joins[] = {PINGS, NULL};
    int status;
    json_t *said = with(link, TOKEN_ROLE_OPERATOR, &status);
    expect(said, "coordinator", 0, "warn version 9.9.9, and this is ");
    expect(said, "clock", 0, "ok less than a minute"); /* nothing is known of it */
    if (!strstr(found(said, "disk", 1), " B free") && !strstr(found(said, "disk", 1), "KiB free"))
        expect(said, "link", 0, "warn asking to upload a file that times the link: there is no");
    json_decref(said);
    said = with(wrong, TOKEN_ROLE_OPERATOR, &status);
    expect(said, "coordinator", 0, "fail there is no room");
    expect(said, "link", 0, "ms there and back; its speed");
    json_decref(said);
    said = with(joins, TOKEN_ROLE_WORKER, &status);
    expect(said, "coordinator", 0, "ok not checked, because a worker's token can only join");
    json_decref(said);
}

/* Nor is a firewall that drops what comes waited for. */
static void interrupted_connecting(void **state)
{
    struct deaf deaf;
    struct cli cli = {0};
    char text[TOKEN_STRING_MAX];
    struct err err = {0};
    int status;
    deaf_listen(&deaf);
    const struct token t = {.host = "127.0.0.1",
                            .rpc_port = deaf.port,
                            .http_port = deaf.port,
                            .role = TOKEN_ROLE_OPERATOR};
    assert_int_equal(token_format(&t, text, &err), 0);
    cli.token = text;
    cli_interrupted = SIGINT;
    const uint64_t begun = clock_now_ms();
    assert_null(doctor(&cli, &status));
    assert_true(clock_now_ms() - begun < 10000); /* one connection would take as long */
    cli_interrupted = 0;
    assert_int_equal(status, -ERR_CANCELLED);
    cli_close(&cli);
    deaf_close(&deaf);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(int argc, char **argv)
{
    if (beside_is(argv[0], "workerd") || beside_is(argv[0], "coordinatord"))
        return be(argc, argv);
    const struct CMUnitTest tests[] = {
        TEST(programs_and_their_device),
        TEST(folders),
        TEST(interrupted),
        TEST(a_coordinator_and_its_clock),
        TEST(roles_and_refusals),
        TEST(interrupted_connecting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
