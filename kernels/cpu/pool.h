/* A team of threads for one caller.
 *
 *     cpu_pool_run(pool, fn, arg, tasks);   fn(arg, task, thread) for each task 0..tasks-1
 *
 * The caller works too.  Tasks are claimed one by one, so a thread that the
 * machine slows down takes fewer; which thread runs a task says nothing about
 * its result, as long as fn writes only what belongs to its task (and to the
 * scratch of its thread index, below cpu_pool_threads()).
 *
 * Between two calls the helpers spin for some tens of microseconds, as
 * operations follow each other closely inside a step, and then sleep. */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

struct cpu_pool;
struct err;

typedef void cpu_task_fn(void *arg, int task, int thread);

int cpu_pool_new(int threads, struct cpu_pool **ret, struct err *err);
void cpu_pool_free(struct cpu_pool *pool); /* accepts NULL */
int cpu_pool_threads(const struct cpu_pool *pool);

/* Returns when all tasks are done.  pool NULL: the caller runs them all. */
void cpu_pool_run(struct cpu_pool *pool, cpu_task_fn *fn, void *arg, int tasks);

#endif
