#include "worker/net/distill.h"

#include "worker/net/image_net.h"

/* What a student knows of its teachers. */
struct lesson {
    int chain;            /* of the teachers: 1 an upscaler, else 0 */
    struct mix *teachers; /* NULL: none yet */
    int count;
    float *want; /* host, (B,count): 1 for the teacher of a row */
    struct net_captions captions;
};

static void forget_teachers(struct lesson *l)
{
    mix_free(l->teachers);
    mem_free(l->want);
    l->teachers = NULL;
    l->want = NULL;
    l->count = 0;
}

static struct mix_options options(const struct model_spec *s, int rows, int chain)
{
    return (struct mix_options){.values = (int64_t)model_image_values(s),
                                .rows = rows,
                                .most = 1, /* expert of a row */
                                .upscales = chain > 0};
}

static int teach(struct image_net *n, const struct mix_experts *teachers, struct err *err)
{
    struct lesson *l = n->lesson;
    const int batch = n->net.opt.batch;
    struct mix_options opt = options(n->flow.spec, batch, l->chain);
    opt.dev = n->flow.dev;
    opt.stream = n->flow.stream;
    forget_teachers(l);
    if (!teachers)
        return 0;
    l->want = mem_try_array((size_t)batch * (size_t)teachers->count, sizeof *l->want);
    if (!l->want)
        return err_set(err, -ENOMEM, "no memory for %d teachers", teachers->count);
    l->count = teachers->count;
    return mix_new(&opt, teachers, &l->teachers, err);
}

int distill_teach(struct net *net, const struct mix_experts *teachers, struct err *err)
{
    int rc = 0;
    if (!net->opt.distill)
        return err_set(err, -EINVAL, "a %s network learns from data, not from teachers", net->name);
    for (int i = 0; i < model_n_chains(&net_model(net)->spec) && rc == 0; i++)
        rc = teach((struct image_net *)(net->ops->chain ? net->ops->chain(net, i) : net), teachers,
                   err);
    return rc;
}

static int check_lesson(const struct image_net *n, const struct batch *b, struct err *err)
{
    const struct lesson *l = n->lesson;
    if (!l->teachers || !b->partitions)
        return err_set(err, -EINVAL, "distillation without %s",
                       l->teachers ? "the samples' partitions" : "teachers");
    for (unsigned i = 0; i < b->count; i++)
        if (b->partitions[i] < 0 || b->partitions[i] >= l->count)
            return err_set(err, -EINVAL, "sample %u is of partition %d, but there are %d teachers",
                           i, (int)b->partitions[i], l->count);
    return 0;
}

/* flow.d_target = the teachers' velocities.  Waits for the device. */
static int ask_teachers(struct image_net *n, unsigned from, int B, struct err *err)
{
    struct flow_matching *f = &n->flow;
    struct lesson *l = n->lesson;
    const int K = l->count;
    memset(l->want, 0, (size_t)B * (size_t)K * sizeof *l->want);
    for (int i = 0; i < B; i++)
        l->want[(int64_t)i * K + f->partitions[from + (unsigned)i]] = 1;
    if (f->d_states) {
        l->captions = (struct net_captions){f->loaded, f->d_states, f->lengths};
        mix_captions(l->teachers, &l->captions);
    }
    mix_shape(l->teachers, f->shapes[from], f->n);
    mix_chain(l->teachers, l->chain, l->chain > 0 ? n->d_estimate : NULL);
    int rc = mix_run(l->teachers, f->d_xt, f->t + from, f->labels + from, l->want, B, err);
    return rc < 0 ? rc : mix_combine(l->teachers, f->d_target, l->want, B, err);
}

static int teacher_error(struct image_net *n, const struct net_micro *micro, float *dpred,
                         struct err *err)
{
    int rc = ask_teachers(n, micro->from, (int)micro->count, err);
    return rc < 0 ? rc : image_net_error(n, micro, dpred, err);
}

void distill_begin(struct image_net *n, int chain)
{
    n->lesson = mem_alloc(sizeof *n->lesson);
    n->lesson->chain = chain;
    n->admit = check_lesson;
    n->objective = teacher_error;
}

void distill_end(struct image_net *n)
{
    if (!n->lesson)
        return;
    forget_teachers(n->lesson);
    mem_free(n->lesson);
    n->lesson = NULL;
}

uint64_t distill_bytes(const struct model *m, const struct net_options *opt, int chain)
{
    const struct mix_options mix = options(&m->spec, opt->batch, chain);
    return mix_bytes(&mix);
}

static void student_free(struct net *net)
{
    distill_end((struct image_net *)net);
    image_net_free(net);
}

static int student_make(struct device *dev, const struct model *m, const struct net_options *opt,
                        struct net **ret, struct err *err)
{
    struct image_net *n = mem_alloc(sizeof *n);
    n->net.ops = &distill_net_ops;
    distill_begin(n, 0);
    if (!model_teaches(&m->spec)) {
        student_free(&n->net);
        return err_set(err, -EINVAL, "only a DiT can be distilled");
    }
    return image_net_make(n, dev, m, opt, ret, err);
}

static uint64_t student_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    return image_net_bytes(m, opt, dt) + distill_bytes(m, opt, 0);
}

const struct net_ops distill_net_ops = {
    .bytes = student_bytes,
    .make = student_make,
    .free = student_free,
    .load = image_net_load,
    .forward = image_net_forward,
    .backward = image_net_backward,
    .hidden = image_net_hidden,
};
