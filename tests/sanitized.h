/* Sanitizers make a round many times slower: tests that only repeat themselves do it less often. */
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif
#ifndef TEST_SANITIZED
#define TEST_SANITIZED 0
#endif

/* Under the thread sanitizer what differs in numbers alone is met less often still. */
#if defined(__SANITIZE_THREAD__)
#define TEST_THREADS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_THREADS_SANITIZED 1
#endif
#endif
#ifndef TEST_THREADS_SANITIZED
#define TEST_THREADS_SANITIZED 0
#endif
