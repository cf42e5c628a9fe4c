/* What the test programs share. */
#ifndef CHECK_H
#define CHECK_H
#include <portals4.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A program whose peer has failed waits for ever: it ends after this many seconds. */
enum { PATIENCE = 60 };

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)
#define SAYS(code, call)                                                                    \
    do {                                                                                    \
        int said = (call);                                                                  \
        if (said != (code)) {                                                               \
            fprintf(stderr, "%s:%d: %s says %#x\n", __FILE__, __LINE__, #call, said);       \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)
#define OK(call) SAYS(PTL_OK, call)

/* The next event, which comes within ten seconds and is of this kind. */
static inline ptl_event_t next_event(ptl_handle_eq_t eq, int kind, int fail)
{
    ptl_event_t event;
    unsigned int which = 9;
    OK(PtlEQPoll(&eq, 1, 10000, &event, &which));
    CHECK(which == 0);
    CHECK((int) event.type == kind);
    CHECK((int) event.ni_fail_type == fail);
    return event;
}
#endif
