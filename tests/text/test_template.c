/* Templates against the outputs of jinja2 in HF's environment (shared/templates), byte for byte;
 * then what those do not cover: error texts with lines, mutation. */
#include "rendered.h"

#include "base/file.h"
#include "support.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

/* "2026-03-04 15:06:07" */
static struct tm parse_now(const char *text) {
    struct tm tm = {0};
    assert_non_null(strptime(text, "%Y-%m-%d %H:%M:%S", &tm));
    return tm;
}

/* Addresses of printed objects differ from run to run: both sides get "at 0x0". */
static char *without_addresses(const char *s) {
    struct buf b = {0};
    for (; *s; s++) {
        if (strncmp(s, " at 0x", 6) == 0) {
            buf_add_str(&b, " at 0x0");
            for (s += 6; isxdigit((unsigned char)*s); s++) {
            }
            s--;
            continue;
        }
        buf_add_char(&b, *s);
    }
    return buf_take(&b);
}

/* One case: {output} or {error, kind}. False, and printed, if it is not met. */
static bool meets(const char *file, const char *name, const json_t *expected, ats_status status,
                  const struct buf *out) {
    const char *output = json_string_value(json_object_get(expected, "output"));
    const char *error = json_string_value(json_object_get(expected, "error"));
    const char *kind = json_string_value(json_object_get(expected, "kind"));
    if (output && status != ATS_OK) {
        print_error("%s %s: %s\n", file, name, error_text());
        return false;
    }
    if (output) {
        char *got = without_addresses(buf_str(out)), *want = without_addresses(output);
        bool same = strcmp(got, want) == 0;
        if (!same) print_error("%s %s:\n--- got\n%s\n--- want\n%s\n", file, name, got, want);
        free(got);
        free(want);
        return same;
    }
    assert_non_null(error);
    if (status == ATS_OK) {
        print_error("%s %s: rendered, must fail: %s\n", file, name, error);
        return false;
    }
    if (strcmp(kind, "TemplateError") == 0 && !strstr(error_text(), error)) {
        print_error("%s %s: fails with \"%s\", must with \"%s\"\n", file, name, error_text(),
                    error);
        return false;
    }
    return status == ATS_BAD_INPUT;
}

static void check_family(const char *name) {
    char path[512], relative[64];
    snprintf(relative, sizeof relative, "templates/%s.json", name);
    if (!test_shared_path(path, sizeof path, relative)) skip();
    json_t *doc = test_json_read(path);
    snprintf(relative, sizeof relative, "templates/%s.jinja", name);
    assert_true(test_shared_path(path, sizeof path, relative));
    char *text;
    size_t n, n_failed = 0;
    TEST_OK(file_read(path, 1 << 20, &text, &n));
    struct tm now = parse_now(json_string_value(test_json_get(doc, "now")));
    struct template_options options = {.now = &now, .immutable = true};
    struct template *t;
    TEST_OK(template_open(text, n, &t));
    size_t i;
    json_t *c;
    json_array_foreach(test_json_get(doc, "cases"), i, c) {
        struct buf out = {0};
        ats_status status = template_render(t, test_json_get(c, "context"), &options, &out);
        n_failed += !meets(name, json_string_value(test_json_get(c, "name")), c, status, &out);
        buf_free(&out);
    }
    assert_true(i > 20);
    template_close(t);
    free(text);
    json_decref(doc);
    if (n_failed > 0) fail_msg("%s: %zu of %zu cases differ", name, n_failed, i);
}

#define FAMILIES(X)                                                                                \
    X(chatml)                                                                                      \
    X(smollm2)                                                                                     \
    X(gemma_turns)                                                                                 \
    X(glm4)                                                                                        \
    X(llama31_tools)                                                                               \
    X(qwen3_thinking)                                                                              \
    X(mistral_strict)                                                                              \
    X(harmony)                                                                                     \
    X(r1_namespace)                                                                                \
    X(smollm3_modes)                                                                               \
    X(macros)                                                                                      \
    X(loops)                                                                                       \
    X(whitespace)                                                                                  \
    X(filters)                                                                                     \
    X(tests)                                                                                       \
    X(slices)                                                                                      \
    X(expressions)                                                                                 \
    X(errors)

#define FAMILY_TEST(name)                                                                          \
    static void test_equals_jinja_##name(void **state) {                                           \
        (void)state;                                                                               \
        check_family(#name);                                                                       \
    }
FAMILIES(FAMILY_TEST)

static void test_equals_jinja_snippets(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "templates/snippets.json")) skip();
    json_t *doc = test_json_read(path);
    struct tm now = parse_now(json_string_value(test_json_get(doc, "now")));
    struct template_options options = {.now = &now, .immutable = true};
    const json_t *contexts = test_json_get(doc, "contexts");
    size_t i, n_failed = 0;
    json_t *c;
    json_array_foreach(test_json_get(doc, "snippets"), i, c) {
        const json_t *text = test_json_get(c, "template");
        const char *context = json_string_value(test_json_get(c, "context"));
        struct buf out = {0};
        ats_status status = render(json_string_value(text), json_string_length(text),
                                   test_json_get(contexts, context), &options, &out);
        if (!meets("snippet", json_string_value(test_json_get(c, "id")), c, status, &out)) {
            print_error("    %s\n", json_string_value(text));
            n_failed++;
        }
        buf_free(&out);
    }
    assert_int_equal(i, 348);
    json_decref(doc);
    if (n_failed > 0) fail_msg("%zu of %zu snippets differ", n_failed, i);
}

/* ---- short cases of our own: template, context, output ---- */

static void expect(const char *text, const char *context, const char *output) {
    json_t *json;
    struct buf out = {0};
    TEST_OK(json_parse(context, strlen(context), &json));
    ats_status status = render(text, strlen(text), json, NULL, &out);
    if (status != ATS_OK) fail_msg("%s: %s", text, error_text());
    if (strcmp(buf_str(&out), output) != 0)
        fail_msg("%s: got \"%s\", want \"%s\"", text, buf_str(&out), output);
    buf_free(&out);
    json_decref(json);
}

static void expect_error(const char *text, const char *context, const char *error) {
    json_t *json;
    struct buf out = {0};
    TEST_OK(json_parse(context, strlen(context), &json));
    ats_status status = render(text, strlen(text), json, NULL, &out);
    if (status != ATS_BAD_INPUT || !strstr(error_text(), error))
        fail_msg("%s: got %d \"%s\", want \"%s\"", text, (int)status, error_text(), error);
    assert_int_equal(out.len, 0);
    buf_free(&out);
    json_decref(json);
}

static void test_lists_and_dicts_can_be_changed(void **state) {
    (void)state;
    expect("{% set l = [1] %}{{ l.append(2) }}{{ l }}{{ l.pop() }}{{ l.pop(0) }}{{ l }}", "{}",
           "None[1, 2]21[]");
    expect("{% set d = {'a': 1} %}{% set _ = d.update({'b': 2}, c=3) %}{{ d.pop('a') }}{{ d }}",
           "{}", "1{'b': 2, 'c': 3}");
    expect("{% set l = [3, 1, 2] %}{{ l.sort() }}{{ l }}{{ l.insert(-1, 9) }}{{ l.index(9) }}",
           "{}", "None[1, 2, 3]None2");
    expect("{% for x in l %}{{ x }}{% if x < 3 %}{% set _ = l.append(x + 1) %}{% endif %}"
           "{% endfor %}",
           "{\"l\": [1]}", "123");
}

static void test_mutation_is_refused_when_immutable(void **state) {
    (void)state;
    struct template_options options = {.immutable = true};
    struct buf out = {0};
    json_t *context = json_object();
    const char *text = "{% set l = [] %}{{ l.append(1) }}";
    TEST_STATUS(render(text, strlen(text), context, &options, &out), ATS_BAD_INPUT);
    TEST_ERROR_HAS("attribute 'append' of 'list' object is unsafe");
    json_decref(context);
}

static void test_key_order_is_kept(void **state) {
    (void)state;
    expect("{{ d | tojson }} {% for k in d %}{{ k }}{% endfor %}",
           "{\"d\": {\"z\": 1, \"a\": {\"y\": null, \"b\": 1.0}}}",
           "{\"z\": 1, \"a\": {\"y\": null, \"b\": 1.0}} za");
}

static void test_floats_print_as_python(void **state) {
    (void)state;
    expect("{{ [1e16, 1e15, 123456789.125, 0.0001, 0.00001, 1.5e300, 5e-324, -0.0] }}", "{}",
           "[1e+16, 1000000000000000.0, 123456789.125, 0.0001, 1e-05, 1.5e+300, 5e-324, -0.0]");
    expect("{{ 10 / 4 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** -1 }} {{ 2 ** 62 }}", "{}",
           "2.5 3.0 0.5 0.5 4611686018427387904");
}

static void test_formats_as_python(void **state) {
    (void)state;
    expect("{{ '%05d|%-5s|%5.1f|%x|%+d|%%|%r' % (42, 'ab', 2.25, 255, 7, 'q') }}", "{}",
           "00042|ab   |  2.2|ff|+7|%|'q'");
    expect("{{ '%(a)s-%(b)03d' % {'a': 'x', 'b': 5} }}", "{}", "x-005");
}

static void test_brace_formats_as_python(void **state) {
    (void)state;
    expect("{{ '{:>6}|{:<6}|{:^6}|{:06.2f}|{:,}'.format('a', 'b', 'c', 3.14159, 1234567) }}", "{}",
           "     a|b     |  c   |003.14|1,234,567");
    expect("{{ '{0}{1}{0}{x.y[0]}{{}}'.format('a', 1, x={'y': [5]}) }}", "{}", "a1a5{}");
    expect("{{ '{!r:*^9}|{:#x}|{:+.1e}|{:.1%}'.format('é', 255, 12345.6, 0.256) }}", "{}",
           "***'é'***|0xff|+1.2e+04|25.6%");
}

static void test_markup_escapes_what_it_touches(void **state) {
    (void)state;
    expect("{{ '<' + ('>' | safe) }} {{ ('<' | safe) ~ '>' }} {{ ['<' | safe] }}", "{}",
           "&lt;> <> [Markup('<')]");
}

static void test_scopes(void **state) {
    (void)state;
    expect(
        "{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
        "{}", "01010");
    expect("{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}{% set x = 2 %}{{ f() }}",
           "{}", "12");
    expect("{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}", "{}",
           "12");
    expect("{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x is defined }}", "{}",
           "2False");
    expect("{% for x in [1, 2, 3] %}{% set t %}{% if x == 2 %}{% break %}{% endif %}{{ x }}"
           "{% endset %}{{ t }}{% endfor %}",
           "{}", "1");
}

static void test_macros_take_varargs_and_kwargs(void **state) {
    (void)state;
    expect("{% macro f(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}"
           "{{ f(1) }} {{ f(1, 2, 3, k=4) }} {{ f(*[7, 8], **{'z': 9}) }}",
           "{}", "11(){} 12(3,){'k': 4} 78(){'z': 9}");
    expect("{% macro f(x) %}<{{ caller(x, 2) }}>{% endmacro %}"
           "{% call(a, b) f(1) %}{{ a + b }}{% endcall %}",
           "{}", "<3>");
    expect_error("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{}", "macro 'f'");
    expect_error("{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "{}", "argument 'b'");
}

static void test_errors_name_line_and_construct(void **state) {
    (void)state;
    expect_error("a\n{% frobnicate x %}", "{}", "line 2: unknown tag 'frobnicate'");
    expect_error("a\n\n{{ x | sparkle }}", "{}", "line 3: unknown filter 'sparkle'");
    expect_error("{{ x is\n shiny }}", "{}", "line 2: unknown test 'shiny'");
    expect_error("\n{% include 'x' %}", "{}", "line 2: tag 'include' is not supported");
    expect_error("\n\n{% for x in y %}\n", "{}", "line 3: the tag has no {% endfor %}");
    expect_error("{% if x %}\n{% endfor %}", "{}", "line 2: unexpected tag 'endfor'");
    expect_error("\n{{ 'abc }}", "{}", "line 2: string without end");
    expect_error("\n{{ (1, 2] }}", "{}", "line 2: unexpected ']', expected ')'");
    expect_error("\n{{ 1 + }}", "{}", "line 2: unexpected '}}', expected an expression");
    expect_error("\n{# no end", "{}", "line 2: comment without end");
    expect_error("\n{% raw %}{{", "{}", "line 2: {% raw %} without");
    expect_error("\n{% break %}", "{}", "line 2: {% break %} outside of a loop");
    expect_error("\n{{ 'a' ? 'b' }}", "{}", "line 2: unexpected character 0x3f");
    expect_error("ok\n{{ [1] | join(',', wrong=1) }}", "{}",
                 "line 2: filter 'join': unknown argument 'wrong'");
    expect_error("ok\n{{ 'abc'.index('z') }}", "{}", "line 2: str method 'index': substring");
    expect_error("\n\n{{ raise_exception('told ' ~ 1) }}", "{}", "line 3: raise_exception: told 1");
    expect_error("{{ m.x.y }}", "{\"m\": {}}", "'dict object' has no attribute 'x'");
    expect_error("{{ 9223372036854775807 + 1 }}", "{}", "integer overflow");
    expect_error("{{ 123456789012345678901 + 1 }}", "{}", "unsupported operand");
    expect_error("\xff", "{}", "not valid UTF-8");
}

static void *render_many(void *arg) {
    const struct template *t = arg;
    json_t *context = json_pack("{s:[i,i,i]}", "l", 1, 2, 3);
    for (int i = 0; i < 200; i++) {
        struct buf out = {0};
        ats_status status = template_render(t, context, NULL, &out);
        bool same = status == ATS_OK && strcmp(buf_str(&out), "1,2,3,") == 0;
        buf_free(&out);
        if (!same) return (void *)1;
    }
    json_decref(context);
    return NULL;
}

static void test_one_template_renders_in_several_threads(void **state) {
    (void)state;
    static const char text[] = "{% for x in l %}{{ x }},{% endfor %}";
    struct template *t;
    pthread_t threads[3];
    TEST_OK(template_open(text, strlen(text), &t));
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_many, t), 0);
    for (int i = 0; i < 3; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    template_close(t);
}

int main(void) {
#define FAMILY_ENTRY(name) cmocka_unit_test(test_equals_jinja_##name),
    const struct CMUnitTest tests[] = {
        FAMILIES(FAMILY_ENTRY) cmocka_unit_test(test_equals_jinja_snippets),
        cmocka_unit_test(test_lists_and_dicts_can_be_changed),
        cmocka_unit_test(test_mutation_is_refused_when_immutable),
        cmocka_unit_test(test_key_order_is_kept),
        cmocka_unit_test(test_floats_print_as_python),
        cmocka_unit_test(test_formats_as_python),
        cmocka_unit_test(test_brace_formats_as_python),
        cmocka_unit_test(test_markup_escapes_what_it_touches),
        cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_macros_take_varargs_and_kwargs),
        cmocka_unit_test(test_errors_name_line_and_construct),
        cmocka_unit_test(test_one_template_renders_in_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
