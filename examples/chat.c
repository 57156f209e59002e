/* One message to a model, its answer as it comes. Nothing but the public header:
 *   cc chat.c $(pkg-config --cflags --libs atsinfer) -o chat
 *   ./chat model.gguf '[{"role": "user", "content": "Why is the sky blue?"}]' */
#include <atsinfer.h>
#include <stdio.h>

static bool print(void *user, const char *text, size_t n_bytes, int32_t token) {
    (void)user, (void)token;
    fwrite(text, 1, n_bytes, stdout);
    return fflush(stdout) == 0; /* false stops the answer */
}

static ats_status answer(ats_engine *engine, ats_session *session, const char *messages) {
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n_ids;
    ats_sampling sampling;
    ats_sampler *sampler = NULL;
    ats_generation generation = {.max_tokens = 200, .on_text = print};
    ats_sampling_default(engine, &sampling);
    sampling.seed = 1;
    ats_status status = ats_chat_render(engine, messages, NULL, true, &text);
    if (status == ATS_OK) status = ats_tokenize_chat(engine, text, &ids, &n_ids);
    if (status == ATS_OK) status = ats_session_set(session, ids, n_ids, NULL);
    if (status == ATS_OK) status = ats_sampler_open(engine, &sampling, &sampler);
    if (status == ATS_OK) status = ats_generate(session, sampler, &generation);
    ats_sampler_close(sampler);
    ats_free(ids);
    ats_free(text);
    return status;
}

int main(int argc, char **argv) {
    ats_options options;
    ats_engine *engine = NULL;
    ats_session *session = NULL;
    ats_options_default(&options);
    options.model = argc > 1 ? argv[1] : NULL;
    const char *messages = argc > 2 ? argv[2] : "[{\"role\": \"user\", \"content\": \"Hello!\"}]";
    ats_status status = ats_engine_open(&options, &engine);
    if (status == ATS_OK) status = ats_session_open(engine, &session);
    if (status == ATS_OK) status = answer(engine, session, messages);
    if (status == ATS_OK) putchar('\n');
    if (status != ATS_OK) fprintf(stderr, "%s: %s\n", ats_status_text(status), ats_error_text());
    ats_session_close(session);
    ats_engine_close(engine);
    return status != ATS_OK;
}
