/* One process, and a child for a moment: the codes of refusal that alone.c does not see. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { TAKEN = 41, KEY = 7, KIND = PTL_NI_MATCHING | PTL_NI_PHYSICAL };

static ptl_handle_ni_t ni;
enum { TABLES = 64 };

static char target[64];

static ptl_me_t entry(ptl_handle_ct_t ct)
{
    ptl_me_t me;
    memset(&me, 0, sizeof me);
    me.start = target;
    me.length = sizeof target;
    me.ct_handle = ct;
    me.uid = PTL_UID_ANY;
    me.match_id.phys.nid = PTL_NID_ANY;
    me.match_id.phys.pid = PTL_PID_ANY;
    me.match_bits = KEY;
    me.options = PTL_ME_OP_PUT | PTL_ME_EVENT_LINK_DISABLE | PTL_ME_EVENT_CT_COMM;
    return me;
}

/* Has the id until nobody can write to the pipe any more. */
static void hold_the_id(int ready, int end)
{
    char byte;
    alarm(PATIENCE);
    OK(PtlInit());
    OK(PtlNIInit(PTL_IFACE_DEFAULT, KIND, TAKEN, 0, 0, &ni));
    CHECK(write(ready, "", 1) == 1);
    CHECK(read(end, &byte, 1) == 0);
    OK(PtlNIFini(ni));
    PtlFini();
    exit(0);
}

static void ids_of_others(void)
{
    int ready[2], end[2], status;
    char byte;
    CHECK(pipe(ready) == 0 && pipe(end) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(end[1]);
        hold_the_id(ready[1], end[0]);
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    OK(PtlInit());
    SAYS(PTL_PID_IN_USE, PtlNIInit(PTL_IFACE_DEFAULT, KIND, TAKEN, 0, 0, &ni));
    close(end[1]);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(PtlNIInit(PTL_IFACE_DEFAULT, KIND, TAKEN, 0, 0, &ni));
    /* The interfaces of a rail share theirs. */
    ptl_handle_ni_t other;
    unsigned int unmatched = PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL;
    SAYS(PTL_PID_IN_USE, PtlNIInit(PTL_IFACE_DEFAULT, unmatched, TAKEN + 1, 0, 0, &other));
    OK(PtlNIFini(ni));
    close(ready[0]);
    close(end[0]);
}

static void ids_that_there_are_not(void)
{
#ifdef HAS_BULL_EXTENSION
    SAYS(PTL_ARG_INVALID, PtlNIInit(PTL_IFACE_DEFAULT, KIND, PTL_PID_MAX + 1, 0, 0, &ni));
#endif
}

/* A machine that has no descriptors left, and has some again. */
static void a_machine_that_cannot(void)
{
    struct rlimit usual, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    none = usual;
    none.rlim_cur = 0;
    for (int pid = 0; pid <= TAKEN; pid += TAKEN) {
        uint32_t wanted = pid == 0 ? PTL_PID_ANY : (uint32_t) pid;
        CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
        SAYS(PTL_FAIL, PtlNIInit(PTL_IFACE_DEFAULT, KIND, wanted, 0, 0, &ni));
        CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
        OK(PtlNIInit(PTL_IFACE_DEFAULT, KIND, wanted, 0, 0, &ni));
        OK(PtlNIFini(ni));
    }
}

/* Two of everything but descriptors and triggered operations, of which there is one, three entries, and tables: of these there
   are always 64. */
static void open_small(void)
{
    ptl_ni_limits_t wanted, got;
    memset(&wanted, 0, sizeof wanted);
    wanted.max_eqs = wanted.max_cts = wanted.max_list_size = 2;
    wanted.max_mds = wanted.max_triggered_ops = wanted.max_pt_index = 1;
    wanted.max_entries = 3;
    wanted.max_msg_size = sizeof target;
    wanted.max_atomic_size = wanted.max_fetch_atomic_size = 8;
    OK(PtlNIInit(PTL_IFACE_DEFAULT, KIND, PTL_PID_ANY, &wanted, &got, &ni));
    CHECK(got.max_eqs == 2 && got.max_mds == 1 && got.max_entries == 3 && got.max_list_size == 2);
    CHECK(got.max_triggered_ops == 1 && got.max_pt_index == TABLES - 1);
    /* Nothing was said of these. */
    CHECK(got.max_unexpected_headers > 0 && got.max_iovecs > 0 && got.max_volatile_size >= 64);
    CHECK(got.max_waw_ordered_size >= 64 && got.max_war_ordered_size >= 8 && got.max_fetch_atomic_size >= 32);
}

/* One operation waits for the counter, and that is the most. */
static void no_space_to_wait(ptl_handle_md_t md, ptl_handle_ct_t of, ptl_handle_ct_t ct)
{
    int64_t operand = 0;
    ptl_process_t self;
    ptl_ct_event_t one = {1, 0};
    OK(PtlGetPhysId(ni, &self));
    SAYS(PTL_NO_SPACE, PtlTriggeredPut(md, 0, 8, PTL_NO_ACK_REQ, self, 0, KEY, 0, 0, 0, ct, 1));
    SAYS(PTL_NO_SPACE, PtlTriggeredGet(md, 0, 8, self, 0, KEY, 0, 0, ct, 1));
    SAYS(PTL_NO_SPACE,
         PtlTriggeredAtomic(md, 0, 8, PTL_NO_ACK_REQ, self, 0, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T, ct, 1));
    SAYS(PTL_NO_SPACE,
         PtlTriggeredFetchAtomic(md, 0, md, 8, 8, self, 0, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T, ct, 1));
    SAYS(PTL_NO_SPACE,
         PtlTriggeredSwap(md, 0, md, 8, 8, self, 0, KEY, 0, 0, 0, &operand, PTL_CSWAP, PTL_INT64_T, ct, 1));
    SAYS(PTL_NO_SPACE, PtlTriggeredCTInc(of, one, ct, 1));
    SAYS(PTL_NO_SPACE, PtlTriggeredCTSet(of, one, ct, 1));
}

/* By a descriptor of more than a message may have, which is as much as the target has. */
static void messages_that_are_too_long(void)
{
    static char origin[2 * sizeof target];
    ptl_handle_md_t md;
    ptl_handle_ct_t ct;
    ptl_process_t self;
    ptl_size_t most = sizeof target;
    ptl_md_t all = {origin, sizeof origin, 0, PTL_EQ_NONE, PTL_CT_NONE};
    OK(PtlGetPhysId(ni, &self));
    OK(PtlCTAlloc(ni, &ct));
    OK(PtlMDBind(ni, &all, &md));
    SAYS(PTL_ARG_INVALID, PtlPut(md, 0, most + 1, PTL_NO_ACK_REQ, self, 0, KEY, 0, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlGet(md, 0, most + 1, self, 0, KEY, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlTriggeredPut(md, 0, most + 1, PTL_NO_ACK_REQ, self, 0, KEY, 0, 0, 0, ct, 1));
    SAYS(PTL_ARG_INVALID, PtlTriggeredGet(md, 0, most + 1, self, 0, KEY, 0, 0, ct, 1));
    SAYS(PTL_ARG_INVALID, PtlAtomic(md, 0, 16, PTL_NO_ACK_REQ, self, 0, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlFetchAtomic(md, 0, md, 56, 72, self, 0, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    OK(PtlMDRelease(md));
    OK(PtlCTFree(ct));
}

static void no_space(void)
{
    ptl_handle_eq_t eqs[2], eq;
    ptl_handle_ct_t cts[2], ct;
    ptl_handle_md_t md, other;
    ptl_ct_event_t one = {1, 0};
    ptl_md_t all = {target, sizeof target, 0, PTL_EQ_NONE, PTL_CT_NONE};
    SAYS(PTL_NO_SPACE, PtlEQAlloc(ni, (ptl_size_t) 1 << 40, &eq));
    for (int at = 0; at < 2; at++) {
        OK(PtlEQAlloc(ni, 1, &eqs[at]));
        OK(PtlCTAlloc(ni, &cts[at]));
    }
    SAYS(PTL_NO_SPACE, PtlEQAlloc(ni, 1, &eq));
    SAYS(PTL_NO_SPACE, PtlCTAlloc(ni, &ct));
    OK(PtlMDBind(ni, &all, &md));
    SAYS(PTL_NO_SPACE, PtlMDBind(ni, &all, &other));
    OK(PtlTriggeredCTInc(cts[1], one, cts[0], 1));
    no_space_to_wait(md, cts[1], cts[0]);
    OK(PtlCTInc(cts[0], one));
    OK(PtlTriggeredCTInc(cts[1], one, cts[0], 2));
    for (int at = 0; at < 2; at++) {
        OK(PtlEQFree(eqs[at]));
        OK(PtlCTFree(cts[at]));
    }
    OK(PtlMDRelease(md));
    ptl_handle_ni_t logical;
    ptl_process_t map;
    ptl_size_t size;
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_LOGICAL, PTL_PID_ANY, 0, 0, &logical));
    SAYS(GETMAP_WITHOUT, PtlGetMap(logical, 1, &map, &size));
    SAYS(GETID_WITHOUT, PtlGetId(logical, &map));
    OK(PtlGetPhysId(logical, &map));
    OK(PtlSetMap(logical, 1, &map));
    OK(PtlGetMap(logical, 1, &map, &size));
    OK(PtlGetId(logical, &map));
    CHECK(size == 1 && map.rank == 0);
    OK(PtlNIFini(logical));
}

static void tables_and_lists_that_are_full(void)
{
    uint32_t pts[TABLES], pt;
    ptl_handle_me_t mes[3], me;
    ptl_me_t one = entry(PTL_CT_NONE);
    one.options &= ~(unsigned int) PTL_ME_EVENT_CT_COMM;
    for (int at = 0; at < TABLES; at++)
        OK(PtlPTAlloc(ni, 0, PTL_EQ_NONE, PTL_PT_ANY, &pts[at]));
    SAYS(PTL_PT_FULL, PtlPTAlloc(ni, 0, PTL_EQ_NONE, PTL_PT_ANY, &pt));
    for (int at = 0; at < 2; at++)
        OK(PtlMEAppend(ni, pts[0], &one, PTL_PRIORITY_LIST, 0, &mes[at]));
    SAYS(PTL_LIST_TOO_LONG, PtlMEAppend(ni, pts[0], &one, PTL_PRIORITY_LIST, 0, &me));
    OK(PtlMEAppend(ni, pts[0], &one, PTL_OVERFLOW_LIST, 0, &mes[2]));
    SAYS(PTL_NO_SPACE, PtlMEAppend(ni, pts[0], &one, PTL_OVERFLOW_LIST, 0, &me));
    for (int at = 0; at < 3; at++)
        OK(PtlMEUnlink(mes[at]));
    for (int at = 0; at < TABLES; at++)
        OK(PtlPTFree(ni, pts[at]));
}

/* The event that is there is given, and that others were not kept is said with it, once. */
static void events_that_were_lost(void)
{
    ptl_handle_eq_t eq;
    ptl_handle_ct_t ct;
    ptl_handle_md_t md;
    ptl_handle_me_t me;
    ptl_process_t self;
    ptl_ct_event_t count;
    ptl_event_t event;
    uint32_t pt;
    OK(PtlGetPhysId(ni, &self));
    OK(PtlEQAlloc(ni, 1, &eq));
    OK(PtlCTAlloc(ni, &ct));
    OK(PtlPTAlloc(ni, 0, eq, PTL_PT_ANY, &pt));
    ptl_me_t one = entry(ct);
    ptl_md_t all = {target, sizeof target, 0, PTL_EQ_NONE, PTL_CT_NONE};
    OK(PtlMDBind(ni, &all, &md));
    OK(PtlMEAppend(ni, pt, &one, PTL_PRIORITY_LIST, 0, &me));
    for (ptl_size_t sent = 1; sent <= 3; sent++)
        OK(PtlPut(md, 0, 1, PTL_NO_ACK_REQ, self, pt, KEY, 0, 0, sent));
    OK(PtlCTWait(ct, 3, &count));
    SAYS(PTL_EQ_DROPPED, PtlEQGet(eq, &event));
    CHECK((int) event.type == PTL_EVENT_PUT && event.hdr_data == 1);
    SAYS(PTL_EQ_EMPTY, PtlEQGet(eq, &event));
    OK(PtlPut(md, 0, 1, PTL_NO_ACK_REQ, self, pt, KEY, 0, 0, 4));
    CHECK(next_event(eq, PTL_EVENT_PUT, PTL_NI_OK).hdr_data == 4);
    OK(PtlMEUnlink(me));
    OK(PtlMDRelease(md));
    OK(PtlPTFree(ni, pt));
    OK(PtlCTFree(ct));
    OK(PtlEQFree(eq));
}

static void *wait_for_event(void *eq)
{
    ptl_event_t event;
    return (void *) (intptr_t) PtlEQWait(*(ptl_handle_eq_t *) eq, &event);
}

static void *poll_for_event(void *eq)
{
    ptl_event_t event;
    unsigned int which;
    return (void *) (intptr_t) PtlEQPoll(eq, 1, PTL_TIME_FOREVER, &event, &which);
}

static void *wait_for_count(void *ct)
{
    ptl_ct_event_t count;
    return (void *) (intptr_t) PtlCTWait(*(ptl_handle_ct_t *) ct, 1, &count);
}

static void *poll_for_count(void *ct)
{
    ptl_ct_event_t count;
    ptl_size_t test = 1;
    unsigned int which;
    return (void *) (intptr_t) PtlCTPoll(ct, &test, 1, PTL_TIME_FOREVER, &count, &which);
}

/* A waiter that comes too late finds nothing to wait for: then the next one is given more time. */
static void gone_while_waited_for(void *(*wait)(void *), int counts, int closes)
{
    int said = PTL_ARG_INVALID;
    for (int turns = 0; said == PTL_ARG_INVALID; turns += 10) {
        ptl_handle_any_t awaited;
        pthread_t waiter;
        void *answer;
        if (closes)
            OK(PtlNIInit(PTL_IFACE_DEFAULT, KIND, PTL_PID_ANY, 0, 0, &ni));
        OK(counts ? PtlCTAlloc(ni, &awaited) : PtlEQAlloc(ni, 1, &awaited));
        CHECK(pthread_create(&waiter, 0, wait, &awaited) == 0);
        for (int turn = 0; turn < turns; turn++)
            sched_yield();
        if (closes)
            OK(PtlNIFini(ni));
        else
            OK(counts ? PtlCTFree(awaited) : PtlEQFree(awaited));
        CHECK(pthread_join(waiter, &answer) == 0);
        said = (int) (intptr_t) answer;
    }
    CHECK(said == PTL_INTERRUPTED);
}

static void waits_that_end_early(int closes)
{
    gone_while_waited_for(wait_for_event, 0, closes);
    gone_while_waited_for(poll_for_event, 0, closes);
    gone_while_waited_for(wait_for_count, 1, closes);
    gone_while_waited_for(poll_for_count, 1, closes);
}

int main(void)
{
    alarm(PATIENCE);
    ids_of_others();
    ids_that_there_are_not();
    a_machine_that_cannot();
    open_small();
    no_space();
    messages_that_are_too_long();
    tables_and_lists_that_are_full();
    events_that_were_lost();
    waits_that_end_early(0);
    OK(PtlNIFini(ni));
    waits_that_end_early(1);
    PtlFini();
    puts("ok");
    return 0;
}
