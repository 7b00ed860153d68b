/* A team of threads for one caller.
 *
 *     cpu_team_run(team, fn, arg, tasks);   fn(arg, task, thread) for each task 0..tasks-1
 *
 * The caller works too.  Tasks are claimed one by one, so a thread that the
 * machine slows down takes fewer.  A task's result does not depend on the thread
 * that runs it, as long as fn writes only data of its task (and the scratch of
 * its thread index, below cpu_team_threads()).
 *
 * Between two calls the helpers spin for some tens of microseconds, since
 * operations follow each other closely inside a step, and then sleep.  With
 * OMP_WAIT_POLICY=passive in the environment, OpenMP's own variable, they sleep
 * at once: a spinning helper takes a core that other programs may want. */
#ifndef KERNELS_CPU_TEAM_H
#define KERNELS_CPU_TEAM_H

struct cpu_team;
struct err;

typedef void cpu_task_fn(void *arg, int task, int thread);

int cpu_team_new(int threads, struct cpu_team **ret, struct err *err);
void cpu_team_free(struct cpu_team *team); /* accepts NULL */
int cpu_team_threads(const struct cpu_team *team);

/* Returns when all tasks are done.  team NULL: the caller runs them all. */
void cpu_team_run(struct cpu_team *team, cpu_task_fn *fn, void *arg, int tasks);

#endif
