#include "common/base/pieces.h"

static _Thread_local struct {
    pieces_fn *fn;
    void *arg;
} hears;

void pieces_hear(pieces_fn *fn, void *arg)
{
    hears.fn = fn;
    hears.arg = arg;
}

bool pieces_heard(void)
{
    return hears.fn != NULL;
}

void pieces_done(void)
{
    if (hears.fn != NULL)
        hears.fn(hears.arg);
}
