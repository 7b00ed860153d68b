#include "cli/worker_show.h"

#include <string.h>

#include "cli/cli.h"
#include "common/base/str.h"

#define INDENT "      "

static bool known(const json_t *o, const char *key)
{
    return json_is_number(json_object_get(o, key));
}

/* "412 TFLOP/s" */
static char *human_flops(double x, char out[STR_HUMAN_MAX])
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P", "E"};
    size_t u = 0;
    while (x >= 1000 && u + 1 < sizeof units / sizeof units[0]) {
        x /= 1000;
        u++;
    }
    snprintf(out, STR_HUMAN_MAX,
             x < 10    ? "%.2f %sFLOP/s"
             : x < 100 ? "%.1f %sFLOP/s"
                       : "%.0f %sFLOP/s",
             x, units[u]);
    return out;
}

static void show_rate(const json_t *w, FILE *out)
{
    char flops[STR_HUMAN_MAX], peak[STR_HUMAN_MAX];
    if (!known(w, "flops"))
        return;
    fprintf(out, INDENT "%s of model arithmetic", human_flops(cli_num(w, "flops", 0), flops));
    if (known(w, "mfu"))
        fprintf(out, ", %.1f%% of the %s that products reach there", 100 * cli_num(w, "mfu", 0),
                human_flops(cli_num(w, "peak_flops", 0), peak));
    fputc('\n', out);
}

static void show_device(const json_t *d, FILE *out)
{
    char used[STR_HUMAN_MAX], total[STR_HUMAN_MAX];
    fprintf(out, INDENT "%-7s %s", cli_str(d, "name", ""), cli_str(d, "model", ""));
    if (known(d, "utilization"))
        fprintf(out, ", %lld%% busy", (long long)cli_int(d, "utilization", 0));
    if (known(d, "memory_total"))
        fprintf(out, ", %s of %s", str_human_bytes((uint64_t)cli_int(d, "memory_used", 0), used),
                str_human_bytes((uint64_t)cli_int(d, "memory_total", 0), total));
    if (known(d, "temperature"))
        fprintf(out, ", %lld C", (long long)cli_int(d, "temperature", 0));
    if (known(d, "power"))
        fprintf(out, ", %.0f W", cli_num(d, "power", 0));
    if (cli_int(d, "ecc_errors", 0) > 0)
        fprintf(out, "; %lld uncorrected memory errors", (long long)cli_int(d, "ecc_errors", 0));
    if (*cli_str(d, "throttled", ""))
        fprintf(out, "; held down: %s", cli_str(d, "throttled", ""));
    if (*cli_str(d, "trouble", ""))
        fprintf(out, "; %s", cli_str(d, "trouble", ""));
    fputc('\n', out);
}

void worker_show(const json_t *w, FILE *out)
{
    char age[STR_HUMAN_MAX] = "-", up[STR_HUMAN_MAX], down[STR_HUMAN_MAX];
    const json_t *data = json_object_get(json_object_get(w, "bytes"), "data"), *device;
    size_t i;
    if (json_is_integer(json_object_get(w, "heartbeat_age_ms")))
        str_human_duration((uint64_t)cli_int(w, "heartbeat_age_ms", 0), age);
    fprintf(out, "%4lld  %-16s %-12s %7.1f /s  up %-9s down %-9s heartbeat %-6s %s\n",
            (long long)cli_int(w, "id", 0), cli_str(w, "name", ""), cli_str(w, "state", ""),
            cli_num(w, "images_per_s", 0.0), str_human_bytes((uint64_t)cli_int(data, "up", 0), up),
            str_human_bytes((uint64_t)cli_int(data, "down", 0), down), age,
            *cli_str(w, "activity", "") ? cli_str(w, "activity", "") : cli_str(w, "reason", ""));
    if (cli_int(w, "strikes", 0) > 0)
        fprintf(out, INDENT "%lld failures in a row: %s\n", (long long)cli_int(w, "strikes", 0),
                cli_str(w, "reason", ""));
    const long long broke = cli_int(w, "device_failures", 0);
    if (broke > 0)
        fprintf(out, INDENT "its device broke %lld time%s\n", broke, broke == 1 ? "" : "s");
    show_rate(w, out);
    json_array_foreach(json_object_get(w, "devices"), i, device) show_device(device, out);
}
