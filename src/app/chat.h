/* The interactive chat: reads lines, answers, obeys commands that begin with a slash. */
#pragma once

#include "app/answer.h"

/* Until the user leaves; returns the exit code. */
int chat_run(struct talker *t);
/* {"role": role, "content": content}; content is valid UTF-8. Owned. */
json_t *chat_message(const char *role, const char *content);
