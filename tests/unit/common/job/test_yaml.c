#include "common/job/yaml.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

static int parse(const char *text, struct yaml_doc *doc, struct err *err)
{
    return yaml_parse(text, strlen(text), "f.yaml", doc, err);
}

static void builds_a_tree(void **state)
{
    struct yaml_doc doc;
    OK(parse("a: 1\nb:\n  c: \"two\"\n  d: [x, y]\ne: null\n", &doc, err));
    const struct yaml_node *b = yaml_get(doc.root, "b"), *c = yaml_get(b, "c");
    assert_int_equal(doc.root->n, 3);
    assert_string_equal(yaml_get(doc.root, "a")->text, "1");
    assert_false(yaml_get(doc.root, "a")->quoted);
    assert_string_equal(c->text, "two");
    assert_true(c->quoted);
    assert_int_equal(c->line, 3);
    assert_int_equal(c->column, 6);
    assert_int_equal(b->key_line, 2);
    assert_int_equal(c->end_column, 11);
    const struct yaml_node *d = yaml_get(b, "d");
    assert_int_equal(d->kind, YAML_LIST);
    assert_int_equal(d->n, 2);
    assert_int_equal(b->end_line, 4); /* where d ends */
    assert_int_equal(b->end_column, 12);
    assert_string_equal(d->first->next->text, "y");
    assert_true(yaml_is_null(yaml_get(doc.root, "e")));
    assert_false(yaml_is_null(c));
    assert_null(yaml_get(doc.root, "zz"));
    assert_null(yaml_get(c, "zz"));
    yaml_release(&doc);
    static const char *const empty[] = {"", "# only a comment\n", "---\n", "~"};
    for (size_t i = 0; i < COUNT(empty); i++) {
        OK(parse(empty[i], &doc, err));
        assert_int_equal(doc.root->n, 0);
        yaml_release(&doc);
    }
}

static void refuses(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"a: 1\na: 2\n", "f.yaml:2: key 'a' is there twice (first on line 1)"},
        {"a: 1\nb: *x\n", "f.yaml:2: aliases"},
        {"a: &x 1\n", "f.yaml:1: anchors"},
        {"a: 1\nb: &x [1]\n", "f.yaml:2: anchors"},
        {"a: 1\nb: &x\n  c: 1\n", "f.yaml:2: anchors"},
        {"&x a: 1\n", "f.yaml:1: anchors"},
        {"!!str a: 1\n", "f.yaml:1: tags"},
        {"a: !!int 1\n", "f.yaml:1: tags"},
        {"a: 1\n---\nb: 2\n", "more than one document"},
        {"- a\n", "expected keys with values"},
        {"just text", "expected keys with values"},
        {"a: [1, 2\nb: 3\n", "not valid YAML"},
        {"a:\n\tb: 1\n",
         "f.yaml:2: not valid YAML: the line begins with a tab; indent it with spaces"},
        {"a: 1\nb: caf\xe9\n", "f.yaml:2: this is not UTF-8 ("},
        {"? [x]\n: 1\n", "a key must be plain text"},
        {"a: \"x\\0y\"\n", "NUL"},
        {"a: [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]\n", "nested too deeply"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct yaml_doc doc;
        FAILS(parse(cases[i].text, &doc, err), cases[i].says);
    }
}

static void is_bounded(void **state)
{
    struct yaml_doc doc;
    struct buf b;
    buf_init(&b, 4u << 20);
    buf_append_str(&b, "a: [");
    for (int i = 0; i <= YAML_NODES_MAX; i++)
        buf_append_str(&b, "1,");
    buf_append_str(&b, "]\n");
    FAILS(parse(buf_str(&b), &doc, err), "too many values");
    FAILS(yaml_parse(buf_str(&b), YAML_BYTES_MAX + 1, "f", &doc, err), "at most");
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builds_a_tree),
        cmocka_unit_test(refuses),
        cmocka_unit_test(is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
