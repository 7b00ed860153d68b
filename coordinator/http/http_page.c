/* The dashboard: its files, and the login that trades the user's secret for a
 * cookie.  The files hold no secrets, so everybody may fetch them. */
#include "coordinator/http/http_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/token.h"
#include "coordinator/http/web_assets.h"

#define SECRET_MAX 512
#define COOKIE_NAME "skerry" /* also in common/net/http/http_server */
#define COOKIE_DAYS 365

static const struct web_asset *find_asset(const char *name)
{
    for (size_t i = 0; i < web_assets_count; i++)
        if (strcmp(web_assets[i].name, name) == 0)
            return &web_assets[i];
    return NULL;
}

/* Nothing from elsewhere, no inline script or style, no frame around us. */
static void add_headers(struct http_request *r)
{
    http_reply_header(r, "Content-Security-Policy",
                      "default-src 'none'; script-src 'self'; style-src 'self'; "
                      "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; "
                      "base-uri 'none'; frame-ancestors 'none'");
    http_reply_header(r, "Referrer-Policy", "no-referrer");
    http_reply_header(r, "Cache-Control", "no-cache");
}

static void reply_asset(struct http_request *r, unsigned status, const char *name)
{
    static const struct {
        const char *ending, *type;
    } types[] = {
        {".html", "text/html; charset=utf-8"},
        {".js", "text/javascript; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},
        {".svg", "image/svg+xml"},
    };
    const struct web_asset *asset = find_asset(name);
    const char *type = NULL;
    for (size_t i = 0; asset && i < sizeof types / sizeof types[0]; i++)
        if (str_ends(name, types[i].ending))
            type = types[i].type;
    if (type == NULL) {
        http_reply_error(r, 404, "not_found", "There is no file of that name.");
        return;
    }
    add_headers(r);
    http_reply_static(r, status, type, asset->data, asset->len);
}

void http_get_web_file(void *arg, struct http_request *r)
{
    const char *name = http_request_param(r, "name");
    /* The pages themselves are served at / only. */
    reply_asset(r, 200, str_ends(name, ".html") ? "" : name);
}

/* ---- login --------------------------------------------------------------- */

static bool is_secret(const struct http_api *api, const char *secret)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                   "0123456789-_.";
    size_t len = strlen(secret);
    /* It becomes part of a header: no byte that could end one. */
    if (len == 0 || len > SECRET_MAX || strspn(secret, alphabet) != len)
        return false;
    return (api->o.authenticate(api->o.auth_arg, secret) & TOKEN_ROLE_USER) != 0;
}

static void set_cookie(const struct http_api *api, struct http_request *r, const char *secret,
                       long max_age_s)
{
    char *cookie = str_printf(COOKIE_NAME "=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%ld%s",
                              secret, max_age_s, api->o.plain ? "" : "; Secure");
    http_reply_header(r, "Set-Cookie", cookie);
    mem_free(cookie);
}

static void redirect_home(struct http_request *r)
{
    http_reply_header(r, "Location", "/");
    http_reply_header(r, "Cache-Control", "no-store");
    http_reply_empty(r, 303);
}

static void log_in(const struct http_api *api, struct http_request *r, const char *secret)
{
    if (is_secret(api, secret)) {
        set_cookie(api, r, secret, COOKIE_DAYS * 24L * 3600L);
        redirect_home(r);
    } else {
        reply_asset(r, 401, "denied.html");
    }
}

void http_get_page(void *arg, struct http_request *r)
{
    struct http_api *api = arg;
    const char *secret = http_request_query(r, "token");
    if (secret != NULL)
        log_in(api, r, secret); /* and out of the address bar */
    else if (http_request_role(r) & TOKEN_ROLE_USER)
        reply_asset(r, 200, "index.html");
    else
        reply_asset(r, 200, "login.html");
}

/* The first value of a form, with %XX and '+' decoded, cut to fit. */
static bool form_value(const char *text, size_t len, const char *name, char *out, size_t size)
{
    size_t n = strlen(name), used = 0;
    if (len <= n || strncmp(text, name, n) != 0 || text[n] != '=')
        return false;
    for (size_t i = n + 1; i < len && text[i] != '&' && used + 1 < size; i++) {
        unsigned value;
        if (text[i] == '%' && i + 2 < len && sscanf(text + i + 1, "%2x", &value) == 1) {
            out[used++] = (char)value;
            i += 2;
        } else {
            out[used++] = text[i] == '+' ? ' ' : text[i];
        }
    }
    out[used] = '\0';
    return true;
}

void http_post_login(void *arg, struct http_request *r)
{
    char form[3 * SECRET_MAX + 16], secret[SECRET_MAX + 2] = "";
    size_t len;
    const char *body = http_request_body(r, &len);
    if (body == NULL || len >= sizeof form) {
        log_in(arg, r, "");
        return;
    }
    memcpy(form, body, len);
    form[len] = '\0';
    (void)form_value(form, len, "token", secret, sizeof secret);
    /* Pasted from a terminal: white space at the ends is not meant. */
    const char *start = secret + strspn(secret, " \t\r\n");
    for (size_t n = strlen(start); n > 0 && strchr(" \t\r\n", start[n - 1]); n--)
        secret[(size_t)(start - secret) + n - 1] = '\0';
    log_in(arg, r, start);
}

void http_post_logout(void *arg, struct http_request *r)
{
    set_cookie(arg, r, "", 0);
    redirect_home(r);
}
