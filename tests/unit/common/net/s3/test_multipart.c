/* Uploads in parts: what the store has of them is not sent again, what it would never take begins
 * anew, and an end that nobody has heard of is looked at. */
#include "tests/unit/common/net/s3/client_rig.h"

/* As the fake does. */
#define CLOSES "Connection: close\r\nContent-Length: 0\r\n\r\n"
#define OK "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

static int put_big(struct rig *r)
{
    return s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err);
}

static void expect_error(struct rig *r, int code, const char *text)
{
    assert_int_equal(put_big(r), code);
    if (!strstr(r->err.msg, text))
        fail_msg("'%s' is not in: %s", text, r->err.msg);
}

/* The upload that an earlier process has begun. */
static void begun(struct rig *r)
{
    (void)str_copy(r->f.upload, sizeof(r->f.upload), "big");
}

static void test_parts(void **state)
{
    struct rig *r = *state;
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 3);
    expect_all(r, "big");
}

/* The second part is lost for good: the next call goes on with it. */
static void test_parts_resumed(void **state)
{
    struct rig *r = *state;
    fake_store_next(&r->f, "PUT", FAKE_REPLY, "HTTP/1.1 200 OK\r\n" CLOSES);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), -ERR_REMOTE);
    assert_non_null(strstr(r->err.msg, "has no ETag"));
    assert_int_equal(s3_put(r->c, "small", r->path, 40000, r->sha256, &r->err), 0);
    r->f.puts = 0;
    fake_set(r->f.parts, "1", r->data, 40000);
    fake_set(r->f.parts, "2", r->data, 39999); /* of another division: sent again */
    for (int i = 0; i < 3; i++)
        fake_store_next(&r->f, "PUT", FAKE_REPLY, "HTTP/1.1 503 Slow Down\r\n" CLOSES);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), -EAGAIN);
    assert_int_equal(r->f.puts, 3);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 5);
    expect_all(r, "big");
}

/* An end that the store refuses: it would refuse it each time, so the next try begins anew. */
static void test_parts_refused(void **state)
{
    static const char *const ends[] = {
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 40\r\n\r\n"
        "<Error><Code>InvalidPart</Code></Error>\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 40\r\n\r\n"
        "<Error><Code>InvalidPart</Code></Error>\n",
    };
    struct rig *r = *state;
    for (size_t i = 0; i < 2; i++) {
        r->f.puts = 0;
        fake_store_next(&r->f, "POST", FAKE_LATER, NULL); /* the beginning */
        fake_store_next(&r->f, "POST", FAKE_REPLY, ends[i]);
        assert_true(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err) < 0);
        assert_non_null(strstr(r->err.msg, "InvalidPart"));
        assert_int_equal(r->f.puts, 3);
        assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
        assert_int_equal(r->f.puts, 6);
        expect_all(r, "big");
    }
}

/* An end that is answered with nothing that says so: what is there is looked at. */
static void test_parts_end_unsaid(void **state)
{
    static const char *const ends[] = {
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 11\r\n\r\n<p>hello</p",
    };
    struct rig *r = *state;
    fake_store_next(&r->f, "POST", FAKE_LATER, NULL); /* the beginning */
    for (size_t i = 0; i < 2; i++) {
        fake_store_next(&r->f, "POST", FAKE_REPLY, ends[i]);
        assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), -EAGAIN);
        assert_non_null(strstr(r->err.msg, "does not have the object"));
    }
    put(r, "big");
    fake_store_next(&r->f, "POST", FAKE_REPLY, ends[0]);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
}

#define PARTS(next)                                                                                \
    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 85\r\n\r\n<P><IsTruncated>true</"     \
    "IsTruncated><NextPartNumberMarker>" next "</NextPartNumberMarker></P>\n"

/* The list of an upload's parts goes on, or it has ended. */
static void test_parts_in_a_circle(void **state)
{
    struct rig *r = *state;
    (void)str_copy(r->f.upload, sizeof(r->f.upload), "big");
    fake_store_next(&r->f, "GET", FAKE_LATER, NULL); /* of uploads */
    for (int i = 0; i < 10; i++)
        fake_store_next(&r->f, "GET", FAKE_REPLY, i % 2 ? PARTS("1") : PARTS("2"));
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.gets, 3);
    r->f.n_mishaps = 0;
    begun(r);
    fake_store_next(&r->f, "GET", FAKE_LATER, NULL);
    for (int i = 0; i < 10; i++) /* it stands still */
        fake_store_next(&r->f, "GET", FAKE_REPLY, PARTS("1"));
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.gets, 6);
}

/* A part that is listed has no ETag has not that of the one before it: it is sent again. */
static void test_parts_without_etags(void **state)
{
    struct rig *r = *state;
    fake_store_next(&r->f, "PUT", FAKE_LATER, NULL);
    fake_store_next(&r->f, "PUT", FAKE_LATER, NULL);
    fake_store_next(&r->f, "PUT", FAKE_REPLY, "HTTP/1.1 200 OK\r\n" CLOSES);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), -ERR_REMOTE);
    r->f.puts = 0;
    r->f.no_etags = true;
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 2);
    expect_all(r, "big");
}

/* The store has put the parts together, and its answer is lost: nothing is sent again. */
static void test_lost_end(void **state)
{
    struct rig *r = *state;
    struct s3 *c = client(r, (struct s3_options){.part_bytes = 30000});
    fake_store_next(&r->f, "POST", FAKE_LATER, NULL); /* the beginning */
    fake_store_next(&r->f, "POST", FAKE_LOST, NULL);
    assert_int_equal(s3_put(c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 4);
    expect_all(r, "big");
    s3_close(c);
}

/* Other bytes of the same length are not taken for the file. */
static void test_other_bytes_there(void **state)
{
    struct rig *r = *state;
    uint8_t *other = mem_alloc(LEN);
    fake_set(r->f.objects, "big", other, LEN);
    mem_free(other);
    assert_int_equal(s3_put(r->c, "big", r->path, LEN, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 3);
    expect_all(r, "big");
}

/* ---- how a file is divided ---- */

static void test_sizes(void **state)
{
    struct rig *r = *state;
    assert_int_equal(s3_put(r->c, "even", r->path, 80000, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 2);
    assert_int_equal(s3_put(r->c, "odd", r->path, 80001, r->sha256, &r->err), 0);
    assert_int_equal(r->f.puts, 5);
    size_t len = 0;
    assert_true(fake_store_has(&r->f, "even", &len) && len == 80000);
    assert_true(fake_store_has(&r->f, "odd", &len) && len == 80001);
}

/* The list of an upload that has all `n` parts of `bytes` each, the last of `rest`. */
static char *whole_list(unsigned n, unsigned bytes, unsigned rest)
{
    struct buf text;
    buf_init(&text, 4 << 20);
    assert_int_equal(buf_append_str(&text, OK "<P>"), 0);
    for (unsigned i = 1; i <= n; i++)
        assert_int_equal(buf_printf(&text,
                                    "<Part><PartNumber>%u</PartNumber><Size>%u</Size>"
                                    "<ETag>\"e\"</ETag></Part>",
                                    i, i < n ? bytes : rest),
                         0);
    assert_int_equal(buf_append_str(&text, "</P>"), 0);
    return (char *)buf_take(&text, NULL);
}

/* A store takes 10000 parts: with that many they are as large as asked for, with more twice. */
static void test_many_parts(void **state)
{
    static const struct {
        uint64_t size;
        unsigned n, bytes, rest;
    } cases[] = {{99999, 10000, 10, 9}, {LEN, 5000, 20, 20}};
    struct rig *r = *state;
    struct s3 *c = client(r, (struct s3_options){.part_bytes = 10});
    for (size_t i = 0; i < 2; i++) {
        char *list = whole_list(cases[i].n, cases[i].bytes, cases[i].rest);
        begun(r);
        fake_store_next(&r->f, "GET", FAKE_LATER, NULL); /* of uploads */
        fake_store_next(&r->f, "GET", FAKE_REPLY, list);
        assert_int_equal(s3_put(c, "big", r->path, cases[i].size, r->sha256, &r->err), 0);
        assert_int_equal(r->f.puts, 0); /* all are there, and none is of another size */
        mem_free(list);
    }
    s3_close(c);
}

/* ---- an upload that was begun ---- */

/* Uploads of other objects, or a list that says nothing, are not gone on with. */
static void test_others_uploads(void **state)
{
    static const char *const lists[] = {
        OK "<L><Upload><Key>big2</Key><UploadId>other</UploadId></Upload></L>",
        OK "<L><Upload><UploadId>other</UploadId></Upload></L>",
        OK "<L><Upload><Key>big</Key></Upload></L>",
        OK "no XML",
        OK "<L></L>",
    };
    struct rig *r = *state;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        r->f.posts = 0;
        fake_store_next(&r->f, "GET", FAKE_REPLY, lists[i]);
        assert_int_equal(put_big(r), 0);
        assert_int_equal(r->f.posts, 2); /* a beginning and an end */
    }
}

/* Ours among others, wherever it stands. */
static void test_own_upload(void **state)
{
    static const char *const lists[] = {
        OK "<L><Upload><Key>big2</Key><UploadId>other</UploadId></Upload>"
           "<Upload><Key>big</Key><UploadId>up&amp;1</UploadId></Upload></L>",
        OK "<L><Upload><UploadId>up&amp;1</UploadId><Key>big</Key></Upload>"
           "<Upload><Key>big2</Key><UploadId>other</UploadId></Upload></L>",
    };
    struct rig *r = *state;
    for (size_t i = 0; i < 2; i++) {
        begun(r);
        fake_store_next(&r->f, "GET", FAKE_REPLY, lists[i]);
        assert_int_equal(put_big(r), 0);
        assert_int_equal(r->f.posts, i + 1); /* an end each, and no beginning */
    }
}

/* It ended between the two lists, perhaps by a rule of the bucket: begun anew. */
static void test_upload_gone(void **state)
{
    struct rig *r = *state;
    begun(r);
    fake_store_next(&r->f, "GET", FAKE_LATER, NULL);
    fake_store_next(&r->f, "GET", FAKE_REPLY,
                    "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"
                    "<Error><Code>NoSuchUpload</Code></Error>");
    assert_int_equal(put_big(r), 0);
    assert_int_equal(r->f.posts, 2);
    assert_int_equal(r->f.puts, 3);
    expect_all(r, "big");
}

/* It ends while its parts are sent: the next try may succeed. */
static void test_upload_gone_later(void **state)
{
    struct rig *r = *state;
    fake_store_next(&r->f, "PUT", FAKE_REPLY,
                    "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"
                    "<Error><Code>NoSuchUpload</Code></Error>");
    expect_error(r, -EAGAIN, "does not have the object");
}

#define PART(n, size, etag)                                                                        \
    "<Part><PartNumber>" n "</PartNumber><Size>" size "</Size>" etag "</Part>"
#define TAG "<ETag>\"e\"</ETag>"

/* Only parts that there are, of their size, with an ETag that can be sent back, are not sent. */
static void test_odd_lists(void **state)
{
    static char longer[512];
    (void)snprintf(longer, sizeof(longer),
                   OK "<P>" PART("1", "40000", "<ETag>%0200d</ETag>") "</P>", 0);
    const struct {
        const char *text;
        unsigned puts;
    } lists[] = {
        {OK "<P>" PART("0", "40000", TAG) PART("4", "40000", TAG) PART("4294967297", "40000", TAG)
             PART("x", "40000", TAG) PART("", "", "") "</P>",
         3},
        {OK "<P>" PART("1", "39999", TAG) PART("2", "40001", TAG) PART("3", "40000", TAG) "</P>",
         3},
        {OK "<P>" PART("1", "40000", "") PART("2", "40000", TAG) PART("3", "20000", TAG) "</P>", 1},
        {OK "<P>" PART("3", "20000", TAG) "<Part><Size>20000</Size></Part></P>", 2},
        {longer, 3},
    };
    struct rig *r = *state;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        begun(r);
        r->f.puts = 0;
        fake_store_next(&r->f, "GET", FAKE_LATER, NULL);
        fake_store_next(&r->f, "GET", FAKE_REPLY, lists[i].text);
        assert_int_equal(put_big(r), 0);
        assert_int_equal(r->f.puts, lists[i].puts);
        assert_int_equal(r->f.posts, i + 1); /* an end each, and no beginning */
    }
}

static void test_pages_of_parts(void **state)
{
    struct rig *r = *state;
    begun(r);
    fake_store_next(&r->f, "GET", FAKE_LATER, NULL);
    fake_store_next(
        &r->f, "GET", FAKE_REPLY,
        OK "<P>" PART("1", "40000", TAG) "<IsTruncated>true</IsTruncated>"
                                         "<NextPartNumberMarker>1</NextPartNumberMarker></P>");
    fake_store_next(
        &r->f, "GET", FAKE_REPLY,
        OK "<P>" PART("2", "40000", TAG) "<IsTruncated>false</IsTruncated>"
                                         "<NextPartNumberMarker>2</NextPartNumberMarker></P>");
    assert_int_equal(put_big(r), 0);
    assert_int_equal(r->f.gets, 3);
    assert_int_equal(r->f.puts, 1);
    assert_string_equal(r->f.body, "<CompleteMultipartUpload>"
                                   "<Part><PartNumber>1</PartNumber><ETag>\"e\"</ETag></Part>"
                                   "<Part><PartNumber>2</PartNumber><ETag>\"e\"</ETag></Part>"
                                   "<Part><PartNumber>3</PartNumber><ETag>\"e3\"</ETag></Part>"
                                   "</CompleteMultipartUpload>");
}

/* Each page is asked for behind the last part of the one before. */
static void test_next_page(void **state)
{
    struct rig *r = *state;
    begun(r);
    fake_store_next(&r->f, "GET", FAKE_LATER, NULL);
    fake_store_next(
        &r->f, "GET", FAKE_REPLY,
        OK "<P>" PART("1", "40000", TAG) "<IsTruncated>true</IsTruncated>"
                                         "<NextPartNumberMarker>17</NextPartNumberMarker></P>");
    fake_store_next(&r->f, "GET", FAKE_REPLY, OK "no XML");
    expect_error(r, -ERR_REMOTE, "lists the parts of an upload");
    assert_non_null(strstr(r->f.last, "&part-number-marker=17&"));
}

static void test_list_is_no_xml(void **state)
{
    struct rig *r = *state;
    begun(r);
    fake_store_next(&r->f, "GET", FAKE_LATER, NULL);
    fake_store_next(&r->f, "GET", FAKE_REPLY, OK "<P><Part>");
    expect_error(r, -ERR_REMOTE, "lists the parts of an upload in a form that is not S3's");
    assert_int_equal(r->f.puts, 0);
    assert_null(strstr(r->f.last, "part-number-marker")); /* it was the first page */
}

/* ---- beginnings and ends ---- */

static void test_no_upload_id(void **state)
{
    struct rig *r = *state;
    fake_store_next(&r->f, "POST", FAKE_REPLY, OK "<I></I>");
    expect_error(r, -ERR_REMOTE, "answers the beginning of an upload in parts in a form");
    assert_int_equal(r->f.puts, 0);
}

/* An ETag with marks of XML would end the list of parts: it is refused, and the upload given up. */
static void test_no_etag_of_a_part(void **state)
{
    struct rig *r = *state;
    fake_store_next(&r->f, "PUT", FAKE_REPLY, "HTTP/1.1 200 OK\r\nETag: a<b\r\n" CLOSES);
    expect_error(r, -ERR_REMOTE, "gave ETags of parts that are not valid");
    assert_int_equal(r->f.posts, 1); /* the beginning */
    assert_int_equal(r->f.deletes, 1);
}

/* What passes keeps the parts, what does not drops them. */
static void test_ends(void **state)
{
    static const struct {
        const char *code;
        unsigned given_up;
    } ends[] = {
        {"InternalError", 0}, {"EntityTooSmall", 1}, {"InvalidPart", 1}, {"InvalidPartOrder", 1}};
    struct rig *r = *state;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char *answer = str_printf(OK "<Error><Code>%s</Code></Error>", ends[i].code);
        r->f.deletes = r->f.puts = 0;
        fake_store_next(&r->f, "POST", FAKE_LATER, NULL);
        fake_store_next(&r->f, "POST", FAKE_REPLY, answer);
        expect_error(r, -EAGAIN, ends[i].code);
        assert_int_equal(r->f.deletes, ends[i].given_up);
        assert_int_equal(r->f.puts, 3);
        assert_int_equal(put_big(r), 0);
        assert_int_equal(r->f.puts, ends[i].given_up ? 6 : 3);
        expect_all(r, "big");
        mem_free(answer);
    }
}

/* Another object under the key is not what was sent. */
static void test_end_unsaid_and_other_size(void **state)
{
    struct rig *r = *state;
    fake_set(r->f.objects, "big", r->data, LEN - 1);
    fake_store_next(&r->f, "POST", FAKE_LATER, NULL);
    fake_store_next(&r->f, "POST", FAKE_REPLY, OK);
    expect_error(r, -EAGAIN, "does not have the object");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_parts),
        TEST(test_parts_resumed),
        TEST(test_parts_refused),
        TEST(test_parts_end_unsaid),
        TEST(test_parts_in_a_circle),
        TEST(test_parts_without_etags),
        TEST(test_lost_end),
        TEST(test_other_bytes_there),
        TEST(test_sizes),
        TEST(test_many_parts),
        TEST(test_others_uploads),
        TEST(test_own_upload),
        TEST(test_next_page),
        TEST(test_upload_gone),
        TEST(test_upload_gone_later),
        TEST(test_odd_lists),
        TEST(test_pages_of_parts),
        TEST(test_list_is_no_xml),
        TEST(test_no_upload_id),
        TEST(test_no_etag_of_a_part),
        TEST(test_ends),
        TEST(test_end_unsaid_and_other_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
