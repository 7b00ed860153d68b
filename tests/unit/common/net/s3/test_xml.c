/* Answers in XML are read leaf by leaf, strictly and within bounds. */
#include "common/net/s3/xml.h"

#include "tests/unit/common/net/net_test.h"

static int tell(void *arg, const char *parent, const char *name, const char *text)
{
    char *out = arg, line[128];
    (void)snprintf(line, sizeof(line), "%s/%s=%s;", parent, name, text ? text : "-");
    (void)strcat(out, line);
    return 0;
}

static int count_leaf(void *arg, const char *parent, const char *name, const char *text)
{
    unsigned *n = arg;
    assert_true(!text || strlen(text) == 1500);
    ++*n;
    return 0;
}

struct ending {
    unsigned n, at;
    int code;
};

static int end_at(void *arg, const char *parent, const char *name, const char *text)
{
    struct ending *e = arg;
    return ++e->n == e->at ? e->code : 0;
}

static int read_xml(const char *xml, char *out)
{
    *out = '\0';
    return s3_xml_read(xml, strlen(xml), tell, out);
}

static void test_leaves(void **state)
{
    char out[1024];
    assert_int_equal(read_xml("<?xml version=\"1.0\"?>\n<L xmlns=\"http://x\"><C> <K>a&amp;b</K>\n"
                              "<S>1</S></C><C><K/></C></L>",
                              out),
                     0);
    assert_string_equal(out, "C/K=a&b;C/S=1;L/C=-;C/K=;L/C=-;/L=-;");
    assert_int_equal(read_xml("<L><C></L>", out), -ERR_FORMAT);
    assert_int_equal(read_xml("{}", out), -ERR_FORMAT);
    assert_int_equal(read_xml("", out), -ERR_FORMAT);
    assert_int_equal(read_xml("<!DOCTYPE x [<!ENTITY a \"b\">]><x>&a;</x>", out), -ERR_FORMAT);
}

/* The parser tells the end of an empty element also where its beginning has stopped the reading. */
static void test_stopped_in_an_empty_element(void **state)
{
    char out[1024], xml[256], *name = mem_alloc(101);
    memset(name, 'a', 100);
    (void)sprintf(xml, "<%s/>", name);
    assert_int_equal(read_xml(xml, out), -ERR_FORMAT);
    assert_string_equal(out, "");
    (void)sprintf(xml, "<L><%s/></L>", name);
    assert_int_equal(read_xml(xml, out), -ERR_FORMAT);
    assert_string_equal(out, "");
    assert_int_equal(read_xml("<a><a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a></a>", out),
                     -ERR_FORMAT);
    assert_string_equal(out, "");
    mem_free(name);
}

/* Text beside children is nobody's; what is escaped, or cut by a comment, is one text. */
static void test_mixed(void **state)
{
    char out[1024];
    assert_int_equal(read_xml("<L>x<K>1</K>y</L>", out), 0);
    assert_string_equal(out, "L/K=1;/L=-;");
    assert_int_equal(read_xml("<L><K>a<!-- no -->b<![CDATA[<c>]]></K>tail<S>2</S></L>", out), 0);
    assert_string_equal(out, "L/K=ab<c>;L/S=2;/L=-;");
    assert_int_equal(read_xml("<K>1</K>", out), 0);
    assert_string_equal(out, "/K=1;");
    assert_int_equal(read_xml("<K>1</K><K>2</K>", out), -ERR_FORMAT);
}

/* Of a name, a text and the depth: as long as it may be, and one more. */
static void test_bounds(void **state)
{
    char out[S3_XML_TEXT_MAX + 64], *xml = mem_alloc(2 * S3_XML_TEXT_MAX);
    for (int more = 0; more < 2; more++) {
        const int want = more ? -ERR_FORMAT : 0;
        (void)sprintf(xml, "<a%0*d>x</a%0*d>", 62 + more, 0, 62 + more, 0);
        assert_int_equal(read_xml(xml, out), want);
        (void)sprintf(xml, "<a>%0*d</a>", S3_XML_TEXT_MAX - 1 + more, 1);
        *out = '\0';
        assert_int_equal(s3_xml_find(xml, strlen(xml), "a", out, sizeof(out)), !more);
        assert_int_equal(strlen(out), more ? 0 : S3_XML_TEXT_MAX - 1);
        *xml = '\0';
        for (int i = 0; i < S3_XML_DEPTH + more; i++)
            (void)strcat(xml, "<a>");
        for (int i = 0; i < S3_XML_DEPTH + more; i++)
            (void)strcat(xml, "</a>");
        assert_int_equal(read_xml(xml, out), want);
    }
    /* Each text has the whole room. */
    (void)sprintf(xml, "<L><a>%01500d</a><a>%01500d</a></L>", 1, 2);
    assert_int_equal(s3_xml_read(xml, strlen(xml), count_leaf, &(unsigned){0}), 0);
    mem_free(xml);
}

/* Whoever is told may end the reading, with any code. */
static void test_ended(void **state)
{
    static const char text[] = "<L><a>1</a><a>2</a><a>3</a></L>";
    for (int code = -5; code <= 5; code += 10) {
        struct ending e = {.at = 2, .code = code};
        assert_int_equal(s3_xml_read(text, sizeof(text) - 1, end_at, &e), code);
        assert_int_equal(e.n, 2);
    }
    struct ending e = {.at = 4, .code = 7}; /* of what has children */
    assert_int_equal(s3_xml_read(text, sizeof(text) - 1, end_at, &e), 7);
}

static bool find(const char *xml, const char *name, char *ret, size_t cap)
{
    return s3_xml_find(xml, strlen(xml), name, ret, cap);
}

/* The first leaf of the name, at any depth, also where what follows is broken. */
static void test_find(void **state)
{
    char key[8];
    assert_true(find("<a><Key>abc</Key><Key>d</Key></a>", "Key", key, sizeof(key)));
    assert_string_equal(key, "abc");
    assert_true(find("<a><Key><b>no</b></Key><c><Key>yes</Key></c></a>", "Key", key, sizeof(key)));
    assert_string_equal(key, "yes");
    assert_true(find("<Key>root</Key>", "Key", key, sizeof(key)));
    assert_string_equal(key, "root");
    assert_true(find("<a><Key/><oops", "Key", key, sizeof(key)));
    assert_string_equal(key, "");
    assert_true(find("<a><Key>abc</Key></a>", "Key", key, 4));
    assert_false(find("<a><Key>abc</Key><Key>d</Key></a>", "Key", key, 3));
    assert_false(find("<a><Key>abc</Key></a>", "Kei", key, sizeof(key)));
    assert_false(find("<a><Key>abc", "Key", key, sizeof(key)));
    assert_false(find("<!DOCTYPE a><a><Key>abc</Key></a>", "Key", key, sizeof(key)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaves), cmocka_unit_test(test_stopped_in_an_empty_element),
        cmocka_unit_test(test_mixed),  cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_ended),  cmocka_unit_test(test_find),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
