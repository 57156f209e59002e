/* The CPU as a device. Opened by backend.c; everything else goes through backend.h. */
#pragma once

#include "backend/backend.h"

MUST_CHECK ats_status cpu_backend_open(const struct backend_options *options, struct backend **out);
