/* The page's login: forms, cookies and the headers by which a browser says whose page asks.  Who
 * shows no secret gets no session, and who shows it does, however a browser may write it; a session
 * lasts as long as it says, and changes nothing for pages of others. */
#include <ctype.h>
#include <stdio.h>

#include "coordinator/http/http_session.h"
#include "tests/fuzz/coordinator/http/door.h"

#define TURNS_MAX 12
#define FORM_MAX 1500
#define HOUR_MS 3600000ull

struct login {
    char id[SESSION_ID_MAX];
    uint64_t opened_ms, used_ms;
    bool out;
};

static struct login logins[TURNS_MAX];
static size_t n_logins;

static bool is_alive(const struct login *l)
{
    const uint64_t now = sim_now_ms();
    return !l->out && now - l->used_ms < SESSION_IDLE_MS && now - l->opened_ms < SESSION_LIFE_MS;
}

/* "NAME=VALUE; Path=..." */
static void take_cookie(const char *text)
{
    const char *value = strchr(text, '=');
    struct login *l = &logins[n_logins++];
    memset(l, 0, sizeof(*l));
    if (value == NULL || strcspn(value + 1, ";") != SESSION_ID_MAX - 1)
        sim_fail("a login is given the cookie '%s'", text);
    memcpy(l->id, value + 1, SESSION_ID_MAX - 1);
    l->opened_ms = l->used_ms = sim_now_ms();
}

/* As browsers write a form, and as they might. */
static char *put_encoded(char *to, char c, unsigned how)
{
    if (how % 4 == 0 || !isalnum((unsigned char)c))
        return to + sprintf(to, how % 8 < 4 ? "%%%02x" : "%%%02X", (unsigned char)c);
    *to++ = c;
    return to;
}

static char *put_space(char *to)
{
    static const char *const spaces[] = {"", "+", "%20", "%0a", "%0D%0A", "\n", "\t", " "};
    const char *s = spaces[message_byte() % 8];
    return to + sprintf(to, "%s", s);
}

static void log_in(const struct coordinator *co)
{
    char form[4096] = "token=", *at = form + strlen(form);
    at = put_space(at);
    for (const char *p = co->user_text; *p != '\0'; p++)
        at = put_encoded(at, *p, message_byte());
    at = put_space(at);
    if (message_byte() % 2)
        at += sprintf(at, "&token=other");
    const struct door_said *s = door_ask(&(struct http_ask){
        .method = "POST", .target = "/login", .body = form, .len = strlen(form)});
    if (s->status != 303)
        sim_fail("the secret is not let in, as '%s': %u", form, s->status);
    take_cookie(s->cookie);
}

static void guess_form(void)
{
    char form[FORM_MAX + 600] = "token=";
    size_t len = message_byte() % 2 ? strlen("token=") : 0;
    for (size_t left = message_byte() * 8u; left > 0 && message_next < message_end; left--)
        form[len++] = (char)message_byte();
    const struct door_said *s = door_ask(
        &(struct http_ask){.method = "POST", .target = "/login", .body = form, .len = len});
    if (s->status != 401 || s->cookie[0] != '\0')
        sim_fail("a form without the secret is answered with %u", s->status);
}

static void guess_cookie(void)
{
    char cookie[256];
    if (n_logins > 0 && message_byte() % 2) {
        (void)str_copy(cookie, sizeof(cookie), logins[message_byte() % n_logins].id);
        cookie[message_byte() % (SESSION_ID_MAX - 1)] ^= (char)(1 + message_byte() % 31);
    } else {
        (void)door_text(cookie, sizeof(cookie));
    }
    const struct door_said *s =
        door_ask(&(struct http_ask){.method = "GET", .target = "/v1/jobs", .cookie = cookie});
    if (s->status != 401)
        sim_fail("the cookie '%s' is answered with %u", cookie, s->status);
}

static void use(struct login *l)
{
    const bool alive = is_alive(l);
    const struct door_said *s =
        door_ask(&(struct http_ask){.method = "GET", .target = "/v1/jobs", .cookie = l->id});
    if ((s->status == 200) != alive)
        sim_fail("a session, %llu ms after its login and %llu ms after its last use, is answered "
                 "with %u",
                 (unsigned long long)(sim_now_ms() - l->opened_ms),
                 (unsigned long long)(sim_now_ms() - l->used_ms), s->status);
    l->used_ms = alive ? sim_now_ms() : l->used_ms;
}

static const char *header_or_null(char *to, size_t max)
{
    static const char *const usual[] = {
        "same-origin",      "same-site", "cross-site", "http://a.example",
        "http://A.example", "a.example", "none",       ""};
    const unsigned n = message_byte();
    if (n < 64)
        return NULL;
    return n < 192 ? usual[n % 8] : door_text(to, max);
}

/* Something that changes; where it is let in, it is of a task that does not exist. */
static void change_something(struct login *l)
{
    char texts[3][128];
    const char *site = header_or_null(texts[0], 128), *origin = header_or_null(texts[1], 128),
               *host = header_or_null(texts[2], 128);
    const bool alive = is_alive(l);
    const bool ours = site != NULL
                          ? strcmp(site, "same-origin") == 0
                          : origin != NULL && host != NULL && strncmp(origin, "http://", 7) == 0 &&
                                strcasecmp(origin + 7, host) == 0;
    struct http_header headers[3];
    size_t n = 0;
    if (site != NULL)
        headers[n++] = (struct http_header){"Sec-Fetch-Site", site};
    if (origin != NULL)
        headers[n++] = (struct http_header){"Origin", origin};
    if (host != NULL)
        headers[n++] = (struct http_header){"Host", host};
    const unsigned wanted = !alive ? 401 : ours ? 404 : 403;
    const struct door_said *s = door_ask(&(struct http_ask){.method = "POST",
                                                            .target = "/v1/tasks/999/cancel",
                                                            .body = "{}",
                                                            .len = 2,
                                                            .cookie = l->id,
                                                            .headers = headers,
                                                            .n_headers = n});
    if (s->status != wanted)
        sim_fail("site '%s', origin '%s', host '%s': %u, expected %u", site ? site : "(none)",
                 origin ? origin : "(none)", host ? host : "(none)", s->status, wanted);
    l->used_ms = alive ? sim_now_ms() : l->used_ms;
}

static void log_out(struct login *l)
{
    const struct http_header ours = {"Sec-Fetch-Site", "same-origin"};
    (void)door_ask(&(struct http_ask){
        .method = "POST", .target = "/logout", .cookie = l->id, .headers = &ours, .n_headers = 1});
    l->out = true;
}

static void take_turn(const struct coordinator *co)
{
    const unsigned what = message_byte() % 10;
    struct login *l = n_logins > 0 ? &logins[message_byte() % n_logins] : NULL;
    if (what < 2 || (l == NULL && what > 4))
        log_in(co);
    else if (what == 2)
        guess_form();
    else if (what < 5)
        guess_cookie();
    else if (what == 5)
        use(l);
    else if (what < 8)
        change_something(l);
    else if (what == 8)
        log_out(l);
    else
        sim_stall(message_byte() % 16 * HOUR_MS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    message_next = data;
    message_end = data + size;
    n_logins = 0;
    for (unsigned i = 0; i < TURNS_MAX && message_next < message_end; i++)
        take_turn(door_open());
    http_end(); /* all is answered */
    return 0;
}
