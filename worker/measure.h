/* workerd measure JOB: measures how fast this machine runs a job file.  `skerry check` runs it, and
 * predicts from its output.  Needs neither a coordinator nor data. */
#ifndef WORKER_MEASURE_H
#define WORKER_MEASURE_H

/* argv[0] is "measure".  Prints one line of JSON:
 *
 *     {"device": "cpu: CPU, 2 threads, AVX2", "together": 1, "parameters": 944556, "batch": 16,
 *      "micro_batches": 1, "memory_bytes": 31457280, "room_bytes": 3221225472,
 *      "step_s": 0.081, "forward_s": 0.0012}
 *
 * step_s is the mean time of some steps on zeros, without encoders; forward_s is the time of a
 * forward pass of one sample, as for evaluation or sampling.  Where training does not fit the
 * device they are missing, and "refused" is a sentence.  With --together N, N of these programs
 * compute at the same time, like workers that share a machine, and "together" is how many could.
 * Returns the exit status. */
int measure_main(int argc, char **argv);

struct costs;
struct err;

/* workerd --plan JOB --device A,B: the costs of the job's model on these devices, without encoders.
 * Assumes one class, or a vocabulary of bytes, since the data is not here.  threads as for
 * island_open().  -ERR_CONFIG: only one device, or a job whose model depends on its encoders. */
int measure_costs(const char *job, const char *device, int threads, struct costs *ret,
                  struct err *err);

#endif
