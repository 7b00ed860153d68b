/* workerd measure JOB: what this machine does with a job file, measured here and now.  `skerry
 * check` asks, and predicts from what it says.  Needs neither a coordinator nor data. */
#ifndef WORKER_MEASURE_H
#define WORKER_MEASURE_H

/* argv[0] is "measure".  Prints one line of JSON:
 *
 *     {"device": "cpu: CPU, 2 threads, AVX2", "together": 1, "parameters": 944556, "batch": 16,
 *      "micro_batches": 1, "memory_bytes": 31457280, "room_bytes": 3221225472,
 *      "step_s": 0.081, "forward_s": 0.0012}
 *
 * step_s is the mean of some steps on zeros, without encoders, and forward_s what a sample takes
 * that is judged or drawn from.  They are missing, and "refused" is a sentence, where training
 * does not fit the device.  With --together N as many of these programs compute at the same time,
 * as workers do that share a machine, and "together" is how many could.  The exit status. */
int measure_main(int argc, char **argv);

struct costs;
struct err;

/* workerd --plan JOB --device A,B: what the job's model costs on these devices, without encoders;
 * with one class, or a vocabulary of bytes, as the data is not here.  threads as island_open's.
 * -ERR_CONFIG: one device, or a job whose encoders say what its model is. */
int measure_costs(const char *job, const char *device, int threads, struct costs *ret,
                  struct err *err);

#endif
