/* The commands: each gets parsed flags and returns the exit code. */
#pragma once

#include "app/common.h"

int cmd_run(struct app *app);
int cmd_bench(struct app *app);
int cmd_perplexity(struct app *app);
int cmd_plan(struct app *app);
int explain_plan(struct app *app, const char *machine); /* plan, of a described machine */
int cmd_inspect(struct app *app);
int cmd_tokenize(struct app *app);
int cmd_logits(struct app *app);
int cmd_simulate(struct app *app);
int cmd_profile(struct app *app);
int cmd_doctor(struct app *app);
int cmd_completion(struct app *app);
