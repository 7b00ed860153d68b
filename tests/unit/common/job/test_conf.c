/* Tables of keys: every type, lists, sections, what is passed over in a saved text. */
#include "common/job/conf.h"

#include "tests/unit/common/base/util.h"

static const char *const colours[] = {"red", "green", NULL};

struct inner {
    int depth;
    char *name;
};

struct outer {
    bool on;
    int count;
    uint64_t seed, bytes, wait;
    double rate;
    int colour;
    struct conf_strs files;
    struct conf_ints levels;
    struct inner inner;
};

static const struct conf_key inner_keys[] = {
    CONF(struct inner, depth, INT, .def = "3", .min = 1, .max = 9, .doc = "how deep"),
    CONF(struct inner, name, STR, .def = "x", .doc = "its name"),
    CONF_END,
};
static const struct conf_key keys[] = {
    CONF(struct outer, on, BOOL, .doc = "a switch"),
    CONF(struct outer, count, INT, .zero = "auto", .def = "auto", .min = 1, .max = 5,
         .doc = "many"),
    CONF(struct outer, seed, U64, .required = true, .doc = "a seed"),
    CONF(struct outer, bytes, BYTES, .def = "1KiB", .doc = "a size"),
    CONF(struct outer, wait, DURATION_MS, .def = "2s", .max = 60000, .doc = "a time"),
    CONF(struct outer, rate, DOUBLE, .def = "0.5", .less = "auto", .min = 0, .max = 1,
         .doc = "a rate"),
    CONF(struct outer, colour, ENUM, .names = colours, .def = "green", .doc = "a colour"),
    CONF(struct outer, files, STRS, .doc = "files"),
    CONF(struct outer, levels, INTS, .min = 0, .max = 7, .doc = "levels"),
    CONF(struct outer, inner, SECTION, .sub = inner_keys, .doc = "What is inside."),
    CONF_END,
};

static int bind(const char *text, struct outer *out, struct err *err)
{
    struct yaml_doc doc;
    *out = (struct outer){0};
    int rc = yaml_parse(text, strlen(text), "f", &doc, err);
    if (rc == 0) {
        rc = conf_bind(&doc, doc.root, keys, out, err);
        yaml_release(&doc);
    }
    return rc;
}

static void fills_every_type(void **state)
{
    struct outer o;
    OK(bind("seed: 0x10\non: yes\ncount: 4\nbytes: 1.5MiB\nwait: 250ms\nrate: 1e-2\n"
            "colour: red\nfiles: [a, \"b c\"]\nlevels: 7\ninner: {depth: 9, name: \"\"}\n",
            &o, err));
    assert_true(o.on && o.count == 4 && o.seed == 16 && o.bytes == 3 << 19 && o.wait == 250);
    assert_true(o.rate == 0.01 && o.colour == 0);
    assert_int_equal(o.files.n, 2);
    assert_string_equal(o.files.items[1], "b c");
    assert_true(o.levels.n == 1 && o.levels.items[0] == 7);
    assert_int_equal(o.inner.depth, 9);
    assert_string_equal(o.inner.name, "");
    conf_release(keys, &o);
    assert_null(o.inner.name);
    OK(bind("seed: 1\ninner:\n", &o, err));
    assert_true(!o.on && o.count == 0 && o.bytes == 1024 && o.wait == 2000 && o.colour == 1);
    assert_true(o.inner.depth == 3 && o.levels.n == 0);
    conf_release(keys, &o);
    OK(bind("seed: 1\nrate: auto", &o, err));
    assert_true(o.rate == -1);
    conf_release(keys, &o);
    struct outer d = {0};
    conf_defaults(keys, &d);
    assert_true(d.rate == 0.5 && d.seed == 0 && d.inner.depth == 3);
    conf_release(keys, &d);
}

static void refuses(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"on: 1\nseed: 1", "f:1: on is '1', expected true or false"},
        {"seed: -1", "f:1: seed is '-1', expected a whole number from 0 to 18446744073709551615"},
        {"seed: 18446744073709551616", "a whole number from 0 to 18446744073709551615"},
        {"seed: 1.5", "seed is '1.5', expected a whole number from 0 to 18446744073709551615"},
        {"seed: 1\ncount: 6", "f:2: count is '6', expected auto or a whole number from 1 to 5"},
        {"seed: 1\nbytes: many", "expected a size such as 64MiB"},
        {"seed: 1\nwait: 2m", "expected a duration such as 2s or 1.5h from 0 to 1m"},
        {"seed: 1\nwait: 1h30", "wait is '1h30', expected a duration such as 2s or 1.5h"},
        {"seed: 1\nrate: 0,5",
         "rate is '0,5', expected auto or a number from 0 to 1, written with a "
         "point and without commas"},
        {"{seed: 1, rate: 0,5}", "f:1: '5' after a comma would be another key: write numbers with"},
        {"seed: 1,000", "to 18446744073709551615, written with a point and without commas"},
        {"seed: 1\nrate: 1.5", "expected auto or a number from 0 to 1"},
        {"seed: 1\ncolour: gren", "expected one of red, green; did you mean 'green'?"},
        {"seed: 1\nlevels: [1, 8]", "levels is '8', expected a list of at most 64 whole numbers"},
        {"seed: 1\nfiles: {a: b}", "files is a section, expected a list of texts"},
        {"seed: 1\ninner: {dept: 2}", "unknown key 'dept' in 'inner'; did you mean 'depth'?"},
        {"seed: 1\ninner: {zzz: 2}", "unknown key 'zzz' in 'inner'; known are depth, name"},
        {"seed: 1\ninner: [1]", "inner is a list, expected keys with values"},
        {"on: true", "f:1: seed is missing (a seed)"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct outer o;
        FAILS(bind(cases[i].text, &o, err), cases[i].says);
        assert_null(o.inner.name); /* nothing is left to release */
    }
}

/* A saved text: what is refused today keeps its default, but for firm keys. */
static void passes_over_what_is_new(void **state)
{
    static const char firm[] = "rate inner";
    static const char text[] = "seed: 1\ncount: 9\nolder: 2\nrate: 0.25\n";
    static const char hard[] = "seed: 1\ncount: 9\nrate: 2\n";
    struct yaml_doc doc;
    struct outer o = {0};
    struct err err = {0};
    assert_int_equal(yaml_parse(text, strlen(text), "f", &doc, &err), 0);
    assert_int_equal(conf_bind_saved(&doc, doc.root, keys, firm, &o, &err), 1);
    assert_string_equal(err.msg,
                        "f:3: unknown key 'older'; known are on, count, seed, bytes, wait, "
                        "rate, colour, files, levels, inner");
    assert_true(o.count == 0 && o.rate == 0.25);
    conf_release(keys, &o);
    yaml_release(&doc);
    assert_int_equal(yaml_parse(hard, strlen(hard), "f", &doc, &err), 0);
    o = (struct outer){0};
    assert_int_equal(conf_bind_saved(&doc, doc.root, keys, firm, &o, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "rate is '2'"));
    yaml_release(&doc);
}

static void finds_the_line(void **state)
{
    struct yaml_doc doc;
    struct err err = {0};
    static const char text[] = "seed: 1\n\ninner:\n  depth: 4\n";
    assert_int_equal(yaml_parse(text, strlen(text), "f", &doc, &err), 0);
    assert_string_equal(conf_find(&doc, "inner.depth")->text, "4");
    assert_null(conf_find(&doc, "inner.name"));
    assert_null(conf_find(&doc, "depth"));
    assert_int_equal(conf_error(&doc, "inner.depth", &err, "is %d", 4), -ERR_CONFIG);
    assert_string_equal(err.msg, "f:4: inner.depth is 4");
    (void)conf_error(&doc, "inner.name", &err, "is not there");
    assert_string_equal(err.msg, "f:3: inner.name is not there");
    yaml_release(&doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_every_type),
        cmocka_unit_test(refuses),
        cmocka_unit_test(passes_over_what_is_new),
        cmocka_unit_test(finds_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
