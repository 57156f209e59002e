/* Templates that would take too long, too much memory or too much stack: all are errors. */
#include "rendered.h"

#include "support.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

static void expect_limit(const char *text, struct template_options options, const char *error) {
    struct buf out = {0};
    json_t *context = json_object();
    TEST_STATUS(render(text, strlen(text), context, &options, &out), ATS_BAD_INPUT);
    TEST_ERROR_HAS(error);
    assert_int_equal(out.len, 0);
    buf_free(&out);
    json_decref(context);
}

static void test_limits_are_errors(void **state) {
    (void)state;
    struct template_options few_steps = {.max_steps = 1000};
    struct template_options small_output = {.max_output_bytes = 1000};
    struct template_options small_memory = {.max_memory_bytes = 100000};
    expect_limit("{% for i in range(1000) %}{{ i }}{% endfor %}", few_steps, "too many steps");
    expect_limit("{% for i in range(1000) %}{{ i }}{% endfor %}", small_output,
                 "a text of more than 1000 bytes");
    expect_limit(
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}",
        small_memory, "memory");
    expect_limit("{{ 'x' * 1000000 }}", small_memory, "limit reached");
    expect_limit("{{ [1] * 1000000000000 }}", (struct template_options){0}, "limit reached");
    expect_limit("{{ range(1000000000) | list }}", (struct template_options){0}, "range()");
    expect_limit("{{ '%1000000000d' % 1 }}", (struct template_options){0}, "out of range");
    expect_limit("{{ 'x' | center(10000000000) }}", (struct template_options){0}, "limit reached");
    expect_limit("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
                 (struct template_options){0}, "levels deep");
    expect_limit("{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}"
                 "{% endfor %}{{ ns.l }}",
                 (struct template_options){0}, "levels deep");
    expect_limit("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", (struct template_options){0},
                 "levels deep");
    expect_limit("{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
                 (struct template_options){.max_steps = 100000}, "too many steps");
    expect_limit("{{ ('a' * 1000000).rsplit('a' * 500000 ~ 'b') | length }}",
                 (struct template_options){.max_steps = 1000000}, "too many steps");
}

/* Built of repeated pieces, each with its number where it has a %d. */
static char *repeated(const char *begin, const char *piece, int n, const char *end) {
    struct buf b = {0};
    buf_add_str(&b, begin);
    for (int i = 0; i < n; i++)
        for (const char *s = piece; *s; s++) {
            if (strncmp(s, "%d", 2) == 0)
                buf_printf(&b, "%d", i), s++;
            else
                buf_add_char(&b, *s);
        }
    buf_add_str(&b, end);
    return buf_take(&b);
}

/* What is looked through costs steps: names of a scope, keys of a dict, keywords of format. */
static void test_searching_counts_as_steps(void **state) {
    (void)state;
    const struct template_options options = {.max_steps = 100000};
    char *many = repeated("{% for i in [1] %}", "{% set a%d = 1 %}", 3000,
                          "{% for j in range(2000) %}{{ x }}{% endfor %}{% endfor %}");
    expect_limit(many, options, "too many steps");
    free(many);
    many = repeated("{% set s = 'a' * 100000 %}{% set d = {}  %}",
                    "{% set _ = d.update({s ~ %d: 1}) %}", 10,
                    "{% set k = s ~ 'z' %}{% for j in range(1000) %}{% if k in d %}{% endif %}"
                    "{% endfor %}");
    expect_limit(many, options, "too many steps");
    free(many);
    many = repeated("{% set d = {", "'k%d': 1, ", 1000, "} %}{{ ('{k999}' * 3000).format(**d) }}");
    expect_limit(many, options, "too many steps");
    free(many);
}

/* What is read costs steps, whatever comes of it. Each goes far beyond the limit by the bytes it
 * looks at, and stays far below it by its expressions. */
static void test_reading_long_texts_counts_as_steps(void **state) {
    (void)state;
    static const char begin[] = "{% set s = 'a' * 200000 %}{% set k = s[:125] ~ 'b' ~ s[:125] %}";
    static const char *const templates[] = {
        "{{ k in s }}",
        "{{ s.find(k) }}",
        "{{ s.replace(k, '') | length }}",
        "{{ (s | replace(k, '')) | length }}",
        "{{ s.split(k) | length }}",
        "{{ s.partition(k) | length }}",
        "{{ s.count(k) }}",
        "{{ s.count('a') }}{{ s.count('a') }}",
        "{% for i in range(10) %}{{ ('%' ~ 'l' * 200000 ~ 'd') % i }}{% endfor %}",
        "{% for i in range(10) %}{{ ('{:' ~ '0' * 200000 ~ '}').format(i) }}{% endfor %}",
        "{% for i in range(10) %}{{ (' ' * 200000) | int }}{% endfor %}",
        "{% for i in range(10) %}{{ (' ' * 200000) | float }}{% endfor %}",
        "{% for i in range(10) %}{{ ('<' ~ s ~ '>') | striptags }}{% endfor %}",
        "{{ ([{}] * 10) | map(attribute=s) | list | length }}",
        "{% for i in range(40) %}{{ 'a' | truncate(300000, end=s) }}{% endfor %}",
        "{% for i in range(1000) %}{{ 1e300 | round(200) | int }}{% endfor %}",
        "{% for i in range(1000) %}{{ 0.1 + 0.2 }}{% endfor %}",
        "{% for i in range(1000) %}{{ (0.1 + 0.2) | tojson }}{% endfor %}",
        "{% for i in range(1000) %}{{ '%.100f' % 1e300 }}{% endfor %}",
        "{% for i in range(1000) %}{{ '{:.100f}'.format(1e300) }}{% endfor %}",
        "{% for i in range(100) %}{{ strftime_now('%Z' * 2048) }}{% endfor %}",
    };
    static const struct tm day = {.tm_mday = 1, .tm_year = 100};
    const struct template_options options = {.now = &day, .max_steps = 50000};
    for (size_t i = 0; i < COUNT_OF(templates); i++) {
        char text[400];
        snprintf(text, sizeof text, "%s%s", begin, templates[i]);
        expect_limit(text, options, "too many steps");
    }
}

/* Each parameter is looked for among the keywords, and each keyword among the parameters. */
static void test_keywords_of_a_macro_count_as_steps(void **state) {
    (void)state;
    const struct template_options options = {.max_steps = 100000};
    char *json = repeated("{", "\"k%d\": 1, ", 4000, "\"z\": 1}");
    char *params = repeated("", "p%d=1, ", 500, "last=1");
    struct buf text = {0};
    buf_printf(&text,
               "{%% macro f(%s) %%}{%% endmacro %%}"
               "{%% set d = '%s' | from_json %%}{{ f(**d) }}",
               params, json);
    expect_limit(buf_str(&text), options, "too many steps");
    buf_free(&text);
    free(params);
    free(json);
}

static void test_names_are_limited(void **state) {
    (void)state;
    struct template *t;
    char *text = repeated("", "{{ a%d }}", TEMPLATE_MAX_NAMES, "");
    TEST_OK(template_open(text, strlen(text), &t));
    template_close(t);
    free(text);
    text = repeated("\n", "{{ a%d }}", TEMPLATE_MAX_NAMES + 1, "");
    TEST_STATUS(template_open(text, strlen(text), &t), ATS_BAD_INPUT);
    TEST_ERROR_HAS("line 2: more than 4096 different names");
    free(text);
}

static void test_output_keeps_what_was_there(void **state) {
    (void)state;
    struct buf out = {0};
    json_t *context = json_object();
    buf_add_str(&out, "before ");
    TEST_STATUS(render("a{{ x.y }}", 10, context, NULL, &out), ATS_BAD_INPUT);
    assert_string_equal(buf_str(&out), "before ");
    TEST_OK(render("after", 5, context, NULL, &out));
    assert_string_equal(buf_str(&out), "before after");
    buf_free(&out);
    json_decref(context);
}

static void test_source_larger_than_the_limit_is_refused(void **state) {
    (void)state;
    struct template *t;
    char *text = calloc(1, TEMPLATE_MAX_SOURCE_BYTES + 1);
    memset(text, 'x', TEMPLATE_MAX_SOURCE_BYTES + 1);
    TEST_STATUS(template_open(text, TEMPLATE_MAX_SOURCE_BYTES + 1, &t), ATS_BAD_INPUT);
    TEST_OK(template_open(text, TEMPLATE_MAX_SOURCE_BYTES, &t));
    template_close(t);
    free(text);
}

/* ---- nesting on a small stack ---- */

/* What the limits promise is for plain builds of any optimisation; sanitizers make frames larger,
 * several times where nothing is optimised. */
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifdef SANITIZED
enum { STACK_BYTES = 1 << 20 };
#else
enum { STACK_BYTES = 256 << 10 };
#endif

static const struct {
    const char *open, *middle, *close;
} nested[] = {
    {"(", "1", ")"},
    {"[", "", "]"},
    {"{'a': ", "1", "}"},
    {"not ", "1", ""},
    {"- ", "1", ""},
    {"f(", "", ")"},
    {"x[", "0", "]"},
    {"1 if 1 else ", "1", ""},
    {"1 + (", "1", ")"},
    {"x is sameas(", "1", ")"},
    {"x | default(", "1", ")"},
    {"a", "", ".b"},
    {"a", "", "|list"},
    {"a", "", "[0]"},
    {"a", "", " + 1"},
    {"a", "", "()"},
    {"x if ", "1", " else 1"},
    {"", "1", " is none and not (1"},
};

static void *open_nested(void *arg) {
    int n = *(int *)arg;
    for (size_t i = 0; i < COUNT_OF(nested); i++) {
        struct buf text = {0};
        buf_add_str(&text, "{{ ");
        for (int k = 0; k < n; k++)
            buf_add_str(&text, nested[i].open);
        buf_add_str(&text, nested[i].middle);
        for (int k = 0; k < n; k++)
            buf_add_str(&text, nested[i].close);
        buf_add_str(&text, " }}");
        struct template *t = NULL;
        ats_status status = template_open(text.data, text.len, &t);
        template_close(t);
        buf_free(&text);
        if (status != ATS_BAD_INPUT) return (void *)(uintptr_t)nested[i].open;
    }
    return NULL;
}

static void *open_nested_tags(void *arg) {
    static const char *const tags[] = {"{% if 1 %}",      "{% for x in y %}", "{% set x %}",
                                       "{% macro f() %}", "{% call f() %}",   "{% filter trim %}",
                                       "{% with x=1 %}",  "{% generation %}"};
    for (size_t i = 0; i < COUNT_OF(tags); i++) {
        struct buf text = {0};
        for (int k = 0; k < *(int *)arg; k++)
            buf_add_str(&text, tags[i]);
        struct template *t = NULL;
        ats_status status = template_open(text.data, text.len, &t);
        template_close(t);
        buf_free(&text);
        if (status != ATS_BAD_INPUT) return (void *)(uintptr_t)tags[i];
    }
    return NULL;
}

/* Deepest recursion at run time: each level as deep an expression as is allowed. */
static void *render_deep(void *arg) {
    static const char *const texts[] = {
        "{% macro f(n) %}{% if 1 %}{% for x in [1] %}{% call g() %}{{ 1 + (1 + f(n)) }}{% endcall "
        "%}"
        "{% endfor %}{% endif %}{% endmacro %}{% macro g() %}{{ caller() }}{% endmacro %}"
        "{{ f(0) }}",
        "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
        "{% macro f(n) %}{% set x %}{% filter trim %}{{ [{'a': f(n)}] ~ 1 }}{% endfilter %}"
        "{% endset %}{% endmacro %}{{ f(0) }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = {'a': [ns.l]} %}"
        "{% endfor %}{{ ns.l | tojson(indent=2) }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = {'a': [ns.l]} %}"
        "{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[], m=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}"
        "{% set ns.m = [ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
        "{% set ns = namespace(l=[], m=[1]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}"
        "{% set ns.m = [ns.m] %}{% endfor %}{{ ns.l < ns.m }}",
    };
    (void)arg;
    json_t *context = json_object();
    const char *wrong = NULL;
    for (size_t i = 0; i < COUNT_OF(texts) && !wrong; i++) {
        struct buf out = {0};
        ats_status status = render(texts[i], strlen(texts[i]), context, NULL, &out);
        if (status != ATS_BAD_INPUT || !strstr(error_text(), "levels deep")) wrong = texts[i];
        buf_free(&out);
    }
    json_decref(context);
    return (void *)(uintptr_t)wrong;
}

/* Runs fn in a thread with a small stack; it returns NULL or the text that did not fail as it must.
 */
static void on_small_stack(void *(*fn)(void *), int n) {
    pthread_attr_t attr;
    pthread_t thread;
    void *wrong;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attr, fn, &n), 0);
    assert_int_equal(pthread_join(thread, &wrong), 0);
    pthread_attr_destroy(&attr);
    if (wrong) fail_msg("%d levels of \"%s\"", n, (const char *)wrong);
}

static void test_deep_nesting_is_an_error_on_a_small_stack(void **state) {
    (void)state;
    on_small_stack(open_nested, 210);
    on_small_stack(open_nested, 60000);
    on_small_stack(open_nested_tags, 70);
    on_small_stack(open_nested_tags, 60000);
}

static void test_deep_recursion_is_an_error_on_a_small_stack(void **state) {
    (void)state;
    on_small_stack(render_deep, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits_are_errors),
        cmocka_unit_test(test_searching_counts_as_steps),
        cmocka_unit_test(test_reading_long_texts_counts_as_steps),
        cmocka_unit_test(test_keywords_of_a_macro_count_as_steps),
        cmocka_unit_test(test_names_are_limited),
        cmocka_unit_test(test_output_keeps_what_was_there),
        cmocka_unit_test(test_source_larger_than_the_limit_is_refused),
        cmocka_unit_test(test_deep_nesting_is_an_error_on_a_small_stack),
        cmocka_unit_test(test_deep_recursion_is_an_error_on_a_small_stack),
    };
    return cmocka_run_group_tests_name("template_limits", tests, NULL, NULL);
}
