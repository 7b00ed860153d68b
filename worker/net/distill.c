#include "worker/net/distill.h"

#include "worker/net/image_net.h"

struct distill {
    struct image_net image; /* first */
    struct mix *teachers;   /* NULL: none yet */
    int count;
    float *want; /* host, (B,count): 1 for the teacher of a row */
    struct net_captions captions;
};

static void forget_teachers(struct distill *d)
{
    mix_free(d->teachers);
    mem_free(d->want);
    d->teachers = NULL;
    d->want = NULL;
    d->count = 0;
}

int distill_teach(struct net *net, const struct mix_experts *teachers, struct err *err)
{
    struct distill *d = (struct distill *)net;
    if (net->ops != &distill_net_ops)
        return err_set(err, -EINVAL, "a %s network learns from data, not from teachers", net->name);
    forget_teachers(d);
    if (!teachers)
        return 0;
    const struct flow_matching *f = &d->image.flow;
    const struct mix_options opt = {
        .dev = f->dev, .stream = f->stream, .values = f->most, .rows = net->opt.batch, .most = 1};
    d->want = mem_try_array((size_t)net->opt.batch * (size_t)teachers->count, sizeof *d->want);
    if (!d->want)
        return err_set(err, -ENOMEM, "no memory for %d teachers", teachers->count);
    d->count = teachers->count;
    return mix_new(&opt, teachers, &d->teachers, err);
}

static int check_lesson(const struct image_net *n, const struct batch *b, struct err *err)
{
    const struct distill *d = (const struct distill *)n;
    if (!d->teachers || !b->partitions)
        return err_set(err, -EINVAL, "distillation without %s",
                       d->teachers ? "the samples' partitions" : "teachers");
    for (unsigned i = 0; i < b->count; i++)
        if (b->partitions[i] < 0 || b->partitions[i] >= d->count)
            return err_set(err, -EINVAL, "sample %u is of partition %d, but there are %d teachers",
                           i, (int)b->partitions[i], d->count);
    return 0;
}

/* flow.d_target = the teachers' velocities.  Waits for the device. */
static int ask_teachers(struct distill *d, unsigned from, int B, struct err *err)
{
    struct flow_matching *f = &d->image.flow;
    const int K = d->count;
    memset(d->want, 0, (size_t)B * (size_t)K * sizeof *d->want);
    for (int i = 0; i < B; i++)
        d->want[(int64_t)i * K + f->partitions[from + (unsigned)i]] = 1;
    if (f->d_states) {
        d->captions = (struct net_captions){f->loaded, f->d_states, f->lengths};
        mix_captions(d->teachers, &d->captions);
    }
    mix_shape(d->teachers, f->shapes[from], f->n);
    int rc = mix_run(d->teachers, f->d_xt, f->t + from, f->labels + from, d->want, B, err);
    return rc < 0 ? rc : mix_combine(d->teachers, f->d_target, d->want, B, err);
}

static int teacher_error(struct image_net *n, const struct net_micro *micro, float *dpred,
                         struct err *err)
{
    int rc = ask_teachers((struct distill *)n, micro->from, (int)micro->count, err);
    return rc < 0 ? rc : image_net_error(n, micro, dpred, err);
}

static void distill_free(struct net *net)
{
    forget_teachers((struct distill *)net);
    image_net_free(net);
}

static int distill_make(struct device *dev, const struct model *m, const struct net_options *opt,
                        struct net **ret, struct err *err)
{
    struct distill *d = mem_alloc(sizeof *d);
    d->image.net.ops = &distill_net_ops;
    d->image.admit = check_lesson;
    d->image.objective = teacher_error;
    if (!model_teaches(&m->spec)) {
        distill_free(&d->image.net);
        return err_set(err, -EINVAL, "only a DiT can be distilled");
    }
    return image_net_make(&d->image, dev, m, opt, ret, err);
}

/* Bytes of a mixture with one expert per row, besides the network. */
static uint64_t distill_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    const struct mix_options mix = {
        .values = (int64_t)model_image_values(&m->spec), .rows = opt->batch, .most = 1};
    return image_net_bytes(m, opt, dt) + mix_bytes(&mix);
}

const struct net_ops distill_net_ops = {
    .bytes = distill_bytes,
    .make = distill_make,
    .free = distill_free,
    .load = image_net_load,
    .forward = image_net_forward,
    .backward = image_net_backward,
    .hidden = image_net_hidden,
};
