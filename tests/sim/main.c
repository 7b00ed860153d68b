/* sim [-v] [-e EVENTS] [-s SEED]: worlds from this seed on until so many events have happened.  The
 * first ones are run twice: a seed must repeat them.
 * sim -m MINUTES [-s SEED]: one coordinator for so long, and for a third of that: it may not have
 * become larger, nor its database once it has all the history that it keeps.  Seeds 1 to 4 are of
 * jobs in rounds, without rounds, folded at workers, of many paths; the next ones again. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "coordinator/state/persist.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim.h"
#include "tests/sim/world.h"

#define TWICE 2
#define MIB 1048576.0
#define GROWN_MIB 1.0
#define LEFT_MIB 0.0625
#define HISTORY_ROUNDS (METRIC_ROUNDS_MAX * 5 / 8) /* then the pages of old ones are used again */
#define ROUND_BYTES 16 /* of the database, once it has all that it keeps */

static char root[64] = "/dev/shm/skerry-sim.XXXXXX";

static void remove_root(void)
{
    (void)file_remove_tree(root, NULL); /* also when the oracle ends it all */
}

static uint64_t number(const char *text)
{
    char *end;
    const uint64_t n = strtoull(text, &end, 10);
    if (*text != '\0' && *end == '\0')
        return n;
    fprintf(stderr, "sim: '%s' is no whole number\n", text);
    exit(2);
}

static void report(const struct world_figures *f, uint64_t worlds)
{
    const struct oracle_figures o = oracle_figures();
    printf(
        "%llu events in %llu worlds of %.1f h: %llu jobs, %llu power losses, %llu kills and "
        "%llu stops of the coordinator, %llu jumps of the wall clock, %llu backups (%llu "
        "restored), %llu times "
        "another machine took over; "
        "%llu results accepted, "
        "%llu versions (%llu restored), "
        "%llu outer steps of workers (%llu false files), %llu false results that others can "
        "make (%llu believed), %llu versions 0 made again, %llu phases done once more, "
        "%llu verdicts "
        "(%llu refused), %llu late phases and %llu last snapshots folded, %llu things read over "
        "HTTP, %llu revocations, looked %llu times: all "
        "holds, and jobs end in %.1f min once all is well\n",
        (unsigned long long)f->events, (unsigned long long)worlds, (double)f->ms / 3.6e6,
        (unsigned long long)f->jobs, (unsigned long long)f->power_losses,
        (unsigned long long)f->kills, (unsigned long long)f->stops, (unsigned long long)f->clocks,
        (unsigned long long)f->backups, (unsigned long long)f->restored,
        (unsigned long long)f->taken_over, (unsigned long long)o.results,
        (unsigned long long)o.versions, (unsigned long long)o.restored, (unsigned long long)o.steps,
        (unsigned long long)o.lies, (unsigned long long)o.claims, (unsigned long long)o.believed,
        (unsigned long long)o.remade, (unsigned long long)o.checks, (unsigned long long)o.verdicts,
        (unsigned long long)o.refused, (unsigned long long)o.folded_late,
        (unsigned long long)o.parts, (unsigned long long)o.shown, (unsigned long long)o.revoked,
        (unsigned long long)o.looks, (double)f->calm_ms / 60000);
}

/* One coordinator's long life against a third of it. */
static void live(uint64_t seed, uint64_t minutes)
{
    struct world_life early, late;
    char target[64];
    (void)snprintf(target, sizeof(target), "sim-life MINUTES=%llu", (unsigned long long)minutes);
    sim_target = target;
    world_live(seed, minutes * 60000 / 3, root, &early);
    world_live(seed, minutes * 60000, root, &late);
    const double grown = (double)(late.held - early.held) / MIB, left = (double)late.left / MIB;
    const uint64_t rounds = late.end.rounds - late.before.rounds;
    const double row = ((double)late.end.database - (double)late.before.database) /
                       (double)(rounds > 0 ? rounds : 1);
    printf("a coordinator of %llu min, %llu rounds, %llu events holds %.2f MiB; %.2f MiB at round "
           "%llu, and %.2f MiB were left when the world was over; its database has %.2f MiB, and "
           "%.0f bytes a round came since round %llu; of workers that are gone %zu are on record, "
           "then "
           "%zu\n",
           (unsigned long long)minutes, (unsigned long long)late.end.rounds,
           (unsigned long long)late.events, (double)late.held / MIB, (double)early.held / MIB,
           (unsigned long long)early.end.rounds, left, (double)late.end.database / MIB, row,
           (unsigned long long)late.before.rounds, late.end.gone, late.before.gone);
    if (grown > GROWN_MIB || left > LEFT_MIB)
        sim_fail("the coordinator has grown, or leaks");
    if (late.before.rounds > HISTORY_ROUNDS && row > ROUND_BYTES)
        sim_fail("the database grows with every round");
}

int main(int argc, char **argv)
{
    uint64_t events = 100000, minutes = 0, first = 1, seed;
    struct world_figures sum = {0};
    for (int c; (c = getopt(argc, argv, "ve:m:s:")) != -1;) {
        if (c == 'v')
            sim_verbose = true;
        else if (c == 'e')
            events = number(optarg);
        else if (c == 'm')
            minutes = number(optarg);
        else if (c == 's')
            first = number(optarg);
        else
            return 2;
    }
    log_set_level(sim_verbose ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR + 1);
    if (mkdtemp(root) == NULL) {
        (void)str_copy(root, sizeof(root), "/tmp/skerry-sim.XXXXXX");
        if (mkdtemp(root) == NULL)
            return 2;
    }
    if (atexit(remove_root) != 0)
        return 2;
    if (minutes > 0) {
        live(first, minutes);
        return 0;
    }
    for (seed = first; sum.events < events; seed++) {
        const uint64_t digest = world_run(seed, root, &sum);
        struct world_figures again = {0};
        if (seed < first + TWICE && !sim_verbose && world_run(seed, root, &again) != digest)
            sim_fail("the seed does not repeat its world");
    }
    report(&sum, seed - first);
    return 0;
}
