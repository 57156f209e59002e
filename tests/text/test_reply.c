/* Thoughts, answers and calls, whatever the pieces in which a reply comes. */
#include "support.h"

#include "base/rng.h"
#include "text/reply.h"

struct reply_case {
    enum reply_style style;
    bool thinking;
    const char *text; /* control tokens of harmony in the text, given by name */
    const char *want[N_REPLY_PARTS];
};

/* The length of a control token's name at s, 0: none. */
static size_t control_at(const char *s) {
    const char *end = s[0] == '<' && s[1] == '|' ? strstr(s, "|>") : NULL;
    size_t n = end ? (size_t)(end + 2 - s) : 0;
    return n > 0 && reply_knows_control(s, n) ? n : 0;
}

static void feed(struct reply *r, const char *text, size_t portion, struct buf *out) {
    for (const char *s = text; *s;) {
        size_t n = r->style == REPLY_HARMONY ? control_at(s) : 0;
        if (n > 0) {
            char name[32];
            snprintf(name, sizeof name, "%.*s", (int)n, s);
            reply_push_control(r, name, out);
        } else {
            for (n = 1; n < portion && s[n] && !(r->style == REPLY_HARMONY && control_at(s + n));)
                n++;
            reply_push(r, s, n, out);
        }
        s += n;
    }
    reply_flush(r, out);
}

static void check(const struct reply_case *c) {
    for (size_t portion = 1; portion <= strlen(c->text) + 1; portion++) {
        struct buf out[N_REPLY_PARTS] = {{0}};
        struct reply r;
        reply_open(&r, c->style, c->thinking);
        feed(&r, c->text, portion, out);
        for (int i = 0; i < N_REPLY_PARTS; i++) {
            assert_string_equal(buf_str(&out[i]), c->want[i] ? c->want[i] : "");
            buf_free(&out[i]);
        }
        reply_close(&r);
    }
}

static void a_reply_is_taken_apart(void **state) {
    (void)state;
    static const struct reply_case cases[] = {
        {REPLY_PLAIN, false, " <think>a</think> b", {" <think>a</think> b"}},
        {REPLY_THINK, false, "An answer.\n", {"An answer.\n"}},
        {REPLY_THINK, false, "  indented", {"  indented"}},
        {REPLY_THINK, false, "\n", {"\n"}},
        {REPLY_THINK, false, "", {""}},
        {REPLY_THINK, false, "<think>\nwhy\n\nso\n</think>\n\n4", {"4", "why\n\nso"}},
        {REPLY_THINK, false, "\n<think></think>4", {"4"}},
        {REPLY_THINK, false, "<think", {"<think"}},
        {REPLY_THINK, false, "<thinker> x", {"<thinker> x"}},
        {REPLY_THINK, false, "<th<think>x", {"<th<think>x"}},
        {REPLY_THINK, false, "a <think>b</think>", {"a <think>b</think>"}},
        {REPLY_THINK, false, "<think>not done", {"", "not done"}},
        {REPLY_THINK,
         false,
         "<think>x < y </thi</thin </think>z</think>",
         {"z</think>", "x < y </thi</thin"}},
        {REPLY_THINK, false, "<think>x </think", {"", "x </think"}},
        {REPLY_THINK, true, "so\n</think>\n\nyes\n", {"yes\n", "so"}},
        {REPLY_THINK, true, "no end", {"", "no end"}},
        {REPLY_HARMONY,
         false,
         "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4",
         {"4", "hm"}},
        {REPLY_HARMONY, false, "<|channel|>final<|message|>a <think> b", {"a <think> b"}},
        {REPLY_HARMONY,
         false,
         "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}",
         {"", "", "{\"a\":1}"}},
        {REPLY_HARMONY, false, " to=functions.f<|channel|>commentary<|message|>{}", {"", "", "{}"}},
        {REPLY_HARMONY,
         false,
         "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final"
         "<|message|>Done.<|return|>more",
         {"I look.\nDone."}},
        {REPLY_HARMONY, false, "just words", {"just words"}},
        {REPLY_HARMONY, false, "<|channel|>final", {""}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check(&cases[i]);
}

/* A reply of harmony that has no header at all is an answer once it is too long for one. */
static void a_model_without_channels_is_heard(void **state) {
    (void)state;
    char text[1001];
    memset(text, 'w', sizeof text - 1);
    text[sizeof text - 1] = 0;
    const struct reply_case c = {REPLY_HARMONY, false, text, {text}};
    check(&c);
}

static void nothing_crashes_on_noise(void **state) {
    (void)state;
    static const char *const words[] = {"<",       "<think>",   "</think>",    "\n",
                                        "x",       "<|start|>", "<|channel|>", "<|message|>",
                                        "<|end|>", "to=",       "analysis",    "<|constrain|>",
                                        "</think", "<|call|>",  "\xC3\xA9"};
    struct rng rng;
    rng_seed(&rng, 7);
    for (int round = 0; round < 300; round++) {
        struct buf text = {0}, out[N_REPLY_PARTS] = {{0}};
        for (int i = 0; i < 40; i++)
            buf_add_str(&text, words[rng_below(&rng, COUNT_OF(words))]);
        struct reply r;
        reply_open(&r, (enum reply_style)(round % 3), round % 2);
        feed(&r, buf_str(&text), 3, out);
        size_t n = 0;
        for (int i = 0; i < N_REPLY_PARTS; i++) {
            n += out[i].len;
            buf_free(&out[i]);
        }
        assert_true(n <= text.len + 40); /* at most a line break a message comes to it */
        reply_close(&r);
        buf_free(&text);
    }
}

static void a_prompt_may_open_the_thoughts(void **state) {
    (void)state;
    static const char *const yes[] = {"<think>", "assistant\n<think>\n", "x<think> \n\n"};
    static const char *const no[] = {"", "think>", "<think>\n\n</think>\n\n", "<think>a"};
    for (size_t i = 0; i < COUNT_OF(yes); i++)
        assert_true(reply_prompt_thinks(yes[i], strlen(yes[i])));
    for (size_t i = 0; i < COUNT_OF(no); i++)
        assert_false(reply_prompt_thinks(no[i], strlen(no[i])));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply_is_taken_apart),
        cmocka_unit_test(a_model_without_channels_is_heard),
        cmocka_unit_test(nothing_crashes_on_noise),
        cmocka_unit_test(a_prompt_may_open_the_thoughts),
    };
    return cmocka_run_group_tests_name("reply", tests, NULL, NULL);
}
