/* Preloaded into a unit test: removes the file that SKERRY_ALONE names when the program makes a
 * thread.  What never makes one has no race to look for. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*body)(void *), void *arg)
{
    create_fn *real;
    const char *path = getenv("SKERRY_ALONE");
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (path != NULL)
        (void)unlink(path); /* gone already: this is not the first one */
    return real(id, attr, body, arg);
}
